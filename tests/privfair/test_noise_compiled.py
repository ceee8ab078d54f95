"""The compiled passes of the sampler, where a compiler is: the same bits as numpy's, and room for nothing else."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from privfair.noise import Grid, lattice_sampler, source
from privfair.noise.lattice_sampler import (
    Exponent,
    GaussianExponent,
    LaplaceExponent,
    block_table,
    discrete_gaussian,
    sample,
)
from tests.privfair.test_noise_samplers import FALSE_ALARM, SeededStream, _p_value

SOURCE = Path(__file__).parents[2] / "privfair" / "noise" / "passes.c"
SCALES = (Fraction(1, 3), 1, 3, 40, 5000, 1 << 20, (1 << 30) + 12345, (1 << 40) - 1)
SEEDS = 25
"""With both laws and all scales: 400 samples, each of one batch or two."""

Law = Callable[[Fraction], Exponent]
Use = Callable[[bool], None]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    compiler, headers = shutil.which("cc"), Path(sysconfig.get_path("include"))
    if compiler is None or not (headers / "Python.h").exists():
        pytest.skip("needs a C compiler and Python's headers")
    built = tmp_path_factory.mktemp("compiled") / "passes.abi3.so"
    words = [compiler, "-O3", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{headers}", str(SOURCE), "-o", str(built)]
    subprocess.run(words, check=True, capture_output=True)
    spec = importlib.util.spec_from_file_location("privfair.noise.passes", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def use(compiled: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Chooses between the compiled passes and numpy's."""

    def choose(fast: bool) -> None:
        for module in (lattice_sampler, source):
            monkeypatch.setattr(module, "passes", compiled if fast else None)

    choose(True)
    return choose


@pytest.mark.parametrize("law", [GaussianExponent, LaplaceExponent])
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_hundreds_of_batches_have_the_same_bits(law: Law, scale: Fraction | int, use: Use) -> None:
    """And as many words are taken: what is drawn afterwards is the same, too."""
    _require_equal(law(Fraction(scale)), use)


@pytest.mark.parametrize("law", [GaussianExponent, LaplaceExponent])
def test_where_a_large_part_is_drawn_from_the_tail(law: Law, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice_sampler, "_TAIL_STARTS_AT", 1)
    _require_equal(law(Fraction(333)), use, make=block_table.__wrapped__)


@pytest.mark.parametrize("law", [GaussianExponent, LaplaceExponent])
def test_where_every_proposal_is_decided_in_rational_arithmetic(law: Law, use: Use) -> None:
    _require_equal(law(Fraction(77, 5)), use, size=200, seeds=3, make=lambda exponent: block_table(exponent, band=1.0))


def _require_equal(
    exponent: Exponent,
    use: Use,
    size: int = 3000,
    seeds: int = SEEDS,
    make: Callable[[Exponent], lattice_sampler.BlockTable] = block_table,
) -> None:
    table = make(exponent)
    for seed in range(seeds):
        found = []
        for fast in (True, False):
            use(fast)
            stream = SeededStream(seed)
            found.append(np.append(sample(table, size, stream), stream.words(1).view(np.int64)))
        np.testing.assert_array_equal(*found)


def test_the_compiled_sampler_has_the_right_frequencies(use: Use) -> None:
    exponent = GaussianExponent(Fraction(7, 3))
    assert _p_value(sample(block_table(exponent), 1_000_000, SeededStream(7)), exponent) > FALSE_ALARM


def test_noise_is_added_with_the_same_bits(use: Use) -> None:
    """Numbers up to the largest that a grid takes, zeros of both signs, noise that is cut."""
    grid = Grid(30)
    edge = [0.0, -0.0, 5e-324, -5e-324, 2.0**-30, -(2.0**-30), grid.largest, -grid.largest]
    values = np.concatenate([np.random.default_rng(0).normal(size=5000), np.repeat(edge, 5)])
    noise = discrete_gaussian(values.size, 1 << 30, SeededStream(1))
    noise[-40:] = np.tile([0, 1 << 53, -(1 << 53), 1 << 60, -1], 8)
    fast, slow = values.copy(), values.copy()
    grid.add_noise(fast, noise)
    use(False)
    grid.add_noise(slow, noise)
    assert fast.tobytes() == slow.tobytes()


def test_buffers_of_other_lengths_are_refused(compiled: ModuleType) -> None:
    numbers, short = np.zeros(8, dtype=np.int64), np.zeros(7, dtype=np.int64)
    flags, slots, blocks = np.zeros(8, dtype=np.bool_), np.zeros(1 << 16, dtype=np.uint8), np.zeros(257, dtype=np.int64)
    for wrong in (
        lambda: compiled.add(numbers.astype(np.float64), short, 1.0, 1.0),
        lambda: compiled.settle(numbers, numbers, flags, short),
        lambda: compiled.propose(numbers, short, slots, numbers, numbers, numbers, flags, numbers, 1, 1),
        lambda: compiled.propose(numbers, numbers, slots[1:], numbers, numbers, numbers, flags, numbers, 1, 1),
        lambda: compiled.propose(numbers, numbers, slots, blocks, blocks, numbers, flags, numbers, 1, 1),
    ):
        with pytest.raises(ValueError, match="lengths"):
            wrong()
    with pytest.raises((BufferError, TypeError)):
        compiled.add(numbers[::2].astype(np.float64)[::-1], numbers, 1.0, 1.0)
