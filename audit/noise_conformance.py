"""L1: is the noise in the messages what was signed? From one run, by an auditor who holds the data.

residual = published - clean message, divided by the signed scale, must be iid standard normal. Wrong variance,
a mean, repeated noise (over rounds or over silos) and a wrong shape each have their own test. Every test has
false-alarm probability `alpha / number of tests`, so a clean run is flagged with probability at most `alpha`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from audit.check import Check, Layer, Outcome, passed_if
from audit.evidence import RunEvidence
from calibrate.manifest.mechanism import GaussianNoise

DEFAULT_ALPHA = 1e-3
_TESTS = ("variance", "mean", "repetition over rounds", "repetition over silos", "shape")
_MOST_FOR_SHAPE = 5000
"""The discrete grid and float rounding are far below what this many values can resolve."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Standardised residuals of one value of one silo: one row a round."""

    party: str
    name: str
    rows: NDArray[np.float64]


def residuals(evidence: RunEvidence) -> tuple[Residuals, ...]:
    """(published - clean) / sigma for every Gaussian value, silo and round."""
    signed = {value.name: value for value in evidence.document.releases if isinstance(value, GaussianNoise)}
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for one in evidence.rounds():
        for silo in evidence.silos:
            message = evidence.algorithm.contribution(
                one.state, one.step, silo, evidence.batch(one.round, silo)
            )
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
    level = alpha / (len(_TESTS) * len(found))
    checks = []
    for one in found:
        checks += _checks_of(one, level)
    checks += _between_silos(found, level)
    return tuple(checks)


def _checks_of(one: Residuals, level: float) -> list[Check]:
    values, where = one.rows.ravel(), f"{one.name} of {one.party}"
    count = values.size
    ratio = float(np.square(values).mean())
    variance = _two_sided(stats.chi2.cdf(ratio * count, count), stats.chi2.sf(ratio * count, count))
    mean = float(values.mean())
    at_mean = 2 * float(stats.norm.sf(abs(mean) * math.sqrt(count)))
    checks = [
        _judged(
            f"variance of {where}",
            variance,
            level,
            f"noise measures {math.sqrt(ratio):.4f} of the signed sigma",
        ),
        _judged(f"mean of {where}", at_mean, level, f"mean of the noise is {mean:+.4f} sigma"),
    ]
    if len(one.rows) > 1:
        lag = float((one.rows[1:] * one.rows[:-1]).mean())
        at_lag = 2 * float(stats.norm.sf(abs(lag) * math.sqrt(one.rows[1:].size)))
        text = f"noise of consecutive rounds correlates by {lag:+.4f}"
        checks.append(_judged(f"repetition over rounds of {where}", at_lag, level, text))
    spread = values[:: max(1, count // _MOST_FOR_SHAPE)]
    at_shape = float(stats.kstest(spread, "norm").pvalue)
    checks.append(_judged(f"shape of {where}", at_shape, level, "Kolmogorov-Smirnov against the normal law"))
    return checks


def _between_silos(found: tuple[Residuals, ...], level: float) -> list[Check]:
    checks = []
    for place, one in enumerate(found):
        for other in found[place + 1 :]:
            if one.name == other.name and one.rows.shape == other.rows.shape:
                shared = float((one.rows * other.rows).mean())
                at = 2 * float(stats.norm.sf(abs(shared) * math.sqrt(one.rows.size)))
                name = f"repetition of {one.name} over {one.party} and {other.party}"
                checks.append(_judged(name, at, level, f"noise of the two silos correlates by {shared:+.4f}"))
    return checks


def _two_sided(below: float, above: float) -> float:
    return min(1.0, 2 * float(min(below, above)))


def _judged(name: str, p_value: float, level: float, text: str) -> Check:
    return passed_if(
        Layer.NOISE, name, p_value >= level, f"{text} (p = {p_value:.3g}, alarm below {level:.1g})"
    )


def _not_possible(why: str) -> Check:
    return Check(Layer.NOISE, "noise", Outcome.NOT_POSSIBLE, why)
