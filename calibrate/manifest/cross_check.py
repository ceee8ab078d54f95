"""Two independent accountants must agree before anybody signs.

One accountant's bug would otherwise become a signed promise. Agreement means that their certified intervals
overlap: both can then be right. What is promised is the upper end of the better one.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import ManifestRefused
from calibrate.manifest.document import Interval, Opinion
from calibrate.manifest.steps import Step
from calibrate.privacy_unit import PrivacyUnit
from calibrate.releases import Release


@dataclass(frozen=True)
class CrossCheck:
    """Two opinions on one event that do not contradict each other; `first` is the one to promise from."""

    first: Opinion
    second: Opinion


def cross_check(release: Release, unit: PrivacyUnit, delta: float, epsilon: float | None) -> CrossCheck:
    """Prices a release twice; raises `ManifestRefused` unless both agree and the price is within `epsilon`.

    `epsilon` is None where nothing finite is promised: a paper's own noise, priced to show what it costs.
    """
    # Imported when used: accountants load numerical libraries that verification must not need.
    from calibrate.accountants.registry import best_epsilon, second_opinion

    first = best_epsilon(release, unit, delta)
    second = second_opinion(release, unit, delta)
    if first.accountant_name == second.accountant_name:
        raise _refused(f"both prices come from {first.accountant_name}, so there is no second opinion")
    if not first.interval.overlaps(second.interval):
        raise _refused(
            f"{first.accountant_name} certifies [{first.interval.lower}, {first.interval.upper}] but "
            f"{second.accountant_name} [{second.interval.lower}, {second.interval.upper}]"
        )
    if epsilon is not None and first.interval.upper > epsilon:
        raise _refused(f"the certified epsilon {first.interval.upper} exceeds the promised {epsilon}")
    return CrossCheck(
        Opinion(
            accountant=first.accountant_name,
            library=first.library,
            version=first.version,
            interval=Interval.of(first.interval),
        ),
        Opinion(
            accountant=second.accountant_name,
            library=second.library,
            version=second.version,
            interval=Interval.of(second.interval),
        ),
    )


def _refused(why: str) -> ManifestRefused:
    return Step.PRICE.refuse(why)
