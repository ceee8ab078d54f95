"""What the SteFFLe paper claims about privacy: Lemma B.1, Theorems 3.3 and C.2, the hybrid modes of Section 4."""

from __future__ import annotations

import math
from enum import Enum
from functools import partial
from typing import assert_never

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import price_plan
from calibrate.errors import InvalidInput, count, open_unit, positive
from calibrate.plans.steffle import H_THETA, H_W, StefflePlan, printed_sigma_w
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Protected, Relation
from calibrate.releases import Gaussian, Release, Repeated, Sampled, Together, joint_gaussian
from calibrate.sampling import Batch, Poisson, SamplingName, ShuffledEpochs, WithReplacement
from calibrate.solve import Certificate, solve_noise
from calibrate.theorems.theorem import (
    BoundComparison,
    Condition,
    Correction,
    EpsilonComparison,
    Finding,
    Parameter,
    Setting,
    Theorem,
    Value,
)

# The exact worst case of SteFFLe's two sensitive gradients, in closed form.
#
# With psi = -Tr(W diag(F) W^T) + 2 Tr(W F s^T P^(-1/2)) - 1, replacing a record's attribute a by b changes
#
#     grad_W psi      by  2 (p_a^(-1/2) e_a - p_b^(-1/2) e_b) F^T,
#     grad_theta psi  by  2 (p_a^(-1/2) w_a - p_b^(-1/2) w_b)^T J,      w_a = row a of W,  J = dF/dtheta.
#
# F is a probability vector, so |F| <= 1 and the columns of J sum to zero; F is L-Lipschitz, so |J| <= L. The
# suprema over all F, J, W and P follow (docs/theorems/steffle.md, "Sensitivities").


class Radius(Enum):
    """What the number D bounds: the Frobenius norm of W, or each of its entries."""

    FROBENIUS = "frobenius"
    ENTRYWISE = "entrywise"


class Frequencies(Enum):
    """What is known of the diagonal P_S beyond its entries being at least rho.

    AT_LEAST_RHO: nothing (public or noisy frequencies, raised to rho). EXACT: they sum to 1, so that with
    two groups the other one has 1 - rho.
    """

    AT_LEAST_RHO = "at-least-rho"
    EXACT = "exact"


def weight_gradient_supremum(batch: int, rho: float, groups: int, frequencies: Frequencies) -> float:
    """sup of the L2 change of the batch mean of grad_W psi; approached as F tends to a vertex of the simplex."""
    other = _other_frequency(rho, groups, frequencies)
    return 2 * math.sqrt(1 / rho + 1 / other) / batch


def theta_gradient_supremum(
    batch: int,
    rho: float,
    groups: int,
    frequencies: Frequencies,
    classes: int,
    lipschitz: float,
    size: float,
    radius: Radius,
) -> float:
    """sup of the L2 change of the batch mean of grad_theta psi, with W bounded by `size` in the sense of `radius`.

    Only the part of p_a^(-1/2) w_a - p_b^(-1/2) w_b that is orthogonal to (1, .., 1) counts. A Frobenius ball
    allows it to be sqrt(1/p_a + 1/p_b) D; a box allows signs that cancel in the sum, all of size
    (p_a^(-1/2) + p_b^(-1/2)) D, of which an odd number of classes loses 1/classes.
    """
    other = _other_frequency(rho, groups, frequencies)
    match radius:
        case Radius.FROBENIUS:
            reach = math.sqrt(1 / rho + 1 / other)
        case Radius.ENTRYWISE:
            orthogonal = classes - (classes % 2) / classes
            reach = (1 / math.sqrt(rho) + 1 / math.sqrt(other)) * math.sqrt(orthogonal)
        case _:
            assert_never(radius)
    return 2 * lipschitz * size * reach / batch


def _other_frequency(rho: float, groups: int, frequencies: Frequencies) -> float:
    """The smallest frequency the second of the two groups can have when the first has rho."""
    match frequencies:
        case Frequencies.AT_LEAST_RHO:
            return rho
        case Frequencies.EXACT:
            return 1 - rho if groups == 2 else rho
        case _:
            assert_never(frequencies)


CITATION = (
    "Gupta, Poornash, Lowy, Razaviyayn: A Stochastic Optimization Framework for Private and Fair Learning From"
    " Decentralized Data (preprint; also published as SteFFLe, where Theorem 3.3 is Theorem 6)"
)
RECORD_ADD_REMOVE = PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)
RECORD_REPLACE_ONE = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)

_LEAST_NOISE = 0.2
"""Below this joint multiplier one single round already costs an epsilon in the tens."""


class LemmaReading(Enum):
    """Lemma B.1 as printed, or with the square root that its proof leaves out."""

    PRINTED = "printed"
    SQUARE_ROOT = "square-root"


class Pair(Enum):
    """How a secret batch is priced.

    USUAL: as in DP-SGD, where a record contributes its whole clipped message or nothing. SAFE: attribute
    replacement leaves an unbounded common part, which shows whether the record took part.
    """

    USUAL = "usual"
    SAFE = "safe"


_whole = partial(count, least=1)
_SILO = Parameter("silo_size", 7500, "records in the silo", _whole, ("n",))
_BATCH = Parameter("batch_size", 256, "records in a batch", _whole, ("m",))
_ROUNDS = Parameter("rounds", 1172, "rounds", _whole, ("T",))
_RHO = Parameter("minority_fraction", 0.5, "smallest group's share (the paper gives none)", open_unit, ("rho",))
_GROUPS = Parameter("groups", 2, "number of groups", partial(count, least=2), ("k",))
_CLASSES = Parameter("classes", 2, "number of classes", partial(count, least=2), ("l",))
_LIPSCHITZ = Parameter("lipschitz", 1.0, "Lipschitz constant of F in theta", positive, ("L",))
_SIZE = Parameter("w_radius", 1.0, "the bound D on W", positive, ("D",))
_EPSILON = Parameter("epsilon", 1.0, "the promised epsilon", positive, ("eps",))
_DELTA = Parameter("delta", 1e-5, "the promised delta", open_unit)
_FREQUENCIES = Parameter("frequencies", Frequencies.AT_LEAST_RHO, "what is known of P_S")

_EPSILON_SMALL = Condition(
    lambda s: f"epsilon <= 2 ln(1/delta) = {2 * math.log(1 / s.number('delta')):.4g}",
    lambda s: s.number("epsilon") <= 2 * math.log(1 / s.number("delta")),
)
_ENOUGH_ROUNDS = Condition(
    lambda s: f"T >= (n sqrt(epsilon) / (2m))^2 = {_least_rounds(s):.1f}",
    lambda s: s.whole("rounds") >= _least_rounds(s),
)


def _least_rounds(s: Setting) -> float:
    return s.whole("silo_size") ** 2 * s.number("epsilon") / (2 * s.whole("batch_size")) ** 2


def _share(s: Setting) -> float:
    """rho, which can't exceed 1/groups: the smallest group is no larger than the average one."""
    rho, groups = s.number("minority_fraction"), s.whole("groups")
    if rho * groups > 1 + 1e-12:
        raise InvalidInput(
            "minority_fraction", rho, f"exceeds 1/{groups}", f"the smallest of {groups} groups has at most that share"
        )
    return rho


def _lemma_w(s: Setting) -> Finding:
    m, rho = s.whole("batch_size"), _share(s)
    printed = 8 / (m**2 * rho)
    found = weight_gradient_supremum(m, rho, s.whole("groups"), s.choice("frequencies", Frequencies))
    return _lemma("L2 sensitivity of the batch mean of grad_W psi", printed, found, s)


def _lemma_theta(s: Setting) -> Finding:
    m, rho = s.whole("batch_size"), _share(s)
    size, lipschitz, radius = s.number("w_radius"), s.number("lipschitz"), s.choice("radius", Radius)
    printed = 8 * (size * lipschitz) ** 2 / (m**2 * rho)
    frequencies, groups, classes = s.choice("frequencies", Frequencies), s.whole("groups"), s.whole("classes")
    found = theta_gradient_supremum(m, rho, groups, frequencies, classes, lipschitz=lipschitz, size=size, radius=radius)
    return _lemma(f"L2 sensitivity of the batch mean of grad_theta psi ({radius.value} D)", printed, found, s)


def _lemma(quantity: str, printed: float, found: float, s: Setting) -> Finding:
    match s.choice("reading", LemmaReading):
        case LemmaReading.PRINTED:
            claimed, read = printed, "as printed, the bound is that of the squared sensitivity"
        case LemmaReading.SQUARE_ROOT:
            claimed, read = math.sqrt(printed), "read with the missing square root"
        case other:
            assert_never(other)
    why = f"{read}: {claimed:.6g} is claimed, and the supremum is {found:.6g} ({found / claimed:.4g} times that)"
    return Finding(BoundComparison(quantity, claimed, found), why)


def _multipliers(s: Setting) -> tuple[float, float]:
    """The noise multipliers of h_theta and h_W when sigma is Theorem 3.3's and the sensitivity the true one."""
    n, m, rho = s.whole("silo_size"), s.whole("batch_size"), _share(s)
    target = EpsilonDelta(s.number("epsilon"), s.number("delta"))
    sigma_w = printed_sigma_w(target, s.whole("rounds"), n, rho)
    frequencies, groups = s.choice("frequencies", Frequencies), s.whole("groups")
    w = weight_gradient_supremum(m, rho, groups, frequencies)
    # sigma_theta = L D sigma_W, and the sensitivity has the same factor L D: both at 1.
    radius = s.choice("radius", Radius)
    theta = theta_gradient_supremum(
        m, rho, groups, frequencies, s.whole("classes"), lipschitz=1.0, size=1.0, radius=radius
    )
    return sigma_w / theta, sigma_w / w


def _theorem_33(s: Setting) -> Finding:
    theta, w = _multipliers(s)
    joint = (theta**-2 + w**-2) ** -0.5
    interval, story, granted = _price_33(s, theta, w)
    claimed, delta = s.number("epsilon"), s.number("delta")
    why = (
        f"each of the two releases gets multiplier {w:.4g} (h_W) and {theta:.4g} (h_theta), jointly {joint:.4g};"
        f" {story} that costs {_interval_text(interval)} at delta = {delta:g}, where {claimed:g} is promised"
    )
    needed = _needed_multiplier(s)
    if needed is not None:
        why += (
            f"; an honest {claimed:g} with this transcript needs a joint multiplier of {needed:.4g}"
            f" ({needed / joint:.3g} times the noise)"
        )
    details = {
        "noise_multiplier_h_W": w,
        "noise_multiplier_h_theta": theta,
        "joint_noise_multiplier": joint,
        "needed_joint_noise_multiplier": needed,
        "least_rounds": _least_rounds(s),
    }
    return Finding(EpsilonComparison(claimed, interval), why, granted, details)


def _needed_multiplier(s: Setting) -> float | None:
    """The joint multiplier that keeps the promise for the true transcript; None outside the theorem's range."""
    if not _EPSILON_SMALL.holds(s):
        return None
    plan, target = _steffle_plan(s), EpsilonDelta(s.number("epsilon"), s.number("delta"))
    ratio = plan.joint_noise_ratio()
    assert ratio is not None
    return solve_noise(plan.template(), plan.unit, target, Certificate.UPPER).factor * ratio


def _interval_text(interval: EpsilonInterval) -> str:
    """The interval as one number where that is honest, else as a range."""
    if interval.lower >= 0.95 * interval.upper:
        return f"epsilon = {interval.upper:.4g}"
    return f"an epsilon between {interval.lower:.4g} and {interval.upper:.4g}"


def _price_33(s: Setting, theta: float, w: float) -> tuple[EpsilonInterval, str, tuple[str, ...]]:
    """What the transcript costs, in which words, and what was granted in the theorem's favour."""
    delta, drawn = s.number("delta"), s.choice("sampling", SamplingName)
    revealed = price_plan(_steffle_plan(s), delta, noise_multipliers={H_THETA: theta, H_W: w})
    if s.choice("batch", Batch) is Batch.REVEALED:
        return revealed, f"with {drawn.value} batches, which the plain gradient g reveals,", ()
    if s.choice("pair", Pair) is Pair.SAFE:
        story = "even with secret batches, because the common part of a record's two messages is unbounded,"
        return revealed, story, ("the batches stay secret",)
    granted = ("the batches stay secret", "each record's whole message is clipped, so that the usual pair applies")
    both = Together((Gaussian(theta), Gaussian(w)))
    if drawn is SamplingName.POISSON:
        rate = s.whole("batch_size") / s.whole("silo_size")
        secret = Repeated(Sampled(Poisson(rate, Batch.SECRET), both), s.whole("rounds"))
        interval = _price_amplified(secret, both, delta, revealed.upper)
        return interval, "granting secret Poisson batches and the usual pair,", granted
    averages = _epoch_averages(s, theta, w)
    lower = 0.0 if averages is None else best_epsilon(averages, _steffle_plan(s).unit, delta).interval.lower
    story = "granting secret shuffled batches, for which no amplification is proved,"
    return EpsilonInterval(min(lower, revealed.upper), revealed.upper), story, granted


def _price_amplified(release: Release, values: Together, delta: float, ceiling: float) -> EpsilonInterval:
    """The cost of a secretly sampled release; at most `ceiling`, its cost when the batches are known.

    Next to no noise there is nothing to amplify: then only the ceiling is told, and nothing is computed.
    """
    joint = joint_gaussian(values)
    if joint is None or joint.noise_multiplier < _LEAST_NOISE:
        return EpsilonInterval(0.0, ceiling)
    priced = best_epsilon(release, RECORD_ADD_REMOVE, delta).interval
    return EpsilonInterval(min(priced.lower, ceiling), min(priced.upper, ceiling))


def _epoch_averages(s: Setting, theta: float, w: float) -> Release | None:
    """Adding up the rounds of a whole epoch undoes the shuffling: a full batch with sqrt(batches) the noise."""
    epoch = ShuffledEpochs(s.whole("silo_size"), s.whole("batch_size"))
    whole = s.whole("rounds") // epoch.batches_per_epoch
    if whole == 0:
        return None
    root = math.sqrt(epoch.batches_per_epoch)
    return Repeated(Together((Gaussian(theta * root), Gaussian(w * root))), whole)


def _steffle_plan(s: Setting) -> StefflePlan:
    sampling = s.choice("sampling", SamplingName)
    n, m, rounds = s.whole("silo_size"), s.whole("batch_size"), s.whole("rounds")
    return StefflePlan(n, m, rounds, _share(s), 1.0, 1.0, sampling, groups=s.whole("groups"))


def _theorem_c2(s: Setting) -> Finding:
    """Only noisy gradients are sent, so the batch is secret; a replaced record moves each draw by 2L/m."""
    n, m, rounds, delta = s.whole("silo_size"), s.whole("batch_size"), s.whole("rounds"), s.number("delta")
    claimed = s.number("epsilon")
    multiplier = m / n * math.sqrt(2 * rounds * math.log(1 / delta)) / claimed
    # The multiplier is relative to the distance 2L/m; the release counts in contributions L/m.
    both = Together((Gaussian(2 * multiplier), Gaussian(2 * multiplier)))
    revealed = Repeated(Sampled(WithReplacement(n, m, Batch.REVEALED), both), rounds)
    upper = best_epsilon(revealed, RECORD_REPLACE_ONE, delta).interval
    if s.choice("batch", Batch) is Batch.REVEALED:
        interval, story = upper, "known batches, drawn with replacement,"
    else:
        once = 1.0 if n == 1 else -math.expm1(m * math.log1p(-1 / n))
        pair = Together((Gaussian(multiplier), Gaussian(multiplier)))
        drawn = Repeated(Sampled(Poisson(once, Batch.SECRET), pair), rounds)
        interval = EpsilonInterval(_price_amplified(drawn, pair, delta, upper.upper).lower, upper.upper)
        story = "secret batches, drawn with replacement,"
    why = (
        f"each of the two releases gets multiplier {multiplier:.4g}, jointly {multiplier / math.sqrt(2):.4g}; with"
        f" {story} that costs {_interval_text(interval)} at delta = {delta:g}, where {claimed:g} is promised"
    )
    return Finding(EpsilonComparison(claimed, interval), why, details={"noise_multiplier": multiplier})


class HybridNoise(Enum):
    """Appendix F's noise: scaled to the realised size of a silo's batch, or Theorem 3.3's, in which no size occurs."""

    SCALED = "scaled"
    FIXED = "fixed"


def _central(s: Setting) -> Finding:
    """One silo holds all sensitive attributes: Theorem 3.3 with N times the records and N times the batch."""
    return _with_total(s, s.whole("silos"))


def _with_total(s: Setting, silos: int) -> Finding:
    sizes = {"silo_size": s.whole("silo_size") * silos, "batch_size": s.whole("batch_size") * silos}
    found = _theorem_33(Setting({**s.values, **_HYBRID_CHOICES, **sizes}))
    asked = f"with {silos} silos' records in one: " if silos > 1 else ""
    reveal = "; the silos name the records of every batch, so that no batch is secret"
    return Finding(found.comparison, asked + found.why + reveal, found.granted, found.details)


def _appendix_f(s: Setting) -> Finding:
    """A sensitive silo of which b records are asked for: scaled, the multiplier stays; fixed, it falls to b/m of it."""
    if s.choice("noise", HybridNoise) is HybridNoise.SCALED:
        return _with_total(s, 1)
    theta, w = _multipliers(Setting({**s.values, **_HYBRID_CHOICES}))
    share = min(1.0, s.whole("realised") / s.whole("batch_size"))
    setting = Setting({**s.values, **_HYBRID_CHOICES})
    interval = price_plan(
        _steffle_plan(setting), s.number("delta"), noise_multipliers={H_THETA: theta * share, H_W: w * share}
    )
    why = (
        f"sigma_W of Theorem 3.3 does not depend on the batch, but the mean of {s.whole('realised')} records moves by "
        f"{1 / share:.4g} times as much as that of {s.whole('batch_size')}: that costs {_interval_text(interval)}"
    )
    return Finding(EpsilonComparison(s.number("epsilon"), interval), why)


_HYBRID_CHOICES: dict[str, Value] = {
    "classes": 2,
    "frequencies": Frequencies.AT_LEAST_RHO,
    "batch": Batch.REVEALED,
    "sampling": SamplingName.SHUFFLED,
    "pair": Pair.SAFE,
    "radius": Radius.FROBENIUS,
}

_LEMMA = (_BATCH, _RHO, _GROUPS, _FREQUENCIES, Parameter("reading", LemmaReading.PRINTED, "how the bound is read"))

_LEMMA_DOMAIN = {"batch_size": (4096, 256, 16, 4), "minority_fraction": (0.5, 0.01)}
_RELEASE_DOMAIN = {"epsilon": (1.0, 0.1, 10.0), "rounds": (1172, 10**5), "delta": (1e-5, 1e-8)}
_SQUARE_ROOT = Correction(
    "the proof bounds the squared sensitivity, and the square root is left out", ("reading", LemmaReading.SQUARE_ROOT)
)

_SETTING = (_EPSILON, _DELTA, _SILO, _BATCH, _ROUNDS)
_SHARES = (*_SETTING, _RHO, _GROUPS)
_claim = partial(Theorem, citation=CITATION)
_promise = partial(_claim, conditions=(_EPSILON_SMALL, _ENOUGH_ROUNDS), domain=_RELEASE_DOMAIN)

THEOREMS = (
    _claim(
        id="steffle.lemma-B.1.W",
        place="Appendix B, Lemma B.1, second display",
        formula="|| mean over the batch of grad_W psi - its neighbour || <= 8 / (m^2 rho)",
        parameters=_LEMMA,
        compute=_lemma_w,
        domain=_LEMMA_DOMAIN,
        correction=_SQUARE_ROOT,
    ),
    _claim(
        id="steffle.lemma-B.1.theta",
        place="Appendix B, Lemma B.1, first display; D as in Theorem 3.3",
        formula="|| mean over the batch of grad_theta psi - its neighbour || <= 8 D^2 L^2 / (m^2 rho)",
        parameters=(*_LEMMA, _CLASSES, _LIPSCHITZ, _SIZE, Parameter("radius", Radius.ENTRYWISE, "what D bounds")),
        compute=_lemma_theta,
        domain=_LEMMA_DOMAIN,
        correction=_SQUARE_ROOT,
    ),
    _promise(
        id="steffle.theorem-3.3",
        place="Section 3.1, Theorem 3.3; Credit Card setting of Section 5",
        formula="sigma_W^2 = 16 T ln(1/delta) / (eps^2 n^2 rho), sigma_theta^2 = L^2 D^2 sigma_W^2 => (eps, delta)",
        parameters=(
            *_SHARES,
            _CLASSES,
            _FREQUENCIES,
            Parameter("batch", Batch.REVEALED, "whether the observer knows the batches"),
            Parameter(
                "sampling",
                SamplingName.SHUFFLED,
                "how batches are drawn",
                among=(SamplingName.SHUFFLED, SamplingName.POISSON),
            ),
            Parameter("pair", Pair.USUAL, "how a secret batch is priced"),
            Parameter("radius", Radius.FROBENIUS, "what D bounds"),
        ),
        compute=_theorem_33,
    ),
    _promise(
        id="steffle.theorem-C.2",
        place="Appendix C.1, Theorem C.2 (Algorithm 2); at the setting of Theorem 3.3",
        formula="sigma_x^2 = 8 T L_x^2 ln(1/delta) / (eps^2 n^2) for x = w and x = theta => (eps, delta)",
        parameters=(*_SETTING, Parameter("batch", Batch.SECRET, "whether the observer knows the batches")),
        compute=_theorem_c2,
    ),
    _promise(
        id="steffle.section-4.central",
        place="Section 4 and Appendix F, centralised sensitive and decentralised other data",
        formula="the sensitive silo's noisy gradients are (eps, delta) by Theorem 3.3",
        parameters=(
            *_SHARES,
            Parameter("silos", 3, "silos without sensitive data; 1: everything in one place", _whole, ("N",)),
        ),
        compute=_central,
        restates="steffle.theorem-3.3",
    ),
    _promise(
        id="steffle.appendix-F.general",
        place="Appendix F, the general case",
        formula="noise scaled to the realised batch of a sensitive silo preserves (eps, delta)",
        parameters=(
            *_SHARES,
            Parameter("noise", HybridNoise.SCALED, "how the noise is scaled"),
            Parameter("realised", 1, "records of a sensitive silo that a round asks for", _whole, ("b",)),
        ),
        compute=_appendix_f,
        restates="steffle.theorem-3.3",
    ),
)
