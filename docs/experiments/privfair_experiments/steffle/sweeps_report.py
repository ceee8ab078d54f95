"""Other cuts into silos: error and parity gap against h and against the number of silos, as in the paper's Figure 2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privfair_experiments.seed_intervals import Interval
from privfair_experiments.steffle.axes import LOOKS, SWEPT_H, SWEPT_SILOS, TITLES, UNEQUAL_SILOS
from privfair_experiments.steffle.settings import EPSILONS, HETEROGENEITY, SILOS
from privfair_experiments.steffle.split import CALIBRATED, ERM, PAY_ONCE, PRINTED, Row

WEIGHTS = {
    "credit-card": {ERM: 0.0, PRINTED: 1.0, CALIBRATED: 32.0, PAY_ONCE: 100.0},
    "adult": {ERM: 0.0, PRINTED: 1.0, CALIBRATED: 3.0, PAY_ONCE: 2.0},
}
"""The weights of which the sweeps are shown: in the middle of each method's own."""


@dataclass(frozen=True)
class Excess:
    """One split's error and parity gap, less those of central ERM on the same records (which has them as they are)."""

    error: float
    gap: float
    true_epsilon: float | None


_Cut = tuple[float, int]
"""h and the number of silos."""
_ENDS: tuple[tuple[str, _Cut, _Cut], ...] = (
    ("h = .9 less h = 0", (0.0, SILOS), (SWEPT_H[-1], SILOS)),
    ("50 silos less 1", (0.0, 1), (0.0, SWEPT_SILOS[-1])),
    ("50 silos less 3, h = .75", (HETEROGENEITY[-1], SILOS), (HETEROGENEITY[-1], UNEQUAL_SILOS[-1])),
)


def _by_cut(rows: Iterable[Row], setting: str) -> dict[str, dict[_Cut, list[Excess]]]:
    """By method, on the splits that all cuts have been measured on; epsilon 1. Empty if there are not two."""
    found: dict[tuple[str, _Cut], dict[int, Row]] = {}
    for row in rows:
        wanted = row.setting == setting and WEIGHTS[setting].get(row.method) == row.knob
        if wanted and row.epsilon in (None, EPSILONS[0]) and row.odds is not None:
            found.setdefault((row.method, (row.h, row.silos)), {})[row.split] = row
    cuts = [(h, SILOS) for h in SWEPT_H] + [(0.0, silos) for silos in SWEPT_SILOS]
    cuts += [(HETEROGENEITY[-1], silos) for silos in UNEQUAL_SILOS]
    splits = set.intersection(*(set(found.get((method, cut), {})) for method in WEIGHTS[setting] for cut in cuts))
    if len(splits) < 2:
        return {}

    def excess(method: str, cut: _Cut, split: int) -> Excess:
        own, erm = found[method, cut][split], found[ERM, cut][split]
        if method == ERM:
            return Excess(own.error, own.gap, None)
        return Excess(own.error - erm.error, own.gap - erm.gap, own.true_epsilon)

    return {
        method: {cut: [excess(method, cut, split) for split in sorted(splits)] for cut in cuts}
        for method in WEIGHTS[setting]
    }


def sweeps(rows: Iterable[Row]) -> Iterable[str]:
    """A table per data set: each cut, and how much the ends of either sweep are apart."""
    rows = list(rows)
    for setting, title in TITLES.items():
        by_method = _by_cut(rows, setting)
        if not by_method:
            continue
        splits = len(by_method[ERM][0.0, SILOS])
        weights = ", ".join(f"{method} {knob:g}" for method, knob in WEIGHTS[setting].items() if method != ERM)
        lines = [
            f"{title}, epsilon 1, {splits} splits; weights: {weights}. Each cell: error, parity gap.",
            "",
            "| h | silos | " + " | ".join(by_method) + " | true epsilon as printed |",
            "|---|---|" + "---|" * (len(by_method) + 1),
        ]
        for cut in by_method[ERM]:
            true = by_method[PRINTED][cut][0].true_epsilon
            cells = [_cell(found[cut], signed=method != ERM) for method, found in by_method.items()]
            lines.append(f"| {cut[0]:g} | {cut[1]} | {' | '.join(cells)} | {true:.2f} |")
        for name, first, last in _ENDS:
            cells = [_cell(_apart(found[last], found[first]), signed=True) for found in by_method.values()]
            lines.append(f"| {name} | | {' | '.join(cells)} | |")
        yield "\n".join(lines)


def _cell(values: list[Excess], signed: bool) -> str:
    return ", ".join(Interval.of(getattr(one, name) for one in values).text(4, signed) for name in ("error", "gap"))


def _apart(last: list[Excess], first: list[Excess]) -> list[Excess]:
    return [Excess(a.error - b.error, a.gap - b.gap, None) for a, b in zip(last, first, strict=True)]


def draw_sweeps(rows: Iterable[Row], place: Path) -> None:
    from matplotlib.figure import Figure

    rows = list(rows)
    measured = {setting: found for setting in TITLES if (found := _by_cut(rows, setting))}
    if not measured:
        return
    figure = Figure(figsize=(6 * len(measured), 7), layout="constrained")
    panels = figure.subplots(2, 2 * len(measured), squeeze=False)
    for line, name in zip(panels, ("error", "gap"), strict=True):
        for number, (setting, by_method) in enumerate(measured.items()):
            for over, panel in enumerate(line[2 * number : 2 * number + 2]):
                for method, swept in by_method.items():
                    if method != ERM:
                        _curve(panel, swept, method, name, over)
                panel.axhline(0, color="black", lw=0.8)
                label = f"{'parity gap' if name == 'gap' else name} less central ERM's"
                panel.set(xlabel=("h, three silos", "silos, h = 0")[over], ylabel=label, title=TITLES[setting])
                panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    figure.suptitle("epsilon 1, one weight per method; bars are 95% intervals over splits")
    figure.savefig(place, metadata={"Date": None})


def _curve(panel: Any, found: dict[_Cut, list[Excess]], method: str, name: str, over: int) -> None:
    cuts = sorted(cut for cut in found if cut[1 - over] == (SILOS, 0.0)[over])
    values = [Interval.of(getattr(one, name) for one in found[cut]) for cut in cuts]
    color, marker, _ = LOOKS[method]
    places, means = [cut[over] for cut in cuts], [one.mean for one in values]
    panel.errorbar(
        places, means, [one.half for one in values], color=color, marker=marker, elinewidth=0.5, label=method
    )
    if over:
        panel.set_xscale("log")
        panel.set_xticks(places, [str(one) for one in places])
        panel.minorticks_off()
