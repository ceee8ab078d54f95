"""What mattered for the calibrated SteFFLe: one choice changed at a time, on the splits its choices were made on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from calibrate.budget import calibrate_plan
from calibrate.plans.steffle import H_THETA, H_W, StefflePlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.sampling import SamplingName
from privfair_experiments import stacked
from privfair_experiments.steffle.settings import DELTA, ROUNDS, SETTINGS, Setting
from privfair_experiments.steffle.split import Split, load_split

SPLITS = (100, 101, 102, 103)
_WEIGHTS = (0.5, 1.0, 2.0, 4.0, 6.0, 9.0, 13.0, 20.0)
GAPS = (0.075, 0.04, 0.02)


@dataclass(frozen=True)
class Variant:
    """How SteFFLe runs at a true epsilon of 1; the defaults are the experiment's choices on Adult with steps."""

    name: str
    rounds: int = ROUNDS
    batch_size: int | None = None
    """None for the full batch; else shuffled batches."""
    w_radius: float = 0.2
    around_independence: bool = True
    w_step: float = 1.0
    theta_share: float = 0.5
    lipschitz: float = 0.3
    warm: bool = True


VARIANTS = (
    Variant("as in the experiment"),
    Variant("batches of 256, 40 epochs", rounds=1767, batch_size=256),
    Variant("W around zero, radius 1.5, as printed", around_independence=False, w_radius=1.5),
    Variant("W step 1e-5, as printed", w_step=1e-5),
    Variant("no warm start", warm=False),
    Variant("20 rounds", rounds=20),
    Variant("320 rounds", rounds=320),
    Variant("W radius 0.05", w_radius=0.05),
    Variant("W radius 1", w_radius=1.0),
    Variant("clip (lipschitz) 1", lipschitz=1.0),
    Variant("clip (lipschitz) 0.1", lipschitz=0.1),
    Variant("a fifth of the budget on h_theta", theta_share=0.2),
    Variant("four fifths of the budget on h_theta", theta_share=0.8),
)


@dataclass(frozen=True)
class AblationRow:
    variant: str
    split: int
    knob: float
    error: float
    gap: float


def run_ablation(split: int) -> list[AblationRow]:
    """Every variant and fairness weight on one split of Adult with steps, h = 0."""
    setting = next(one for one in SETTINGS if one.name == "adult-steps")
    loaded = load_split(setting, 0.0, split)
    rows = []
    for variant in VARIANTS:
        points = _measured(setting, loaded, variant, split)
        rows += [AblationRow(variant.name, split, w, *one[:2]) for w, one in zip(_WEIGHTS, points, strict=True)]
    return rows


def _measured(setting: Setting, split: Split, variant: Variant, seed: int) -> list[tuple[float, float, float]]:
    size = split.silo_size
    batch = variant.batch_size or size
    columns = _columns(setting, size, batch, variant)
    every = variant.rounds // 15 + 1
    rule = stacked.Descent(variant.rounds, setting.learning_rate, 0.9, 0.9, every)
    batches = None
    if variant.batch_size is not None:
        sizes = tuple(len(silo) for silo in split.train)
        batches = stacked.shuffled_batches(sizes, batch, seed)
        rule = replace(rule, learning_rate=0.5)  # the full batch's rate diverges on single batches
    start = split.start if variant.warm else None
    theta = stacked.steffle(split.train, columns, rule, seed, batches, start)
    return split.errors_and_gaps(split.test.x @ theta.astype(np.float32))


def _columns(setting: Setting, size: int, batch: int, variant: Variant) -> stacked.SteffleColumns:
    plan = StefflePlan(
        size,
        batch,
        variant.rounds + variant.warm,
        setting.minority_fraction,
        variant.lipschitz,
        variant.w_radius,
        SamplingName.FULL if variant.batch_size is None else SamplingName.SHUFFLED,
        theta_share=variant.theta_share,
    )
    budget = calibrate_plan(plan, EpsilonDelta(1.0, DELTA))
    runs = len(_WEIGHTS)
    return stacked.SteffleColumns(
        fairness=np.array(_WEIGHTS),
        sigma_theta=np.full(runs, budget.value(H_THETA).sigma),
        sigma_w=np.full(runs, budget.value(H_W).sigma),
        w_step=np.full(runs, variant.w_step),
        frequencies=setting.frequencies,
        minority_fraction=setting.minority_fraction,
        batch_size=batch,
        lipschitz=variant.lipschitz,
        w_radius=variant.w_radius,
        around_independence=variant.around_independence,
    )


def ablation_table(rows: list[AblationRow]) -> str:
    """For each variant, the mean error at which its frontier of mean points crosses a gap."""
    lines = [
        "| SteFFLe at a true epsilon of 1 | " + " | ".join(f"error at gap {gap:g}" for gap in GAPS) + " |",
        "|---|" + "---|" * len(GAPS),
    ]
    for variant in VARIANTS:
        own = [row for row in rows if row.variant == variant.name]
        if own:
            cells = [_crossing(own, gap) for gap in GAPS]
            lines.append(f"| {variant.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _crossing(rows: list[AblationRow], limit: float) -> str:
    """The smallest error on the straight lines between neighbouring weights, at this gap."""
    found = math.inf
    for (error, gap), (next_error, next_gap) in pairwise(_means(rows)):
        if min(gap, next_gap) <= limit <= max(gap, next_gap):
            share = (gap - limit) / (gap - next_gap) if gap != next_gap else 0.0
            found = min(found, error + share * (next_error - error))
    return f"{found:.4f}" if math.isfinite(found) else "not reached"


def _means(rows: list[AblationRow]) -> Iterator[tuple[float, float]]:
    for knob in sorted({row.knob for row in rows}):
        own = [row for row in rows if row.knob == knob]
        yield float(np.mean([row.error for row in own])), float(np.mean([row.gap for row in own]))
