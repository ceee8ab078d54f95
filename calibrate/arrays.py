"""The kinds of arrays that cross module borders, each with one name."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
AnyFloats = NDArray[np.floating[Any]]
"""Single or double precision, as the data came."""
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]
