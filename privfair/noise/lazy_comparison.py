"""Decide `U * height < exp(-exponent)` for a uniform real U without rounding anything.

U is known to 53 bits when it arrives. Nearly always that settles the question; the caller's floating-point
test decides all but a thin band around equality. What falls into the band comes here: exp is enclosed by
rationals, U gets further bits, both ever finer, until the two intervals are disjoint.
"""

from __future__ import annotations

import decimal
from decimal import Decimal
from fractions import Fraction

from privfair.noise.random_stream import WordStream

UNIFORM_BITS = 53
"""How many bits of U the fast test uses."""

BAND = 2.0**-40
"""Half width of the band in which the floating-point test is not believed; docs/theorems/discrete-noise.md
shows that its error is below 2^-41."""

_FIRST_DIGITS = 40
_MORE_DIGITS = 25
_MORE_BITS = 64
_EXPONENT_PER_DIGIT = 8


def uniform_is_below_exponential(
    first_bits: int, height: Fraction, exponent: Fraction, stream: WordStream
) -> bool:
    """Whether U * height < exp(-exponent), where U lies in [first_bits, first_bits + 1) * 2^-53.

    Guarantee: given a uniform U, the answer is true with probability exactly exp(-exponent) / height (or 1
    if that is larger): no comparison is ever decided on a rounded number.
    """
    low, bits, digits = first_bits, UNIFORM_BITS, _FIRST_DIGITS
    while True:
        at_least, at_most = exponential_enclosure(exponent, digits)
        if Fraction(low + 1, 1 << bits) * height <= at_least:
            return True
        if Fraction(low, 1 << bits) * height >= at_most:
            return False
        low = (low << _MORE_BITS) | int(stream.words(1)[0])
        bits += _MORE_BITS
        digits += _MORE_DIGITS


def exponential_enclosure(exponent: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Rationals on both sides of exp(-exponent), for exponent >= 0, about 10^-digits (relatively) apart.

    An exponent beyond 8 * digits gets 0 as its lower end: a rational near exp(-10^9) would fill the memory,
    and whoever needs to know more asks again with more digits.
    The quotient is correctly rounded, relatively within 5 * 10^-digits, which moves exp relatively by
    5 * exponent * 10^-digits (to first order); exp is correctly rounded, too. The margin is twice the sum.
    """
    largest = _EXPONENT_PER_DIGIT * digits
    if exponent > largest:
        return Fraction(0), exponential_enclosure(Fraction(largest), digits)[1]
    context = decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, traps=[])
    quotient = context.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    middle = Fraction(context.exp(context.minus(quotient)))
    margin = middle * 10 * (exponent + 1) / 10**digits
    return middle - margin, middle + margin
