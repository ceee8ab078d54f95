"""All attribute attacks on one model, each next to imputation, on members and on non-members.

Half of the members and half of the non-members are set aside to learn from: imputation learns from both halves,
attacks from the half of the members. All guesses are about the other halves, and each guess depends on its own record
and on what was set aside, so given the model the guesses of a set are independent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from audit.models.attribute_attacks import (
    ALL_ATTACKS,
    Asked,
    Attribute,
    AttributeAttack,
    AttributeRecords,
    AttributeTarget,
    Knowledge,
    fit_classifier,
    join,
)
from audit.models.membership_audit import blind_rule
from audit.report.results import (
    AttributeAttackResult,
    AttributeFinding,
    AttributeInference,
    BlindRule,
    Imputation,
    Interval,
    NotApplied,
    OnOneSet,
    RecordCounts,
)
from audit.settings import CONFIDENCE
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count, open_unit

_LARGEST_STAKE = 0.75
"""No bet may lose more than this share of the wealth, so that it never runs out."""
_HALVINGS = 40


def mean_interval(values: Floats, low: float, high: float, confidence: float) -> Interval:
    """The mean of independent values in [low, high] with a common mean, given in an order unrelated to the values.

    Attack and imputation are right on nearly the same records, so their difference is zero nearly always; the normal
    approximation and the bootstrap then promise more than they keep. This is a test by betting: a gambler who bets
    against "the mean is m" with stakes chosen from earlier values only has a wealth that exceeds 2/alpha with
    probability at most alpha/2 if m is the mean (Ville's inequality), and becomes rich quickly if it is not.

    Guarantee: covers that mean with probability at least `confidence`, whatever the distribution
    (docs/theorems/audit-bounds.md#attribute-inference, the interval).
    """
    if len(values) == 0:
        raise InvalidInput("values", "none", "must not be empty", "give at least one")
    if values.min() < low or values.max() > high:
        raise InvalidInput("values", float(values.min()), f"must lie in [{low}, {high}]", "report this as a bug")
    alpha = 1 - open_unit("confidence", confidence)
    scaled = np.clip((np.asarray(values, dtype=np.float64) - low) / (high - low), 0.0, 1.0)
    width = high - low
    lower = low + width * _lower_end(scaled, alpha)
    upper = high - width * _lower_end(1 - scaled, alpha)
    mean = float(np.mean(values))
    return Interval(value=mean, lower=min(lower, mean), upper=max(upper, mean))


def _lower_end(values: Floats, alpha: float) -> float:
    """The largest m on a fine grid for which the wealth of betting on "more than m" refutes every mean up to m.

    The wealth falls as m grows, factor by factor, so halving finds the end; the refuted side is returned.
    """
    stakes = _stakes(values, alpha)
    goal = math.log(2 / alpha)
    refuted, kept = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (refuted + kept) / 2
        if _best_log_wealth(values, stakes, middle) >= goal:
            refuted = middle
        else:
            kept = middle
    return refuted


def _best_log_wealth(values: Floats, stakes: Floats, mean: float) -> float:
    """The largest wealth on the way: stopping there was allowed."""
    bets = np.minimum(stakes, _LARGEST_STAKE / mean)
    return float(np.cumsum(np.log1p(bets * (values - mean))).max())


def _stakes(values: Floats, alpha: float) -> Floats:
    """How much to bet on each value, by the variance of those before it."""
    count = len(values)
    places = np.arange(1, count + 1)
    running = (0.5 + np.cumsum(values)) / (places + 1)
    variance = (0.25 + np.cumsum((values - running) ** 2)) / (places + 1)
    before = np.concatenate([[0.25], variance[:-1]])
    # sqrt(2 log(2 / alpha) / (n variance)), with the variance of earlier values alone.
    return np.sqrt(2 * math.log(2 / alpha) / (count * before))


FEWEST_RECORDS = 40
_METHOD = (
    "Advantage: an attack's correct guesses minus imputation's, record by record. Leakage: the advantage on members "
    "minus that on non-members. Intervals are by betting and hold at every sample size; those of leakage hold for all "
    "attacks at once."
)


@dataclass(frozen=True)
class AttributeOptions:
    """How hard to look; `most_records` of each set are used, drawn at random."""

    confidence: float = CONFIDENCE
    seed: int = 0
    most_records: int = 4000
    attacks: tuple[AttributeAttack, ...] = ALL_ATTACKS

    def __post_init__(self) -> None:
        open_unit("confidence", self.confidence)
        count("most_records", self.most_records, least=FEWEST_RECORDS)


@dataclass(frozen=True, eq=False)
class _Side:
    """The asked records of one set, with imputation's hits."""

    records: AttributeRecords
    asked: Asked
    imputed: Floats


def attribute_inference(
    target: AttributeTarget,
    attribute: Attribute,
    members: AttributeRecords,
    nonmembers: AttributeRecords,
    options: AttributeOptions = AttributeOptions(),  # noqa: B008  frozen
) -> AttributeInference:
    """Does the model tell more about `attribute` of its members than imputation does?

    Guarantee: members and non-members being random draws of one population, a model that did not depend on the
    members' records is reported as leaking with probability at most 1 - confidence, over the draw of the records and
    for all attacks together (docs/theorems/audit-bounds.md#attribute-inference).
    """
    _require_enough(members, nonmembers)
    random = np.random.default_rng(options.seed)
    known_members, judged_members = members.halves(random, options.most_records)
    known_others, judged_others = nonmembers.halves(random, options.most_records)
    classes = 1 + max(int(part.labels.max()) for part in (members, nonmembers))
    knowledge = Knowledge(target, attribute, known_members, classes, options.seed)
    auxiliary = join(known_members, known_others)
    sides = _sides(knowledge, auxiliary, judged_members, judged_others)
    obstacles = {attack.name: attack.obstacle(knowledge) for attack in options.attacks}
    able = [attack for attack in options.attacks if obstacles[attack.name] is None]
    if not able:
        raise InvalidInput(
            "attacks", tuple(obstacles), "cannot be made here, none of them", "add one that learns from outputs"
        )
    attacks = tuple(_result(attack, knowledge, sides, options.confidence, len(able)) for attack in able)
    blind = _blind(attribute, members, nonmembers, options.seed)
    finding, why = _conclude(attribute.name, attacks, blind)
    imputation = [mean_interval(side.imputed, 0, 1, options.confidence) for side in sides]
    return AttributeInference(
        attribute=attribute.name,
        values=attribute.values,
        finding=finding,
        why=why,
        confidence=options.confidence,
        records=RecordCounts(members=len(judged_members), nonmembers=len(judged_others), auxiliary=len(auxiliary)),
        imputation=Imputation(members=imputation[0], nonmembers=imputation[1]),
        attacks=attacks,
        blind=blind,
        not_applied=tuple(NotApplied(name=name, why=why) for name, why in obstacles.items() if why is not None),
        method=_METHOD,
    )


def _conclude(
    attribute: str, attacks: tuple[AttributeAttackResult, ...], blind: BlindRule
) -> tuple[AttributeFinding, str]:
    """The finding, and the same in one sentence."""
    if blind.tells_apart:
        return AttributeFinding.NOT_COMPARABLE, (
            f"members and non-members differ by themselves (a rule that never sees the model tells them apart, "
            f"p = {blind.p_value:.2g}), so nothing can be said about {attribute}; take both at random from one source"
        )
    strongest = max(attacks, key=lambda one: (one.leaks and one.beats_imputation, one.leakage.lower))
    if strongest.leaks:
        alone = "" if strongest.beats_imputation else "; taken alone it guesses no better than imputation"
        return AttributeFinding.LEAKAGE, (
            f"the model remembers {attribute} of its members: over imputation, {strongest.name} gains "
            f"{100 * strongest.leakage.value:.1f} points more on members than on non-members (at least "
            f"{100 * strongest.leakage.lower:.1f}){alone}"
        )
    most = max(one.leakage.upper for one in attacks)
    return AttributeFinding.NONE_FOUND, (
        f"no attack tells more of {attribute} for members than for non-members once imputation is taken off; "
        f"what these attacks could gain is at most {100 * most:.1f} points"
    )


def _blind(attribute: Attribute, members: AttributeRecords, nonmembers: AttributeRecords, seed: int) -> BlindRule:
    """Do the two sets differ without the model: in features, label, attribute, or how the attribute goes with them?"""
    everyone = join(members, nonmembers)
    others = attribute.others(everyone.features)
    shown = np.eye(len(attribute.values))[everyone.sensitive]
    together = [others * shown[:, [value]] for value in range(1, len(attribute.values))]
    marks = np.arange(len(everyone)) < len(members)
    return blind_rule(np.hstack([shown, others, *together]), everyone.labels, marks, seed)


def _sides(
    knowledge: Knowledge, auxiliary: AttributeRecords, members: AttributeRecords, nonmembers: AttributeRecords
) -> tuple[_Side, _Side]:
    """Imputation: a classifier from features and label to the attribute, which never sees the model."""
    values = len(knowledge.attribute.values)
    imputer = fit_classifier(
        knowledge.context(auxiliary.asked(knowledge.attribute)), auxiliary.sensitive, values, knowledge.seed
    )

    def side(records: AttributeRecords) -> _Side:
        asked = records.asked(knowledge.attribute)
        hits = imputer.guesses(knowledge.context(asked)) == records.sensitive
        return _Side(records, asked, hits.astype(np.float64))

    return side(members), side(nonmembers)


def _result(
    attack: AttributeAttack, knowledge: Knowledge, sides: tuple[_Side, _Side], confidence: float, attacks: int
) -> AttributeAttackResult:
    guess = attack.learn(knowledge)
    hits = [(guess(side.asked) == side.records.sensitive).astype(np.float64) for side in sides]
    gains = [hit - side.imputed for hit, side in zip(hits, sides, strict=True)]
    on_sets = [
        OnOneSet(accuracy=mean_interval(hit, 0, 1, confidence), advantage=mean_interval(gain, -1, 1, confidence))
        for hit, gain in zip(hits, gains, strict=True)
    ]
    shared = 1 - (1 - confidence) / attacks
    return AttributeAttackResult.of(
        attack.name, on_sets[0], on_sets[1], difference_interval(gains[0], gains[1], shared)
    )


def difference_interval(members: Floats, nonmembers: Floats, confidence: float) -> Interval:
    """The difference of two means of values in [-1, 1], for independent samples in random order.

    The larger sample is cut into as many blocks as the smaller has values; block mean minus value is then one value
    in [-2, 2] whose mean is the difference, and no variance is given away.
    """
    size = min(len(members), len(nonmembers))
    first, second = (np.array([block.mean() for block in np.array_split(part, size)]) for part in (members, nonmembers))
    paired = mean_interval(first - second, -2, 2, confidence)
    value = float(members.mean() - nonmembers.mean())
    return Interval(value=value, lower=min(paired.lower, value), upper=max(paired.upper, value))


def _require_enough(members: AttributeRecords, nonmembers: AttributeRecords) -> None:
    for name, part in (("members", members), ("nonmembers", nonmembers)):
        if len(part) < FEWEST_RECORDS:
            raise InvalidInput(name, f"{len(part)} records", f"must be at least {FEWEST_RECORDS}", "give more records")
