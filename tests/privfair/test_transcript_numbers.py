"""How values are stored: every bit comes back, noise takes half a double, and damaged bytes are never taken for one."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from privfair.noise import ExactNoise, NoiseScale
from privfair.transcript import ValueSpec
from privfair.transcript.storage import TranscriptRefused, most_bytes, pack, unpack

GRID = 30


@given(arrays(np.int64, st.integers(1, 40), elements=st.integers(-(2**53), 2**53)))
@settings(max_examples=100, deadline=None)
def test_whole_steps_come_back_to_the_bit(steps: np.ndarray) -> None:
    spec = ValueSpec("weights", steps.shape, grid=GRID)
    raw = (steps * 2.0**-GRID).tobytes()
    packed = pack(spec, raw)
    assert packed.on_grid
    assert unpack(spec, memoryview(packed.content)) == raw
    assert len(packed.content) <= most_bytes(spec)


@given(arrays(np.float64, st.integers(1, 40), elements=st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=100, deadline=None)
def test_any_numbers_come_back_to_the_bit_with_and_without_a_grid(values: np.ndarray) -> None:
    for grid in (None, GRID, -900):
        spec = ValueSpec("weights", values.shape, grid=grid)
        assert unpack(spec, memoryview(pack(spec, values.tobytes()).content)) == values.tobytes()


def test_what_lies_between_two_steps_or_is_a_negative_zero_is_not_on_the_grid() -> None:
    spec = ValueSpec("weights", (300,), grid=GRID)
    for value in (0.3, -0.0, 2.0**-31, 2.0**34):
        packed = pack(spec, np.full(300, value).tobytes())
        assert packed.on_grid is False
        assert unpack(spec, memoryview(packed.content)) == np.full(300, value).tobytes()


def test_noise_of_the_gate_takes_little_more_than_its_entropy() -> None:
    """log2(sigma sqrt(2 pi e)) bits: 32.05 to 33.05 for 2^30 to 2^31 steps; what is stored is at most 6% more."""
    for sigma in (1.0, 1.4, 1.99):
        values = ExactNoise().gaussian(np.zeros(50_000), sigma)
        scale = NoiseScale.at_least(sigma)
        spec = ValueSpec("weights", (50_000,), grid=scale.grid.fraction_bits)
        entropy = np.log2(scale.in_steps * np.sqrt(2 * np.pi * np.e)) / 8
        assert len(pack(spec, values.tobytes()).content) < 1.06 * entropy * 50_000


def test_what_repeats_is_deflated() -> None:
    spec = ValueSpec("responses", (10_000,))
    assert len(pack(spec, np.ones(10_000).tobytes()).content) < 1000


def test_damaged_bytes_and_bombs_are_refused() -> None:
    spec = ValueSpec("weights", (1000,), grid=GRID)
    whole = pack(spec, ExactNoise().gaussian(np.zeros(1000), 1.0).tobytes()).content
    bomb = bytes((1,)) + zlib.compress(bytes(10**8))
    for content in (b"", b"\7" + whole[1:], whole[:-3], whole + b"x", b"\2\3" + whole[2:], whole[:100], b"\0abc", bomb):
        with pytest.raises(TranscriptRefused, match="is not stored as one"):
            unpack(spec, memoryview(content))
