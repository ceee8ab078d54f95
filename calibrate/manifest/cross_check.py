"""Two independent accountants must agree before anybody signs.

One accountant's bug would otherwise become a signed promise. Agreement means that their certified intervals
overlap: both can then be right. What is promised is the upper end of the better one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrate.manifest.document import Interval, Opinion
from calibrate.manifest.steps import Step
from calibrate.privacy_unit import PrivacyUnit
from calibrate.releases import Release

if TYPE_CHECKING:
    from calibrate.accountants.registry import Priced


@dataclass(frozen=True)
class CrossCheck:
    """Two opinions on one event that do not contradict each other; `first` is the one to promise from."""

    first: Opinion
    second: Opinion


def cross_check(release: Release, unit: PrivacyUnit, delta: float, epsilon: float | None) -> CrossCheck:
    """Prices a release twice; raises `ManifestRefused` unless both agree and the price is within `epsilon`.

    `epsilon` is None where nothing finite is promised: a paper's own noise, priced to show what it costs.
    """
    # Imported when used: accountants load numerical libraries that reading a manifest must not need.
    from calibrate.accountants import registry

    first = registry.best_epsilon(release, unit, delta)
    second = registry.second_opinion(release, unit, delta)
    if not registry.agree(first, second):
        raise Step.PRICE.refuse(
            f"{_words(first)} but {_words(second)}, so there is no second opinion that agrees",
            "report the event as a bug; until it is mended, choose a sampling that both accountants price alike",
        )
    if epsilon is not None and first.interval.upper > epsilon:
        raise Step.PRICE.refuse(
            f"the certified epsilon {first.interval.upper} exceeds the promised {epsilon}"
        )
    return CrossCheck(_opinion(first), _opinion(second))


def _opinion(priced: Priced) -> Opinion:
    return Opinion(
        accountant=priced.accountant_name.value,
        library=priced.library,
        version=priced.version,
        interval=Interval.of(priced.interval),
    )


def _words(priced: Priced) -> str:
    return f"{priced.accountant_name.value} certifies [{priced.interval.lower}, {priced.interval.upper}]"
