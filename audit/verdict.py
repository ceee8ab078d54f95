"""What an audit concludes: consistent, violated or inconclusive; without a guarantee, whether a leak was found.

Never "passed" because the attack was weak. The guarantee is the manifest's, with its trade-off curve, or a paper's.
The reason is sentences: the result, its evidence, the detection limit, and what to do next; no full stop at the end.
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
_WITHOUT_NOISE = ". Detection limit: missing noise would have been detected, slightly too little noise might not"
MORE_EFFORT = "audit with more --reruns or --seconds"


def on_trial(document: BudgetDocument) -> Promise | None:
    """The guarantee that is tested: the manifest's, or the paper's claim that it quotes."""
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


def judge(
    promise: Promise | None,
    checks: Checks,
    attacks: Attacks,
    confidence: float,
    kept: str = "",
    effort: str = MORE_EFFORT,
) -> AuditReport:
    """The conclusion with everything it rests on; a failed check of any layer is a violation.

    Each attack had its share of the error, so that the largest of their bounds is valid at `confidence`. `kept` says
    what part of the published values could be looked at, where that is not all of them; `effort` is the next step where
    the audit was too weak.
    """
    lower = max((attack.bound.epsilon for attack in attacks), default=None)
    power = _power(checks, attacks)
    refutation = _refutation(promise, checks, attacks, confidence, lower)
    if refutation is not None:
        conclusion, why = Conclusion.VIOLATED, refutation
    elif promise is None and lower is not None:
        conclusion, why = _without_promise(attacks, lower, confidence, effort)
    elif (other := _other_code(checks)) is not None:
        conclusion, why = Conclusion.INCONCLUSIVE, other
    elif _is_powerful(promise, checks, attacks, power):
        conclusion, why = (
            Conclusion.CONSISTENT,
            _support(attacks, kept) + (_smallest_breach(power, checks) or _WITHOUT_NOISE) + _floor(checks),
        )
    else:
        why, next_step = _weakness(promise, attacks, power, effort)
        conclusion, why = Conclusion.INCONCLUSIVE, f"{why}{_smallest_breach(power, checks)}. Next: {next_step}"
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
        return ". ".join(failed)
    if promise is not None and lower is not None and lower > promise.epsilon:
        return (
            f"the attack's correct guesses prove epsilon of at least {lower:.3f} ({100 * confidence:g}% confidence), "
            f"above the {promise.epsilon:g} {promise.source}"
        )
    refuting = [(one.curve.p_value, one.name) for one in attacks if one.curve is not None and one.curve.refuted]
    if refuting:
        p_value, name = min(refuting)
        return (
            f"{name}: a run with the signed noise would reveal as much with probability at most {p_value:.2g}, "
            "so the run has less noise, or publishes more, than was signed"
        )
    return None


def _is_powerful(promise: Promise | None, checks: Checks, attacks: Attacks, power: AuditPower | None) -> bool:
    """An attack with power, or noise measured directly, all of it (`audit.runs.noise.all_measured`).

    Where noise is measured at all, a promise priced with it also needs an even chance that the stated breaches would
    have been detected by some layer. An attack that is as right as without noise overrides whatever was measured.

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
    return f"no check failed, but {found[0]}. Next: audit again with the code that trained" if found else None


def _is_contested(promise: Promise | None) -> bool:
    return promise is not None and promise.standing is Standing.CONTESTED


def _power(checks: Checks, attacks: Attacks) -> AuditPower | None:
    """Of all layers together, from the power that each of them computed; None where none did.

    The run, its rehearsal and the gate alone draw separate noise, so their chances of silence multiply; attacks
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


def _unnoticed(power: AuditPower | None) -> tuple[str, str] | None:
    """A stated breach with less than an even chance of detection, and what to do next; None if each had that chance."""
    if power is not None and power.noise is not None and power.noise.noticed < STATED_BREACH:
        share = f"{100 * STATED_BREACH:g}% of the signed level"
        return f"noise at {share} had less than an even chance of being detected", MORE_EFFORT
    if power is not None and power.bound is not None and power.bound.power < CONCLUSIVE:
        excess = f"{100 * STATED_EXCESS:g}% beyond its bound"
        return (
            f"a unit {excess} had less than an even chance of being detected",
            "audit with --seconds 600, which tests more units",
        )
    return None


def _smallest_breach(power: AuditPower | None, checks: Checks) -> str:
    """Computed, rounded down; a hundredth more had less than an even chance."""
    text = ""
    if power is not None and power.noise is not None:
        share = math.floor(100 * power.noise.noticed) / 100
        below = round(100 * (1 - share))
        text += f". Detection limit: noise {below}% below the signed level would have been detected"
        text += f", {below - 1}% would not" if below > 1 else ""
        text += _part_limits(checks)
    if power is not None and power.bound is not None:
        chance = math.floor(100 * power.bound.power) / 100
        tried = f"{power.bound.tried} of {power.bound.units} units were tested"
        text += f". One unit that exceeds its bound by half would be detected with probability {chance:.2f} ({tried})"
    return text


_PARTS = {"variance of ": "one value of one site", "every round of ": "one round", "every place of ": "one coordinate"}
"""Of which parts of the run's noise the power is known: how the names of their checks begin, and what they are."""


def _part_limits(checks: Checks) -> str:
    """The same for noise that is missing in one part of the run alone."""
    parts = []
    for start, what in _PARTS.items():
        found = [one.part_noticed for one in checks if one.name.startswith(start) and one.part_noticed is not None]
        if found:
            parts.append(f"{100 - math.floor(100 * min(found))}% in {what}")
    return f" (alone: {', '.join(parts)})" if parts else ""


def _floor(checks: Checks) -> str:
    """Where batches are secret: how little noise would have been detected in the run itself, not in a rehearsal."""
    return "".join(f". Noise of this run itself: {check.finding}" for check in checks if check.name == FLOOR)


def _support(attacks: Attacks, kept: str) -> str:
    if any(attack.power >= CONCLUSIVE for attack in attacks):
        return "no check failed, and an attack that could have refuted the guarantee did not"
    seen = "values that are kept" if kept else "published values"
    return f"no check failed, and the {seen} were measured to carry all of the signed noise"


def _weakness(promise: Promise | None, attacks: Attacks, power: AuditPower | None, effort: str) -> tuple[str, str]:
    """Why nothing was refuted and nothing confirmed, and what to do next."""
    sure = [attack.name for attack in attacks if attack.at_ceiling]
    if sure:
        why = f"no check failed, but this attack is as right as without any noise: {sure[0]}"
        return why, effort
    if _is_contested(promise):
        why = (
            "nothing refutes the claim, but the certified cost of the signed noise is above it. An attack that would "
            "have detected missing noise shows nothing about noise that is there and too small"
        )
        return why, "sign a budget whose certified cost is at most the claim"
    breach = _unnoticed(power)
    if breach is not None:
        return f"no check failed, but {breach[0]}", breach[1]
    return "no check failed, but no attack had an even chance of refuting the guarantee", effort


def _without_promise(attacks: Attacks, lower: float, confidence: float, effort: str) -> tuple[Conclusion, str]:
    """What is proved where no guarantee was given that could be refuted."""
    if lower > 0:
        why = f"no epsilon below {lower:.3f} is true, with {100 * confidence:g}% confidence"
        return Conclusion.LEAKS, why
    if any(attack.power >= CONCLUSIVE for attack in attacks):
        return (
            Conclusion.NO_LEAK_FOUND,
            "no epsilon is refuted, and an attack that detects unprotected models found nothing",
        )
    return (
        Conclusion.NO_LEAK_FOUND,
        f"no epsilon is refuted, but these attacks had less than an even chance of finding a leak. Next: {effort}",
    )
