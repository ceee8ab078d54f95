"""SteFFLe's own axes: error against parity and odds gaps, beside its competitors: `make experiments NAME=steffle-axes`.

About thirty seconds of one core per split. Rows are added to data/steffle-axes.json.gz split by split, and a split
that is there is not run again. Writes steffle-axes.md and its figure.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded

HERE = Path(__file__).parent
SETTINGS, SPLITS = ("adult", "credit-card"), 12


def main() -> None:
    from seed_intervals import load_rows, save_rows
    from steffle_axes import AxesJob, AxesRow, run_axes
    from steffle_axes_report import write_page
    from steffle_settings import EPSILONS, HETEROGENEITY

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--minutes", type=float, help="begin no further split after so many minutes of processor time")
    parser.add_argument("--epsilon", type=float, action="append", help="only this; may be repeated. Default: 1, 3, 9")
    parser.add_argument("--again", action="store_true", help="only write the page, from the rows that are there")
    chosen = parser.parse_args()
    place = chosen.out / "data" / "steffle-axes.json.gz"
    rows = load_rows(AxesRow, place)
    wanted = tuple(chosen.epsilon or EPSILONS)
    jobs = [(name, h, k) for h in HETEROGENEITY for k in range(chosen.splits) for name in SETTINGS]
    for job in jobs if not chosen.again else ():
        late = chosen.minutes is not None and time.process_time() > 60 * chosen.minutes
        own = {row.epsilon for row in rows if (row.setting, row.h, row.split) == job}
        missing = tuple(epsilon for epsilon in wanted if epsilon not in own)
        if not missing or late:
            continue
        found = run_axes(AxesJob(*job, missing))
        rows += [row for row in found if row.epsilon is not None or None not in own]
        save_rows(rows, place)
        print(f"{job}, {time.process_time():.0f} s", file=sys.stderr, flush=True)
    write_page(rows, chosen.out)


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
