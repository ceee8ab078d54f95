"""Attributes held apart from records: holders of features and classes, and sensitive silos, cut from whole records.

A sensitive silo is given the features and classes of its records by their holders: they are not protected
where the unit is an attribute. A holder is given no attribute at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput
from privfair.datasets.attribute_files import HELD_BY
from privfair.datasets.random_streams import permutation, stream
from privfair.silos import Silo, Silos


@dataclass(frozen=True, eq=False)
class HeldApart:
    """The parties of such a run; records are numbered once, over all holders, in their order."""

    parties: Silos
    """First the holders of features and classes, whose groups are all zero, then the sensitive silos."""
    sensitive: tuple[str, ...]
    numbers: tuple[Integers, ...]
    """For each party, the numbers of its records, row by row."""

    @property
    def holders(self) -> tuple[str, ...]:
        return tuple(name for name in self.parties.names if name not in self.sensitive)


def dealt_out(train: Silos, sensitive: tuple[str, ...], seed: int) -> HeldApart:
    """Each record's attribute to a random one of the sensitive silos, whose sizes differ by at most one."""
    total = sum(train.sizes)
    holder = np.empty(total, dtype=np.int64)
    holder[permutation(stream(seed, "attributes to silos"), total)] = np.arange(total) % len(sensitive)
    return _cut(train, sensitive, holder)


def held_by_column(train: Silos, sensitive: tuple[str, ...]) -> HeldApart:
    """As the attribute files say."""
    names = np.concatenate([silo.data.side_column(HELD_BY) for silo in train])
    position = {name: number for number, name in enumerate(sensitive)}
    return _cut(train, sensitive, np.array([position[str(name)] for name in names], dtype=np.int64))


def _cut(train: Silos, sensitive: tuple[str, ...], holder: Integers) -> HeldApart:
    twice = set(sensitive) & set(train.names)
    if twice:
        raise InvalidInput(
            "[data.attributes]", sorted(twice), "also names a silo of records", "give it another name"
        )
    whole, numbers, parties = train.pooled(), [], []
    for silo, end in zip(train, np.cumsum(train.sizes).tolist(), strict=True):
        numbers.append(np.arange(end - len(silo), end, dtype=np.int64))
        parties.append(Silo(silo.name, replace(silo.data, group=np.zeros(len(silo), dtype=np.int64))))
    for place, name in enumerate(sensitive):
        own = np.flatnonzero(holder == place).astype(np.int64)
        if len(own) == 0:
            raise InvalidInput(
                "[data.attributes]", name, "holds no attribute of a training record", "leave it out"
            )
        numbers.append(own)
        parties.append(Silo(name, whole.rows(own)))
    return HeldApart(Silos(tuple(parties)), sensitive, tuple(numbers))
