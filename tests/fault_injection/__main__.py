"""Make the table of docs/reliability.md: `python -m tests.fault_injection` (about an hour of processor time).

Each line is one way to draw batches on one store: how many durable operations a run has, how many faults were tried,
and how many trials broke a promise or did not end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import torch

from audit.runs.evidence import in_memory
from tests.fault_injection.campaign import SQLITE, Store, attempts
from tests.fault_injection.schemes import SCHEMES, Scheme
from tests.postgres_server import NotInstalled, new_schema, postgres_server

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_BEGIN, _END = "<!-- table: python -m tests.fault_injection -->\n", "<!-- end of table -->\n"
_HEAD = (
    "| batches | store | durable operations | points tried | faults tried | unpaid, drawn twice, not resumed or "
    "other model |\n|---|---|---:|---:|---:|---:|\n"
)


@contextmanager
def postgresql() -> Iterator[Store]:
    """Each trial gets a schema of its own on a server that is gone afterwards."""
    numbers = count(1)
    with postgres_server() as url:
        yield Store("PostgreSQL", lambda folder: new_schema(url, f"trial_{next(numbers)}"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="Try every so many-th operation.")
    parser.add_argument("--store", choices=["SQLite", "PostgreSQL"], help="Try this store alone.")
    parser.add_argument("--batches", choices=SCHEMES, action="append", help="Try these batches alone; may be repeated.")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failures, schemes = 0, arguments.batches or list(SCHEMES)
    folder = Path(tempfile.mkdtemp(prefix="privfair-faults-", dir=in_memory()))
    try:
        if arguments.store in (None, "SQLite"):
            failures += _table(SQLITE, folder, schemes, arguments.every)
        if arguments.store in (None, "PostgreSQL"):
            with postgresql() as store:
                failures += _table(store, folder, schemes, arguments.every)
    except NotInstalled as missing:
        print(missing, file=sys.stderr)
    finally:
        shutil.rmtree(folder)
    return int(failures > 0)


def _table(store: Store, folder: Path, schemes: list[str], every: int) -> int:
    """Try these batches on this store, and put each line into the page as soon as it is known."""
    failures = 0
    for number, name in enumerate(schemes):
        scheme = Scheme.at(folder / f"{store.name}-{number}", name)
        tried, failed, points, operations = 0, 0, set(), 0
        for done in attempts(scheme, store, folder / "trial", every):
            tried, operations = tried + 1, done.operations
            points.add(done.at)
            if done.wrong:
                failed += 1
                print(f"{name}, {store.name}, {done.what}: {'; '.join(done.wrong)}", file=sys.stderr)
        begin = f"| {name} | {store.name} |"
        line = f"{begin} {operations} | {len(points)} | {tried} | {failed} |\n"
        print(line, end="", flush=True)
        _put_into_page(begin, line)
        failures += failed
    return failures


def _put_into_page(begin: str, line: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(_BEGIN) + len(_BEGIN), text.index(_END)
    others = [old for old in text[start:end].splitlines(keepends=True)[3:-1] if not old.startswith(begin)]
    PAGE.write_text(f"{text[:start]}\n{_HEAD}{''.join([*others, line])}\n{text[end:]}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
