"""What (epsilon, delta) means to a person: how often an attacker guesses correctly, and what it can come to believe.

An attacker who knows all data but one unit's and sees every published value decides between two data sets that
differ in that unit. With false alarms of probability a and misses of probability b, (epsilon, delta)-privacy says
exactly (Wasserman and Zhou 2010; Kairouz, Oh and Viswanath 2015)

    a + e^epsilon b >= 1 - delta    and    e^epsilon a + b >= 1 - delta.                                    (1)

What the attacker comes to believe is the prior odds times the likelihood ratio e^L of what was seen. The guarantee does
not say that L exceeds epsilon with probability at most delta (for Gaussian noise it does so more often). But under the
likelier data set delta >= E (1 - e^(epsilon - L))_+ >= (1 - 1/g) P(e^L >= g e^epsilon) for every g > 1, so that

    P(the odds grow by g e^epsilon or more) <= delta / (1 - 1/g),    here 10 delta with g = 10/9.            (2)

Everything here follows from (1) and (2) and is rounded in the attacker's favour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.errors import count, open_unit
from calibrate.manifest.strict_json import Json
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected

_OUTWARD = 1 + 1e-12
RISK = 10.0
"""A bound on beliefs fails with at most this many times delta (2)."""
_LARGEST_EPSILON = 500.0
"""A guarantee for a group beyond this is none."""


@dataclass(frozen=True)
class Meaning:
    """What a guarantee lets an attacker guess and believe.

    Guarantee: for the unit and relation of the promise, whatever else the attacker knows about the other units.
    """

    promise: EpsilonDelta

    @property
    def right_guesses(self) -> float:
        """The largest chance to guess which of two equally likely data sets was used: (e^eps + delta)/(e^eps + 1)."""
        epsilon, delta = self.promise.epsilon, self.promise.delta
        return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)) * _OUTWARD)

    @property
    def advantage(self) -> float:
        """By how much true alarms can exceed false ones: the total variation that (1) allows."""
        return min(1.0, max(0.0, 2 * self.right_guesses - 1))

    def posterior(self, prior: float) -> float:
        """The most that a guess that was `prior` likely before can become, up to probability 10 delta.

        prior: The probability, between 0 and 1, that was given to one of two possibilities beforehand.
        """
        open_unit("prior", prior)
        shrunk = math.exp(-self.promise.epsilon) * (1 - 1 / RISK)
        return min(1.0, 1 / (1 + (1 - prior) / prior * shrunk) * _OUTWARD)

    def for_group(self, size: int) -> Meaning | None:
        """The promise to `size` units together; None where nothing is left of it.

        Guarantee: k steps of the definition, each from one data set to a neighbour, give (k eps, delta (1 + e^eps + ..
        + e^((k-1) eps))) (docs/theorems/composition.md#searches-and-groups, equation 3).
        """
        epsilon, delta = count("size", size) * self.promise.epsilon, self.promise.delta
        if epsilon > _LARGEST_EPSILON:
            return None
        delta *= math.fsum(math.exp(step * self.promise.epsilon) for step in range(size)) * _OUTWARD
        return Meaning(EpsilonDelta(epsilon * _OUTWARD, delta)) if delta < 1 else None

    def least_misses(self, false_alarms: float) -> float:
        """The smallest share of misses at a given share of false alarms: the trade-off curve of (1)."""
        epsilon, delta = self.promise.epsilon, self.promise.delta
        steep = 1 - delta - math.exp(min(epsilon, 700.0)) * false_alarms
        flat = math.exp(-epsilon) * (1 - delta - false_alarms)
        return max(0.0, steep, flat) / _OUTWARD

    def to_json(self) -> dict[str, Json]:
        """The numbers that the command line, the report and a notebook show."""
        grid = [0.0, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
        return {
            "epsilon": self.promise.epsilon,
            "delta": self.promise.delta,
            "right_guesses": self.right_guesses,
            "posterior": {f"{prior:g}": self.posterior(prior) for prior in (0.001, 0.01, 0.1, 0.5)},
            "trade_off": [{"false_alarms": a, "least_misses": self.least_misses(a)} for a in grid],
        }

    def sentences(self, whom: str) -> tuple[str, ...]:
        """The guarantee as sentences; `whom` names the unit, such as "one record"."""
        right, rare = percent(self.right_guesses), percent(self.posterior(0.01))
        guess = (
            f"An attacker who sees every published value and knows all other data guesses which of two equally likely "
            f"versions of {whom} was used correctly at most {right} of the time (random guessing: 50%)."
        )
        belief = (
            f"To this attacker a fact about {whom} that was 1% likely before is at most {rare} likely afterwards, "
            f"except with probability {min(1.0, RISK * self.promise.delta):g}."
        )
        return guess, belief

    def _repr_html_(self) -> str:
        """How a notebook shows it: the sentences and the trade-off curve."""
        points = " ".join(f"{200 * a / 50:.2f},{200 * (1 - self.least_misses(a / 50)):.2f}" for a in range(51))
        curve = f'<polyline points="{points}" fill="none" stroke="currentColor"/>'
        frame = '<rect width="200" height="200" fill="none" stroke="currentColor" opacity=".3"/>'
        text = " ".join(self.sentences("one unit"))
        picture = f'<svg width="160" viewBox="-2 -2 204 204" role="img">{frame}{curve}</svg>'
        return f"<p>{text}</p>{picture}<p>False alarms (right) against the least misses (up) that are possible.</p>"


_SECRET = {
    Protected.ATTRIBUTE: "the sensitive attribute of each record",
    Protected.RECORD: "one record: whether it is in the files, and all its values",
    Protected.USER: "one person: whether they are in the files, and all their records",
}
_OPEN = {
    Protected.ATTRIBUTE: "every other column and the outcome (they can be inferred from what a site sends), and the "
    "held-out records",
    Protected.RECORD: "facts about the population, a person with several records, and the held-out records",
    Protected.USER: "facts about the population, the held-out records, and each person from the party that collects "
    "their data",
}


@dataclass(frozen=True)
class Protection:
    """Who is protected by a guarantee and who is not: the first lines of reports, requests and commands.

    `promise` is None where no one is protected. Guarantee: the share of correct guesses is that of `promise`, rounded
    in the attacker's favour.
    """

    unit: PrivacyUnit
    promise: EpsilonDelta | None

    @property
    def protected(self) -> str:
        """Who is protected, and how well."""
        if self.promise is None:
            return "no one; no privacy is guaranteed"
        right = percent(Meaning(self.promise).right_guesses)
        return (
            f"{_SECRET[self.unit.protected]}. An attacker who sees every published value and knows all other data "
            f"guesses it correctly at most {right} of the time (random guessing: 50%, two equally likely values)"
        )

    @property
    def not_protected(self) -> str:
        """What is not covered by the guarantee."""
        return "everything in the files" if self.promise is None else _OPEN[self.unit.protected]

    def lines(self) -> tuple[str, str]:
        """Both as two lines."""
        return f"Protected: {self.protected}.", f"NOT protected: {self.not_protected}."

    def to_json(self) -> dict[str, str]:
        return {"protected": self.protected, "not_protected": self.not_protected}


def percent(share: float) -> str:
    """Rounded up, so that no attacker looks weaker than the guarantee allows."""
    percent = math.ceil(share * 1000) / 10
    return f"{percent:.1f}%" if percent < 100 or share >= 1 else "nearly 100%"
