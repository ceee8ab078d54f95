"""Records whose sensitive attribute is to be guessed, and where that attribute stands among the model's inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class SensitiveInput:
    """The model's input columns that spell the attribute, and what stands there for each value.

    One column with a number per value, or one column per value (one-hot): both are a table of values x columns.
    """

    columns: tuple[int, ...]
    spelling: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.columns or any(len(row) != len(self.columns) for row in self.spelling):
            raise InvalidInput(
                "spelling",
                self.spelling,
                f"must give {len(self.columns)} numbers for every value",
                "give one number for each column of the attribute",
            )
        if len(set(self.spelling)) != len(self.spelling):
            raise InvalidInput("spelling", self.spelling, "must tell the values apart", "spell each value differently")

    def write(self, features: Floats, value: int) -> Floats:
        """The same records, each with this value of the attribute."""
        changed = np.array(features, dtype=np.float64)
        changed[:, list(self.columns)] = self.spelling[value]
        return changed


@dataclass(frozen=True)
class Attribute:
    """The attribute in question: its values, and how the model sees it (None: it is not an input of the model)."""

    name: str
    values: tuple[str, ...]
    input: SensitiveInput | None = None

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise InvalidInput(
                "values", self.values, "must be at least two", "an attribute with one value has no secret"
            )
        if self.input is not None and len(self.input.spelling) != len(self.values):
            raise InvalidInput(
                "spelling",
                self.input.spelling,
                f"must have a row for each of {len(self.values)} values",
                "spell every value",
            )

    def candidates(self, features: Floats) -> tuple[Floats, ...]:
        """The inputs to ask the model: one version per value, or the features as they are if it is not an input."""
        if self.input is None:
            return (np.asarray(features, dtype=np.float64),)
        return tuple(self.input.write(features, value) for value in range(len(self.values)))

    def others(self, features: Floats) -> Floats:
        """All that is known of a record but its attribute."""
        if self.input is None:
            return np.asarray(features, dtype=np.float64)
        return np.delete(np.asarray(features, dtype=np.float64), list(self.input.columns), axis=1)


@dataclass(frozen=True, eq=False)
class Asked:
    """Records without their attribute: all an attack gets to see."""

    features: Floats
    labels: Codes

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class AttributeRecords:
    """Records with their attribute, as a number by `Attribute.values`."""

    features: Floats
    labels: Codes
    sensitive: Codes

    def __post_init__(self) -> None:
        sizes = {len(self.features), len(self.labels), len(self.sensitive)}
        if len(sizes) != 1:
            raise InvalidInput(
                "records", sorted(sizes), "features, labels and attribute must be alike long", "check them"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, which: NDArray[np.int64]) -> AttributeRecords:
        return AttributeRecords(self.features[which], self.labels[which], self.sensitive[which])

    def asked(self, attribute: Attribute) -> Asked:
        """The records with the first value write in place of the attribute, so that no attack can peek."""
        if attribute.input is None:
            return Asked(self.features, self.labels)
        return Asked(attribute.input.write(self.features, 0), self.labels)

    def halves(self, random: np.random.Generator, most: int) -> tuple[AttributeRecords, AttributeRecords]:
        """A random half to learn from and the other to be judged by; at most `most` records in all."""
        order = random.permutation(len(self))[:most]
        middle = len(order) // 2
        return self.rows(order[:middle]), self.rows(order[middle:])


def join(first: AttributeRecords, second: AttributeRecords) -> AttributeRecords:
    """The records of both, the first ones first."""
    return AttributeRecords(
        np.concatenate([first.features, second.features]),
        np.concatenate([first.labels, second.labels]),
        np.concatenate([first.sensitive, second.sensitive]),
    )
