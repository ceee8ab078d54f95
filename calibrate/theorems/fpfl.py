"""What the FPFL paper claims about privacy: the noise of Algorithm 1 and the Gaussian mechanism's Rényi curve."""

from __future__ import annotations

from functools import partial

from calibrate.budget import price_plan
from calibrate.errors import InvalidInput, count, open_unit, positive
from calibrate.plans.fpfl import STATISTICS, CohortSampling, FpflPlan
from calibrate.theorems.printed import fixed_size_sigma
from calibrate.theorems.theorem import Parameter, Setting, Theorem
from calibrate.theorems.verdict import BoundComparison, EpsilonComparison, Finding

CITATION = (
    "Rodríguez-Gálvez, Granqvist, van Dalen, Seigel: Enforcing fairness in private federated learning via the"
    " modified method of differential multipliers (arXiv:2109.08604)"
)
_USERS = 16280
_whole = partial(count, least=1)


def _algorithm_1(s: Setting) -> Finding:
    """sigma by the cited accountant with sensitivity C; the truth by the relation that accountant speaks of."""
    users, cohort, rounds = s.whole("users"), s.whole("cohort"), s.whole("rounds")
    claimed, delta = s.number("epsilon"), s.number("delta")
    plan = FpflPlan(users, cohort, rounds, 1.0, CohortSampling.FIXED)
    if cohort == users:
        raise InvalidInput("cohort", cohort, "is everybody, so nothing is sampled", "use a smaller cohort")
    sigma = fixed_size_sigma(cohort / users, rounds, claimed, delta, s.whole("largest_order"))
    true = price_plan(plan, delta, noise_multipliers={STATISTICS: sigma})
    why = (
        f"the cited accountant, told that the sensitivity is C, returns sigma = {sigma:.4g}; but its fixed-size"
        f" sampling speaks of replacing a user, which moves the clipped sum by 2C, and then the cost lies between"
        f" {true.lower:.4g} and {true.upper:.4g}, where {claimed:g} is promised"
    )
    return Finding(EpsilonComparison(claimed, true), why, details={"sigma": sigma})


def _gaussian_rdp(s: Setting) -> Finding:
    order, sensitivity, sigma = s.number("order"), s.number("sensitivity"), s.number("sigma")
    deviation = sensitivity * sigma
    printed = order / (2 * sensitivity**2 * sigma**2)
    found = order * sensitivity**2 / (2 * deviation**2)
    why = (
        "two Gaussians Delta apart with standard deviation Delta * sigma have Rényi divergence alpha/(2 sigma^2):"
        f" {found:.6g}, where {printed:.6g} is printed; the two agree only for Delta = 1"
    )
    return Finding(BoundComparison("Rényi divergence of the Gaussian mechanism", printed, found), why)


THEOREMS = (
    Theorem(
        id="fpfl.algorithm-1",
        citation=CITATION,
        place="Section 3.2, Algorithm 1; Adult setting of Section 4.1",
        formula="sigma by Wang, Balle, Kasiviswanathan 2019 for (K, m, eps, delta, T), noise N(0, C^2 sigma^2)",
        parameters=(
            Parameter("users", _USERS, "number of users", _whole, ("K",)),
            Parameter("cohort", 200, "users in a round", _whole, ("m",)),
            Parameter("rounds", 1000, "rounds", _whole, ("T",)),
            Parameter("epsilon", 2.0, "the promised epsilon", positive, ("eps",)),
            Parameter("delta", 1 / _USERS, "the promised delta, 1/K in the paper", open_unit),
            Parameter("largest_order", 64, "Rényi orders 2 .. this are tried", partial(count, least=2)),
        ),
        conditions=(),
        compute=_algorithm_1,
    ),
    Theorem(
        id="fpfl.gaussian-rdp",
        citation=CITATION,
        place="Section 2.1, after Equation 3",
        formula="noise N(0, Delta^2 sigma^2) is (alpha, alpha / (2 Delta^2 sigma^2))-RDP",
        parameters=(
            Parameter("sensitivity", 2.0, "Delta; the paper's clip of the shallow network", positive, ("Delta", "C")),
            Parameter("sigma", 1.0, "noise multiplier", positive),
            Parameter("order", 2.0, "Rényi order", positive, ("alpha",)),
        ),
        conditions=(),
        compute=_gaussian_rdp,
    ),
)
