"""From an attack's scores to a lower bound on epsilon, and the power to have refuted a claim.

Guarantee: docs/theorems/audit-bounds.md#membership. The bound is valid if it was decided at random who is a member, as
`Assignment` says, and if the scores were computed without knowing it. How many guesses count is declared beforehand as
shares, and Bonferroni's correction over all of them is in the error.

Members and non-members in random pairs: which of the two is the member is a fair coin, and turning it over replaces one
record by another. Records on their own, if each had a coin: turning it over adds or removes one record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.stats import binomtest

from audit import bounds
from audit.bounds.lower_bound import OneRunBound, allowed_failure, bound_of_parameter, refuted_up_to
from audit.bounds.mechanism import is_gaussian
from audit.bounds.trade_off import check_family_delta
from audit.models.roc import checked_scores
from audit.report.results import Assignment, Promise
from audit.settings import CONFIDENCE
from audit.verdict import manifest_curve, on_trial
from calibrate.accountants.gaussian import gaussian_mu
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import PrivateGuarantee
from calibrate.privacy_unit import EpsilonDelta, Protected, Relation

# What is tested in a membership audit: a manifest's promise to a record, or the auditor's own number.


@dataclass(frozen=True)
class ClaimOnTrial:
    """The promise, and which change of the data it speaks of."""

    promise: Promise
    relation: Relation
    curve: bounds.ProfileCurve | None = None
    """Of a manifest: every (epsilon, delta) that its event keeps, tested at all of them at once."""
    family: bounds.CurveFamily = bounds.CurveFamily.EPSILON_DELTA
    """Of a manifest that signs Gaussian noise on whole batches and nothing else: GAUSSIAN, which is then no guess."""

    @classmethod
    def said(cls, epsilon: float, delta: float, relation: Relation) -> ClaimOnTrial:
        """A claim made in words, without a manifest."""
        EpsilonDelta(epsilon, delta)
        return cls(Promise(epsilon=float(epsilon), delta=float(delta), source="what the auditor was told"), relation)

    @classmethod
    def of_manifest(cls, document: BudgetDocument) -> ClaimOnTrial | None:
        """None where nothing is promised; refused where the promise is not about a record taking part."""
        promise = on_trial(document)
        if promise is None:
            return None
        unit = document.guarantee.privacy_unit()
        if unit.protected is not Protected.RECORD:
            raise UnsupportedCombination(
                f"a membership audit of a promise to each {unit.protected.value}",
                "it asks whether single records took part",
                "audit the run folder itself (privfair audit RUN/)",
            )
        if not isinstance(document.guarantee, PrivateGuarantee):
            return cls(promise, unit.relation)
        gaussian = is_gaussian(document.accounting.event)
        family = bounds.CurveFamily.GAUSSIAN if gaussian and promise.delta > 0 else bounds.CurveFamily.EPSILON_DELTA
        return cls(promise, unit.relation, manifest_curve(document), family)


SHARES = (0.02, 0.1, 0.4)
"""Of the guesses, strongest first: how many count. Declared here, before any score is seen."""
_FEWEST = 12
COIN_LEVEL = 1e-3
"""Fair coins are wrongly refused with this probability at most."""
_MOST_EPSILON = 200.0
"""No number of guesses refutes more."""
_OUTWARD = 1 + 1e-12
_METHODS: dict[bounds.CurveFamily, OneRunBound] = {
    bounds.CurveFamily.EPSILON_DELTA: bounds.OneRun(),
    bounds.CurveFamily.GAUSSIAN: bounds.FDPOneRun(bounds.CurveFamily.GAUSSIAN),
}
Rankings = tuple[bounds.RankedGuesses, ...]


@dataclass(frozen=True)
class BoundTerms:
    """What an attack on epsilon assumes and at what level it is to hold."""

    assignment: Assignment
    relation: Relation
    delta: float
    confidence: float = CONFIDENCE
    seed: int = 0
    """Of the random pairs."""
    family: bounds.CurveFamily = bounds.CurveFamily.EPSILON_DELTA
    """GAUSSIAN reads the bound as that of one Gaussian release, which the auditor has to know it is."""

    def __post_init__(self) -> None:
        allowed_failure(self.confidence)
        check_family_delta(self.family, self.delta)
        if self.family not in _METHODS:
            raise InvalidInput("family", self.family.value, "is read from a budget", "give epsilon-delta or gaussian")
        if self.relation is Relation.REPLACE_ATTRIBUTE:
            raise UnsupportedCombination(
                "a membership attack against a promise about a record's attribute",
                "whether a record took part is not protected by such a promise",
                "audit the run folder instead (privfair audit RUN/), or leave the claim out",
            )

    @property
    def paired(self) -> bool:
        """Single coins change the number of records, which only add-remove covers."""
        return self.assignment is Assignment.EXCHANGEABLE or self.relation is Relation.REPLACE_ONE

    @property
    def replacing(self) -> bool:
        """Turning over a coin removes one record and adds another, of which the promise covers one."""
        return self.paired and self.relation is Relation.ADD_REMOVE

    def at(self, confidence: float) -> BoundTerms:
        """The same at another confidence."""
        return replace(self, confidence=confidence)

    def gaussian(self, mu: float) -> bounds.GaussianCurve:
        """What a Gaussian release says about turning over one coin: two shifts of mu are one of 2 mu."""
        return bounds.GaussianCurve(2 * mu if self.replacing else mu)

    def own_curve(self, curve: bounds.ProfileCurve) -> bounds.ProfileCurve:
        """What a manifest's curve says about turning over one coin, point by point."""
        if not self.replacing:
            return curve
        # Two steps of a promise: (2 eps, (1 + e^eps) delta).
        points = ((2 * one.epsilon, (1 + math.exp(one.epsilon)) * one.delta) for one in curve.points())
        return bounds.ProfileCurve.of(
            tuple((epsilon, delta) for epsilon, delta in points if delta < 1) or ((0.0, 1.0),)
        )

    def curve(self, epsilon: float) -> bounds.EpsilonDeltaCurve | bounds.GaussianCurve:
        """What a promise of `epsilon` says about turning over one coin."""
        if self.family is bounds.CurveFamily.GAUSSIAN:
            return self.gaussian(gaussian_mu(epsilon, self.delta) * _OUTWARD)
        if self.replacing:
            # Replacing is removing and adding: (2 eps, (1 + e^eps) delta).
            return bounds.EpsilonDeltaCurve(2 * epsilon, min(1.0, (1 + math.exp(epsilon)) * self.delta))
        return bounds.EpsilonDeltaCurve(epsilon, self.delta)


def bound_of(scores: Floats, is_member: Booleans, trial: BoundTerms) -> bounds.LowerBound:
    """The largest epsilon that the guesses refute, the choice of how many count included."""
    rankings = rankings_of(scores, is_member, trial)
    if trial.assignment is Assignment.COINS:
        require_coins(is_member)
    comparisons = len(rankings) * len(SHARES)
    failure = allowed_failure(trial.confidence) / comparisons
    found = [
        (_largest_refuted(counts, trial, failure), counts)
        for ranking in rankings
        for counts in (_without_head_start(ranking, share, is_member, trial) for share in SHARES)
    ]
    largest, evidence = max(found, key=lambda pair: pair[0])
    if trial.family is bounds.CurveFamily.GAUSSIAN:
        bound = bound_of_parameter(_METHODS[trial.family], largest, evidence, trial.delta, 1 - failure)
    else:
        bound = bounds.LowerBound(largest, trial.delta, 1 - failure, bounds.Method.ONE_RUN, trial.family, evidence)
    return bound.selected_by(bounds.Selection.BONFERRONI, comparisons, trial.confidence)


def curve_p_value(scores: Floats, is_member: Booleans, trial: BoundTerms, curve: bounds.ProfileCurve) -> float:
    """Of a manifest's own curve, over all rankings and declared shares, Bonferroni's correction included."""
    counts = [
        _without_head_start(ranking, share, is_member, trial)
        for ranking in rankings_of(scores, is_member, trial)
        for share in SHARES
    ]
    return bounds.p_value_over(bounds.FDPOneRun(), counts, trial.own_curve(curve))


def coin_p_value(is_member: Booleans) -> float:
    """How likely fair coins give numbers of members at least as uneven."""
    return float(binomtest(int(is_member.sum()), len(is_member)).pvalue)


def require_coins(is_member: Booleans) -> None:
    """Refuse numbers of members that fair coins barely ever give: an exact test, two-sided, at `COIN_LEVEL`."""
    members, records = int(is_member.sum()), len(is_member)
    p_value = coin_p_value(is_member)
    if p_value < COIN_LEVEL:
        raise InvalidInput(
            "assignment",
            "coins",
            f"cannot be believed: {members} of {records} are members, and fair coins give so uneven numbers with "
            f"probability {p_value:.2g}",
            "say how members were chosen: exchangeable, for a random part of fixed size",
        )


def _without_head_start(
    ranking: bounds.RankedGuesses, share: float, is_member: Booleans, trial: BoundTerms
) -> bounds.GuessCounts:
    """The right guesses less those that the numbers of members and non-members give away.

    Given the numbers, guessing "member" k times is right k * members / records times without any look at the model.
    What exceeds k / 2 is taken off, rounded up: fewer right guesses only lower the bound, so it stays valid.
    """
    counts = bounds.counts_at((ranking,), number_of_guesses(share, ranking.coins))
    if trial.paired:
        return counts
    guessed = np.argsort(-ranking.strength, kind="stable")[: counts.guesses]
    said_member = ranking.correct[guessed] == is_member[guessed]
    members = float(is_member.mean())
    expected = float(np.where(said_member, members, 1 - members).sum())
    ahead = max(0, math.ceil(expected - counts.guesses / 2 - 1e-9))
    return replace(counts, correct=max(0, counts.correct - ahead))


def power_of(epsilon: float, trial: BoundTerms, coins: int, success: tuple[tuple[float, ...], ...]) -> float:
    """The chance that the bound would exceed `epsilon` if guesses were as right as `success` says.

    `success[ranking][share]`, from `success_rates` on a control. The largest over the comparisons, each at its
    Bonferroni level: a lower bound of the power of all of them.
    """
    if epsilon > _MOST_EPSILON:
        return 0.0
    comparisons = sum(len(row) for row in success)
    return max(
        bounds.power_against(
            trial.curve(epsilon),
            _METHODS[trial.family],
            bounds.OneRunDesign(coins, number_of_guesses(share, coins), rate),
            trial.confidence,
            comparisons,
        )
        for row in success
        for share, rate in zip(SHARES, row, strict=True)
    )


def success_rates(scores: Floats, is_member: Booleans, trial: BoundTerms) -> tuple[tuple[float, ...], ...]:
    """The share of right guesses, for each ranking and each declared share."""
    return tuple(
        tuple(
            counts.correct / counts.guesses
            for counts in (bounds.counts_at((one,), number_of_guesses(share, one.coins)) for share in SHARES)
        )
        for one in rankings_of(scores, is_member, trial)
    )


def number_of_guesses(share: float, coins: int) -> int:
    """How many of this many coins are guessed for this share of them: a few at least, and never more than there are."""
    return min(coins, max(_FEWEST, round(share * coins)))


def coins_of(is_member: Booleans, trial: BoundTerms) -> int:
    """How many coins a trial has."""
    members = int(is_member.sum())
    return min(members, len(is_member) - members) if trial.paired else len(is_member)


def rankings_of(scores: Floats, is_member: Booleans, trial: BoundTerms) -> Rankings:
    """Guesses about the coins, strongest first; each ranking is a strategy of its own."""
    values = checked_scores("scores", scores)
    if is_member.shape != values.shape or is_member.dtype != np.bool_:
        raise InvalidInput(
            "is_member", is_member.shape, f"must be {len(values)} times true or false", "mark each record"
        )
    if not is_member.any() or is_member.all():
        raise InvalidInput("is_member", "one kind only", "must mark members and non-members", "give both")
    if trial.paired:
        return (_pairs(values, is_member, trial.seed),)
    return _singles(values, is_member, trial.seed)


def _pairs(scores: Floats, is_member: Booleans, seed: int) -> bounds.RankedGuesses:
    random = np.random.default_rng((seed, 0xBA12))
    inside, outside = random.permutation(scores[is_member]), random.permutation(scores[~is_member])
    pairs = min(len(inside), len(outside))
    # Which of a pair is named first is a coin, so that equal scores are guessed right half of the time.
    first = random.integers(0, 2, pairs)
    lead = np.where(first == 1, 1.0, -1.0) * (inside[:pairs] - outside[:pairs])
    return bounds.RankedGuesses.from_scores(lead, first)


def _singles(scores: Floats, is_member: Booleans, seed: int) -> Rankings:
    """From both ends, from the top (all "member") and from the bottom (all "non-member").

    Only the order of the scores counts; its middle is where guesses are weakest. Equal scores are ordered at random:
    in the order of the files, members would come first.
    """
    ties = np.random.default_rng((seed, 0x7135)).random(len(scores))
    rank = np.empty(len(scores))
    rank[np.lexsort((ties, scores))] = np.arange(len(scores)) - (len(scores) - 1) / 2
    both = bounds.RankedGuesses.from_scores(rank, is_member.astype(np.int64))
    return both, bounds.RankedGuesses(rank, is_member), bounds.RankedGuesses(-rank, ~is_member)


@lru_cache(maxsize=4096)
def _largest_refuted(counts: bounds.GuessCounts, trial: BoundTerms, failure: float) -> float:
    """Any epsilon (of a Gaussian: any mu) with a p-value below `failure` may be reported; nothing else is assumed."""
    method = _METHODS[trial.family]
    if trial.family is bounds.CurveFamily.GAUSSIAN:
        return refuted_up_to(lambda mu: method.refutes(counts, trial.gaussian(mu), 1 - failure))
    if trial.replacing:
        return refuted_up_to(lambda epsilon: method.p_value(counts, trial.curve(epsilon)) < failure)
    return method.lower_bound(counts, trial.delta, 1 - failure).epsilon
