"""The compiled passes of `passes.c`; each checks that its buffers have matching lengths."""

from typing import Any

from numpy.typing import NDArray

Buffer = NDArray[Any]

def propose(
    place: Buffer,
    uniform: Buffer,
    block_of_slot: Buffer,
    first: Buffer,
    certain: Buffer,
    values: Buffer,
    accepted: Buffer,
    cases: Buffer,
    unused: int,
    width_bits: int,
    /,
) -> int: ...
def settle(place: Buffer, values: Buffer, accepted: Buffer, out: Buffer, /) -> int: ...
def add(values: Buffer, noise: Buffer, up: float, down: float, /) -> int: ...
