"""L1 where batches are secret: is there at least the signed noise in the messages? From the run itself.

Without the batch a message cannot be recomputed. But whatever was added to it, independent noise only makes its
squares larger: given all earlier rounds, |message - anything known before|^2 / sigma^2 is stochastically at least
chi-squared (a non-central chi-squared variable is at least a central one). So a sum of such squares in the lower tail
of chi-squared shows that noise is missing, and a clean run is flagged with probability at most `alpha`. Only
directions in which the data are quiet are looked at, because there little else hides missing noise; where too
much does, the answer is *not possible*, never *passed*. A floor in a few directions is not all of the noise, and one
more check says so: the floor can show a breach, but it never speaks for a promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.canaries.choice import sampled_units
from audit.canaries.decoder import quiet_directions
from audit.canaries.insertion import ReplayedRound, Scaling
from audit.evidence import RunEvidence
from audit.report.results import Check, Layer, not_possible, passed_if
from calibrate.arrays import Floats
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, InTheClear

# L1: is the noise in the messages what was signed? From one run, by an auditor who holds the data.
#
# residual = published - clean message, divided by the signed scale, must be iid standard normal. Wrong variance,
# a mean, repeated noise (over rounds or over silos) and a wrong shape each have their own test, and the variance of
# all values together has one more. Every test has false-alarm probability `alpha / number of tests`, so a
# clean run is
# flagged with probability at most `alpha`. That nothing was flagged is evidence only where little noise would
# have been:
# one more check says whether every value that carries noise was measured, and often enough.

DEFAULT_ALPHA = 1e-3
_TESTS_OF_ONE_VALUE = 4
"""Variance, mean, repetition over rounds, shape."""
_SLOPES = np.linspace(0.0, 0.5, 501)[1:-1]
_APART = -0.5 * np.log1p(-(_SLOPES**2))
"""log E exp(t X Y) of independent X and Y, for every slope t."""
_CHAINED = -0.5 * np.log((1.0 + np.sqrt(1.0 - 4.0 * _SLOPES**2)) / 2.0)
"""The same, at most, for each of n factors of sum X_i X_(i+1): the determinant of its tridiagonal form."""
_NOTICED = 0.5
"""Every value must have an even chance of showing that no more than this share of its signed sigma is there."""
_EVEN_CHANCE = 0.5
ALL_MEASURED = "all of the noise is measured"
_MOST_FOR_SHAPE = 5000
"""The discrete grid and float rounding are far below what this many values can resolve."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Standardised residuals of one value of one silo: one row per round."""

    party: str
    name: str
    rows: NDArray[np.float64]


def residuals(evidence: RunEvidence) -> tuple[Residuals, ...]:
    """(published - clean) / sigma for every Gaussian value, silo and round."""
    signed = {value.name: value for value in evidence.document.releases if isinstance(value, GaussianNoise)}
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for one in evidence.rounds():
        for silo in evidence.silos:
            message = evidence.algorithm.contribution(one.state, one.step, silo, evidence.batch(one.round, silo))
            for clean in message.noisy:
                if clean.name in signed:
                    published = evidence.transcript.value(one.round, silo.name, clean.name)
                    row = (published - clean.values).ravel() / signed[clean.name].sigma
                    found.setdefault((silo.name, clean.name), []).append(row)
    return tuple(Residuals(party, name, np.asarray(rows)) for (party, name), rows in found.items())


def check_noise(evidence: RunEvidence, alpha: float = DEFAULT_ALPHA) -> tuple[Check, ...]:
    """All noise tests of a run, or the reason why there can be none."""
    if not any(isinstance(value, GaussianNoise) for value in evidence.document.releases):
        return (_not_possible("the run publishes no Gaussian value"),)
    if not evidence.batches_known:
        return (_not_possible("the batches are secret, so clean messages cannot be recomputed"),)
    found = residuals(evidence)
    if not found:
        return (_not_possible("no round was finished"),)
    return (*judge_residuals(found, alpha), all_measured(evidence.document, found, alpha))


def judge_residuals(found: tuple[Residuals, ...], alpha: float) -> tuple[Check, ...]:
    """Every test of these residuals; together they flag true noise with probability at most `alpha`."""
    pairs = _comparable(found)
    level = _level(found, alpha)
    checks = [] if len(found) == 1 else [_pooled_variance(found, level)]
    for one in found:
        checks += _checks_of(one, level)
    for one, other in pairs:
        checks.append(_between_silos(one, other, level))
    return tuple(checks)


def all_measured(document: BudgetDocument, found: tuple[Residuals, ...], alpha: float) -> Check:
    """Passed only if no signed noise was left out and each value alone would have shown that half of sigma is missing.

    A test of a dozen residuals passes whatever they are, so that it passed says nothing.
    """
    measured = {one.name for one in found}
    unseen = [
        value.name for value in document.releases if not isinstance(value, InTheClear) and value.name not in measured
    ]
    level = _level(found, alpha)
    few = [
        f"{one.name} of {one.party} ({one.rows.size} values)"
        for one in found
        if _chance_to_notice(one.rows.size, level) < _EVEN_CHANCE
    ]
    why = [f"no residual of {', '.join(unseen)}"] if unseen else []
    why += [f"too few residuals to notice that half of sigma is missing: {', '.join(few)}"] if few else []
    if why:
        return not_possible(Layer.NOISE, ALL_MEASURED, "; ".join(why))
    text = f"{100 * _NOTICED:g}% of sigma would have been noticed in every value of every party"
    return passed_if(Layer.NOISE, ALL_MEASURED, True, text)


def _level(found: tuple[Residuals, ...], alpha: float) -> float:
    """Each test's share of the error."""
    return alpha / (_TESTS_OF_ONE_VALUE * len(found) + len(_comparable(found)) + 1)


def _chance_to_notice(count: int, level: float) -> float:
    """The power of the test of variance if only `_NOTICED` of the signed sigma is there."""
    return float(stats.chi2.cdf(stats.chi2.ppf(level / 2, count) / _NOTICED**2, count))


def _pooled_variance(found: tuple[Residuals, ...], level: float) -> Check:
    """Noise that is a little too small everywhere shows in all values together first."""
    values = np.concatenate([one.rows.ravel() for one in found])
    ratio, p_value = _variance(values)
    text = f"all noise together measures {math.sqrt(ratio):.4f} of the signed sigma"
    return _test("variance of all values", p_value, level, text)


def _checks_of(one: Residuals, level: float) -> list[Check]:
    values, where = one.rows.ravel(), f"{one.name} of {one.party}"
    count = values.size
    ratio, variance = _variance(values)
    mean = float(values.mean())
    at_mean = 2 * float(stats.norm.sf(abs(mean) * math.sqrt(count)))
    checks = [
        _test(f"variance of {where}", variance, level, f"noise measures {math.sqrt(ratio):.4f} of the signed sigma"),
        _test(f"mean of {where}", at_mean, level, f"mean of the noise is {mean:+.4f} sigma"),
    ]
    if len(one.rows) > 1:
        products = one.rows[1:] * one.rows[:-1]
        lag, at_lag = float(products.mean()), _tail(float(products.sum()), one.rows.size, _CHAINED)
        text = f"noise of consecutive rounds correlates by {lag:+.4f}"
        checks.append(_test(f"repetition over rounds of {where}", at_lag, level, text))
    spread = values[:: max(1, count // _MOST_FOR_SHAPE)]
    at_shape = float(stats.kstest(spread, "norm").pvalue)
    checks.append(_test(f"shape of {where}", at_shape, level, "Kolmogorov-Smirnov against the normal law"))
    return checks


def _comparable(found: tuple[Residuals, ...]) -> list[tuple[Residuals, Residuals]]:
    """The same value of two silos, published equally often."""
    return [
        (one, other)
        for place, one in enumerate(found)
        for other in found[place + 1 :]
        if one.name == other.name and one.rows.shape == other.rows.shape
    ]


def _between_silos(one: Residuals, other: Residuals, level: float) -> Check:
    products = one.rows * other.rows
    shared, at = float(products.mean()), _tail(float(products.sum()), products.size, _APART)
    name = f"repetition of {one.name} over {one.party} and {other.party}"
    return _test(name, at, level, f"noise of the two silos correlates by {shared:+.4f}")


def _variance(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean square, and how likely one so far from 1 is for standard normal values."""
    ratio, count = float(np.square(values).mean()), values.size
    below, above = stats.chi2.cdf(ratio * count, count), stats.chi2.sf(ratio * count, count)
    return ratio, _two_sided(float(below), float(above))


def _tail(total: float, count: int, log_moments: NDArray[np.float64]) -> float:
    """How likely a sum of `count` products of standard normals is so far from 0, at most (Chernoff, any count).

    Products have heavier tails than the normal law, which would sound false alarms where messages are short.
    """
    return min(1.0, 2 * float(np.exp(np.min(count * log_moments - _SLOPES * abs(total)))))


def _two_sided(below: float, above: float) -> float:
    return min(1.0, 2 * float(min(below, above)))


def _test(name: str, p_value: float, level: float, text: str) -> Check:
    return passed_if(Layer.NOISE, name, p_value >= level, f"{text} (p = {p_value:.3g}, alarm below {level:.1g})")


def _not_possible(why: str) -> Check:
    return not_possible(Layer.NOISE, "noise", why)


_DIRECTIONS = 16
_ENTRIES = 64
_REMEMBERED = 8
"""Rounds whose mean stands for the next one's message without noise."""
"""A passed check is evidence only if this share of the signed sigma would have been flagged."""


@dataclass(frozen=True, eq=False)
class _Series:
    """One value of one party, all rounds, in units of the signed sigma, along a few directions."""

    party: str
    name: str
    rows: Floats


def check_noise_floor(evidence: RunEvidence, alpha: float = DEFAULT_ALPHA) -> tuple[Check, ...]:
    """One question for every party and every value that carries Gaussian noise in each round."""
    found = [one for one in _series(evidence) if len(one.rows) > 1]
    if not found:
        why = "no value was published with Gaussian noise in two rounds or more"
        return (not_possible(Layer.NOISE, "noise floor", why),)
    why = "batches are secret, so a floor was measured in quiet directions only, not the noise itself"
    return (*(_judge_series(one, alpha / len(found)) for one in found), not_possible(Layer.NOISE, ALL_MEASURED, why))


def _judge_series(one: _Series, level: float) -> Check:
    residuals, spread = _residuals(one.rows)
    total, freedom = float(np.square(residuals).sum()), residuals.size
    name = f"noise floor of {one.name} of {one.party}"
    p_value = float(stats.chi2.cdf(total, freedom))
    text = (
        f"{freedom} squares in quiet directions have mean {total / freedom:.3f} of the signed variance "
        f"(p = {p_value:.3g}, alarm below {level:.1g})"
    )
    if p_value < level:
        return passed_if(Layer.NOISE, name, False, f"noise is missing: {text}")
    # What would have been left of the squares, had the signed noise been smaller; the mean adds its own noise.
    with_less = total - (1 - _NOTICED**2) * spread
    if float(stats.chi2.cdf(max(with_less, 0.0), freedom)) < level:
        return passed_if(Layer.NOISE, name, True, f"{text}; {100 * _NOTICED:g}% of sigma would have been noticed")
    why = f"the data hide the noise: {text}"
    return not_possible(Layer.NOISE, name, why)


def _residuals(rows: Floats) -> tuple[Floats, float]:
    """Each round minus the mean of some rounds before it; and the mean sum of squares that pure noise gives."""
    residuals, spread = [], 0.0
    for place in range(1, len(rows)):
        before = rows[max(0, place - _REMEMBERED) : place]
        residuals.append(rows[place] - before.mean(axis=0))
        spread += rows.shape[1] * (1 + 1 / len(before))
    return np.stack(residuals), spread


def _series(evidence: RunEvidence) -> list[_Series]:
    rounds = list(evidence.rounds())
    scaling = Scaling.of(evidence)
    if len(rounds) < 2:
        return []
    # The directions may depend on nothing later than the first round, which is only ever subtracted.
    moments = (ReplayedRound.of(evidence, rounds[0]),)
    found = []
    for silo in evidence.silos:
        units = None if scaling is None else sampled_units(evidence, scaling, moments, silo)
        for declared in evidence.document.releases:
            if not isinstance(declared, GaussianNoise) or declared.publications != evidence.document.rounds:
                continue
            # All that was published, also in rounds that a crash cut short: each has noise of its own.
            values = np.asarray(evidence.transcript.values(silo.name, declared.name), dtype=np.float64)
            rows = values.reshape(len(values), -1) / declared.sigma
            sampled = None
            if units is not None and scaling is not None and declared.name in scaling.names:
                sampled = units[scaling.names.index(declared.name)]
            found.append(_Series(silo.name, declared.name, rows @ _directions(rows.shape[1], sampled).T))
    return found


def _directions(entries: int, sampled: Floats | None) -> Floats:
    """Where single units move the value least; where that is unknown, its first entries as they are."""
    if sampled is None:
        return np.eye(entries)[:_ENTRIES]
    return quiet_directions(sampled, min(_DIRECTIONS, math.ceil(entries / 2)), seed=0)
