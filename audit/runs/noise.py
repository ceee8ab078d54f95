"""L1: is the noise in the messages what was signed? From one run, by an auditor who holds the data.

Where batches are known, residual = published - clean message, divided by the signed scale, must be iid standard
normal. Wrong variance, a mean, a wrong shape, one quiet message, noise that repeats (between any rounds and silos, with
either sign), and low digits or noise that follow the message each have their own test, and the variance of all values
together has one more. Every test has false-alarm probability `alpha / number of tests`, so a clean run is flagged with
probability at most `alpha`. That nothing was flagged is evidence only where little noise would have been: the test of
variance says how little.

Where batches are secret, a message cannot be recomputed. But whatever was added to it, independent noise only makes its
squares larger: given all earlier rounds, |message - anything known before|^2 / sigma^2 is stochastically at least
chi-squared (a non-central chi-squared variable is at least a central one). So a sum of such squares in the lower tail
of chi-squared shows that noise is missing, and a clean run is flagged with probability at most `alpha`. Only
directions in which the data are quiet are looked at, because there little else hides missing noise; where too
much does, the answer is *not possible*, never *passed*. A floor in a few directions is not all of the noise, and one
more check says so: the floor can show a breach, but it never speaks for a promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import lfilter
from scipy.special import chdtr, chdtrc, chdtri

from audit.coins.canary_choice import sampled_units
from audit.coins.canary_decoder import quiet_directions
from audit.coins.insertion import ReplayedRound, Scaling
from audit.report.results import FLOOR, NOISE_SHARES, Check, Layer, NoisePower, PowerPoint, not_possible, passed_if
from audit.runs.evidence import RunEvidence
from calibrate.arrays import Floats, Integers
from calibrate.discrete_noise import STEPS_PER_SCALE
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, InTheClear, LaplaceNoise, NoiseSampler

DEFAULT_ALPHA = 5e-5
"""False-alarm probability of all questions about one run's noise: half of the 1e-4 that all but attacks may have."""
_TESTS_OF_ONE_VALUE = 4
"""Variance, mean, shape, each message by itself."""
_OF_STACKED = 3
"""Rounds, places, and the direction of the message before, of one value of all silos together."""
_TESTS_WITH_MESSAGES = 2
"""Where clean messages are known on the grid: low digits, and noise along the message."""
_NOTICED = 0.5
"""Every value must have an even chance of showing that no more than this share of its signed sigma is there."""
_EVEN_CHANCE = 0.5
ALL_MEASURED = "all of the noise is measured"
_MOST_FOR_SHAPE = 5000
"""The discrete grid and float rounding are far below what this many values can resolve."""
_WINDOW, _MOST_PRODUCTS = 1500, 2e9
"""Messages that are compared with one another at a time, and how many products of numbers that may take."""
_MOST_COMPARED = 4_000_000
"""Values of noise that are compared with one another."""
_TINY = 1e-100
_LOW_BITS, _LOW_BITS_OF_LAPLACE = 27, 16
"""Far below the noise (a scale is 2^30 steps of the grid or more), so that they carry nothing of the message: such a
digit of Gaussian noise is fair up to exp(-2 pi^2 4^2), of Laplace noise up to 1e-9."""


@dataclass(frozen=True, eq=False)
class Residuals:
    """Standardised residuals of one value of one silo: one row per round."""

    party: str
    name: str
    rows: NDArray[np.float64]
    steps: Integers | None = None
    """What was published, as whole numbers of steps of the signed grid; None where there is no grid."""
    clean: Integers | None = None
    """The message before its noise, in steps, rounded toward zero."""
    low_bits: int = _LOW_BITS_OF_LAPLACE
    """How many binary digits of the steps carry nothing but noise."""

    @classmethod
    def of(
        cls,
        party: str,
        declared: GaussianNoise | LaplaceNoise,
        published: list[Floats],
        clean: list[Floats],
        rounds: Sequence[int] | None = None,
    ) -> Residuals:
        """Of the messages of all rounds; Laplace residuals are carried over to the normal law by their distribution.

        Clean messages are the party's contributions; where a strategy is signed they are mixed here as the gate must
        have mixed them, so that what is left is independent noise again. `rounds` are theirs, by default in a row.
        """
        if isinstance(declared, GaussianNoise) and declared.strategy is not None:
            numbers = range(len(clean)) if rounds is None else rounds
            clean = _mix_in_turn(declared.strategy, numbers, clean)
        sent, meant = (np.stack([row.ravel() for row in rows]) for rows in (published, clean))
        rows = standardise(sent - meant, declared)
        step = grid_step(declared)
        if step is None or off_grid(sent, step):
            return cls(party, declared.name, rows)
        steps, message = (np.asarray(part / step).astype(np.int64) for part in (sent, meant))
        if not np.any(steps & 1):  # a scale just below a power of two, which the gate's own rounding takes beyond it
            steps, message = steps >> 1, message >> 1
        bits = _LOW_BITS if isinstance(declared, GaussianNoise) else _LOW_BITS_OF_LAPLACE
        return cls(party, declared.name, rows, steps, message, bits)


def _mix_in_turn(column: tuple[float, ...], rounds: Sequence[int], clean: list[Floats]) -> list[Floats]:
    """Each run of rounds in a row filtered by the column, by other code than the gate's."""
    starts = [0, *(np.flatnonzero(np.diff(rounds) != 1) + 1).tolist(), len(clean)]
    parts = (np.stack(clean[start:end]) for start, end in pairwise(starts) if start < end)
    return [row for part in parts for row in lfilter(column, [1.0], part, axis=0)]


def standardise(noise: Floats, declared: GaussianNoise | LaplaceNoise) -> Floats:
    """In units of the signed scale; Laplace noise is carried over to the normal law by its distribution."""
    if isinstance(declared, GaussianNoise):
        return noise / declared.sigma
    return np.asarray(stats.norm.ppf(stats.laplace.cdf(noise / declared.scale)))


def grid_step(declared: GaussianNoise | LaplaceNoise) -> float | None:
    """The step of the coarsest power-of-two grid with enough steps per signed scale; None for research noise.

    The gate's scale is the signed one or a little more, so that its own grid is this one or coarser.
    """
    if declared.sampler is not NoiseSampler.DISCRETE_GRID:
        return None
    scale = declared.sigma if isinstance(declared, GaussianNoise) else declared.scale
    return math.ldexp(1.0, math.frexp(scale / STEPS_PER_SCALE)[1] - 1)


def off_grid(values: Floats, step: float) -> int:
    """How many values are not whole numbers of steps; dividing by a power of two is exact."""
    return int(np.count_nonzero(np.rint(values / step) != values / step))


def residuals(evidence: RunEvidence) -> tuple[Residuals, ...]:
    """(published - clean) / sigma for every Gaussian value, silo and round."""
    signed = {value.name: value for value in evidence.document.releases if isinstance(value, GaussianNoise)}
    found: dict[tuple[str, str], tuple[list[Floats], list[Floats], list[int]]] = {}
    transcript = evidence.transcript
    used = {(silo.name, name): transcript.rounds(silo.name, name) for silo in evidence.silos for name in signed}
    for one in evidence.rounds():
        for silo in evidence.silos:
            # An interrupted step has values of an earlier round too; each was computed on the batch of its own round.
            own = {name: _last_until(used[silo.name, name], one.round) for name in signed}
            if max(own.values()) < 0:  # a silo that sends nothing noisy, such as one without the attribute
                continue
            batch = evidence.batch(max(own.values()), silo)
            message = evidence.algorithm.contribution(one.state, one.step, silo, batch)
            for clean in message.noisy:
                if clean.name in signed and own[clean.name] >= 0:
                    published, meant, rounds = found.setdefault((silo.name, clean.name), ([], [], []))
                    values = transcript.value(own[clean.name], silo.name, clean.name)
                    published.append(np.asarray(values, dtype=np.float64))
                    meant.append(clean.values)
                    rounds.append(own[clean.name])
    return tuple(Residuals.of(party, signed[name], *rows) for (party, name), rows in found.items())


def _last_until(rounds: Integers, number: int) -> int:
    """The last of the rounds up to the given one; -1 if there is none."""
    place = int(np.searchsorted(rounds, number, side="right"))
    return int(rounds[place - 1]) if place else -1


def check_noise(evidence: RunEvidence, alpha: float = DEFAULT_ALPHA) -> tuple[Check, ...]:
    """All noise tests of a run, or the reason why there can be none."""
    if not any(isinstance(value, GaussianNoise) for value in evidence.document.releases):
        return (_not_possible("the run publishes no Gaussian value"),)
    if not evidence.batches_known:
        return (_not_possible("the batches are secret, so clean messages cannot be recomputed"),)
    found = residuals(evidence)
    if not found:
        return (_not_possible("no round was finished"),)
    return (*judge_residuals(found, alpha), all_measured(evidence.document, found, alpha))


def judge_residuals(found: tuple[Residuals, ...], alpha: float) -> tuple[Check, ...]:
    """Every test of these residuals; together they flag true noise with probability at most `alpha`.

    The check of variance over all values carries the power of the whole layer against noise that is too small.
    """
    level = _level(found, alpha)
    checks = [_pooled_variance(found, level)]
    for one in found:
        checks += _checks_of(one, level)
        if one.steps is not None and one.clean is not None:
            checks.append(_low_digits(f"{one.name} of {one.party}", one.low_bits, one.steps, one.clean, level))
            checks.append(_along_message(f"{one.name} of {one.party}", one.rows, one.clean, level))
    checks += [_repetition(group, level) for group in _comparable(found)]
    checks += [check for group in _stacked(found) for check in _rounds_and_places(group, level)]
    for name in sorted({one.name for one in found if one.steps is not None}):
        checks.append(_equal_values(name, [one for one in found if one.name == name], level))
    return tuple(checks)


def all_measured(document: BudgetDocument, found: tuple[Residuals, ...], alpha: float) -> Check:
    """Passed only if no signed noise was left out and each value alone would have shown that half of sigma is missing.

    A test of a dozen residuals passes whatever they are, so that it passed says nothing.
    """
    measured = {one.name for one in found}
    unseen = [
        value.name for value in document.releases if not isinstance(value, InTheClear) and value.name not in measured
    ]
    level = _level(found, alpha)
    few = [
        f"{one.name} of {one.party} ({one.rows.size} values)"
        for one in found
        if _chance_to_notice(one.rows.size, level) < _EVEN_CHANCE
    ]
    why = [f"no residual of {', '.join(unseen)}"] if unseen else []
    why += [f"too few residuals to notice that half of sigma is missing: {', '.join(few)}"] if few else []
    if why:
        return not_possible(Layer.NOISE, ALL_MEASURED, "; ".join(why))
    text = f"{100 * _NOTICED:g}% of sigma would have been noticed in every value of every party"
    return passed_if(Layer.NOISE, ALL_MEASURED, True, text)


def _level(found: tuple[Residuals, ...], alpha: float) -> float:
    """Each test's share of the error."""
    with_digits = sum(one.steps is not None for one in found)
    tests = _TESTS_OF_ONE_VALUE * len(found) + _TESTS_WITH_MESSAGES * with_digits
    names = {one.name for one in found if one.steps is not None}
    return alpha / (tests + len(_comparable(found)) + _OF_STACKED * len(_stacked(found)) + len(names) + 1)


def _chance_to_notice(count: int, level: float) -> float:
    """The power of the test of variance if only `_NOTICED` of the signed sigma is there."""
    return float(chdtr(count, chdtri(count, 1 - level / 2) / _NOTICED**2))


def noise_power(count: int, level: float) -> NoisePower:
    """What a test of the variance of `count` residuals would have noticed: its limit Q(level / 2) is at Q / f^2."""
    limit = float(chdtri(count, 1 - level / 2))
    shares = np.maximum(NOISE_SHARES, _TINY)
    powers = chdtr(count, limit / shares**2)
    points = (PowerPoint(share=share, power=float(power)) for share, power in zip(NOISE_SHARES, powers, strict=True))
    return NoisePower(noticed=_noticed(count, level), curve=tuple(points))


def _pooled_variance(found: tuple[Residuals, ...], level: float) -> Check:
    """Noise that is a little too small everywhere shows in all values together first."""
    values = np.concatenate([one.rows.ravel() for one in found])
    ratio, p_value = variance_of(values)
    text = f"all noise together measures {math.sqrt(ratio):.4f} of the signed sigma"
    check = _test("variance of all values", p_value, level, text)
    return check.model_copy(update={"noise_power": noise_power(values.size, level)})


def _checks_of(one: Residuals, level: float) -> list[Check]:
    values, where = one.rows.ravel(), f"{one.name} of {one.party}"
    count = values.size
    ratio, variance = variance_of(values)
    mean = float(values.mean())
    at_mean = 2 * float(stats.norm.sf(abs(mean) * math.sqrt(count)))
    spread = values[:: max(1, count // _MOST_FOR_SHAPE)]
    at_shape = float(stats.kstest(spread, "norm").pvalue)
    each = chi_squared_p_values(np.square(one.rows).sum(axis=1), one.rows.shape[1])
    quiet = int(each.argmin())
    of_message = f"the message of round {quiet}, counted from 0, is the least likely of {len(each)}"
    return [
        _test(
            f"variance of {where}", variance, level, f"noise measures {math.sqrt(ratio):.4f} of the signed sigma"
        ).model_copy(update={"part_noticed": _noticed(count, level)}),
        _test(f"mean of {where}", at_mean, level, f"mean of the noise is {mean:+.4f} sigma"),
        _test(f"shape of {where}", at_shape, level, "Kolmogorov-Smirnov against the normal law"),
        _test(f"single messages of {where}", min(1.0, len(each) * float(each[quiet])), level, of_message),
    ]


def _stacked(found: tuple[Residuals, ...]) -> list[tuple[Residuals, ...]]:
    """The same value of all silos that published it equally often."""
    groups: dict[tuple[str, tuple[int, ...]], list[Residuals]] = {}
    for one in found:
        groups.setdefault((one.name, one.rows.shape), []).append(one)
    return [tuple(group) for group in groups.values()]


def _rounds_and_places(group: tuple[Residuals, ...], level: float) -> Iterator[Check]:
    """Whether noise is missing in one round of all silos, at one place of the value, or along the message before.

    Of each kind the most unlikely one counts, times their number (Bonferroni); along a message that went out before,
    the noise of the next one is standard normal.
    """
    name, silos, (rounds, places) = group[0].name, len(group), group[0].rows.shape
    by_round, by_place = (np.sum([np.square(one.rows).sum(axis=axis) for one in group], axis=0) for axis in (1, 0))
    for what, sums, size in (("round", by_round, silos * places), ("place", by_place, silos * rounds)):
        each = chi_squared_p_values(sums, size)
        worst = int(each.argmin())
        text = f"{what} {worst} of {len(each)} measures {math.sqrt(sums[worst] / size):.3f} of the signed sigma"
        check = _test(f"every {what} of {name}", min(1.0, len(each) * float(each[worst])), level, text)
        yield check.model_copy(update={"part_noticed": _noticed(size, level / len(each))})
    parts = np.concatenate([_along(one.rows[1:], _sent(one)[:-1]) for one in group])
    ratio, p_value = variance_of(parts) if parts.size else (1.0, 1.0)
    text = f"along the message before it measures {math.sqrt(ratio):.3f} of the signed sigma"
    yield _test(f"noise of {name} along the message before", p_value, level, text)


def _sent(one: Residuals) -> Floats:
    """What was published, or (without a grid) its noise; lengths do not matter."""
    return one.rows if one.steps is None else one.steps.astype(np.float64)


def _along(rows: Floats, directions: Floats) -> Floats:
    """The part of each row along its direction; rows without one are left out."""
    lengths = np.linalg.norm(directions, axis=1)
    there = lengths > 0
    return np.asarray((rows[there] * directions[there]).sum(axis=1) / lengths[there])


def _noticed(count: int, level: float) -> float:
    """The largest share of sigma whose lack a test of this many residuals notices with an even chance."""
    limit, median = (float(chdtri(count, 1 - part)) for part in (level / 2, 0.5))
    return min(1.0, math.sqrt(limit / median))


def _comparable(found: tuple[Residuals, ...]) -> list[tuple[Residuals, ...]]:
    """The same value of several silos, published equally often; and any two values, as far as the shorter one goes."""
    groups = {(group[0].name, group[0].rows.shape): group for group in _stacked(found)}
    kept = [group for group in groups.values() if group[0].rows.shape[0] * len(group) > 1]
    for (first, (rounds, width)), (second, (as_many, other)) in combinations(groups, 2):
        if first != second and rounds == as_many:
            pair = (*groups[first, (rounds, width)], *groups[second, (rounds, other)])
            both = f"{first} and {second}"
            kept.append(tuple(Residuals(one.party, both, one.rows[:, : min(width, other)]) for one in pair))
    return kept


# Does noise repeat? Between any two messages, and at any distance in rounds, within a silo and between two.


def _repetition(group: tuple[Residuals, ...], level: float) -> Check:
    """All inner products of the noise of two messages, as one Gram matrix: each alone, and summed along each distance.

    Given the noise x of one message, the inner product with independent noise y is normal with variance |x|^2; so is
    the sum over pairs of messages without a common one, with the sum of the |x|^2. Pairs at a distance within one silo
    form chains, which are cut into two such sets.
    """
    rounds, entries = group[0].rows.shape
    window = max(2, min(rounds, _WINDOW // len(group)))
    stride = max(1, math.ceil(rounds * window * len(group) ** 2 * entries / _MOST_PRODUCTS))
    table = np.stack([one.rows[:, ::stride] for one in group])
    sums: dict[tuple[int, int, int, int], tuple[float, float]] = {}
    # Bonferroni over all pairs and all sums, and over the two kinds (hence p_value below is doubled).
    largest, pair, pairs = 0.0, "", 0
    for start in range(0, rounds, window):
        for first, second, block, squares in _blocks(table[:, start : start + window]):
            alone = np.abs(block) / np.sqrt(np.maximum(squares, _TINY))[:, np.newaxis]
            alone = np.triu(alone, 1) if first == second else alone
            pairs += alone.size // (2 if first == second else 1)
            if alone.max() > largest:
                one, other = (int(place) + start for place in np.unravel_index(int(alone.argmax()), alone.shape))
                largest, pair = float(alone.max()), f"round {one} of {group[first].party} and {other} of "
                pair += group[second].party
            for distance, part, total, square in _at_distances(block, squares, first == second):
                key = (first, second, distance, part)
                before = sums.get(key, (0.0, 0.0))
                sums[key] = before[0] + total, before[1] + square
    scores = {key: total / math.sqrt(max(square, _TINY)) for key, (total, square) in sums.items()}
    worst = max(scores, key=lambda key: abs(scores[key]))
    single, summed = pairs * 2 * stats.norm.sf(largest), len(scores) * 2 * stats.norm.sf(abs(scores[worst]))
    p_value = min(1.0, 2 * float(min(single, summed)))
    text = f"{pairs} pairs of messages and {len(scores)} sums along distances compared"
    if p_value < level:
        silos = " and ".join(sorted({group[worst[0]].party, group[worst[1]].party}))
        sign = "the same sign" if scores[worst] > 0 else "opposite signs"
        where = f"distance {abs(worst[2])} in {silos} with {sign}" if summed <= single else pair
        text = f"noise repeats at {where}; {text}"
    return _test(f"repetition of {group[0].name} over rounds and silos", p_value, level, text)


def _equal_values(name: str, found: Sequence[Residuals], level: float) -> Check:
    """Whether one message's noise holds the values of another's, at whatever places and with either sign.

    Two independent values of a scale of g steps are equal up to sign with probability 1 / (sqrt(pi) g) at most, and
    g is at least half of `STEPS_PER_SCALE`; coincidences are Poisson, whose mean is taken twice as large.
    """
    rows = [row for one in found if one.steps is not None and one.clean is not None for row in one.steps - one.clean]
    rows = rows[: max(2, _MOST_COMPARED // max(1, rows[0].size))]
    values, owner = np.abs(np.concatenate(rows)), np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    order = np.argsort(values, kind="stable")
    same = (np.diff(values[order]) == 0) & (np.diff(owner[order]) != 0) & (values[order][1:] != 0)
    expected = values.size**2 / 2 / (math.sqrt(math.pi) * STEPS_PER_SCALE / 2)
    p_value = float(stats.poisson.sf(int(same.sum()) - 1, 2 * expected)) if same.any() else 1.0
    text = f"{int(same.sum())} values are in the noise of two messages, {expected:.2g} expected by chance"
    return _test(f"values of noise of {name} occur once", p_value, level, text)


def _blocks(table: Floats) -> Iterator[tuple[int, int, Floats, Floats]]:
    """The Gram matrix of all messages: (rounds, rounds) for each pair of silos, and the first one's squares."""
    silos, rounds, entries = table.shape
    flat = table.reshape(silos * rounds, entries)
    gram = (flat @ flat.T).reshape(silos, rounds, silos, rounds)
    for first in range(silos):
        squares = np.diagonal(gram[first, :, first])
        for second in range(first, silos):
            yield first, second, gram[first, :, second], squares


def _at_distances(block: Floats, squares: Floats, same: bool) -> Iterator[tuple[int, int, float, float]]:
    """Distance, part of its chains, the sum of inner products, and its variance given the first of each pair."""
    rounds = len(block)
    for distance in range(1, rounds) if same else range(1 - rounds, rounds):
        products = np.diagonal(block, offset=distance)
        given = squares[: len(products)] if distance >= 0 else squares[-distance:]
        if not same:
            yield distance, 0, float(products.sum()), float(given.sum())
            continue
        # Products at a distance share a message with the next one of their chain, so every second stretch is apart.
        odd = (np.arange(len(products)) // distance) % 2
        for part in (0, 1):
            yield distance, part, float(products[odd == part].sum()), float(given[odd == part].sum())


def _low_digits(where: str, bits: int, steps: Integers, clean: Integers, level: float) -> Check:
    """Each low binary digit is a fair coin of its own: it follows neither the message nor the round before.

    Products of fair signs are fair signs, so Hoeffding's bound holds for every sum (2 exp(-S^2 / 2n)).
    """
    sign = np.sign(clean)
    worst, found, tests = 1.0, "", 0
    for bit in range(bits):
        digit, own = 2 * ((steps >> bit) & 1) - 1, 2 * ((clean >> bit) & 1) - 1
        sums = {"is not balanced": digit, "follows the sign of the message": digit * sign}
        sums |= {"follows the same digit of the message": digit * own, "repeats over rounds": digit[1:] * digit[:-1]}
        for what, products in sums.items():
            tests += 1
            count = int(np.count_nonzero(products))
            p_value = 1.0 if not count else min(1.0, 2 * math.exp(-(float(products.sum()) ** 2) / (2 * count)))
            if p_value < worst:
                worst, found = p_value, f"binary digit {bit} {what}"
    p_value = min(1.0, tests * worst)
    text = found if p_value < level else f"{bits} binary digits carry nothing of the message"
    return _test(f"low digits of {where}", p_value, level, text)


def _along_message(where: str, rows: Floats, clean: Integers, level: float) -> Check:
    """Noise is as large along the message itself as elsewhere, and has no sign in common with it.

    Given its message, the noise of a round has a standard normal part along it.
    """
    parts = _along(rows, clean.astype(np.float64))
    if not parts.size:
        return _test(f"noise along the messages of {where}", 1.0, level, "all messages are zero")
    ratio, variance = variance_of(parts)
    mean = float(parts.mean())
    at_mean = 2 * float(stats.norm.sf(abs(mean) * math.sqrt(parts.size)))
    text = f"along the message it measures {math.sqrt(ratio):.3f} of the signed sigma, with mean {mean:+.3f}"
    return _test(f"noise along the messages of {where}", min(1.0, 2 * min(variance, at_mean)), level, text)


def chi_squared_p_values(sums: Floats, freedom: int | Floats) -> Floats:
    """How likely a sum of squares of this many standard normal values is so far from its middle, on either side."""
    return np.asarray(np.minimum(1.0, 2 * np.minimum(chdtr(freedom, sums), chdtrc(freedom, sums))))


def variance_of(values: NDArray[np.float64]) -> tuple[float, float]:
    """The mean square, and how likely one so far from 1 is for standard normal values."""
    ratio, count = float(np.square(values).mean()), values.size
    below, above = stats.chi2.cdf(ratio * count, count), stats.chi2.sf(ratio * count, count)
    return ratio, min(1.0, 2 * float(min(below, above)))


def _test(name: str, p_value: float, level: float, text: str) -> Check:
    return passed_if(Layer.NOISE, name, p_value >= level, f"{text} (p = {p_value:.3g}, alarm below {level:.1g})")


def _not_possible(why: str) -> Check:
    return not_possible(Layer.NOISE, "noise", why)


_DIRECTIONS = 16
_ENTRIES = 64
_REMEMBERED = 8
"""Rounds whose mean stands for the next one's message without noise."""


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
        return (not_possible(Layer.NOISE, "noise floor", why),)
    level = alpha / (len(found) + 1)
    squares = {f"{one.name} of {one.party}": _squares(one.rows) for one in found}
    total, freedom, spread = np.sum(list(squares.values()), axis=0).tolist()
    checks = [_judge_floor(f"noise floor of {where}", *each, level) for where, each in squares.items()]
    why = "batches are secret, so a floor was measured in quiet directions only, not the noise itself"
    return (*checks, _judge_floor(FLOOR, total, freedom, spread, level), not_possible(Layer.NOISE, ALL_MEASURED, why))


def _squares(rows: Floats) -> tuple[float, float, float]:
    """The sum of squares, how many, and the mean sum that pure noise gives."""
    residuals, spread = _residuals(rows)
    return float(np.square(residuals).sum()), float(residuals.size), spread


def _judge_floor(name: str, total: float, freedom: float, spread: float, level: float) -> Check:
    p_value = float(stats.chi2.cdf(total, freedom))
    text = (
        f"{freedom:.0f} squares in quiet directions have mean {total / freedom:.3f} of the signed variance "
        f"(p = {p_value:.3g}, alarm below {level:.1g})"
    )
    if p_value < level:
        return passed_if(Layer.NOISE, name, False, f"noise is missing: {text}")
    # What would have been left of the squares, had the signed noise been smaller; the mean adds its own noise.
    # With noise f sigma the sum falls by (1 - f^2) spread; solved for the f at which it meets the limit.
    share = math.sqrt(max(0.0, 1 - (total - float(stats.chi2.ppf(level, freedom))) / spread))
    if share >= _NOTICED:
        noticed = math.floor(100 * share) / 100
        return passed_if(Layer.NOISE, name, True, f"{text}; noise x {noticed:.2f} would have been noticed")
    return not_possible(Layer.NOISE, name, f"the data hide the noise: {text}")


def _residuals(rows: Floats) -> tuple[Floats, float]:
    """Each round minus the mean of some rounds before it; and the mean sum of squares that pure noise gives."""
    residuals, spread = [], 0.0
    for place in range(1, len(rows)):
        before = rows[max(0, place - _REMEMBERED) : place]
        residuals.append(rows[place] - before.mean(axis=0))
        spread += rows.shape[1] * (1 + 1 / len(before))
    return np.stack(residuals), spread


def _series(evidence: RunEvidence) -> list[_Series]:
    scaling = Scaling.of(evidence)
    rounds = list(evidence.rounds()) if scaling is None else scaling.rounds(evidence)
    if len(rounds) < 2:
        return []
    # The directions may depend on nothing later than the first round, which is only ever subtracted.
    moments = (ReplayedRound.of(evidence, rounds[0]),)
    found = []
    for silo in evidence.silos:
        units = None if scaling is None else sampled_units(evidence, scaling, moments, silo)
        for declared in evidence.document.releases:
            if not isinstance(declared, GaussianNoise) or 2 * declared.publications <= evidence.document.rounds:
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
        return np.eye(min(_ENTRIES, entries), entries)
    return quiet_directions(sampled, min(_DIRECTIONS, math.ceil(entries / 2)), seed=0)
