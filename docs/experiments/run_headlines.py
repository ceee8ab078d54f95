"""The README's figures come from the experiments' rows: `make experiments NAME=headlines` writes them, in seconds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
README = HERE.parents[1] / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_ADULT, _AIM = "adult-steps", 0.067


def headlines() -> str:
    """Three lines: what each unit's best method reaches at a certified epsilon, beside what privacy takes away."""
    from fair_plugin_report import AIM, _best, _pick, _short
    from images_report import LINEAR, PAPER, ImageRow
    from run_fair_plugin import read_rows
    from seed_intervals import load_rows

    assert AIM[_ADULT] == _AIM
    rows = read_rows(HERE / "data" / "fair-plugin.csv.gz")
    record = _short(_pick(rows, _ADULT, "record", "fair-plugin", 1.0, _AIM))
    free = _short(_pick(rows, _ADULT, "record", "no privacy", None, _AIM))
    plain = _short(_pick(rows, _ADULT, "record", "no privacy", None, 1.0))
    most = _short(_pick(rows, _ADULT, "nobody", "always the majority", None, 0.0))
    images = [
        row.accuracy
        for row in load_rows(ImageRow, HERE / "data" / "images.json.gz")
        if (row.dataset, row.method, row.epsilon) == ("fashion-mnist", LINEAR, 3.52)
    ]
    attribute = _best(rows, _ADULT, "attribute", 1.0)
    first = f"one record `fair-plugin` {record} (without privacy {free}; unfair\n{plain}; always the majority {most})"
    second = f"Fashion-MNIST, ten clients, one record at 3.52: {100 * np.mean(images):.1f}%"
    beside = f"(FedFDP prints {PAPER['fashion-mnist']:.1f}% at a budget that does not cover its losses)"
    return (
        f"Adult, three silos, certified epsilon 1, error at parity gap: {first}, one attribute {attribute}. {second}\n"
        f"{beside}. More in [experiments](docs/experiments/README.md)."
    )


def with_headlines(text: str) -> str:
    """The README with its measured figures brought up to date."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{headlines()}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", type=Path, default=README)
    chosen = parser.parse_args()
    chosen.readme.write_text(with_headlines(chosen.readme.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
