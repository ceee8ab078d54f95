"""How fast trusted noise is, as a ratio against its peers in the same process.

Run `python tests/benchmarks/noise_speed.py` to measure and to rewrite docs/benchmarks.md; it ends with
exit code 1 if the exact sampler lost its lead. Speed in values per second is shown for orientation only:
it depends on the machine; the ratios hardly do.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import opendp.prelude as opendp

from privfair.noise import ExactNoise, lattice_sampler, source
from privfair.noise.lattice_sampler import (
    GaussianExponent,
    SecureStream,
    block_table,
    discrete_gaussian,
    discrete_laplace,
    sample,
)
from tests.sections import write_section

SCALE = 1 << 30
ROUNDS = 15
MANY, GOAL = 10_000_000, 0.4
PUBLISHED, BY_NUMPY = "publish ten million (Gaussian)", "the same without the compiled part"
AES = "words of AES-256-CTR alone"
LEAST_RATIO_TO_OPENDP = 20.0
LEAST_RATIO_TO_PYTHON = 200.0

Draw = Callable[[int], object]


class PurePython:
    """The algorithms of Canonne, Kamath and Steinke, word for word, with Python's rationals."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def _bernoulli(self, p: Fraction) -> bool:
        return self._random.randrange(p.denominator) < p.numerator

    def _bernoulli_exp(self, gamma: Fraction) -> bool:
        while gamma > 1:
            if not self._bernoulli_exp(Fraction(1)):
                return False
            gamma -= 1
        k = 1
        while self._bernoulli(gamma / k):
            k += 1
        return k % 2 == 1

    def laplace(self, t: int) -> int:
        while True:
            u = self._random.randrange(t)
            if not self._bernoulli_exp(Fraction(u, t)):
                continue
            v = 0
            while self._bernoulli_exp(Fraction(1)):
                v += 1
            size, minus = u + t * v, self._random.getrandbits(1)
            if not (minus and size == 0):
                return -size if minus else size

    def gaussian(self, sigma: int) -> int:
        t = sigma + 1
        while True:
            y = self.laplace(t)
            if self._bernoulli_exp((abs(y) - Fraction(sigma**2, t)) ** 2 / (2 * sigma**2)):
                return y


def opendp_drawer(kind: str) -> Draw:
    opendp.enable_features("contrib")
    vector = opendp.vector_domain(opendp.atom_domain(T="i64"))
    if kind == "gaussian":
        measurement = opendp.m.make_gaussian(vector, opendp.l2_distance(T="i64"), float(SCALE))
    else:
        measurement = opendp.m.make_laplace(vector, opendp.l1_distance(T="i64"), float(SCALE))
    return lambda n: measurement([0] * n)


def contenders() -> dict[str, tuple[Draw, int]]:
    """Name -> how to draw n values, and a fair n: about 20 to 50 milliseconds each."""
    stream, exact, generator, python = SecureStream(), ExactNoise(), np.random.default_rng(), PurePython()
    every_comparison_exact = block_table(GaussianExponent(Fraction(SCALE)), band=1.0)
    values, small = np.linspace(-1, 1, MANY), np.linspace(-1, 1, 200)
    law_input = np.arange(1_000_000) % 5
    return {
        "exact discrete Gaussian": (lambda n: discrete_gaussian(n, SCALE, stream), 1_000_000),
        "exact discrete Laplace": (lambda n: discrete_laplace(n, SCALE, stream), 1_000_000),
        "publish a vector of a million (Gaussian)": (lambda n: exact.gaussian(values[:n], 1.0), 1_000_000),
        "publish vectors of 200 (Gaussian)": (lambda n: [exact.gaussian(small, 1.0) for _ in range(n // 200)], 20_000),
        PUBLISHED: (lambda n: exact.gaussian(values[:n], 1.0), MANY),
        BY_NUMPY: (lambda n: _by_numpy(lambda: exact.gaussian(values[:n], 1.0)), MANY),
        AES: (lambda n: [stream.words(1 << 16) for _ in range(n >> 16)], 1 << 20),
        "randomised response, 5 categories": (lambda n: exact.randomized_response(law_input[:n], 5, 1.0), 1_000_000),
        "numpy normal (floating point, predictable)": (lambda n: generator.normal(size=n), 1_000_000),
        "OpenDP Gaussian on integers": (opendp_drawer("gaussian"), 2_000),
        "OpenDP Laplace on integers": (opendp_drawer("laplace"), 2_000),
        "pure Python Gaussian (the paper's algorithm)": (lambda n: [python.gaussian(SCALE) for _ in range(n)], 500),
        "exact Gaussian, every comparison rational": (lambda n: sample(every_comparison_exact, n, stream), 500),
    }


def _by_numpy(draw: Callable[[], object]) -> None:
    """Without the compiled part, whether it is installed or not."""
    kept = lattice_sampler.passes
    lattice_sampler.passes = source.passes = None  # type: ignore[assignment]
    draw()
    lattice_sampler.passes = source.passes = kept


def measure() -> dict[str, float]:
    """Values per second of each contender: the best of several rounds, taken in turns."""
    drawers = contenders()
    best = dict.fromkeys(drawers, 0.0)
    for _ in range(ROUNDS):
        for name, (draw, n) in drawers.items():
            start = time.process_time()
            draw(n)
            best[name] = max(best[name], n / (time.process_time() - start))
    return best


def shares_of_the_three_tests() -> tuple[float, float]:
    """Of all proposals: the share settled by comparing integers, and a bound on the share that needs rationals."""
    table = block_table(GaussianExponent(Fraction(SCALE)))
    proposed = np.bincount(table.block_of_slot, minlength=table.unused + 1) / table.block_of_slot.size
    by_integers = float((proposed * table.certain).sum() * 2.0**-53 + proposed[table.unused])
    body = proposed[: table.tail] / table.approximate_heights[: table.tail]
    # In the tail every halving doubles the chance 2 * band / height and halves how often it is met; once the
    # chance would pass 1 it stops growing, which bounds the number of terms.
    tail = proposed[table.tail] / table.approximate_heights[table.tail] * 40
    return by_integers, float(2 * table.band * (body.sum() + tail))


def page(speed: dict[str, float]) -> str:
    by_integers, by_rationals = shares_of_the_three_tests()
    numpy_ratio = speed["numpy normal (floating point, predictable)"] / speed["exact discrete Gaussian"]
    ours = speed["exact discrete Gaussian"]
    share = speed[PUBLISHED] / speed[AES]
    part = "is not installed" if lattice_sampler.passes is None else "is installed"
    rows = "\n".join(
        f"| {name} | {per_second / 1e6:.3g} | {ours / per_second:.3g} |" for name, per_second in speed.items()
    )
    return f"""# Speed of trusted noise

Written by `python tests/benchmarks/noise_speed.py`: processor time of one core, one process, contenders in
turns, the best of {ROUNDS} rounds each, scale 2^30 grid steps (the scale that published noise has). The last
column says how many times faster the exact discrete Gaussian is than the row. OpenDP is called through its
Python binding, and its values are brought back as a list.

| sampler | million values a second | exact discrete Gaussian is faster by |
|---|---:|---:|
{rows}

One exact value costs as much as {numpy_ratio:.2g} of numpy's floating-point normals: {by_integers:.1%} of the
proposals are settled by comparing integers and nearly all others by one exponential in double precision;
rational arithmetic is needed for at most {by_rationals:.1e} of them (last row: what it would cost if it
were always used). Small vectors pay for an AES key schedule and some twenty array operations per call.

The compiled part ([install](install.md#the-compiled-part)) {part} here. Goal: ten million numbers are published at
{GOAL:g} of the rate at which AES alone gives words, of which a number takes 2.1. Measured: {share:.2f},
{"reached" if share >= GOAL else "missed"}. Processors with vector AES give words about four times faster than others.
"""


def main() -> int:
    speed = measure()
    text = page(speed)
    write_section("noise", text)
    print(text)
    ours = speed["exact discrete Gaussian"]
    to_opendp = ours / speed["OpenDP Gaussian on integers"]
    to_python = ours / speed["pure Python Gaussian (the paper's algorithm)"]
    return int(to_opendp < LEAST_RATIO_TO_OPENDP or to_python < LEAST_RATIO_TO_PYTHON)


if __name__ == "__main__":
    sys.exit(main())
