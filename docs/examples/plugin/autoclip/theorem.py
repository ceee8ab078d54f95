"""A claim that privfair judges by computing what the noise really costs; nothing is believed because it is printed."""

import math

from calibrate.accountants.registry import best_epsilon
from calibrate.errors import count, open_unit, positive, rate
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Batch, Poisson
from calibrate.theorems.theorem import Condition, EpsilonComparison, Finding, Parameter, Setting, Theorem


def _rule_of_thumb(s: Setting) -> Finding:
    q, rounds = s.number("sampling_rate"), s.whole("rounds")
    epsilon, delta = s.number("epsilon"), s.number("delta")
    sigma = 2 * q * math.sqrt(rounds * math.log(1 / delta)) / epsilon
    published = Repeated(Sampled(Poisson(q, Batch.SECRET), Gaussian(sigma)), rounds)
    true = best_epsilon(published, PrivacyUnit.of(Relation.ADD_REMOVE), delta).interval
    why = f"sigma = {sigma:.4g} costs between {true.lower:.4g} and {true.upper:.4g}, and {epsilon:g} is claimed"
    return Finding(EpsilonComparison(epsilon, true), why, details={"sigma": sigma})


THEOREMS = (
    Theorem(
        id="autoclip.rule-of-thumb",
        citation="The README of this example package",
        place="Its only formula",
        formula="noise of standard deviation R sigma with sigma = 2 q sqrt(T ln(1/delta)) / epsilon",
        parameters=(
            Parameter("sampling_rate", 0.01, "probability that a record joins a batch", rate, ("q",)),
            Parameter("rounds", 1000, "rounds", count, ("T",)),
            Parameter("epsilon", 1.0, "the promised epsilon", positive, ("eps",)),
            Parameter("delta", 1e-5, "the promised delta", open_unit),
        ),
        conditions=(Condition(lambda s: "epsilon is at most 1", lambda s: s.number("epsilon") <= 1),),
        domain={"sampling_rate": (0.01, 0.05), "rounds": (300, 1000)},
        compute=_rule_of_thumb,
    ),
)
