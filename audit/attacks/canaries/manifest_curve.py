"""The trade-off curve that a manifest signs: its own event, priced at many deltas, discrete noise included."""

from __future__ import annotations

from audit.bounds import ProfileCurve
from calibrate.accountants.registry import best_epsilon
from calibrate.manifest.document import BudgetDocument
from calibrate.privacy_unit import EpsilonDelta

_DELTAS = (0.4, 0.3, 0.2, 0.14, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6)
"""Where the profile is sampled; between the points the curve lies a little too low, on the careful side."""
_LEAST, _MOST = 1e-9, 100.0


def manifest_curve(document: BudgetDocument) -> ProfileCurve | None:
    """All (epsilon, delta) promises that the signed event keeps, at a few deltas, as one curve; None if it keeps none.

    Guarantee: each point is a certified upper bound (calibrate.accountants.registry.best_epsilon) after the slack of
    discrete noise, for the manifest's unit; so a run that does what was signed lies on or above the curve.
    """
    unit, accounting = document.guarantee.privacy_unit(), document.accounting
    slack = accounting.discrete_noise.slack()
    points = []
    for delta in _DELTAS:
        epsilon = best_epsilon(accounting.event, unit, delta).interval.upper
        if epsilon < _MOST:
            certified = slack.certified(EpsilonDelta(max(epsilon, _LEAST), delta))
            points.append((certified.epsilon, certified.delta))
    return ProfileCurve.of(tuple(points)) if points else None
