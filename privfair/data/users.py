"""Records grouped by the person who contributed them: the unit of user-level privacy.

There may be many thousand users with two records each, so they are not silos: they are slices of one table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput, positive
from calibrate.manifest.document import DataBinding
from privfair.batches.randomness import stream
from privfair.data.dataset import Dataset
from privfair.data.stability import RecordHash


@dataclass(frozen=True, eq=False, repr=False)
class UserRecords:
    """A table sorted by user: user u holds the records offsets[u] .. offsets[u + 1] - 1, possibly none."""

    data: Dataset
    offsets: Integers
    copies: int = 1
    """In a hypothetical population unit u is user u modulo the real number of users; 1 where all are real."""

    def __post_init__(self) -> None:
        offsets = np.asarray(self.offsets)
        if (
            offsets.ndim != 1
            or len(offsets) < 2
            or offsets[0] != 0
            or offsets[-1] != len(self.data)
            or (np.diff(offsets) < 0).any()
        ):
            raise InvalidInput(
                "offsets", offsets.shape, "must rise from 0 to the number of records", "use group_by_user"
            )
        offsets = offsets.astype(np.int64)
        offsets.setflags(write=False)
        object.__setattr__(self, "offsets", offsets)

    def __len__(self) -> int:
        """The number of users, those without records and copies included: they are units as well."""
        return self.copies * (len(self.offsets) - 1)

    @property
    def records_per_user(self) -> Integers:
        return np.diff(self.offsets)

    def binding(self, name: str = "users") -> DataBinding:
        """What a manifest binds when the unit is a user: how many there are, not how many records they hold."""
        return DataBinding.of(self.data.schema_digest, ((name, len(self)),))

    def of(self, user: int) -> slice:
        """Where the records of one user stand."""
        return slice(int(self.offsets[user]), int(self.offsets[user + 1]))


def group_by_user(dataset: Dataset, user: Integers, users: int) -> UserRecords:
    """Sort a table by its users, numbered 0 .. users - 1."""
    user = np.asarray(user)
    if user.shape != (len(dataset),) or (len(user) and not (user.min() >= 0 and user.max() < users)):
        raise InvalidInput("user", user.shape, f"must number each record's user from 0 to {users - 1}", "renumber")
    order = np.argsort(user, kind="stable")
    return UserRecords(dataset.rows(order), np.concatenate([[0], np.cumsum(np.bincount(user, minlength=users))]))


def users_by_record(dataset: Dataset, seed: int, users: int) -> UserRecords:
    """Hand each record to one of a declared number of users, which its own content and the seed decide."""
    return group_by_user(dataset, RecordHash().one_of(dataset, seed, "user", users), users)


def poisson_users(dataset: Dataset, seed: int, mean: float = 2.0) -> UserRecords:
    """Hand the records to floor(n / mean) users, each to a uniformly drawn one (FPFL's federated Adult).

    Independent Poisson(mean) counts, given that they add up to n, have exactly this multinomial law; so about
    exp(-mean) of the users hold nothing, and still count in K.
    """
    users = int(len(dataset) / positive("mean", mean))
    if users < 1:
        raise InvalidInput("mean", mean, f"leaves no user for {len(dataset)} records", "use a smaller mean")
    return group_by_user(dataset, stream(seed, "poisson users").integers(users, size=len(dataset)), users)


def users_by_column(dataset: Dataset, column: str) -> UserRecords:
    """One user for each value of a side column."""
    values, user = np.unique(dataset.identifiers(column), return_inverse=True)
    return group_by_user(dataset, user, len(values))
