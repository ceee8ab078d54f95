"""Sums over records in floating point whose error is proved, so that neighbouring sums keep their signed distance.

Added one after another, n parts of norm C or less may end up n^2 u C away from their sum (u = 2^-53), and two
neighbouring sums twice that. Here records are added in blocks, in whatever order a matrix library likes, and the
blocks' sums in twice the precision. The proof is in docs/theorems/exact-contributions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar, final

from calibrate.arrays import Floats
from calibrate.errors import CheckFailed

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING_SLACK = 2.0**-16
"""By how much (relatively) parts are held under their bound, so that rounding can't carry a sum over its sensitivity.

The sum of n parts of norm C or less, in blocks of b records, is off by at most n (b + 5) u C, one rounding of what is
done to it afterwards included; two neighbouring sums by twice that, which `terms_per_block` keeps below 2^-18 C. The
norm that a part is clipped by is off by at most (values summed + 3) u and its coefficient by 3 u, below 1e-9 up to
eight million parameters. The rest is room for what is said where it is used.
"""

MOST_RECORDS = 2**31
"""In one sum. Labels, norms, losses and coefficients alone then take 128 GB."""

_LARGEST_BLOCK = 4096
_MOST_ROUNDINGS = 2**34
"""n (b + 5) is at most this: 2 * 2^34 u = 2^-18."""
_MOST_MIXED = 2**32
"""Records in a sum times rounds that it is mixed over (docs/theorems/banded.md, section 4)."""

Array = TypeVar("Array", "Tensor", Floats)


def terms_per_block(records: int) -> int:
    """How many records of a sum may be added up at once, in whatever order: 4,096 up to 2^22.

    The number may differ between neighbouring batches: the bound holds for each of them.
    """
    if records > MOST_RECORDS:
        raise CheckFailed(
            f"a sum over more than {MOST_RECORDS:,} records is not proved to keep its sensitivity in floating point; "
            "draw batches, or split the records into more silos"
        )
    return min(_LARGEST_BLOCK, _MOST_ROUNDINGS // max(1, records) - 5)


def require_mixable(records: int, bands: int) -> None:
    """Refuse to mix sums over so many records across so many rounds if rounding is not proved to stay in its room."""
    if records * bands > _MOST_MIXED:
        raise CheckFailed(
            f"sums over more than {_MOST_MIXED // bands:,} records, mixed over {bands:,} rounds, are not proved "
            "to keep their sensitivity in floating point; use fewer bands, more batches per cycle, or independent noise"
        )


def blocks_of(terms: int, per_block: int) -> Iterator[slice]:
    """Runs of so many terms; one empty run where there are none."""
    return (slice(start, start + per_block) for start in range(0, max(1, terms), per_block))


@final
class RunningTotal(Generic[Array]):
    """A sum of float64 arrays in twice the precision: of m summands it is off by at most u (1 + 2 m u) sum |summand|.

    Knuth's two-sum finds what each addition loses; that is kept apart and added in again.
    """

    def __init__(self, first: Array) -> None:
        self.value: Array = first
        """The total, rounded once."""
        self._lost: Array = first - first

    def add(self, summand: Array) -> None:
        """Add one more array of the same shape; none of the arrays given before is changed."""
        total, lost = _two_sum(self.value, summand)
        self.value, self._lost = _two_sum(total, self._lost + lost)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b as it rounds, and what that loses, exactly."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def total_of(sums: Iterable[Array]) -> Array:
    """The blocks' sums added up as `RunningTotal` does; at least one."""
    each = iter(sums)
    running = RunningTotal(next(each))
    for one in each:
        running.add(one)
    return running.value


def sum_in_blocks(records: int, sum_of: Callable[[slice], Array]) -> Array:
    """The sum over all records, where `sum_of` adds up a run of them.

    Guarantee: if no part is longer than C and `sum_of` rounds each number of a part at most twice before adding, the
    total is off by at most n (b + 4) u C, with b = `terms_per_block`.
    """
    per_block = terms_per_block(records)
    if records <= per_block:
        return sum_of(slice(0, records))
    return total_of(sum_of(rows) for rows in blocks_of(records, per_block))
