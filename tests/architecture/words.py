"""The words that we no longer write, what to write instead, and where they still are.

    python -m tests.architecture.words           # every hit, with the suggestion
    python -m tests.architecture.words PATTERN   # only files whose path contains PATTERN

One hit is one word of the list in one line of a string, docstring or comment of the three packages, or in one line of
the pages (experiments excepted).
"""

from __future__ import annotations

import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.architecture.tree import ROOT, modules

REPLACEMENTS = {
    r"\bbeside\b": "next to, in addition to",
    r"\bnobody(?:'s)?\b": "no one, or the role",
    r"\bsomebody(?:'s)?\b": "someone, or the role",
    r"\bwhoever\b": "anyone who, or the role",
    r"\balike\b": "the same, equally",
    r"\b(?:go|goes|going|gone|went) on\b": "continue, resume",
    r"\bso (?:many|few)\b": "the number, N, too few",
    r"\bof (?:its|their|one's|his|our|your|the \w+'s|\w+'s) own\b": "its own, separate, custom",
    r"\bat hand\b": "available",
    r"\bfor sure\b": "guaranteed",
    r"\bdoubt(?:s|ed|ing)?\b": "audit, test, challenge",
    r"\bbetray\w*\b": "reveal",
    r"\btells? (?:more|apart|nothing|something|how|who|which|what|of|about)\b": "reveal, distinguish, report",
    r"\ba hair\b": "slightly",
    r"\banew\b": "again",
    r"\bby name\b": "explicitly, or nothing",
    r"\bpapers\b(?! (?:of|print))": "documents, unless papers are meant",
    r"\bone sentence\b": "nothing: say the sentence",
    r"\b(?:stands?|lies?) (?:in|at|with|beside|before|between)\b": "is in, is stored in",
    r"\bon the spot\b": "temporary",
    r"\bunless given\b": "[default: X]",
    r"\bperhaps\b": "might",
    r"\bhardly\b": "barely",
    r"\blikewise\b": "the same applies",
    r"\bper cent\b": "%",
    r"\bthrown away\b": "discarded",
    r"\bvouch\w*\b": "attest",
    r"\bmay be had\b": "is available",
    r"\b(?:is|are) said\b": "is reported in FIELD",
    r"\ba coin: 50%": "random guessing: 50%",
    r"\b50% is a coin\b": "random guessing: 50%",
    r"\bright about it\b": "guesses it correctly",
    r"\bfirmest\b": "most confident",
    r"\bteeth\b": "detects real faults",
    r"\bname one another\b": "match each other",
    r"\bon trial\b": "being tested",
    r"\bread off\b": "inferred from, taken from",
    r"\bput(?:s|ting)? \w* ?\w* ?back\b": "restore",
    r"\bhand(?:s|ed)? (?:it )?on\b": "pass on",
    r"\btoss(?:es|ed)?\b": "flip",
    r"\bin (?:plain|other|our|an officer's) words\b": "nothing: say it",
    r"\bhow often an observer can be right\b": "the attacker's best accuracy",
    r"\bgive[sn]? (?:it|them)? ?away\b": "reveal",
    r"\bmade of\b": "built from",
    r"\bas ever\b": "as usual",
    r"\bfound out\b": "detected",
    r"\bin turn\b": "one after another",
    r"\bas far as\b": "if, where",
    r"\bcounts? as\b": "is treated as",
}
"""A pattern, and what to write instead."""
ANY = re.compile("|".join(REPLACEMENTS), re.IGNORECASE)
PATTERNS = {re.compile(pattern, re.IGNORECASE): replacement for pattern, replacement in REPLACEMENTS.items()}

_SIGNED = "signed budgets hold these words, and a draft must give them again"
EXCEPTIONS: dict[tuple[str, str], str] = dict.fromkeys(
    (
        ("calibrate/plans/clipped_sums.py", "and nobody learns the batch."),
        ("calibrate/plans/clipped_sums.py", "Nobody but the trusted aggregator"),
        ("calibrate/plans/fair_plugin.py", "whatever they alone tell about the attribute."),
        ("calibrate/plans/fair_plugin.py", "What the model says about everybody alike"),
        ("calibrate/plans/gaussian.py", "and nobody learns the batch."),
        ("calibrate/plans/gaussian.py", " Nobody learns the batch."),
        ("calibrate/plans/mmd_fedavg.py", "Nobody learns which records"),
        ("calibrate/plans/steffle.py", "The batches count as known to the observer"),
    ),
    _SIGNED,
)
"""Path and text of a line that keeps its word, with the reason."""


@dataclass(frozen=True)
class Hit:
    path: str
    line: int
    text: str
    word: str
    replacement: str

    @property
    def exceptions(self) -> list[tuple[str, str]]:
        """Those that this line falls under."""
        return [(path, text) for path, text in EXCEPTIONS if path == self.path and text in self.text]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r} ({self.replacement}): {self.text}"


def code_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of every line of a string, docstring or comment."""
    with path.open(encoding="utf-8") as source:
        for token in tokenize.generate_tokens(source.readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                yield from enumerate(token.string.splitlines(), token.start[0])


def page_lines(path: Path) -> Iterator[tuple[int, str]]:
    return enumerate(path.read_text(encoding="utf-8").splitlines(), 1)


def found_in(text: str) -> dict[str, str]:
    """The words of the list that a line contains, with what to write instead; each entry of the list once."""
    if not ANY.search(text):
        return {}
    return {found[0]: instead for pattern, instead in PATTERNS.items() if (found := pattern.search(text))}


def _hits(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[Hit]:
    for number, text in lines:
        for word, replacement in found_in(text).items():
            yield Hit(path.relative_to(ROOT).as_posix(), number, text.strip(), word, replacement)


@cache
def all_hits() -> dict[str, list[Hit]]:
    """Every hit in code and in pages, exceptions included."""
    folder = sorted((ROOT / "docs").rglob("*.md"))
    pages = [path for path in folder if "experiments" not in path.parts]
    pages += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    return {
        "code": [hit for module in modules() for hit in _hits(module.path, code_lines(module.path))],
        "docs": [hit for path in pages for hit in _hits(path, page_lines(path))],
    }


def hits() -> dict[str, list[Hit]]:
    """Every hit in code and in pages that has no exception."""
    return {kind: [hit for hit in found if not hit.exceptions] for kind, found in all_hits().items()}


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    shown = [each for found in hits().values() for each in found if wanted in each.path]
    for each in shown:
        print(each)
    print(len(shown))
