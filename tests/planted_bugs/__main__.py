"""`python -m tests.planted_bugs`: plants every bug, asks every layer, and writes docs/evidence.md#planted-bugs.

With `--quick` the statistical attack is left out and no page is written. With `--missing` only the bugs that have no
row on the page are planted, and the other rows stay as they are. The exit code is 1 if a bug escapes or a clean engine
is flagged.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.planted_bugs.bug import Bug, Caught
from tests.planted_bugs.catalogue import BUGS
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.layers import findings, findings_of
from tests.planted_bugs.workshop import Engine, Workshop
from tests.sections import DOCS, write_section

_TEMPLATE = Path(__file__).with_name("page.md")
_PAGE = DOCS / "evidence.md"

Measured = dict[Caught, tuple[bool, float]]
"""Whether the layer has something against the run, and its seconds of processor time."""


def main(words: list[str]) -> int:
    quick, kept = "--quick" in words, _rows_of_page() if "--missing" in words else {}
    with TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        rows, escaped = [], []
        for bug in BUGS:
            if bug.name in kept:
                rows.append(kept[bug.name])
                continue
            measured = _measured(bug, workshop, quick)
            rows.append(_row(bug, measured))
            escaped += [f"{bug.name}: {layer.value}" for layer in bug.by if not measured.get(layer, (True, 0))[0]]
        clean, alarms = ([kept[one.value] for one in Engine], []) if kept else _clean(workshop)
    if not quick:
        text = _TEMPLATE.read_text("utf-8")
        text = text.replace("{bugs}", "\n".join(rows)).replace("{clean}", "\n".join(clean))
        write_section("planted-bugs", text, "evidence.md")
    for line in (*(f"escaped: {one}" for one in escaped), *(f"false alarm: {one}" for one in alarms)):
        print(line, file=sys.stderr)
    return int(bool(escaped or alarms))


def _rows_of_page() -> dict[str, str]:
    """The page's rows by their first cell."""
    rows = (line for line in _PAGE.read_text("utf-8").splitlines() if line.startswith("| "))
    return {line.split(" | ")[0].removeprefix("| "): line for line in rows}


def _measured(bug: Bug, workshop: Workshop, quick: bool) -> Measured:
    workshop.clean(bug.engine)
    found: Measured = {}
    for layer in Caught:
        if layer is Caught.SEARCH and bug.claim is None:
            continue
        if layer is Caught.ATTACK and (quick or not bug.attacked):
            continue
        start = time.process_time()
        said = findings_of(bug, layer, workshop)
        found[layer] = (bool(said), time.process_time() - start)
        print(f"{bug.name} | {layer.value} | {said[0] if said else '-'}", flush=True)
    return found


def _row(bug: Bug, measured: Measured) -> str:
    cells = []
    for layer in Caught:
        if layer not in measured:
            cells.append("")
        else:
            caught, seconds = measured[layer]
            cells.append(f"**{seconds:.1f} s**" if caught else f"{seconds:.1f} s")
    return f"| {bug.name} | {bug.engine.value} | {' | '.join(cells)} |"


def _clean(workshop: Workshop) -> tuple[list[str], list[str]]:
    rows, alarms = [], []
    layers = (Caught.CONFORMANCE, Caught.PROBE, Caught.NOISE)
    for engine in Engine:
        cells = []
        for layer in layers:
            start = time.process_time()
            with fixed_randomness(3):
                said = findings(layer, workshop, engine, workshop.clean(engine), None)
            alarms += said
            cells.append(f"{time.process_time() - start:.1f} s{', FLAGGED' if said else ''}")
        rows.append(f"| {engine.value} | {' | '.join(cells)} |")
    return rows, alarms


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
