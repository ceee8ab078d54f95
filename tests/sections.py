"""Sections of pages that a program measures and writes: `<!-- NAME: begin -->` to `<!-- NAME: end -->`."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def write_section(name: str, text: str, page: str = "benchmarks.md") -> None:
    """Replace the section `name` of a page by a text whose heading is of the first level."""
    path = DOCS / page
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
    before, _, rest = path.read_text(encoding="utf-8").partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"docs/{page} has no section {name!r}; add its marks")
    demoted = re.sub(r"^#", "##", text.strip(), flags=re.MULTILINE)
    path.write_text(f"{before}{begin}{demoted}\n{end}{after}", encoding="utf-8")
