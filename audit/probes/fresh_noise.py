"""Is the noise of the gate what was signed, and drawn again for every silo and round? For secret batches too.

From a run whose batches are secret no residual can be computed; the gate of the same code is asked about known
messages, with the operating system's entropy. It speaks of the code, not of the run's messages, and so is treated as a
probe.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from scipy import stats

from audit.bounds.binomial import two_sided
from audit.report.results import Check, Layer, passed_if
from audit.runs.noise import chi_squared_p_values, noise_power, standardise, variance_of
from audit.runs.rerun import Answers, Rehearsal
from calibrate.arrays import Floats, Integers
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, RandomizedCategory

_TAILS = np.arange(2.0, 4.6, 0.1)
"""In units of the signed scale (of Laplace noise: after carrying it over to the normal law)."""
GATE_ALPHA = 1e-6
"""False-alarm probability of all questions about the noise that the gate alone draws."""
_TINY = 1e-100


def _truth(value: RandomizedCategory) -> float:
    """How often an answer is true."""
    return 1.0 / (1.0 + (value.categories - 1) * math.exp(-value.epsilon))


def check_gate_alone(rehearsal: Rehearsal) -> tuple[Check, ...]:
    """Known messages, published again and again in all signed rounds: the noise itself, of secret batches too.

    It must be other noise each time (noise that is a function of the message repeats at once, a seed of 16 bits after a
    few hundred messages, also after the gate was opened again), as much as was signed in every message, round, silo,
    place and direction, and with tails as long.
    """
    signed = {one.name: one for one in rehearsal.document.releases if isinstance(one, GaussianNoise | LaplaceNoise)}
    level, checks = GATE_ALPHA / max(1, len(signed) + len(rehearsal.answers_alone)), []
    for one in rehearsal.document.releases:
        if isinstance(one, RandomizedCategory) and one.name in rehearsal.answers_alone:
            checks.append(_answers_alone(one, rehearsal.answers_alone[one.name], level))
    for name, noise in rehearsal.gate_alone.items():
        rows = [*noise.published, *noise.alone]
        if not rows:
            continue
        declared, short = signed[name], min(row.size for row in rows)
        if short >= 2:
            same = len(rows) - len(np.unique(np.stack([row[:short] for row in rows]), axis=0))
            text = f"{same} of {len(rows)} messages repeat another's noise" if same else f"{len(rows)}, none alike"
            checks.append(passed_if(Layer.PROBE, f"the gate alone draws {name} anew", not same, text))
        parts = [standardise(row, declared) for row in rows]
        published = np.stack(parts[: len(noise.published)]) if noise.published else np.zeros((0, 0))
        p_values = _variances(parts, short, len(rehearsal.document.data.silos))
        p_values |= _of_published(published, np.array(noise.rounds), np.array(noise.silos))
        p_value = min(1.0, len(p_values) * min(p_values.values()))
        ratio = variance_of(np.concatenate(parts))[0]
        text = f"{math.sqrt(ratio):.4f} of the signed scale (p = {p_value:.3g}, alarm below {level:.1g})"
        if p_value < level:
            text = f"{min(p_values, key=lambda part: p_values[part])} is not as signed; all together {text}"
        check = passed_if(Layer.PROBE, f"noise of {name} from the gate alone", p_value >= level, text)
        power = noise_power(sum(part.size for part in parts), level / len(p_values))
        checks.append(check.model_copy(update={"noise_power": power}))
    return tuple(checks)


def _variances(rows: list[Floats], short: int, silos: int) -> dict[str, float]:
    """p-values of the variance: of all numbers, of each silo, of each of the first places, and of messages' sums; and
    of the shape of all numbers together. Silos take turns.
    """
    every = np.concatenate(rows)
    found = {"the variance of all numbers": variance_of(every)[1], "the shape of the noise": _shape_of(every)}
    beyond = every.size - np.searchsorted(np.sort(np.abs(every)), _TAILS, side="right")
    tails = two_sided(beyond, every.size, 2 * stats.norm.sf(_TAILS))
    found |= {f"the number of values beyond {_TAILS[i]:.1f} scales": float(p) for i, p in enumerate(tails)}
    if silos > 1:
        for silo in range(silos):
            found[f"the variance of silo {silo}"] = variance_of(np.concatenate(rows[silo::silos]))[1]
    if short > 1:
        first = np.stack([row[:short] for row in rows])
        found |= {f"the variance at place {place}": variance_of(first[:, place])[1] for place in range(short)}
        found["the variance of sums"] = variance_of(first.sum(axis=1) / math.sqrt(short))[1]
    return found


_BLOCK = 64
"""Places of a message whose covariance is looked at together."""
_LATER = 16
"""How many messages later noise is compared with noise of the same silo."""


def _of_published(table: Floats, rounds: Integers, silos: Integers) -> dict[str, float]:
    """p-values of whole messages that passed the gate (a row each): noise may be missing in one message or round, in
    one silo at one place, or in one direction, and be barely missed among all other numbers.
    """
    messages, size = table.shape
    if not messages:
        return {}
    squares, found = np.square(table), {}
    sums = squares.sum(axis=1)
    cells = {"message": (np.arange(messages), sums[:, np.newaxis], np.full(messages, size))}
    # One number for each pair of a round and a silo.
    turns = rounds * (int(silos.max()) + 1) + silos
    for what, labels in (("round", rounds), ("silo", silos), ("turn of a round and silo", turns)):
        numbers, which = np.unique(labels, return_inverse=True)
        totals = np.zeros((len(numbers), size))
        np.add.at(totals, which, squares)
        times = np.bincount(which)
        cells[what] = (numbers, totals.sum(axis=1, keepdims=True), times * size)
        if what == "silo":
            cells["silo and place"] = (numbers, totals, times)
    for what, (numbers, totals, freedom) in cells.items():
        p_values = chi_squared_p_values(totals, freedom[:, np.newaxis])
        row, place = np.unravel_index(int(p_values.argmin()), p_values.shape)
        where = f"{what} {numbers[row]}" + (f", {place}" if totals.shape[1] > 1 else "")
        found[f"the published noise of {where}"] = min(1.0, p_values.size * float(p_values[row, place]))
    everywhere = chi_squared_p_values(squares.sum(axis=0), messages)
    found["the variance at a place of published messages"] = min(1.0, size * float(everywhere.min()))
    found["some direction of the noise"] = _directions(table)
    return found | _following(table, silos)


def _following(table: Floats, silos: Integers) -> dict[str, float]:
    """p-values of the inner products of a silo's noise with that of its later messages, summed along each distance.

    Given the earlier message of each pair the sum is normal, if no message is in two pairs: chains are cut in two.
    """
    of_silos = [table[silos == silo] for silo in np.unique(silos)]
    found = {}
    for distance in range(1, min(_LATER, min(len(rows) for rows in of_silos) - 1) + 1):
        for part in (0, 1):
            total = square = 0.0
            for rows in of_silos:
                chosen = np.flatnonzero(np.arange(len(rows) - distance) // distance % 2 == part)
                total += float((rows[chosen] * rows[chosen + distance]).sum())
                square += float(np.square(rows[chosen]).sum())
            score = abs(total) / math.sqrt(max(square, _TINY))
            found[f"noise {distance} messages later, part {part},"] = 2 * float(stats.norm.sf(score))
    return found


def _directions(table: Floats) -> float:
    """How likely a direction with so little or so much noise is, at most.

    A table of m x d standard normal numbers has all singular values within sqrt(m) -+ (sqrt(d) + t), but for a
    probability of 2 exp(-t^2 / 2) (Davidson and Szarek 2001, Theorem II.13).
    """
    messages, size = table.shape
    block = min(size, _BLOCK, messages // 4)
    if block < 2:
        return 1.0
    starts, least = range(0, size - block + 1, block), math.inf
    for start in starts:
        values = np.linalg.svd(table[:, start : start + block], compute_uv=False)
        low, high = math.sqrt(messages) - math.sqrt(block), math.sqrt(messages) + math.sqrt(block)
        beyond = max(low - float(values[-1]), float(values[0]) - high, 0.0)
        least = min(least, 2 * math.exp(-(beyond**2) / 2))
    return min(1.0, len(starts) * least)


def _shape_of(values: Floats) -> float:
    """How likely a distance so large from the normal law is, at most (Dvoretzky, Kiefer, Wolfowitz, Massart)."""
    expected, steps = stats.norm.cdf(np.sort(values)), np.arange(values.size + 1) / values.size
    # The empirical law jumps at each value, so that both of its sides are compared.
    distance = max(float((steps[1:] - expected).max()), float((expected - steps[:-1]).max()))
    return min(1.0, 2 * math.exp(-2 * values.size * distance**2))


_MOST_KINDS, _FURTHEST = 16, 64
"""Categories whose answers are looked at apart, and how far apart two answers may be that are compared."""


def _of_answers(value: RandomizedCategory, answers: Floats, truth: Floats) -> dict[str, float]:
    """p-values: the truth is kept as often as signed, of all and of each category; lies are any of the others alike."""
    shifts = (answers - truth).astype(int) % value.categories
    rate, times = _truth(value), np.bincount(shifts, minlength=value.categories)
    found = {"the share of true answers": float(stats.binomtest(int(times[0]), shifts.size, rate).pvalue)}
    for kind in np.unique(truth)[:_MOST_KINDS].tolist():
        own = shifts[truth == kind]
        where = f"the share of true answers of category {kind:g}"
        found[where] = float(stats.binomtest(int((own == 0).sum()), own.size, rate).pvalue)
    lies = int(times[1:].sum())
    if value.categories > 2 and lies:
        even = 1 / (value.categories - 1)
        for kind, each in enumerate(times[1:].tolist(), start=1):
            found[f"lies {kind} categories further"] = float(stats.binomtest(int(each), lies, even).pvalue)
    return found


def _answers_alone(value: RandomizedCategory, silos: list[Answers], level: float) -> Check:
    """Of many answers to known categories: their law, and that no one's lie tells another's, of any two silos."""
    answers, truth = (np.concatenate([one[part] for one in silos]) for part in (0, 1))
    p_values = _of_answers(value, answers, truth)
    lies = [one[0] != one[1] for one in silos]
    rate = (1 - _truth(value)) ** 2
    for silo, lied in enumerate(lies):
        for distance in range(1, min(_FURTHEST, len(lied) - 1) + 1):
            # Pairs at a distance form chains; of each chain every second pair, so that no answer is in two of them.
            places = np.flatnonzero(np.arange(len(lied) - distance) // distance % 2 == 0)
            both = int((lied[places] & lied[places + distance]).sum())
            p_values[f"lies {distance} apart in silo {silo}"] = float(two_sided(both, len(places), rate))
    for first, second in combinations(range(len(lies)), 2):
        both = int((lies[first] & lies[second]).sum())
        p_values[f"common lies of silos {first} and {second}"] = float(two_sided(both, len(lies[first]), rate))
    return _check_truth(f"answers of {value.name} from the gate alone", value, answers, truth, p_values, level)


def _check_truth(
    name: str, value: RandomizedCategory, answers: Floats, truth: Floats, p_values: dict[str, float], level: float
) -> Check:
    p_value = min(1.0, len(p_values) * min(p_values.values()))
    text = (
        f"{float((answers == truth).mean()):.3f} of {answers.size} responses are true, {_truth(value):.3f} are signed "
        f"(p = {p_value:.3g}, alarm below {level:.1g})"
    )
    if p_value < level:
        text = f"{min(p_values, key=lambda part: p_values[part])} is not as signed; {text}"
    return passed_if(Layer.PROBE, name, p_value >= level, text)
