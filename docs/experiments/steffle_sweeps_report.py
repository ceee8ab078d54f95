"""Other cuts into silos: error and parity gap against h and against the number of silos, as in the paper's Figure 2."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from seed_intervals import Interval
from steffle_axes import LOOKS, SWEPT_H, SWEPT_SILOS, TITLES
from steffle_settings import EPSILONS, SILOS
from steffle_split import CALIBRATED, ERM, PAY_ONCE, PRINTED, Row

WEIGHTS = {
    "credit-card": {ERM: 0.0, PRINTED: 1.0, CALIBRATED: 32.0, PAY_ONCE: 100.0},
    "adult": {ERM: 0.0, PRINTED: 1.0, CALIBRATED: 3.0, PAY_ONCE: 2.0},
}
"""The weights of which the sweeps are shown: in the middle of each method's own."""


def _swept_rows(rows: list[Row], swept: list[Row], setting: str, method: str) -> dict[tuple[float, int], list[Row]]:
    """By (h, silos), on the splits that all cuts have been measured on; epsilon 1."""
    found: dict[tuple[float, int], dict[int, Row]] = {}
    for row in (*rows, *swept):
        known = (row.setting, row.method, row.knob) == (setting, method, WEIGHTS[setting][method])
        if known and row.epsilon in (None, EPSILONS[0]) and row.odds is not None:
            found.setdefault((row.h, row.silos), {})[row.split] = row
    cuts = [(h, SILOS) for h in SWEPT_H] + [(0.0, silos) for silos in SWEPT_SILOS]
    splits = set.intersection(*(set(found.get(cut, {})) for cut in cuts))
    return {cut: [found[cut][split] for split in sorted(splits)] for cut in cuts if len(splits) > 1}


def sweeps(rows: list[Row], swept: list[Row]) -> Iterable[str]:
    for setting, title in TITLES.items():
        by_method = {method: _swept_rows(rows, swept, setting, method) for method in WEIGHTS[setting]}
        if not all(by_method.values()):
            continue
        splits = len(next(iter(by_method[ERM].values())))
        weights = ", ".join(f"{method} {knob:g}" for method, knob in WEIGHTS[setting].items() if method != ERM)
        lines = [
            f"{title}, epsilon 1, {splits} splits; weights: {weights}. Each cell: error, parity gap.",
            "",
            "| h | silos | " + " | ".join(by_method) + " | true epsilon as printed |",
            "|---|---|" + "---|" * (len(by_method) + 1),
        ]
        for cut in by_method[ERM]:
            true = by_method[PRINTED][cut][0].true_epsilon
            cells = [_error_and_gap(found[cut]) for found in by_method.values()]
            lines.append(f"| {cut[0]:g} | {cut[1]} | {' | '.join(cells)} | {true:.2f} |")
        for name, last in (("h = .9 minus h = 0", (SWEPT_H[-1], SILOS)), ("50 silos minus 1", (0.0, SWEPT_SILOS[-1]))):
            first = (0.0, SILOS if last[1] == SILOS else 1)
            cells = [_difference(found[last], found[first]) for found in by_method.values()]
            lines.append(f"| {name} | | {' | '.join(cells)} | |")
        yield "\n".join(lines)


def _error_and_gap(rows: list[Row]) -> str:
    return ", ".join(Interval.of(getattr(row, name) for row in rows).text(3) for name in ("error", "gap"))


def _difference(last: list[Row], first: list[Row]) -> str:
    pairs = list(zip(last, first, strict=True))
    texts = [Interval.of(getattr(a, name) - getattr(b, name) for a, b in pairs) for name in ("error", "gap")]
    return ", ".join(one.text(3, signed=True) for one in texts)


def draw_sweeps(rows: list[Row], swept: list[Row], place: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 9), layout="constrained")
    panels = figure.subplots(2, 4)
    for line, name in zip(panels, ("error", "gap"), strict=True):
        for number, setting in enumerate(TITLES):
            for method in WEIGHTS[setting]:
                found = _swept_rows(rows, swept, setting, method)
                for panel, over in ((line[2 * number], 0), (line[2 * number + 1], 1)):
                    cuts = sorted(cut for cut in found if cut[1 - over] == (SILOS, 0.0)[over])
                    values = [Interval.of(getattr(row, name) for row in found[cut]) for cut in cuts]
                    color, marker, _ = LOOKS[method]
                    panel.errorbar(
                        [cut[over] for cut in cuts],
                        [one.mean for one in values],
                        yerr=[one.half for one in values],
                        color=color,
                        marker=marker,
                        lw=1,
                        elinewidth=0.5,
                        label=method,
                    )
                    label = "parity gap" if name == "gap" else name
                    panel.set(xlabel=("h, three silos", "silos, h = 0")[over], ylabel=label, title=TITLES[setting])
                    panel.grid(alpha=0.3)
                    if over:
                        panel.set_xscale("log")
    panels[0][0].legend(fontsize=7)
    figure.suptitle("epsilon 1, one weight per method; bars are 95% intervals over splits")
    figure.savefig(place, metadata={"Date": None})
