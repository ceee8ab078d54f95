"""What the FedFDP paper claims: Equations 13 to 15, Algorithm 2's division, Theorems 1 to 4, and Section VIII."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import assert_never

from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput, count, open_unit, positive, rate
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Protected, Relation
from calibrate.releases import Gaussian, InSequence, Repeated, Sampled, Together
from calibrate.sampling import Batch, Poisson
from calibrate.solve import solve_rounds
from calibrate.theorems.printed import best_order, poisson_log_moment
from calibrate.theorems.theorem import (
    BoundComparison,
    Condition,
    Correction,
    Direction,
    EpsilonComparison,
    Finding,
    Form,
    Parameter,
    Setting,
    Theorem,
)

CITATION = (
    "Ling, Fu, Wang, Li, Cheng, Chen, Qian, Gong: FedFDP: Fairness-Aware Federated Learning with Differential"
    " Privacy (arXiv:2402.16028, manuscript under review)"
)
UNIT = PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)


class Factor(Enum):
    """Equation 13's factor as printed, or clipped by its absolute value."""

    PRINTED = "printed"
    ABSOLUTE = "absolute"


class MeanLoss(Enum):
    """Whether Delta is taken against the noisy mean loss (as in Algorithm 2) or against an exact one."""

    NOISY = "noisy"
    EXACT = "exact"


class TheoremReading(Enum):
    """Theorems 3 and 4 as printed (A_alpha), or with the logarithm that is meant (log A_alpha)."""

    PRINTED = "printed"
    LOGARITHM = "logarithm"


class BatchesComposed(Enum):
    """How Theorem 2's composition of two independent batches is evaluated: as printed, or without loss."""

    RENYI = "renyi"
    TIGHT = "tight"


class Batches(Enum):
    """Whether gradient and loss are computed on the same batch, as Algorithm 2 does, or on separate ones."""

    SAME = "same"
    INDEPENDENT = "independent"


def _nonnegative(argument: str, value: float) -> float:
    return value if value == 0 else positive(argument, value)


_whole = partial(count, least=1)
_RATE = Parameter("sampling_rate", 0.05, "batch sample ratio", rate, ("q",))
_ROUNDS = Parameter("rounds", 268, "rounds", _whole, ("T",))
_DELTA = Parameter("delta", 1e-5, "delta", open_unit)
_SIGMA = Parameter("sigma", 2.0, "noise multiplier of the gradient", positive)
_SIGMA_LOSS = Parameter("sigma_l", 5.0, "noise multiplier of the loss", positive, ("sigma_loss",))
_ORDERS = Parameter("largest_order", 64, "Rényi orders 2 .. this are tried", partial(count, least=2))
_READING = Parameter("reading", TheoremReading.PRINTED, "how Theorems 3 and 4 are read")


def _equation_13(s: Setting) -> Finding:
    """sup of |min(1 + lambda Delta, C/g)| g over Delta >= lowest and 0 < g <= largest gradient norm."""
    weight, clip, norm = s.number("fairness_weight"), s.number("clip"), s.number("gradient_norm")
    noisy = s.choice("mean_loss", MeanLoss) is MeanLoss.NOISY
    lowest = -math.inf if noisy else -s.number("loss_clip")
    clipped = clip if weight > 0 else min(clip, norm)
    negative = weight > 0 and 1 + weight * lowest < 0
    printed = s.choice("factor", Factor) is Factor.PRINTED
    found = max(clipped, (-1 - weight * lowest) * norm) if negative and printed else clipped
    if not printed:
        why = "clipping the absolute size of the factor bounds every contribution by C"
    elif negative:
        source = "its mean loss is noisy, so Delta has no lower bound" if noisy else f"Delta can be {lowest:g}"
        why = f"where lambda * Delta < -1 the factor is negative and is not clipped; {source}"
    else:
        why = "1 + lambda * Delta is never negative here, so the minimum does bound the contribution"
    return Finding(BoundComparison("largest norm of one record's contribution", clip, found), why)


def _renyi(sigma: float, s: Setting, reading: TheoremReading) -> Callable[[int], float]:
    """R(alpha) of one release after T rounds, by Theorem 3 or 4."""
    q, rounds = s.number("sampling_rate"), s.whole("rounds")

    def divergence(order: int) -> float:
        log_moment = poisson_log_moment(order, q, sigma)
        match reading:
            case TheoremReading.PRINTED:
                return rounds / (order - 1) * (math.exp(log_moment) if log_moment < 700 else math.inf)
            case TheoremReading.LOGARITHM:
                return rounds / (order - 1) * log_moment
            case _:
                assert_never(reading)

    return divergence


def _true_cost(q: float, rounds: int, delta: float, sigmas: tuple[float, ...], batches: Batches) -> EpsilonInterval:
    """Certified epsilon of the releases with these multipliers, on one batch or on separate ones."""
    values, sampling = tuple(Gaussian(sigma) for sigma in sigmas), Poisson(q, Batch.SECRET)
    match batches:
        case Batches.SAME:
            one_round: Sampled | InSequence = Sampled(sampling, Together(values))
        case Batches.INDEPENDENT:
            one_round = InSequence(tuple(Sampled(sampling, value) for value in values))
        case _:
            assert_never(batches)
    return best_epsilon(Repeated(one_round, rounds), UNIT, delta).interval


def _certified_rounds(s: Setting, sigma: float) -> int:
    """The most rounds of gradient and loss of the same batch that are certified to keep the promise."""
    one_round = Sampled(Poisson(s.number("sampling_rate")), Together((Gaussian(sigma), Gaussian(s.number("sigma_l")))))
    target = EpsilonDelta(s.number("epsilon"), s.number("delta"))
    return solve_rounds(lambda rounds: Repeated(one_round, rounds), UNIT, target)


def _one_release(name: str, s: Setting) -> Finding:
    sigma, delta, reading = s.number(name), s.number("delta"), s.choice("reading", TheoremReading)
    claimed, order = best_order(_renyi(sigma, s, reading), delta, s.whole("largest_order"))
    true = _true_cost(s.number("sampling_rate"), s.whole("rounds"), delta, (sigma,), Batches.SAME)
    read = "A_alpha where log A_alpha is meant" if reading is TheoremReading.PRINTED else "with the logarithm"
    why = (
        f"{read}, converted by Lemma 1 at its best order {order}: epsilon = {claimed:.4g};"
        f" the release itself costs {true.upper:.4g}"
    )
    return Finding(EpsilonComparison(claimed, true), why, details={"order": order})


def _theorem_2(s: Setting) -> Finding:
    q, rounds, delta = s.number("sampling_rate"), s.whole("rounds"), s.number("delta")
    sigmas, reading = (s.number("sigma"), s.number("sigma_l")), s.choice("reading", TheoremReading)
    costs = {batches: _true_cost(q, rounds, delta, sigmas, batches) for batches in Batches}
    alone = _true_cost(q, rounds, delta, sigmas[:1], Batches.SAME)
    model, loss = (_renyi(sigma, s, reading) for sigma in sigmas)
    match s.choice("accounting", BatchesComposed):
        case BatchesComposed.RENYI:
            claimed, order = best_order(lambda a: model(a) + loss(a), delta, s.whole("largest_order"))
            how = f"the printed sum of Rényi curves ({reading.value}) at order {order} gives {claimed:.4g}"
        case BatchesComposed.TIGHT:
            claimed = costs[Batches.INDEPENDENT].upper
            how = f"two independent batches, composed without loss, give {claimed:.4g}"
        case other:
            assert_never(other)
    true = costs[s.choice("batch", Batches)]
    why = (
        f"{how}; the gradient alone costs {alone.upper:.4g}, both on separate batches"
        f" {costs[Batches.INDEPENDENT].upper:.4g}, both on the same batch {costs[Batches.SAME].upper:.4g}"
    )
    details = {
        "gradient_alone": alone.upper,
        "independent_batches": costs[Batches.INDEPENDENT].upper,
        "same_batch": costs[Batches.SAME].upper,
    }
    return Finding(EpsilonComparison(claimed, true), why, details=details)


def _section_viii(s: Setting) -> Finding:
    """For each printed pair (sigma, T): what T the formula supports, and what that T really costs."""
    sigmas, printed = s.numbers("sigmas"), s.numbers("rounds")
    if len(sigmas) != len(printed):
        raise InvalidInput("rounds", printed, f"must have one entry for each of {len(sigmas)} sigmas", "pair them up")
    rows, costs = zip(*(_row(sigma, int(T), s) for sigma, T in zip(sigmas, printed, strict=True)), strict=True)
    supported, alone, certified = (
        _list_text([row[name] for row in rows])
        for name in ("supported_with_loss", "supported_by_gradient_alone", "certified_rounds")
    )
    kept = _list_text([T for T, cost in zip(printed, costs, strict=True) if cost.upper <= s.number("epsilon")])
    why = (
        f"with the loss charged as Theorem 2 demands, sigma = {_list_text(sigmas)} support T = {supported}; "
        f"the printed {_list_text(printed)} are close to what sigma supports alone, {alone}; certified with the loss "
        f"are {certified}, so that {kept or 'none'} of the printed hold"
    )
    worst = EpsilonInterval(max(cost.lower for cost in costs), max(cost.upper for cost in costs))
    return Finding(EpsilonComparison(s.number("epsilon"), worst), why, details={"rows": list(rows)})


def _row(sigma: float, rounds: int, s: Setting) -> tuple[dict[str, object], EpsilonInterval]:
    delta, target = s.number("delta"), s.number("epsilon")
    model, both = _one_round(sigma, s)
    true = _true_cost(s.number("sampling_rate"), rounds, delta, (sigma, s.number("sigma_l")), Batches.SAME)
    row: dict[str, object] = {
        "sigma": sigma,
        "printed_rounds": rounds,
        "supported_by_gradient_alone": _supported_rounds(model, target, delta),
        "supported_with_loss": _supported_rounds(both, target, delta),
        "certified_rounds": _certified_rounds(s, sigma),
        "renyi_epsilon": best_order(lambda a: rounds * both[a], delta, s.whole("largest_order"))[0],
        "true_epsilon": true.upper,
    }
    return row, true


def _one_round(sigma: float, s: Setting) -> tuple[dict[int, float], dict[int, float]]:
    """The Renyi curve of one round's gradient, and of gradient and loss as Theorem 2 adds them."""
    q, orders = s.number("sampling_rate"), range(2, s.whole("largest_order") + 1)
    model = {a: poisson_log_moment(a, q, sigma) / (a - 1) for a in orders}
    return model, {a: model[a] + poisson_log_moment(a, q, s.number("sigma_l")) / (a - 1) for a in orders}


def _supported_rounds(one_round: dict[int, float], epsilon: float, delta: float) -> int:
    """The largest T at which T times the curve still converts to at most epsilon (0 if not even one round)."""
    slack = {a: epsilon - math.log1p(-1 / a) + math.log(delta * a) / (a - 1) for a in one_round}
    return max(0, *(math.floor(slack[a] / one_round[a]) for a in one_round))


def _theorem_1(s: Setting) -> Finding:
    """Equation 16 against the exact course of the iteration on two quadratics, curvature mu and curvature L."""
    mu, smooth, weight, steps = (s.number(name) for name in ("strong_convexity", "smoothness", "weight", "steps"))
    noise = s.number("dimension") * (s.number("sigma") * s.number("clip") / s.number("batch")) ** 2
    first, found, gradients = s.number("distance") ** 2, 0.0, 0.0
    for curvature in {mu, smooth}:
        distance = largest = first
        for t in range(1, int(steps)):
            distance = (1 - 2 * curvature * weight / (mu * t)) ** 2 * distance + (2 / (mu * t)) ** 2 * noise
            largest = max(largest, distance)
        found, gradients = max(found, curvature / 2 * distance), max(gradients, curvature**2 * largest)
    spread = gradients * (weight**3 + 3 * weight**2) + 2 * noise
    factor = 1.0 if s.choice("reading", Form) is Form.PRINTED else 4.0
    # The proof's beta = 2/mu enters squared: 4 A / mu^2 where A / mu^2 is printed.
    margin = max(2 * weight - 1, 1e-9)  # where it is not positive the claim does not apply
    claimed = smooth / (2 * steps) * (factor * spread / (mu**2 * margin) + first)
    why = (
        f"after {steps:g} steps of size 2/(mu t) the larger of two quadratics (curvature mu and L, equal data) is "
        f"{found:.4g} above its minimum, computed exactly; Equation 16 with G^2 the largest mean square of a gradient "
        f"on the way allows {claimed:.4g}; the proof's own v has beta^2 A = 4A/mu^2 where A/mu^2 is printed"
    )
    granted = (
        "gradients are bounded in mean square along the run; those of a strongly convex loss are nowhere near bounded",
        "the step size 2/(mu t), which is in the proof only",
    )
    return Finding(BoundComparison("E F(w_t) - F* on a quadratic", claimed, found), why, granted)


def _equation_14(s: Setting) -> Finding:
    """The bound after T rounds, for losses with an exponential law of mean one that training does not change.

    E min(C, F) = 1 - e^-C, so in expectation C_t <= 1 - exp(-C_(t-1)) (Jensen), whatever the noise.
    """
    bound, rounds = s.number("loss_clip"), s.whole("rounds")
    for _ in range(rounds):
        bound = -math.expm1(-bound)
    why = (
        f"a mean of losses clipped to the former bound is below that bound: after {rounds} rounds it is {bound:.4g} of "
        f"the mean loss in expectation, and tends to 0 like 2/t: almost every record then reports the bound itself"
    )
    granted = ("the bound, which is noisy, never becomes 0 or negative",)
    return Finding(_at_least("the loss bound relative to the mean loss", 1.0, bound), why, granted)


def _at_least(quantity: str, claimed: float, found: float) -> BoundComparison:
    return BoundComparison(quantity, claimed, found, Direction.AT_LEAST)


class Divisor(Enum):
    """What the noisy sum is divided by: the realised size of the batch, as in Algorithm 2, or its public mean."""

    REALISED = "realised"
    EXPECTED = "expected"


def _algorithm_2(s: Setting) -> Finding:
    """Records that all contribute C make the mean C; one more that contributes -C moves it by 2C/(b + 1), not C/b."""
    q, rounds, delta = s.number("sampling_rate"), s.whole("rounds"), s.number("delta")
    sigma, loss = s.number("sigma"), s.number("sigma_l")
    model, other = _renyi(sigma, s, TheoremReading.LOGARITHM), _renyi(loss, s, TheoremReading.LOGARITHM)
    claimed, order = best_order(lambda a: model(a) + other(a), delta, s.whole("largest_order"))
    price = partial(_true_cost, q, rounds, delta, batches=Batches.SAME)
    match s.choice("divisor", Divisor):
        case Divisor.EXPECTED:
            true, how = price((sigma, loss)), "a public divisor changes nothing"
        case Divisor.REALISED:
            lower = price((sigma / 2,)).lower
            true, how = (
                EpsilonInterval(lower, math.inf),
                (
                    "where all others contribute C and one record -C, dividing by the realised size moves the mean by "
                    f"two bounds, and in large data the gradient alone costs at least {lower:.4g}"
                ),
            )
        case unknown:
            assert_never(unknown)
    why = f"Theorem 2 (with the logarithm, order {order}) gives {claimed:.4g}; {how}"
    return Finding(EpsilonComparison(claimed, true), why)


def _section_viii_epsilon(s: Setting) -> Finding:
    """From the rounds that both releases support to those that sigma alone supports: the paper prints neither."""
    q, delta, target, sigma = (s.number(name) for name in ("sampling_rate", "delta", "epsilon", "sigma"))
    model, both = _one_round(sigma, s)
    rounds = max(1, _supported_rounds(model, target, delta))
    charged = _supported_rounds(both, target, delta)
    least, true = (
        _true_cost(q, number, delta, (sigma, s.number("sigma_l")), Batches.SAME) for number in (max(1, charged), rounds)
    )
    why = (
        f"no number of rounds is printed; sigma = {sigma:g} alone supports {rounds} at epsilon = {target:g}, and "
        f"{charged} with the loss charged; {rounds} rounds of both values cost {true.upper:.4g}"
    )
    open_between = EpsilonInterval(least.lower, true.upper)
    return Finding(
        EpsilonComparison(target, open_between), why, details={"rounds": rounds, "rounds_with_loss": charged}
    )


def _list_text(numbers: Sequence[object]) -> str:
    return ", ".join(f"{number:g}" if isinstance(number, float) else str(number) for number in numbers)


_LOGARITHM = Correction(
    "Theorems 3 and 4 print A_alpha where log A_alpha is meant: the bound is valid and far too large",
    ("reading", TheoremReading.LOGARITHM),
)
_NEVER_SMALLER = (
    "A >= log A, and Lemma 1 turns every bound on the Rényi divergence into one on epsilon (docs/theorems/fedfdp.md)"
)
_PRICED = (_RATE, _ROUNDS, _DELTA, _ORDERS)
_CURVE = (*_PRICED, _READING)
_CONVERTED = (_SIGMA_LOSS, _RATE, _DELTA, _ORDERS)

_claim = partial(Theorem, citation=CITATION)

THEOREMS = (
    _claim(
        id="fedfdp.equation-13",
        place="Section V-A, Equation 13",
        formula="|| min(1 + lambda Delta, C / ||grad||) grad || <= C",
        parameters=(
            Parameter("fairness_weight", 1.0, "the fairness parameter", _nonnegative, ("lambda",)),
            Parameter("clip", 0.1, "the clipping bound", positive, ("C",)),
            Parameter("loss_clip", 2.5, "largest mean loss when it is exact", positive, ("C_l",)),
            Parameter("gradient_norm", math.inf, "largest gradient norm (unbounded if not given)", positive, ("G",)),
            Parameter("mean_loss", MeanLoss.NOISY, "what Delta is taken against"),
            Parameter("factor", Factor.PRINTED, "how the factor is clipped"),
        ),
        compute=_equation_13,
    ),
    _claim(
        id="fedfdp.theorem-2",
        place="Section VII, Theorem 2",
        formula="eps = R_model + R_loss + ln((a-1)/a) - (ln delta + ln a)/(a-1)",
        parameters=(
            _SIGMA,
            _SIGMA_LOSS,
            *_CURVE,
            Parameter("accounting", BatchesComposed.RENYI, "how the composition is evaluated"),
            Parameter("batch", Batches.SAME, "whether both values come from one batch"),
        ),
        compute=_theorem_2,
        domain={
            "rounds": (1, 10, 1000),
            "delta": (1e-12, 1e-5),
            "sampling_rate": (0.01, 0.5),
            "sigma": (1.0, 0.5),
            "sigma_l": (1.0, 5.0),
        },
        correction=_LOGARITHM,
    ),
    _claim(
        id="fedfdp.theorem-3",
        place="Section VII-A, Theorem 3",
        formula="R_model = T/(a-1) * sum_k binom(a,k) (1-q)^(a-k) q^k exp((k^2-k)/(2 sigma^2))",
        parameters=(_SIGMA, *_CURVE),
        compute=partial(_one_release, "sigma"),
        proof=_NEVER_SMALLER,
        correction=_LOGARITHM,
    ),
    _claim(
        id="fedfdp.theorem-4",
        place="Section VII-A, Theorem 4",
        formula="R_loss = T/(a-1) * sum_k binom(a,k) (1-q)^(a-k) q^k exp((k^2-k)/(2 sigma_l^2))",
        parameters=(_SIGMA_LOSS, *_CURVE),
        compute=partial(_one_release, "sigma_l"),
        proof=_NEVER_SMALLER,
        correction=_LOGARITHM,
    ),
    _claim(
        id="fedfdp.theorem-1",
        place="Section VI-A, Theorem 1, Equation 16",
        formula="E F(w_t) - F* <= L/(2t) (A / (mu^2 (2 C_t - 1)) + E||w_1 - w*||^2)",
        parameters=(
            Parameter("strong_convexity", 1.0, "strong convexity of every client's loss", positive, ("mu",)),
            Parameter("smoothness", 1.0, "smoothness of every client's loss", positive, ("L",)),
            Parameter("steps", 100, "steps", partial(count, least=2), ("t",)),
            Parameter("weight", 1.0, "mean factor of a gradient, 1 + lambda Delta before clipping", positive, ("C_t",)),
            Parameter("distance", 1.0, "distance of the first iterate from the optimum", positive),
            _SIGMA,
            Parameter("clip", 0.1, "the clipping bound", positive, ("C",)),
            Parameter("dimension", 7850, "parameters of the model", _whole, ("d",)),
            Parameter("batch", 256.0, "the smallest batch", positive, ("B",)),
            Parameter("reading", Form.PRINTED, "how Equation 16 is read"),
        ),
        conditions=(
            Condition(
                lambda s: f"C_t = {s.number('weight'):g} exceeds 1/2 (used silently: the bound divides by 2 C_t - 1)",
                lambda s: s.number("weight") > 0.5,
            ),
            Condition(
                lambda s: f"L = {s.number('smoothness'):g} is at least mu = {s.number('strong_convexity'):g}",
                lambda s: s.number("smoothness") >= s.number("strong_convexity"),
            ),
        ),
        domain={"steps": (2, 10, 2000), "sigma": (1000.0, 2.0), "smoothness": (1.0, 10.0), "weight": (0.55, 2.0)},
        compute=_theorem_1,
        correction=Correction(
            "its proof takes beta = 2/mu, so that A/mu^2 is 4A/mu^2: printed is a quarter of what is proved",
            ("reading", Form.PROVED),
        ),
    ),
    _claim(
        id="fedfdp.equation-14",
        place="Section V-B, Equations 14 and 15",
        formula="C_l of round t = noisy mean of min(C_l of round t-1, max(0, loss)): about the mean loss",
        parameters=(
            Parameter("loss_clip", 2.5, "the first bound, in units of the mean loss", positive, ("C_l",)),
            _ROUNDS,
        ),
        compute=_equation_14,
    ),
    _claim(
        id="fedfdp.algorithm-2.division",
        place="Algorithm 2, line 15; priced by Theorem 2",
        formula="(sum of clipped gradients + N(0, (sigma C)^2)) / |B| costs what the noisy sum costs",
        parameters=(
            _SIGMA,
            _SIGMA_LOSS,
            *_PRICED,
            Parameter("divisor", Divisor.REALISED, "what the noisy sum is divided by"),
        ),
        compute=_algorithm_2,
    ),
    _claim(
        id="fedfdp.section-VIII.epsilon",
        place="Section VIII-A, the setting of Tables IV and V",
        formula="q = 0.05, sigma = 2, sigma_l = 5, delta = 1e-5: eps = 3.52",
        parameters=(Parameter("epsilon", 3.52, "the promised epsilon", positive, ("eps",)), _SIGMA, *_CONVERTED),
        compute=_section_viii_epsilon,
    ),
    _claim(
        id="fedfdp.section-VIII.rounds",
        place="Section VIII-C, Impact of Different sigma",
        formula="eps = 2, q = 0.05, delta = 1e-5: sigma = 1, 1.5, 2, 2.5, 3 support T = 6, 115, 268, 463, 708",
        parameters=(
            Parameter("epsilon", 2.0, "the promised epsilon", positive, ("eps",)),
            Parameter("sigmas", (1.0, 1.5, 2.0, 2.5, 3.0), "gradient multipliers", positive, ("sigma",)),
            Parameter("rounds", (6.0, 115.0, 268.0, 463.0, 708.0), "the rounds they support", positive, ("T",)),
            *_CONVERTED,
        ),
        compute=_section_viii,
    ),
)
