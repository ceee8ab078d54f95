"""Is privacy fair? Leakage by class, by group and by correctness, and the most exposed records.

Guarantee: docs/theorems/audit-bounds.md#membership, "Groups" and "Single records". The intervals of all groups hold
together with the stated confidence, and so do those of all listed records: each has an equal share of the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from audit.bounds.lower_bound import allowed_failure
from audit.bounds.repeated_runs import ErrorBox, lower_rate, upper_rate
from audit.models.epsilon_bound import COIN_LEVEL, BoundTerms, bound_of, coin_p_value
from audit.models.records import AuditedRecords, Coins, class_text
from audit.models.roc import area
from audit.models.shadow_models import Signals
from audit.report.results import Assignment, ExposedRecord, ExposedRecords, GroupExposure, Grouping, Interval
from audit.settings import BY_CLASS, BY_CORRECTNESS
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput

_FEWEST = 12
"""Groups with fewer members or non-members are named and left out."""
_MOST_GROUPS = 20
_TINY = 1e-12

Marks = NDArray[np.str_]


def marks_of_units(by: tuple[str, ...], records: AuditedRecords, coins: Coins, signal: Floats) -> dict[str, Marks]:
    """For each grouping the group of each audited unit, by its first row; right: the label has more than half of p."""
    rows, found = coins.first_rows, {}
    for name in by:
        if name == BY_CLASS:
            found[name] = np.array([records.class_names[label] for label in records.labels[rows]])
        elif name == BY_CORRECTNESS:
            found[name] = np.where(signal[: len(rows)] > 0, "right", "wrong")
        elif name in records.groupings:
            found[name] = records.groupings[name][rows]
        else:
            known = ", ".join((BY_CLASS, BY_CORRECTNESS, *records.groupings))
            raise InvalidInput("by", name, "is no column of the records", f"name one of {known}")
    return found


def grouping_column(name: str, values: NDArray[np.generic]) -> Marks:
    """A column's cells as names of groups; refused if there are too many to compare."""
    texts = np.array([class_text(value) for value in values.tolist()])
    if len(np.unique(texts)) > _MOST_GROUPS:
        rule = f"has more than {_MOST_GROUPS} different values"
        raise InvalidInput("by", name, rule, "name a column of groups, or cut its numbers into ranges")
    return texts


def exposure_of_groups(
    marks: Mapping[str, Marks], scores: Floats, is_member: Booleans, trial: BoundTerms | None, confidence: float
) -> tuple[Grouping, ...]:
    """Area of one attack in each group, and where membership was decided at random (`trial`) a bound on epsilon.

    Correctness is the model's own doing, so that group gets an area and no bound.
    """
    chosen = {name: _groups(values, is_member) for name, values in marks.items()}
    failure = allowed_failure(confidence)
    level = 1 - failure / max(1, sum(len(groups) for groups in chosen.values()))
    found = []
    for name, values in marks.items():
        groups = []
        for group in chosen[name]:
            mine = values == group
            own, inside = scores[mine], is_member[mine]
            drawn = trial is not None and name != BY_CORRECTNESS and _believable(inside, trial)
            epsilon = bound_of(own, inside, trial.at(level)).epsilon if drawn and trial is not None else None
            groups.append(
                GroupExposure(
                    name=group,
                    members=int(inside.sum()),
                    nonmembers=int((~inside).sum()),
                    auc=area(own[inside], own[~inside], level),
                    epsilon_lower=epsilon,
                )
            )
        left_out = tuple(str(one) for one in np.unique(values) if one not in chosen[name])
        found.append(Grouping(by=name, groups=tuple(groups), left_out=left_out, uneven=_uneven(groups)))
    return tuple(found)


def _believable(is_member: Booleans, trial: BoundTerms) -> bool:
    """Of many groups with fair coins one may look unfair by chance: it gets no bound, and nothing is refused."""
    return trial.assignment is not Assignment.COINS or coin_p_value(is_member) >= COIN_LEVEL


def _groups(values: Marks, is_member: Booleans) -> list[str]:
    names = np.unique(values).tolist()
    return [one for one in names if min(_count(values, one, is_member), _count(values, one, ~is_member)) >= _FEWEST]


def _count(values: Marks, group: str, chosen: Booleans) -> int:
    return int(((values == group) & chosen).sum())


def _uneven(groups: list[GroupExposure]) -> bool:
    """Whether two intervals have no point in common; all of them hold together, so no further correction is due."""
    return any(a.auc.upper < b.auc.lower or b.auc.upper < a.auc.lower for a, b in combinations(groups, 2))


# Single records: shadow models with and without each of them.


def halves_and_coins(models: int, halves: Booleans, seed: int) -> Booleans:
    """`halves` teach; as many models as are missing get each record by a fair coin of its own, and are counted."""
    random = np.random.default_rng((seed, 0xE4B0))
    coins = random.integers(0, 2, (models - len(halves), halves.shape[1])) == 1
    return np.concatenate((halves, coins))


def exposed_records(
    signals: Signals, coins: Coins, members: int, number: int, taught: int, delta: float, confidence: float
) -> ExposedRecords:
    """The records that the first `taught` shadow models call the most exposed, measured by the others.

    Guarantee: with probability `confidence` every interval holds its record's true advantage: how much likelier a model
    trained like the shadow models looks as if it knew the record if it does. Chosen and judged by different models.
    """
    audited = len(coins.is_member)
    if not 0 < number <= audited:
        raise InvalidInput("exposed", number, f"must lie between 1 and the {audited} audited units", "ask for fewer")
    middle, lead = learn_rule(signals.shadow[:taught], signals.included[:taught])
    chosen = np.argsort(-np.abs(lead[:audited]), kind="stable")[:number]
    says_in = np.sign(lead[chosen]) * (signals.shadow[taught:, chosen] - middle[chosen]) > 0
    inside = signals.included[taught:, chosen]
    failure = allowed_failure(confidence) / (4 * number)
    rows, found = coins.first_rows, []
    for place, unit in enumerate(chosen.tolist()):
        own, said = inside[:, place], says_in[:, place]
        advantage, epsilon = _advantage(
            int((said & own).sum()), int(own.sum()), int((said & ~own).sum()), own, failure, delta
        )
        row = int(rows[unit])
        found.append(
            ExposedRecord(
                file="members" if row < members else "nonmembers",
                record=row + 1 if row < members else row - members + 1,
                advantage=advantage,
                epsilon_lower=epsilon,
                exposed=advantage.lower > 0,
            )
        )
    counted = signals.models - taught
    reachable = 2 * lower_rate(counted // 2, counted // 2, failure) - 1
    found.sort(key=lambda one: (-one.advantage.lower, -one.advantage.value))
    return ExposedRecords(
        records=tuple(found), looked_at=audited, taught_by=taught, counted=counted, reachable=max(0.0, reachable)
    )


def learn_rule(shadow: Floats, included: Booleans) -> tuple[Floats, Floats]:
    """For each record the middle between its mean signals in and out, and by how many deviations these differ."""
    inside, outside = included.sum(axis=0), (~included).sum(axis=0)
    means = [
        (shadow * chosen).sum(axis=0) / np.maximum(number, 1)
        for chosen, number in ((included, inside), (~included, outside))
    ]
    left = shadow - np.where(included, means[0], means[1])
    pooled = float((left**2).mean())
    # Four imaginary models pull each record toward the variance of all.
    variance = (4 * pooled + (left**2).sum(axis=0)) / (4 + len(shadow))
    return (means[0] + means[1]) / 2, (means[0] - means[1]) / np.maximum(np.sqrt(variance), _TINY)


def _advantage(
    right: int, inside: int, wrong: int, own: Booleans, failure: float, delta: float
) -> tuple[Interval, float]:
    """True minus false positive rate, four Clopper-Pearson sides at `failure` each, and the box's epsilon."""
    outside = len(own) - inside
    rates = (right / max(inside, 1), wrong / max(outside, 1))
    least, most = lower_rate(right, inside, failure), upper_rate(right, inside, failure)
    low, high = lower_rate(wrong, outside, failure), upper_rate(wrong, outside, failure)
    value = rates[0] - rates[1]
    interval = Interval(value=value, lower=min(value, least - high), upper=max(value, most - low))
    return interval, ErrorBox(high, 1 - least).epsilon(delta)
