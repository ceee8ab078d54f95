"""An audit inside a training that can't be run again: coins before, scores after, a valid bound and a verdict.

Three lines in anybody's training code, whatever library it uses:

    coins = coin_flip(len(canaries), seed)                           # before: canary i is trained on if coins[i] is 1
    ...                                                              # train; score each canary, larger for "was in"
    report = one_run(scores, coins, epsilon=1.0, delta=1e-5)         # after
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from audit.bounds import (
    EProcess,
    EpsilonDeltaCurve,
    GuessCounts,
    LowerBound,
    OneRunDesign,
    RankedGuesses,
    best_guesses,
    bound_for,
    claimed_curve,
    counts_at,
    declared_price,
    power_against,
)
from audit.bounds.lower_bound import allowed_failure
from audit.report.results import Attack, AuditReport, Promise, Standing
from audit.settings import CONFIDENCE
from audit.verdict import judge
from calibrate.arrays import Integers
from calibrate.errors import InvalidInput, count
from calibrate.privacy_unit import EpsilonDelta
from calibrate.releases import Release

_DELTA_SHARE = 0.4
"""Which part of the allowed error may pay for delta."""
_SHARES = (0.05, 0.2, 0.5, 1.0)
"""After which shares of the guesses the power is computed; each is a lower bound of the power of all of them."""


def coin_flip(n: int, seed: int, sides: int = 2) -> Integers:
    """Independent fair coins, to be flipped before the training that they decide about.

    n: how many; one per canary. With 1 it is trained on, with 0 it is left out.
    seed: known to the auditor alone; neither the training nor the scores may depend on it.
    sides: more than two where a canary has several versions, for example a group to which it is assigned.

    >>> coin_flip(8, seed=0).tolist()
    [1, 0, 1, 0, 0, 1, 1, 1]
    """
    count("n", n)
    count("seed", seed, least=0)
    # Not the words that a training with the same seed draws: its noise would know the coins.
    return np.random.default_rng((seed, 0xC015)).integers(0, count("sides", sides, least=2), n)


def one_run(
    scores: ArrayLike,
    coins: ArrayLike,
    *,
    delta: float,
    epsilon: float | None = None,
    confidence: float = CONFIDENCE,
    controls: ArrayLike | None = None,
    mechanism: Release | None = None,
) -> AuditReport:
    """What one training run reveals about its coins, as a lower bound on epsilon and a verdict on a claim.

    scores: one per coin, larger the more it looks like 1 (for example minus the canary's loss). Only their order
        counts: its middle is "no idea", its ends are guessed first. For k sides a table (coins, k) of log likelihoods.
    coins: what `coin_flip` gave.
    delta: at which the bound and the claim are meant; 0 for pure differential privacy.
    epsilon: the claim that is tested; None to ask only for the bound.
    confidence: probability with which the bound is not above the true epsilon.
    controls: scores of the same audit with the noise switched off; without them no power is known, and a claim that
        is not refuted is inconclusive.
    mechanism: the release that the training declares, for adding or removing one canary. It proves more, and refutes
        this release with its noise times a factor; without `epsilon` its price is the claim.

    Guarantee: docs/theorems/audit-bounds.md, "The e-process": valid for any training that is private with respect to
    changing one coin (one canary added, removed or replaced), if the coins are fair, independent, were flipped before
    it, and entered nothing but the data. There is no threshold to choose. With `mechanism` "A declared mechanism"
    there: valid for trainings that are this release at some noise; the number of guesses follows from coins and claim.

    >>> coins = coin_flip(200, seed=1)
    >>> leaking = coins + np.random.default_rng(2).normal(0, 0.3, 200)
    >>> report = one_run(leaking, coins, epsilon=1.0, delta=1e-5)
    >>> report.verdict.value, report.epsilon_lower > 2
    ('violated', True)
    >>> silent = np.random.default_rng(3).normal(size=200)
    >>> one_run(silent, coins, epsilon=1.0, delta=1e-5).verdict.value
    'inconclusive'
    >>> one_run(silent, coins, epsilon=1.0, delta=1e-5, controls=leaking).verdict.value
    'consistent'
    """
    run = _ranked_guesses("scores", scores, coins)
    control = None if controls is None else _ranked_guesses("controls", controls, coins)
    claim = claim_of(epsilon, delta, mechanism, "claimed by the auditor's word")
    if mechanism is None:
        bound, power = _by_betting(run, control, epsilon, delta, confidence)
    else:
        assert claim is not None
        bound, power = _by_mechanism(run, control, mechanism, claim, confidence)
    compared = "no control without noise, so its power is not known"
    if control is not None and claim is not None:
        compared = f"{_share_right(counts_at((control,), control.coins))} without noise"
    assert isinstance(bound.evidence, GuessCounts)
    best = bound.evidence
    text = (
        f"{best.coins} coins in one run, {_share_right(counts_at((run,), best.coins))}; "
        f"of the {best.guesses} strongest guesses {best.correct} ({compared})"
    )
    attack = Attack(name="coins in one run", power=power, evidence=text, bound=bound)
    return judge(claim, (), (attack,), confidence, effort="audit with more coins, and with controls")


def claim_of(epsilon: float | None, delta: float, mechanism: Release | None, source: str) -> Promise | None:
    """The claim that is tested: the stated epsilon, or the price of the declared release; None without either."""
    if mechanism is None:
        return None if epsilon is None else Promise(epsilon=float(epsilon), delta=delta, source=source)
    price = declared_price(mechanism, delta)
    if epsilon is None:
        EpsilonDelta(price.upper, delta)
        source = "the price of the declared mechanism"
        return Promise(epsilon=price.upper, delta=delta, source=source, standing=Standing.PRICED)
    if price.lower > epsilon:
        rule = f"is less than the declared mechanism costs, {price.lower:.4g} at delta = {delta:g}"
        raise InvalidInput("epsilon", epsilon, rule, "declare the mechanism that keeps it, or leave epsilon out")
    standing = Standing.PRICED if price.upper <= epsilon else Standing.CLAIMED
    return Promise(epsilon=epsilon, delta=delta, source=source, standing=standing)


def _by_betting(
    run: RankedGuesses, control: RankedGuesses | None, epsilon: float | None, delta: float, confidence: float
) -> tuple[LowerBound, float]:
    """The bound for any release, and its power: every number of guesses counts at once."""
    method = EProcess(delta_price=_DELTA_SHARE * allowed_failure(confidence))
    bound, power = method.lower_bound((run,), delta, confidence), 0.0
    if control is not None and epsilon is not None:
        power = _power(EpsilonDeltaCurve(epsilon, delta), method, (control,), confidence)
    return bound, power


def _by_mechanism(
    run: RankedGuesses, control: RankedGuesses | None, mechanism: Release, claim: Promise, confidence: float
) -> tuple[LowerBound, float]:
    """The bound for a declared release, and its power: the number of guesses follows from coins and claim."""
    method, delta = bound_for(mechanism), claim.delta
    guesses = best_guesses(run.coins, claim.epsilon, delta, confidence)
    bound, power = method.lower_bound(counts_at((run,), guesses), delta, confidence), 0.0
    if control is not None:
        right = counts_at((control,), guesses).correct / guesses
        design = OneRunDesign(run.coins, guesses, right, run.choices)
        power = power_against(claimed_curve(method, claim.epsilon, delta), method, design, confidence)
    return bound, power


def _ranked_guesses(name: str, scores: ArrayLike, coins: ArrayLike) -> RankedGuesses:
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(coins)
    if truth.ndim != 1 or values.shape[:1] != truth.shape or values.ndim not in (1, 2):
        rule = f"must be one score, or one row of scores, for each of {truth.size} coins"
        raise InvalidInput(name, values.shape, rule, "score every coin once, in the order of the coins")
    if values.ndim == 2:
        return RankedGuesses.from_log_likelihoods(values, truth)
    if not np.isfinite(values).all():
        raise InvalidInput(name, "NaN or infinite", "must be finite", "drop or fix such scores")
    return RankedGuesses.from_scores(rankdata(values) - (len(values) + 1) / 2, truth)


def _power(claim: EpsilonDeltaCurve, method: EProcess, control: tuple[RankedGuesses], confidence: float) -> float:
    """The chance of refuting the claim if guesses were as right as the control's, stopping after some of them."""
    coins, choices = control[0].coins, control[0].choices
    powers = []
    for share in _SHARES:
        counts = counts_at(control, max(1, math.floor(share * coins)))
        design = OneRunDesign(coins, counts.guesses, counts.correct / counts.guesses, choices)
        powers.append(power_against(claim, method, design, confidence))
    return max(powers)


def _share_right(counts: GuessCounts) -> str:
    return f"{100 * counts.correct / counts.guesses:.1f}% of all guesses right"
