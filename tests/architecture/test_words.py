"""Words that we no longer write become rarer in strings, docstrings, comments and pages, never more frequent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import words
from tests.architecture.rooms import word_limits

MOST_EXCEPTIONS = 20


@pytest.mark.parametrize("kind", ["code", "docs"])
def test_words_of_the_list_become_rarer(kind: str) -> None:
    found, limit = words.hits()[kind], word_limits()[kind]
    assert len(found) <= limit, f"{len(found)} hits, rooms.toml allows {limit}:\n" + "\n".join(map(str, found))


def test_exceptions_are_few_and_still_needed() -> None:
    assert len(words.EXCEPTIONS) <= MOST_EXCEPTIONS
    used = {key for found in words.all_hits().values() for hit in found for key in hit.exceptions}
    assert used == set(words.EXCEPTIONS)
    assert all(words.EXCEPTIONS.values())


def test_the_counter_counts(tmp_path: Path) -> None:
    """Strings, f-strings, docstrings and comments are counted by line and by word; names and code are not."""
    file = tmp_path / "example.py"
    file.write_text('"""Go on\n\nbeside it."""\nbeside = f"{1} anew, beside {2}"  # nobody\nnobody = "fine"\n')
    found = [(number, word) for number, text in words.code_lines(file) for word in words.found_in(text)]
    assert found == [(1, "Go on"), (3, "beside"), (4, "beside"), (4, "anew"), (4, "nobody")]
