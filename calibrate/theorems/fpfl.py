"""What the FPFL paper claims about privacy: the noise of Algorithm 1, sub-sampling, the Gaussian's Rényi curve."""

from __future__ import annotations

from enum import Enum
from functools import partial

from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput, count, open_unit, positive, rate
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import FixedSize
from calibrate.theorems.printed import fixed_size_sigma, poisson_log_moment
from calibrate.theorems.theorem import (
    BoundComparison,
    Correction,
    EpsilonComparison,
    Finding,
    Parameter,
    Setting,
    Theorem,
)

CITATION = (
    "Rodríguez-Gálvez, Granqvist, van Dalen, Seigel: Enforcing fairness in private federated learning via the"
    " modified method of differential multipliers (arXiv:2109.08604)"
)
_USERS = 16280
_whole = partial(count, least=1)


_RELATIONS = (Relation.ADD_REMOVE, Relation.REPLACE_ONE)
"""Neighbouring data sets differ by one user more, as in the paper's Definition 1, or by another user."""


def _algorithm_1(s: Setting) -> Finding:
    """sigma by the cited accountant with sensitivity C; the truth under the paper's own relation and the other."""
    users, cohort, rounds = s.whole("users"), s.whole("cohort"), s.whole("rounds")
    claimed, delta, asked = s.number("epsilon"), s.number("delta"), s.choice("relation", Relation)
    if cohort >= users:
        raise InvalidInput("cohort", cohort, "is everybody, so nothing is sampled", "use a smaller cohort")
    sigma = fixed_size_sigma(cohort / users, rounds, claimed, delta, s.whole("largest_order"))
    published = Repeated(Sampled(FixedSize(users, cohort), Gaussian(sigma)), rounds)
    costs = {each: best_epsilon(published, PrivacyUnit(Protected.USER, each), delta).interval for each in _RELATIONS}
    added, replaced = costs[Relation.ADD_REMOVE], costs[Relation.REPLACE_ONE]
    why = (
        f"the cited accountant, told that the sensitivity is C, returns sigma = {sigma:.4g}; but in a cohort of fixed"
        " size a user takes another one's place, which moves the clipped sum by 2C; added or removed, a user then costs"
        f" {added.upper:.5g}, replaced between {replaced.lower:.4g} and {replaced.upper:.4g}; {claimed:g} is promised"
    )
    details = {"sigma": sigma} | {
        each.value: {"lower": cost.lower, "upper": cost.upper} for each, cost in costs.items()
    }
    return Finding(EpsilonComparison(claimed, costs[asked]), why, details=details)


def _sub_sampling(s: Setting) -> Finding:
    """The larger direction of a Gaussian release on a batch of fixed size, for a unit that is added or removed."""
    order, sigma, rate_ = s.whole("order"), s.number("sigma"), s.number("rate")
    claimed = order / (2 * sigma**2)
    found = poisson_log_moment(order, rate_, sigma) / (order - 1)
    why = (
        f"on everybody the release has divergence {claimed:.6g} at order {order}; on a batch that holds the unit with "
        f"probability {rate_:g} it has {found:.6g}: a mixture is never farther away than its parts"
    )
    return Finding(BoundComparison("Rényi divergence after sub-sampling", claimed, found), why)


_FEMNIST_USERS = 3383


class RenyiForm(Enum):
    """The Rényi curve as printed, or without the sensitivity, which sigma is relative to already."""

    PRINTED = "printed"
    CORRECTED = "corrected"


def _gaussian_rdp(s: Setting) -> Finding:
    order, sensitivity, sigma = s.number("order"), s.number("sensitivity"), s.number("sigma")
    deviation = sensitivity * sigma
    divisor = sensitivity if s.choice("reading", RenyiForm) is RenyiForm.PRINTED else 1.0
    printed = order / (2 * divisor**2 * sigma**2)
    found = order * sensitivity**2 / (2 * deviation**2)
    why = (
        "two Gaussians Delta apart with standard deviation Delta * sigma have Rényi divergence alpha/(2 sigma^2):"
        f" {found:.6g}, where {printed:.6g} is printed; the two agree only for Delta = 1"
    )
    return Finding(BoundComparison("Rényi divergence of the Gaussian mechanism", printed, found), why)


def _setting(users: int, cohort: int, rounds: int) -> tuple[Parameter, ...]:
    """The parameters of Algorithm 1 at one of the paper's settings."""
    said = "how neighbouring data sets differ; the paper's Definition 1"
    return (
        Parameter("users", users, "number of users", _whole, ("K",)),
        Parameter("cohort", cohort, "users in a round", _whole, ("m",)),
        Parameter("rounds", rounds, "rounds", _whole, ("T",)),
        Parameter("epsilon", 2.0, "the promised epsilon", positive, ("eps",)),
        Parameter("delta", 1 / users, "the promised delta, 1/K in the paper", open_unit),
        Parameter("largest_order", 64, "Rényi orders 2 .. this are tried", partial(count, least=2)),
        Parameter("relation", Relation.ADD_REMOVE, said, among=_RELATIONS),
    )


_claim = partial(Theorem, citation=CITATION)

THEOREMS = (
    _claim(
        id="fpfl.algorithm-1",
        place="Section 3.2, Algorithm 1; Adult setting of Section 4.1",
        formula="sigma by Wang, Balle, Kasiviswanathan 2019 for (K, m, eps, delta, T), noise N(0, C^2 sigma^2)",
        parameters=_setting(_USERS, 200, 1000),
        domain={"cohort": (200, 50, 1000), "rounds": (1000, 250, 5000), "epsilon": (2.0, 8.0)},
        compute=_algorithm_1,
    ),
    _claim(
        id="fpfl.algorithm-1.femnist",
        place="Section 3.2, Algorithm 1; FEMNIST setting of Section 4.2",
        formula="the same with K = 3,383, m = 100, T = 2,000, eps = 2, delta = 1/K, printed as 2.5e-4",
        parameters=_setting(_FEMNIST_USERS, 100, 2000),
        domain={"epsilon": (8.0, 0.5), "cohort": (100, 2000)},
        compute=_algorithm_1,
    ),
    _claim(
        id="fpfl.sub-sampling",
        place="Section 2.1, Sub-sampling privacy amplification",
        formula="(alpha, eps)-RDP on everybody is (alpha, at most eps)-RDP on a random subset of fixed size",
        parameters=(
            Parameter("rate", 200 / _USERS, "cohort / users", rate),
            Parameter("sigma", 1.0, "noise over the distance that one user moves the sum", positive),
            Parameter("order", 2, "Rényi order", partial(count, least=2), ("alpha",)),
        ),
        compute=_sub_sampling,
        proof="exp((alpha - 1) D) is jointly convex, and a subset without the unit reveals nothing (see the page)",
    ),
    _claim(
        id="fpfl.gaussian-rdp",
        place="Section 2.1, after Equation 3",
        formula="noise N(0, Delta^2 sigma^2) is (alpha, alpha / (2 Delta^2 sigma^2))-RDP",
        parameters=(
            Parameter("sensitivity", 2.0, "Delta; the paper's clip of the shallow network", positive, ("Delta", "C")),
            Parameter("sigma", 1.0, "noise multiplier", positive),
            Parameter("order", 2.0, "Rényi order", positive, ("alpha",)),
            Parameter("reading", RenyiForm.PRINTED, "how the curve is read"),
        ),
        domain={"sensitivity": (10.0, 2.0), "order": (2.0, 32.0)},
        correction=Correction(
            "the sensitivity is in the divisor although sigma is relative to it: alpha/(2 sigma^2) is meant",
            ("reading", RenyiForm.CORRECTED),
        ),
        compute=_gaussian_rdp,
    ),
)
