"""Who holds what: where the attributes lie, and which silo therefore sends which part of a round.

The paper (Section 4, Appendix F) splits a silo into a non-sensitive division, which computes the loss gradient, and a
sensitive one, which computes the fairness gradients. The divisions need not sit in one silo:

* every silo holds both (the N silos of Algorithm 1; a single silo is the central DP-FERMI);
* one silo holds all attributes, many hold features and labels;
* any number of either, each record's attribute in exactly one sensitive silo.

A sensitive silo is given the features of its records by their holders (they are not protected), as model outputs or,
here, as rows. In the last two cases a round's records may have no attribute in some sensitive silo. Falling silent
would show that, and so would noise or a divisor that follows the realised number of records. So a sensitive silo
**always** sends: the sum over whatever it was asked for, possibly nothing, over the fixed divisor, with the full
signed noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never, final

from calibrate.errors import InvalidInput


@final
@dataclass(frozen=True)
class EverySiloHoldsBoth:
    """N silos, or one."""


@final
@dataclass(frozen=True)
class OneSensitiveSilo:
    """All attributes in the silo of this name; the others hold features and labels."""

    sensitive: str


@final
@dataclass(frozen=True)
class SeparateSilos:
    """The general case: these silos hold attributes, all others hold features and labels."""

    sensitive: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.sensitive or len(set(self.sensitive)) != len(self.sensitive):
            raise InvalidInput(
                "sensitive",
                self.sensitive,
                "must be distinct names, at least one",
                "name the sensitive silos",
            )


Centralisation = EverySiloHoldsBoth | OneSensitiveSilo | SeparateSilos

EVERY_SILO = EverySiloHoldsBoth()


@dataclass(frozen=True)
class Parts:
    """Which parts of a round a silo sends."""

    loss: bool
    fairness: bool


def parts_of(centralisation: Centralisation, silo: str) -> Parts:
    """What this silo sends, in every round, whatever its batch."""
    match centralisation:
        case EverySiloHoldsBoth():
            return Parts(loss=True, fairness=True)
        case OneSensitiveSilo(sensitive):
            return Parts(loss=silo != sensitive, fairness=silo == sensitive)
        case SeparateSilos(sensitive):
            return Parts(loss=silo not in sensitive, fairness=silo in sensitive)
        case _:
            assert_never(centralisation)


def centralisation_of(sensitive: tuple[str, ...]) -> Centralisation:
    """Who holds what, if these parties hold nothing but attributes."""
    match sensitive:
        case ():
            return EVERY_SILO
        case (one,):
            return OneSensitiveSilo(one)
        case several:
            return SeparateSilos(several)
