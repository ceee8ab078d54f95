"""What an audit concludes: consistent, violated or inconclusive; without a promise, whether a leak was found.

Never "passed" because the attack was weak. The promise is the manifest's own, with its trade-off curve, or a paper's.
"""

from __future__ import annotations

import math
from typing import assert_never

from scipy.stats import binom

from audit.bounds import CONCLUSIVE, ProfileCurve
from audit.bounds.mechanism import PROFILE_DELTAS, profile_points
from audit.report.results import (
    FLOOR,
    OTHER_CODE,
    STATED_BREACH,
    STATED_EXCESS,
    Attack,
    AuditPower,
    AuditReport,
    Check,
    CheckOutcome,
    Conclusion,
    Layer,
    NoisePower,
    PowerPoint,
    Promise,
    Standing,
)
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import AsPrintedGuarantee, NoPrivacyPromised, PrivateGuarantee
from calibrate.privacy_unit import EpsilonDelta

Checks = tuple[Check, ...]
Attacks = tuple[Attack, ...]
_LUCK = 0.05
_WITHOUT_NOISE = "; missing noise would have been noticed, too little of it perhaps not"


def on_trial(document: BudgetDocument) -> Promise | None:
    """The promise to be refuted: the manifest's own, or the paper's claim it quotes."""
    guarantee = document.guarantee
    match guarantee:
        case PrivateGuarantee():
            return Promise(
                epsilon=guarantee.epsilon,
                delta=guarantee.delta,
                source="promised by the manifest",
                standing=Standing.PRICED,
            )
        case AsPrintedGuarantee():
            certified = guarantee.epsilon is not None and guarantee.epsilon <= guarantee.claimed_epsilon
            standing = Standing.CLAIMED if certified else Standing.CONTESTED
            return Promise(
                epsilon=guarantee.claimed_epsilon,
                delta=guarantee.delta,
                source=f"claimed by {guarantee.claim}",
                standing=standing,
            )
        case NoPrivacyPromised():
            return None
        case _:
            assert_never(guarantee)


# The trade-off curve that a manifest signs: its own event, priced at many deltas, discrete noise included.

_LEAST = 1e-9


def manifest_curve(document: BudgetDocument) -> ProfileCurve | None:
    """All (epsilon, delta) promises that the signed event keeps, at a few deltas, as one curve; None if it keeps none.

    Guarantee: each point is a certified upper bound (calibrate.accountants.registry.best_epsilon) after the slack of
    discrete noise, for the manifest's unit; so a run that does what was signed lies on or above the curve.
    """
    unit, accounting = document.guarantee.privacy_unit(), document.accounting
    points = tuple(
        accounting.discrete_noise.certified(EpsilonDelta(max(epsilon, _LEAST), delta))
        for epsilon, delta in profile_points(accounting.event, unit, PROFILE_DELTAS)
    )
    return ProfileCurve.of(tuple((point.epsilon, point.delta) for point in points)) if points else None


def judge(promise: Promise | None, checks: Checks, attacks: Attacks, confidence: float, kept: str = "") -> AuditReport:
    """The conclusion with everything it rests on; a failed check of any layer is a violation.

    Each attack had its share of the error, so that the largest of their bounds is valid at `confidence`. `kept` says
    what part of the published values could be looked at, where that is not all of them.
    """
    lower = max((attack.bound.epsilon for attack in attacks), default=None)
    power = _power(checks, attacks)
    refutation = _refutation(promise, checks, attacks, confidence, lower)
    if refutation is not None:
        conclusion, why = Conclusion.VIOLATED, refutation
    elif promise is None and lower is not None:
        conclusion, why = _without_promise(attacks, lower, confidence)
    elif (other := _other_code(checks)) is not None:
        conclusion, why = Conclusion.INCONCLUSIVE, other
    elif _is_powerful(promise, checks, attacks, power):
        conclusion, why = (
            Conclusion.CONSISTENT,
            _support(attacks, kept) + (_smallest_breach(power) or _WITHOUT_NOISE) + _floor(checks),
        )
    else:
        conclusion, why = Conclusion.INCONCLUSIVE, _doubt(promise, attacks, power) + _smallest_breach(power)
    return AuditReport(
        verdict=conclusion,
        why=why + kept,
        epsilon_lower=lower,
        confidence=confidence,
        promised=promise,
        attacks=attacks,
        checks=checks,
        noise_noticed=None if power is None or power.noise is None else power.noise.noticed,
        power=power,
    )


def is_at_ceiling(right: float, right_without_noise: float, guesses: int) -> bool:
    """Whether an attack is as right as without any noise, and more right than luck explains (5%, one-sided)."""
    correct = round(right * guesses)
    return right >= right_without_noise and float(binom.sf(correct - 1, guesses, 0.5)) < _LUCK


def _refutation(
    promise: Promise | None, checks: Checks, attacks: Attacks, confidence: float, lower: float | None
) -> str | None:
    """What contradicts the promise: a failed check, a bound above it, or a refuted curve; None if nothing does."""
    failed = [f"{check.name}: {check.finding}" for check in checks if check.outcome is CheckOutcome.FAILED]
    if failed:
        return "; ".join(failed)
    if promise is not None and lower is not None and lower > promise.epsilon:
        return (
            f"the observer's guesses show epsilon of at least {lower:.3f} with {100 * confidence:g}% confidence, "
            f"and {promise.epsilon:g} is {promise.source}"
        )
    refuting = [(one.curve.p_value, one.name) for one in attacks if one.curve is not None and one.curve.refuted]
    if refuting:
        p_value, name = min(refuting)
        return (
            f"{name}: a run with the signed noise would betray as much with probability at most {p_value:.2g}, "
            "so the run has less noise, or publishes more, than the manifest prices"
        )
    return None


def _is_powerful(promise: Promise | None, checks: Checks, attacks: Attacks, power: AuditPower | None) -> bool:
    """An attack with power, or noise measured directly, all of it (`audit.runs.noise.all_measured`); and no doubt left.

    Where noise is measured at all, a promise priced with it also needs an even chance that the stated breaches would
    have been noticed by some layer. An attack that is as right as without noise overrides whatever was measured.

    A question of that layer that could not be answered leaves it silent. That the signed noise is there speaks for
    a promise only if the promise was priced with that noise. Power is against noise that is missing; where the
    signed noise itself is known to cost more than was claimed, that is not the breach in question.
    """
    if _is_contested(promise) or any(attack.at_ceiling for attack in attacks):
        return False
    if promise is not None and promise.standing is Standing.PRICED and _unnoticed(power) is not None:
        return False
    noise = [check.outcome for check in checks if check.layer is Layer.NOISE]
    priced = promise is None or promise.standing is Standing.PRICED
    measured = priced and bool(noise) and all(outcome is CheckOutcome.PASSED for outcome in noise)
    return measured or any(attack.power >= CONCLUSIVE for attack in attacks)


def _other_code(checks: Checks) -> str | None:
    """That the code which trained is known and is not the code that was rehearsed; None otherwise."""
    found = [check.finding for check in checks if check.name == OTHER_CODE and check.outcome is not CheckOutcome.PASSED]
    return f"no check failed, but {found[0]}; audit again with the code that trained" if found else None


def _is_contested(promise: Promise | None) -> bool:
    return promise is not None and promise.standing is Standing.CONTESTED


def _power(checks: Checks, attacks: Attacks) -> AuditPower | None:
    """Of all layers together, from the power that each of them computed; None where none did.

    The run, its rehearsal and the gate alone draw noise of their own, so their chances of silence multiply; attacks
    share their reruns, so the best one counts, and only where all noise is missing. The share with an even chance is
    that of the best layer, which is a lower bound.
    """
    layers = [check.noise_power for check in checks if check.noise_power is not None]
    bounds = [check.bound_power for check in checks if check.bound_power is not None]
    if not layers and not bounds:
        return None
    noise = None
    if layers:
        silent = {0.0: 1 - max((attack.power for attack in attacks), default=0.0)}
        for layer in layers:
            for point in layer.curve:
                # Independent noise: the chances of silence multiply.
                silent[point.share] = silent.get(point.share, 1.0) * (1 - point.power)
        curve = tuple(PowerPoint(share=share, power=1 - left) for share, left in sorted(silent.items()))
        noise = NoisePower(noticed=max(layer.noticed for layer in layers), curve=curve)
    return AuditPower(noise=noise, bound=min(bounds, key=lambda one: one.power, default=None))


def _unnoticed(power: AuditPower | None) -> str | None:
    """Which of the stated breaches would hardly have been noticed; None if both would have been, where asked."""
    if power is not None and power.noise is not None and power.noise.noticed < STATED_BREACH:
        return f"noise x {STATED_BREACH:g} would hardly have been noticed"
    if power is not None and power.bound is not None and power.bound.power < CONCLUSIVE:
        return (
            f"a unit that goes {100 * STATED_EXCESS:g}% beyond its bound would hardly have been noticed "
            "(--budget-seconds 600 tries more units)"
        )
    return None


def _smallest_breach(power: AuditPower | None) -> str:
    """Computed, rounded down; a hundredth more had less than an even chance."""
    text = ""
    if power is not None and power.noise is not None:
        share = math.floor(100 * power.noise.noticed) / 100
        text += f"; it would have noticed noise x {share:.2f}, not x {share + 0.01:.2f}"
    if power is not None and power.bound is not None:
        chance = math.floor(100 * power.bound.power) / 100
        tried = f"{power.bound.tried} of {power.bound.units} were tried"
        text += f"; a unit beyond its bound by half: noticed with probability {chance:.2f} ({tried})"
    return text


def _floor(checks: Checks) -> str:
    """Where batches are secret: how little noise would have shown in the run itself; the rest is said of its code."""
    return "".join(f"; of the run's own noise: {check.finding}" for check in checks if check.name == FLOOR)


def _support(attacks: Attacks, kept: str) -> str:
    if any(attack.power >= CONCLUSIVE for attack in attacks):
        return "no check failed, and an attack that could have refuted the promise did not"
    seen = "values that are kept" if kept else "published values"
    return f"no check failed, and the {seen} were measured to carry all of the signed noise"


def _doubt(promise: Promise | None, attacks: Attacks, power: AuditPower | None) -> str:
    sure = [attack.name for attack in attacks if attack.at_ceiling]
    if sure:
        why = f"no check failed, but this attack is as right as without any noise: {sure[0]}"
        return f"{why}; audit with more --reruns or --budget-seconds"
    if _is_contested(promise):
        return (
            "nothing refutes the claim, but the certified cost of the signed noise is above it, and an attack that "
            "would have noticed missing noise says nothing about noise that is there and too small"
        )
    breach = _unnoticed(power)
    if breach is not None:
        return f"no check failed, but {breach}"
    return "no check failed, but no attack had an even chance of refuting the promise"


def _without_promise(attacks: Attacks, lower: float, confidence: float) -> tuple[Conclusion, str]:
    """What is proved where nothing was promised that could be refuted."""
    if lower > 0:
        why = f"no epsilon below {lower:.3f} is true, with {100 * confidence:g}% confidence"
        return Conclusion.LEAKS, why
    if any(attack.power >= CONCLUSIVE for attack in attacks):
        return (
            Conclusion.NO_LEAK_FOUND,
            "no epsilon is refuted, and an attack that finds unprotected models found nothing",
        )
    return Conclusion.NO_LEAK_FOUND, "no epsilon is refuted, but these attacks would hardly have found a leak"
