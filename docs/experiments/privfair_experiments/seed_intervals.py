"""Means over seeds with 95% intervals (Student, seeds as the sample), and rows of results on disk."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from scipy.stats import t as student

_Row = TypeVar("_Row")


@dataclass(frozen=True)
class Interval:
    """`half` is infinite for a single seed."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Interval:
        sample = np.array(list(values), dtype=np.float64)
        if len(sample) < 2:
            return cls(float(sample.mean()), math.inf)
        spread = sample.std(ddof=1) / math.sqrt(len(sample))
        return cls(float(sample.mean()), float(student.ppf(0.975, len(sample) - 1) * spread))

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def text(self, digits: int = 3, signed: bool = False) -> str:
        mean = f"{self.mean:{'+' if signed else ''}.{digits}f}"
        return mean if math.isinf(self.half) else f"{mean} +- {self.half:.{digits}f}"


def save_rows(rows: Sequence[Any], path: Path) -> None:
    """Every measured model, one line each; dataclasses of one kind. The same rows give the same bytes."""
    lines = ",\n".join(json.dumps(list(asdict(rounded(row)).values())) for row in rows)
    names = json.dumps(list(asdict(rows[0])))
    text = f'{{"columns": {names},\n"rows": [\n{lines}\n]}}\n'.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    new.replace(path)


def load_rows(kind: type[_Row], path: Path) -> list[_Row]:
    """The rows of a file that `save_rows` wrote; none if there is no file yet."""
    if not path.exists():
        return []
    stored = path.read_bytes()
    told = json.loads(gzip.decompress(stored) if path.suffix == ".gz" else stored)
    return [kind(*values) for values in told["rows"]]


def rounded(row: _Row) -> _Row:
    """The row as it is kept: five digits behind the point."""
    values = (getattr(row, one.name) for one in fields(cast(Any, row)))
    return type(row)(*(round(value, 5) if isinstance(value, float) else value for value in values))
