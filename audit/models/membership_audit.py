"""The membership audit of one model: a blind rule, then shadow models, attacks, curves, bound on epsilon, verdict.

If the files of members and non-members come from different years, sources or filters, a classifier that never sees the
model tells them apart, and an attack's success is no leak. So the auditor first plays blind: a linear rule on the
features, their squares and the label is fitted to one half of the records and tried on the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import rankdata

from audit.bounds import CurveFamily, GuessCounts
from audit.models.epsilon_bound import (
    BoundTerms,
    ClaimOnTrial,
    bound_of,
    coins_of,
    curve_p_value,
    power_of,
    success_rates,
)
from audit.models.exposure import exposed_records, exposure_of_groups, halves_and_coins, marks_of_units
from audit.models.membership_attacks import (
    OFFLINE_ATTACKS,
    ONLINE_ATTACKS,
    WITHOUT_MODELS,
    MembershipAttack,
    PluginAttack,
    plugin_attack,
)
from audit.models.records import AuditedRecords, Coins
from audit.models.roc import area, area_value, checked_scores, curve, low_rates
from audit.models.shadow_models import ShadowRecipe, ShadowRecords, Signals, random_halves, train_shadow_models
from audit.models.targets import Target, UserScore
from audit.report.results import (
    Assignment,
    Attack,
    AuditedModel,
    AuditReport,
    BlindRule,
    Check,
    CurveTest,
    Exposure,
    Layer,
    MembershipAttackResult,
    MembershipResult,
    ShadowDesign,
    ShadowFacts,
    not_possible,
    passed_if,
)
from audit.settings import CONFIDENCE, ExposureOptions, require_models
from audit.verdict import judge
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput, open_unit
from calibrate.privacy_unit import Relation

_RIDGE = 1e-2
_MOST_FEATURES = 500
_NAME = "members and non-members look alike without the model"


def check_alike(rule: BlindRule) -> Check:
    """Not a fault of the model, so never "failed": the bound on epsilon becomes impossible."""
    finding = f"area {rule.auc:.3f} for a rule that never sees the model, p = {rule.p_value:.2g}"
    if not rule.tells_apart:
        return passed_if(Layer.PROBE, _NAME, True, finding)
    return not_possible(
        Layer.PROBE,
        _NAME,
        f"{finding}: the files differ by themselves, so no bound on epsilon is drawn; take members and "
        "non-members at random from one source",
    )


def blind_rule(features: NDArray[np.floating], labels: Integers, is_member: Booleans, seed: int) -> BlindRule:
    """Fit on a random half, try on the other; under a random assignment the p-value is valid up to normality."""
    table = _describe(features, labels)
    random = np.random.default_rng((seed, 0xB11D))
    fitting = np.zeros(len(table), dtype=np.bool_)
    fitting[random.permutation(len(table))[: len(table) // 2]] = True
    if min(is_member[fitting].sum(), (~is_member)[fitting].sum()) < 2:
        return BlindRule(auc=0.5, p_value=1.0)
    rule = _ridge(table[fitting], is_member[fitting])
    scores, truth = table[~fitting] @ rule, is_member[~fitting]
    if not truth.any() or truth.all():
        return BlindRule(auc=0.5, p_value=1.0)
    auc = area_value(scores[truth], scores[~truth])
    return BlindRule(auc=auc, p_value=_p_value(auc, scores, int(truth.sum())))


def _describe(features: NDArray[np.floating], labels: Integers) -> Floats:
    x = np.asarray(features, dtype=np.float64)[:, :_MOST_FEATURES]
    x = x[:, x.std(axis=0) > 1e-9 * np.abs(x).max(axis=0, initial=0.0)]  # a constant tells nothing, and has no scale
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    classes = np.eye(int(labels.max()) + 1)[labels]
    squares = x**2 - 1
    return np.hstack((x, squares / np.maximum(squares.std(axis=0), 1e-12), classes, np.ones((len(x), 1))))


def _ridge(table: Floats, truth: Booleans) -> Floats:
    aim = np.where(truth, 1.0 / truth.sum(), -1.0 / (~truth).sum())
    gram = table.T @ table / len(table) + _RIDGE * np.eye(table.shape[1])
    return np.asarray(np.linalg.solve(gram, table.T @ aim))


def _p_value(auc: float, scores: Floats, members: int) -> float:
    """One-sided, of the rank sum under a random assignment; its exact variance, ties included."""
    ranks = rankdata(scores)
    total = len(scores)
    others = total - members
    # Var[rank sum] = m k / (N - 1) Var[ranks]; the area is the rank sum over m k, up to a constant.
    variance = ranks.var() * total / (total - 1) / (members * others) ** 2 * (members * others / total)
    return 1.0 if variance == 0 else float(ndtr(-(auc - 0.5) / math.sqrt(variance)))


_CURVE_SHARE = 0.5
"""Of an attack's error: what the test of a manifest's own curve gets; the bound has the rest."""
_CONTROLS = 8
"""This many shadow models play the target, to learn how strong an attack is where nothing protects."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class MembershipOptions:
    """How hard to look, and what is known of how members were chosen."""

    shadow_models: int = 64
    recipe: ShadowRecipe | None = None
    """None: models that resemble the target."""
    assignment: Assignment = Assignment.EXCHANGEABLE
    confidence: float = CONFIDENCE
    seed: int = 0
    delta: float = 1e-5
    """Of the bound, where no claim brings its own."""
    attacks: tuple[str, ...] = ()
    """Attacks of other packages, to run next to the built-in ones."""
    family: CurveFamily | None = None
    """GAUSSIAN reads the bound as that of one Gaussian release; None: as the manifest signs, else assuming nothing."""
    exposure: ExposureOptions = field(default_factory=ExposureOptions)
    """Groups to compare, and how many of the most exposed records to list."""

    def __post_init__(self) -> None:
        open_unit("confidence", self.confidence)
        require_models(self.shadow_models, self.exposure.records)


def audit_model(
    target: Target,
    records: AuditedRecords,
    options: MembershipOptions,
    claim: ClaimOnTrial | None = None,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Attack a model with every attack its shadow models allow.

    Guarantee: with probability at least `confidence` no bound exceeds the true epsilon, if members were chosen as
    `options.assignment` says (docs/theorems/audit-bounds.md#membership); each attack has its share of the error. Where
    a rule that never sees the model tells members apart, no bound is drawn.
    """
    coins = records.coins()
    recipe = None
    if options.shadow_models:
        recipe = options.recipe or target.shadow_recipe(records)
    attacks = (*_attacks_for(records, recipe), *(plugin_attack(name) for name in options.attacks))
    for attack in attacks:
        if attack.least_models > options.shadow_models:
            why = f"is too few for an attack that needs {attack.least_models}"
            raise InvalidInput("shadow models", options.shadow_models, why, "train more, or drop the attack")
    everyone = target.signal(records)
    signals = _with_shadow_models(everyone, records, coins, recipe, options, executor, progress)
    facts = None
    if recipe is not None:
        design = ShadowDesign.OFFLINE if records.has_population else ShadowDesign.ONLINE
        facts = ShadowFacts(kind=recipe.kind, models=options.shadow_models, design=design, training=recipe.training)
    rows = coins.first_rows
    rule = blind_rule(records.features[rows], records.labels[rows], coins.is_member, options.seed)
    marks = marks_of_units(options.exposure.by, records, coins, signals.target)
    case = _Case(
        signals, coins, attacks, options, claim, unlike=rule.tells_apart, marks=marks, member_rows=records.members
    )
    return case.judge(AuditedModel(kind=target.kind, source=target.source), facts, (coins.check, check_alike(rule)))


def audit_scores(
    scores: Floats,
    is_member: Booleans,
    source: str,
    options: MembershipOptions,
    claim: ClaimOnTrial | None = None,
    units: Integers | None = None,
    groupings: Mapping[str, NDArray[np.str_]] | None = None,
) -> AuditReport:
    """The same for scores that someone else computed; without shadow models there is no control, and no power.

    `units` numbers the record (or person) of each score, so that repeated ones have one coin; None takes each score
    for a unit of its own. `groupings` names the group of each score, for the columns that `options.exposure` compares.
    """
    if options.exposure.records:
        raise InvalidInput("exposed", options.exposure.records, "needs shadow models", "give the model, not its scores")
    if np.shape(scores) != np.shape(is_member):
        raise InvalidInput(
            "is_member", np.shape(is_member), f"must be one mark for each of {np.shape(scores)} scores", "mark each"
        )
    coins = Coins.of(np.arange(len(is_member)) if units is None else units, is_member)
    check = coins.check
    if units is None:
        check = not_possible(check.layer, check.name, "scores alone do not tell whether a record is repeated")
    signals = Signals.alone(coins.mean(checked_scores("scores", scores)))
    marks = {name: values[coins.first_rows] for name, values in (groupings or {}).items()}
    case = _Case(
        signals, coins, (UserScore(),), options, claim, unlike=False, marks=marks, member_rows=int(np.sum(is_member))
    )
    return case.judge(AuditedModel(kind="scores", source=source), None, (check,))


@dataclass(frozen=True, eq=False)
class _Case:
    """Signals of the audited records first, then of the population."""

    signals: Signals
    coins: Coins
    attacks: tuple[MembershipAttack, ...]
    options: MembershipOptions
    claim: ClaimOnTrial | None
    unlike: bool
    """Members and non-members differ without the model: no bound."""
    marks: Mapping[str, NDArray[np.str_]]
    """For each grouping the group of each audited unit."""
    member_rows: int

    @property
    def is_member(self) -> Booleans:
        """Of the audited units."""
        return self.coins.is_member

    def judge(self, target: AuditedModel, shadow: ShadowFacts | None, checks: tuple[Check, ...]) -> AuditReport:
        """The verdict on the claim, with the curves under `membership`."""
        found, bounds = [], []
        level = self.options.confidence
        for attack in self.attacks:
            scores = attack.scores(self.signals)[: len(self.is_member)]
            inside, outside = scores[self.is_member], scores[~self.is_member]
            controls = self._controls(attack)
            found.append(
                MembershipAttackResult(
                    name=attack.name,
                    plugin=attack.plugin if isinstance(attack, PluginAttack) else None,
                    auc=area(inside, outside, level),
                    tpr_at_fpr=low_rates(inside, outside, level),
                    roc=curve(inside, outside, level),
                    control_auc=_mean_area(controls),
                )
            )
            if not self.unlike:
                bounds.append(self._bound(attack, scores, controls))
        members = int(self.is_member.sum())
        result = MembershipResult(
            target=target,
            members=members,
            nonmembers=len(self.is_member) - members,
            confidence=level,
            assignment=self.options.assignment,
            shadow=shadow,
            attacks=tuple(found),
            exposure=self._exposure(found),
        )
        promise = None if self.claim is None else self.claim.promise
        effort = "audit with more records and more shadow models"
        return judge(promise, checks, tuple(bounds), level, effort=effort).model_copy(update={"membership": result})

    def _exposure(self, found: list[MembershipAttackResult]) -> Exposure | None:
        """By the attack that is strongest on shadow models, so that the choice has not looked at the target."""
        asked, level = self.options.exposure, self.options.confidence
        if not self.marks and not asked.records:
            return None
        best = max(range(len(found)), key=lambda place: found[place].control_auc or 0.0)
        scores = self.attacks[best].scores(self.signals)[: len(self.is_member)]
        trial = None if self.unlike else self._trial()
        records = None
        if asked.records:
            taught, delta = self.options.shadow_models // 2, self._trial().delta
            records = exposed_records(self.signals, self.coins, self.member_rows, asked.records, taught, delta, level)
        return Exposure(
            attack=found[best].plugin or found[best].name.value,
            confidence=level,
            groupings=exposure_of_groups(self.marks, scores, self.is_member, trial, level),
            records=records,
        )

    def _trial(self) -> BoundTerms:
        """Each attack has an equal share of the error."""
        share = 1 - self._bound_share * (1 - self.options.confidence) / len(self.attacks)
        relation = Relation.ADD_REMOVE if self.claim is None else self.claim.relation
        delta = self.options.delta if self.claim is None else self.claim.promise.delta
        signed = CurveFamily.EPSILON_DELTA if self.claim is None else self.claim.family
        family = self.options.family or signed
        return BoundTerms(self.options.assignment, relation, delta, share, self.options.seed, family)

    @property
    def _bound_share(self) -> float:
        return 1.0 if self.claim is None or self.claim.curve is None else 1 - _CURVE_SHARE

    def _curve_test(self, scores: Floats, trial: BoundTerms) -> CurveTest | None:
        if self.claim is None or self.claim.curve is None:
            return None
        p_value = curve_p_value(scores, self.is_member, trial, self.claim.curve)
        return CurveTest.at(p_value, _CURVE_SHARE * (1 - self.options.confidence) / len(self.attacks))

    def _bound(self, attack: MembershipAttack, scores: Floats, controls: list[tuple[Floats, Booleans]]) -> Attack:
        trial = self._trial()
        bound, test = bound_of(scores, self.is_member, trial), self._curve_test(scores, trial)
        rates = [success_rates(values, truth, trial) for values, truth in controls]
        power, compared = 0.0, "no shadow models to measure its power with"
        if rates:
            success = np.mean(rates, axis=0)
            compared = f"at most {100 * success.max():.1f}% on shadow models in the target's place"
            rows = tuple(tuple(float(rate) for rate in row) for row in success)
            claimed = 0.0 if self.claim is None else self.claim.promise.epsilon
            power = power_of(claimed, trial, coins_of(self.is_member, trial), rows)
        counts = bound.evidence
        assert isinstance(counts, GuessCounts)
        what = "pairs of a member and a non-member" if trial.paired else "records"
        evidence = (
            f"{counts.coins} {what}; of the {counts.guesses} firmest guesses {counts.correct} were right "
            f"({compared}); valid if members were chosen at random ({trial.assignment.value})"
        )
        name = attack.plugin if isinstance(attack, PluginAttack) else attack.name.value
        return Attack(name=f"membership: {name}", bound=bound, power=power, evidence=evidence, curve=test)

    def _controls(self, attack: MembershipAttack) -> list[tuple[Floats, Booleans]]:
        """Scores and truth with shadow models in the target's place, on the records they were trained from.

        Records that all remaining models saw, or none, are left out where an attack compares the two.
        """
        rows = np.flatnonzero(self.signals.included.any(axis=0))
        number = min(_CONTROLS, self.signals.models)
        if self.signals.models <= attack.least_models or number < 2:
            return []
        known = self.signals.of(rows)
        found = []
        for model in range(number):
            held_out, truth = known.with_target(model)
            inside = held_out.included.sum(axis=0)
            usable = (inside > 0) & (inside < held_out.models) | (attack.least_models == 0)
            if truth[usable].any() and not truth[usable].all():
                found.append((attack.scores(held_out.of(np.flatnonzero(usable))), truth[usable]))
        return found


def _attacks_for(records: AuditedRecords, recipe: ShadowRecipe | None) -> tuple[MembershipAttack, ...]:
    if recipe is None:
        return WITHOUT_MODELS
    return OFFLINE_ATTACKS if records.has_population else ONLINE_ATTACKS


def _with_shadow_models(
    everyone: Floats,
    records: AuditedRecords,
    coins: Coins,
    recipe: ShadowRecipe | None,
    options: MembershipOptions,
    executor: Executor | None,
    progress: Progress | None,
) -> Signals:
    """Shadow models learn from random halves of the population's units if there are any, else of the audited ones."""
    audited = len(coins.is_member)
    if recipe is None:
        return Signals.alone(coins.mean(everyone)[:audited])
    included = np.zeros((options.shadow_models, coins.units), dtype=np.bool_)
    part = included[:, audited:] if records.has_population else included[:, :audited]
    if options.exposure.records:
        if records.has_population:
            rule = "needs shadow models with and without each record, and with a population none has seen them"
            raise InvalidInput("exposed", options.exposure.records, rule, "leave the population out")
        halves = random_halves(options.shadow_models // 2, part.shape[1], options.seed)
        part[:] = halves_and_coins(options.shadow_models, halves, options.seed)
    else:
        part[:] = random_halves(options.shadow_models, part.shape[1], options.seed)
    data = ShadowRecords(records.features, records.labels, len(records.class_names))
    shadow = train_shadow_models(recipe, data, coins.rows(included), options.seed, executor, progress)
    return Signals(coins.mean(everyone), coins.mean(shadow), included)


def _mean_area(controls: list[tuple[Floats, Booleans]]) -> float | None:
    if not controls:
        return None
    return float(np.mean([area_value(scores[truth], scores[~truth]) for scores, truth in controls]))
