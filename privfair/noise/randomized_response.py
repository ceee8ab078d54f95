"""k-ary randomised response with an exact, rational probability of keeping the true category."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrate.errors import InvalidInput, count
from privfair.noise.lattice_sampler import category_array, exact_positive, exponential_enclosure
from privfair.noise.random_stream import WordStream, uniform_below

KEEP_BITS = 62
LARGEST_ALTERNATIVES = 1 << 15
SMALLEST_EPSILON = Fraction(1, 1 << 40)
_DIGITS = 60


@dataclass(frozen=True)
class ResponseLaw:
    """Keep the category with probability `keep`, else answer one of the k - 1 others uniformly."""

    k: int
    keep: Fraction

    def __post_init__(self) -> None:
        count("k", self.k, least=2)
        if not Fraction(1, self.k) <= self.keep < 1:
            raise InvalidInput("keep", self.keep, f"must lie in [1/{self.k}, 1)", "ask for a law by its epsilon")

    @classmethod
    def for_epsilon(cls, k: int, epsilon: float | Fraction) -> ResponseLaw:
        """The likeliest truth that costs at most `epsilon`, on a grid of 2^-62.

        Guarantee: keep <= exp(eps) / (exp(eps) + k - 1), hence every answer is at most exp(eps) times
        likelier under one category than under another: pure (eps, 0)-DP for replacing one record's category
        (docs/theorems/discrete-noise.md, section "Randomised response").
        """
        return _law_for_epsilon(count("k", k, least=2), exact_positive("epsilon", epsilon))

    @property
    def odds(self) -> Fraction:
        """How much likelier an answer is under its own category than under another: exp of the true epsilon."""
        return self.keep * (self.k - 1) / (1 - self.keep)

    @property
    def epsilon(self) -> float:
        """The epsilon of this very law, from above, within a few units in the last place."""
        log = math.log1p(float(self.odds - 1)) if self.odds < 2 else math.log(self.odds)
        return log + 2.0**-50 * max(log, 2.0**-30)


@lru_cache(maxsize=128)
def _law_for_epsilon(k: int, epsilon: Fraction) -> ResponseLaw:
    if k > LARGEST_ALTERNATIVES:
        raise InvalidInput("k", k, "must be at most 2^15", "merge categories")
    if epsilon < SMALLEST_EPSILON:
        raise InvalidInput("epsilon", float(epsilon), "must be at least 2^-40", "publish nothing instead")
    # keep = 1 / (1 + (k - 1) exp(-eps)): the larger end of the enclosure gives the smaller probability.
    _, at_most = exponential_enclosure(epsilon, _DIGITS)
    keep = math.floor((1 << KEEP_BITS) / (1 + (k - 1) * at_most))
    return ResponseLaw(k, Fraction(min(keep, (1 << KEEP_BITS) - 1), 1 << KEEP_BITS))


def randomized_response(categories: ArrayLike, law: ResponseLaw, stream: WordStream) -> NDArray[np.int64]:
    """One noisy answer for every category, independently and exactly by `law`.

    Guarantee: pure DP with `law.epsilon` for replacing one category; the probabilities are exact rationals.
    """
    truth = category_array(categories, law.k)
    threshold = np.int64(law.keep * (1 << KEEP_BITS))
    kept = (stream.words(truth.size) >> np.uint64(64 - KEEP_BITS)).view(np.int64) < threshold
    # Adding 1 .. k-1 modulo k reaches each of the others once.
    other = (truth.ravel() + 1 + uniform_below(law.k - 1, truth.size, stream)) % law.k
    return np.where(kept, truth.ravel(), other).reshape(truth.shape)
