"""What a mechanism put out, as tables, and the events in which two data sets show different outputs.

An event is chosen on some outputs and counted on others: whatever is done here, the bound that follows is valid, and a
better choice only makes it sharper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, final

import numpy as np

from calibrate.arrays import Booleans, Floats, Integers

_MOST_ENTRIES = 24
"""Entries of an output that are looked at one by one; longer outputs are judged by these and by totals."""
_MOST_LOW_BITS = 4
_BINS = 48
_COARSE = 6
_MOST_TOKENS = 1024
_MOST_PAIRED = 6
_SHOWN = 4
_ABSENT = -1.0
"""The code of an entry that an output does not have; other things that are not numbers are numbered from -2 down."""


@final
@dataclass
class Vocabulary:
    """Numbers for things that are not numbers, the same for all tables of one test."""

    codes: dict[str, int] = field(default_factory=dict)

    def code(self, thing: object) -> int:
        return self.codes.setdefault(repr(thing), -2 - len(self.codes))

    def name(self, code: int) -> str:
        return next((name for name, known in self.codes.items() if known == code), "absent")


@final
@dataclass(frozen=True, eq=False)
class Outputs:
    """One row per run: a number for each entry, or where it is NaN the code of what stands there instead."""

    values: Floats
    codes: Integers

    def __len__(self) -> int:
        return len(self.values)

    def entry(self, place: int) -> tuple[Floats, Integers]:
        """One entry of all outputs; absent where outputs are shorter."""
        if place < self.values.shape[1]:
            return self.values[:, place], self.codes[:, place]
        return np.full(len(self), np.nan), np.full(len(self), int(_ABSENT))

    @classmethod
    def of(cls, outputs: Sequence[object], vocabulary: Vocabulary) -> Outputs:
        """Numbers, truth values, text, None, and arrays, tuples and lists of them, of any lengths."""
        rows = [list(_atoms(output)) for output in outputs]
        width = max((len(row) for row in rows), default=0)
        values, codes = np.full((len(rows), width), np.nan), np.full((len(rows), width), int(_ABSENT))
        for place, row in enumerate(rows):
            for column, atom in enumerate(row):
                if isinstance(atom, (int, float, np.number, np.bool_)) and not math.isnan(atom):
                    values[place, column] = atom
                else:
                    codes[place, column] = vocabulary.code(atom)
        return cls(values, codes)

    @classmethod
    def of_numbers(cls, array: Floats, vocabulary: Vocabulary) -> Outputs:
        """The same for an array with one row of numbers per run."""
        values = array.reshape(len(array), -1).astype(np.float64)
        return cls(values, np.where(np.isnan(values), vocabulary.code(math.nan), int(_ABSENT)))


def _atoms(output: object) -> Iterator[object]:
    if isinstance(output, np.ndarray):
        yield from output.reshape(-1).tolist()
    elif isinstance(output, (tuple, list)):
        for part in output:
            yield from _atoms(part)
    else:
        yield output


# Readings: whole numbers that say in which class an output lies; an event is a set of classes.


class Reading(Protocol):
    """A way to sort outputs into classes."""

    def classes(self, outputs: Outputs) -> Integers: ...

    def text(self, chosen: frozenset[int], vocabulary: Vocabulary) -> str:
        """The event "the class is one of these" in words."""
        ...


@final
@dataclass(frozen=True, eq=False)
class Feature:
    """A number of each output, or NaN where there is none; then the code of the entry at `place` counts."""

    name: str
    of: Callable[[Outputs], Floats]
    place: int = 0


@final
@dataclass(frozen=True, eq=False)
class Cut:
    """A feature cut at `edges`: class i holds edges[i - 1] <= value < edges[i]; not-a-number has its own class."""

    feature: Feature
    edges: Floats

    def classes(self, outputs: Outputs) -> Integers:
        values = self.feature.of(outputs)
        found = np.searchsorted(self.edges, values, side="right").astype(np.int64)
        codes = outputs.entry(self.feature.place)[1]
        return np.where(np.isnan(values), codes, found)

    def text(self, chosen: frozenset[int], vocabulary: Vocabulary) -> str:
        parts = [f"{self.feature.name} is {vocabulary.name(code)}" for code in sorted(chosen) if code < 0]
        numbers = sorted(code for code in chosen if code >= 0)
        while numbers:
            last = next((i for i, code in enumerate(numbers) if code - numbers[0] != i), len(numbers))
            parts.append(self._between(numbers[0], numbers[last - 1]))
            numbers = numbers[last:]
        return _listed(parts)

    def _between(self, first: int, last: int) -> str:
        low = "" if first == 0 else f" >= {self.edges[first - 1]:.6g}"
        high = "" if last == len(self.edges) else f" < {self.edges[last]:.6g}"
        return f"{self.feature.name}{' and'.join(part for part in (low, high) if part)}" if low or high else "anything"


@final
@dataclass(frozen=True, eq=False)
class Both:
    """Two cuts at once."""

    first: Cut
    second: Cut

    def classes(self, outputs: Outputs) -> Integers:
        return self.first.classes(outputs) * 4096 + self.second.classes(outputs) + 2048

    def text(self, chosen: frozenset[int], vocabulary: Vocabulary) -> str:
        parts = []
        for code in sorted(chosen):
            one, other = divmod(code, 4096)
            texts = (
                self.first.text(frozenset({one}), vocabulary),
                self.second.text(frozenset({other - 2048}), vocabulary),
            )
            parts.append(" and ".join(texts))
        return _listed(parts)


@final
@dataclass(frozen=True, eq=False)
class Whole:
    """The whole output, where there are few different ones."""

    known: Outputs
    """One row per class."""

    def classes(self, outputs: Outputs) -> Integers:
        places = {row.tobytes(): place for place, row in enumerate(_rows(self.known, self.known.values.shape[1]))}
        rows, inverse = _distinct(outputs, self.known.values.shape[1])
        return np.array([places.get(row.tobytes(), -1) for row in rows], dtype=np.int64)[inverse]

    def text(self, chosen: frozenset[int], vocabulary: Vocabulary) -> str:
        return "the output is " + _listed(
            [_row_text(self.known, row, vocabulary) for row in sorted(chosen) if row >= 0]
        )


def _listed(parts: Sequence[str]) -> str:
    more = f" or {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return " or ".join(parts[:_SHOWN]) + more


def _rows(outputs: Outputs, width: int) -> Floats:
    """Values and codes side by side, NaN-free, cut or filled up to a number of entries."""
    codes = np.where(np.isnan(outputs.values), outputs.codes, 0).astype(np.float64)
    table = np.full((len(outputs), 2 * width), _ABSENT)
    table[:, :width] = 0.0
    kept = min(width, outputs.values.shape[1])
    table[:, :kept] = np.where(np.isnan(outputs.values[:, :kept]), 0.0, outputs.values[:, :kept]) + 0.0
    table[:, width : width + kept] = codes[:, :kept]
    return table


def _distinct(outputs: Outputs, width: int) -> tuple[Floats, Integers]:
    """The different rows, and which of them each output is."""
    table = np.ascontiguousarray(_rows(outputs, width))
    keys = table.view(np.dtype((np.void, table.dtype.itemsize * table.shape[1]))).reshape(-1)
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return table[first], inverse.reshape(-1)


def _lowest_bits(values: Floats) -> Floats:
    """log2 of the lowest set bit of each float: sums of floats show in it which numbers were added."""
    bits = np.ascontiguousarray(values).view(np.int64)
    exponent, fraction = (bits >> 52) & 0x7FF, bits & ((1 << 52) - 1)
    mantissa = np.where(exponent == 0, fraction, fraction | (1 << 52))
    # m & -m is the lowest set bit of m; a float is mantissa * 2^(exponent - 1075).
    lowest = np.log2(np.maximum(mantissa & -mantissa, 1).astype(np.float64))
    found = lowest + np.maximum(exponent, 1) - 1075
    return np.where(np.isfinite(values) & (values != 0), found, np.nan)


def readings(first: Outputs, second: Outputs, low_bits: bool) -> Iterator[Reading]:
    """The ways to look at two samples of outputs, fitted to both together."""
    width = max(first.values.shape[1], second.values.shape[1])
    whole = _whole(first, second, width)
    if whole is not None:
        yield whole
    entries = [Feature(_entry_name(place, width), _entry(place), place) for place in range(min(width, _MOST_ENTRIES))]
    totals = _totals(first, second, entries) if width > 1 else []
    yield from (cut for feature in (*entries, *totals) if (cut := _cut(feature, first, second, _BINS)))
    for place in range(min(width, _MOST_LOW_BITS)) if low_bits else ():
        name = f"the lowest bit (as a power of 2) of {_entry_name(place, width)}"
        if bits := _cut(Feature(name, _low_bit(place), place), first, second, _BINS):
            yield bits
    paired = (*totals, *entries[: _MOST_PAIRED - len(totals)])
    coarse = [cut for feature in paired if (cut := _cut(feature, first, second, _COARSE))]
    yield from (Both(one, other) for place, one in enumerate(coarse) for other in coarse[place + 1 :])


def _entry_name(place: int, width: int) -> str:
    return "the output" if width == 1 else f"entry {place} of the output"


def _entry(place: int) -> Callable[[Outputs], Floats]:
    return lambda outputs: outputs.entry(place)[0]


def _low_bit(place: int) -> Callable[[Outputs], Floats]:
    return lambda outputs: _lowest_bits(outputs.entry(place)[0])


def _totals(first: Outputs, second: Outputs, entries: Sequence[Feature]) -> list[Feature]:
    """Numbers of the whole output."""
    return [
        Feature("how strongly all entries together speak for the first data set", _evidence(first, second, entries)),
        Feature("the largest entry's place", lambda outputs: np.argmax(_numbers(outputs), axis=1).astype(np.float64)),
        Feature("the largest entry", lambda outputs: np.max(_numbers(outputs), axis=1, initial=-np.inf)),
        Feature("the sum of all numbers", lambda outputs: np.nansum(np.clip(outputs.values, -1e300, 1e300), axis=1)),
        Feature("how many numbers there are", lambda outputs: (~np.isnan(outputs.values)).sum(axis=1) + 0.0),
    ]


def _numbers(outputs: Outputs) -> Floats:
    return np.where(np.isnan(outputs.values), -np.inf, outputs.values)


def _evidence(first: Outputs, second: Outputs, entries: Sequence[Feature]) -> Callable[[Outputs], Floats]:
    """The sum of the entries' log frequency ratios, as if entries were independent."""
    cuts = [cut for entry in entries if (cut := _cut(entry, first, second, 2 * _COARSE))]
    tables = []
    for cut in cuts:
        one, other = cut.classes(first), cut.classes(second)
        known = np.unique(np.concatenate((one, other)))
        ratios = [
            math.log((float((one == each).sum()) + 1) / (float((other == each).sum()) + 1)) for each in known.tolist()
        ]
        tables.append((known, np.array(ratios)))

    def score(outputs: Outputs) -> Floats:
        total = np.zeros(len(outputs))
        for cut, (known, ratios) in zip(cuts, tables, strict=True):
            classes = cut.classes(outputs)
            places = np.minimum(np.searchsorted(known, classes), len(known) - 1)
            total += np.where(known[places] == classes, ratios[places], 0.0)
        return total

    return score


def _cut(feature: Feature, first: Outputs, second: Outputs, bins: int) -> Cut | None:
    """Quantiles of both samples, or the values themselves where they are few; None for a constant."""
    values = np.concatenate((feature.of(first), feature.of(second)))
    numbers = np.unique(values[~np.isnan(values)])
    if len(numbers) > bins:
        finite = values[np.isfinite(values)]
        edges = np.unique(np.quantile(finite, np.linspace(0, 1, bins + 1)[1:-1]))
        return Cut(feature, edges)
    if len(numbers) < 2 and not np.isnan(values).any():
        return None
    return Cut(feature, numbers)


def _whole(first: Outputs, second: Outputs, width: int) -> Whole | None:
    """None where most outputs are different."""
    rows = np.unique(np.concatenate([_distinct(outputs, width)[0] for outputs in (first, second)]), axis=0)
    if len(rows) > min(_MOST_TOKENS, (len(first) + len(second)) // 4):
        return None
    codes = rows[:, width:].astype(np.int64)
    return Whole(Outputs(np.where(codes == 0, rows[:, :width], np.nan), np.where(codes == 0, int(_ABSENT), codes)))


def _row_text(outputs: Outputs, row: int, vocabulary: Vocabulary) -> str:
    atoms = []
    for value, code in zip(outputs.values[row].tolist(), outputs.codes[row].tolist(), strict=True):
        if not math.isnan(value):
            atoms.append(f"{value:.6g}")
        elif code != int(_ABSENT):
            atoms.append(vocabulary.name(code))
    return atoms[0] if len(atoms) == 1 else f"({', '.join(atoms)})"


# Choosing an event: the set of classes that would refute the largest epsilon on this many further runs.


@final
@dataclass(frozen=True, eq=False)
class Event:
    """Outputs whose class is one of `chosen`; likelier on the first data set of the two that it was chosen for."""

    reading: Reading | None
    chosen: frozenset[int]
    promise: float
    """The epsilon that it would refute if the frequencies at its choice were those of the runs to come."""
    on_first: bool
    text: str

    def hits(self, outputs: Outputs) -> Booleans:
        """Of which outputs it is true."""
        if self.reading is None:
            return np.zeros(len(outputs), dtype=np.bool_)
        return np.isin(self.reading.classes(outputs), list(self.chosen))


def choose_event(
    first: Outputs, second: Outputs, vocabulary: Vocabulary, delta: float, runs: int, failure: float, low_bits: bool
) -> Event:
    """The most promising event over all readings and both orders of the data sets.

    runs: on how many further runs of each data set the event will be counted.
    failure: at which false-alarm probability it will be judged.
    """
    found: tuple[float, Reading | None, frozenset[int], bool] = (0.0, None, frozenset(), True)
    for reading in readings(first, second, low_bits):
        classes, inverse = np.unique(
            np.concatenate([reading.classes(side) for side in (first, second)]), return_inverse=True
        )
        shares = [
            np.bincount(part, minlength=len(classes)) / len(part)
            for part in np.split(inverse.reshape(-1), [len(first)])
        ]
        for on_first, (likely, rare) in ((True, shares), (False, shares[::-1])):
            promise, places = _best_classes(likely, rare, delta, runs, failure)
            if promise > found[0] * (1 + 1e-3):
                found = (promise, reading, frozenset(classes[places].tolist()), on_first)
    promise, best, chosen, on_first = found
    return Event(best, chosen, promise, on_first, best.text(chosen, vocabulary) if best else "none was found")


def _best_classes(likely: Floats, rare: Floats, delta: float, runs: int, failure: float) -> tuple[float, Integers]:
    """Prefixes of the classes by their order (thresholds) and by their frequencies' ratio (Neyman and Pearson).

    likely, rare: the share of either sample in each class.
    """
    plain = np.arange(len(likely))
    least = 0.5 / runs
    ratios = (_smooth(likely) + least) / (_smooth(rare) + least), (likely + least) / (rare + least)
    orders = np.stack((plain, plain[::-1], *(np.argsort(-ratio, kind="stable") for ratio in ratios)))
    promises = _promises(np.cumsum(likely[orders], axis=1), np.cumsum(rare[orders], axis=1), delta, runs, failure)
    best, chosen = 0.0, plain[:0]
    for order, row in zip(orders, promises, strict=True):
        place = int(np.argmax(row))
        if row[place] > best * 1.02:
            best, chosen = float(row[place]), order[: place + 1]
    return best, chosen


def _smooth(shares: Floats) -> Floats:
    """Neighbouring classes weigh in, so that an event of adjoining bins is not torn apart by chance."""
    padded = np.concatenate((shares[:1], shares, shares[-1:]))
    return np.asarray((padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4)


def _promises(hits: Floats, misses: Floats, delta: float, runs: int, failure: float) -> Floats:
    """About the epsilon that the box would refute at such frequencies: Bernstein's ends for both rates."""
    # About as in Bernstein: a share -+ sqrt(2 p (1 - p) reach), and a rest of the order of reach.
    reach = math.log(2 / failure) / runs
    lower = hits - np.sqrt(np.maximum(2 * hits * (1 - hits) * reach, 0.0)) - reach / 3
    upper = misses + np.sqrt(np.maximum(2 * misses * (1 - misses) * reach, 0.0)) + reach
    return np.asarray(np.log(np.maximum((lower - delta) / upper, 1e-9)))
