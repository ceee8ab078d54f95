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
from scipy import stats

from audit.attacks.canaries.casting import sampled_units
from audit.attacks.canaries.directions import quiet_directions
from audit.attacks.canaries.messages import Moment, Scaling
from audit.check import Check, Layer, Outcome, passed_if
from audit.evidence import RunEvidence
from audit.noise_conformance import ALL_MEASURED
from calibrate.arrays import Floats
from calibrate.manifest.mechanism import GaussianNoise

DEFAULT_ALPHA = 1e-3
_DIRECTIONS = 16
_ENTRIES = 64
_REMEMBERED = 8
"""Rounds whose mean stands for the next one's message without noise."""
_NOTICED = 0.5
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
        return (Check(Layer.NOISE, "noise floor", Outcome.NOT_POSSIBLE, why),)
    why = "batches are secret, so a floor was measured in quiet directions only, not the noise itself"
    return (
        *(_judged(one, alpha / len(found)) for one in found),
        Check(Layer.NOISE, ALL_MEASURED, Outcome.NOT_POSSIBLE, why),
    )


def _judged(one: _Series, level: float) -> Check:
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
        return passed_if(
            Layer.NOISE, name, True, f"{text}; {100 * _NOTICED:g}% of sigma would have been noticed"
        )
    why = f"the data hide the noise: {text}"
    return Check(Layer.NOISE, name, Outcome.NOT_POSSIBLE, why)


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
    moments = (Moment.of(evidence, rounds[0]),)
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
