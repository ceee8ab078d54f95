"""The two kinds of array that data sets are made of."""

from __future__ import annotations
