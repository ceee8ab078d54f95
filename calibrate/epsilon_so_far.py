"""What the rounds charged so far cost, for display; the engine itself cannot price anything."""

from __future__ import annotations

from typing import final

from calibrate.accountants.registry import best_epsilon
from calibrate.errors import NotCertified, UnsupportedCombination
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import NoPrivacyPromised
from calibrate.releases import InSequence, Release, Repeated, Sampled, over_rounds
from calibrate.sampling import Cyclic, RandomAllocation, ShuffledEpochs, whole

_GRID = 16
"""Prices are computed at this many evenly spaced numbers of rounds, when they are first needed."""


@final
class EpsilonSoFar:
    """A certified upper bound of epsilon after any number of charged rounds; None where none is promised."""

    def __init__(self, document: BudgetDocument) -> None:
        self._document = document
        self._known: dict[int, float | None] = {}

    def about(self, charged: int) -> float | None:
        """The price of the next grid point: quick, and never too low."""
        rounds = self._document.rounds
        return self.after(min(rounds, -(-charged * _GRID // rounds) * rounds // _GRID or charged))

    def after(self, charged: int) -> float | None:
        """The price of exactly this many rounds."""
        if charged not in self._known:
            self._known[charged] = self._price(charged)
        return self._known[charged]

    def _price(self, charged: int) -> float | None:
        guarantee = self._document.guarantee
        if isinstance(guarantee, NoPrivacyPromised):
            return None
        if charged == 0:
            return 0.0
        if charged >= self._document.rounds:
            return guarantee.epsilon
        event = event_after(self._document.accounting.event, charged, self._document.rounds)
        try:
            return best_epsilon(event, guarantee.privacy_unit(), guarantee.delta).interval.upper
        except (NotCertified, UnsupportedCombination):
            return guarantee.epsilon


def event_after(event: Release, charged: int, rounds: int) -> Release:
    """What may have been published in the first `charged` of `rounds` rounds.

    Only what is repeated once per round (or once per epoch) shrinks, and a shuffled epoch that is begun counts whole;
    everything else stays, as if it had been published in the first round.
    """
    match event:
        case InSequence(parts):
            # Whole epochs of random allocation, and at most one begun epoch; each number of rounds has its own price.
            drawn = tuple(part.release if isinstance(part, Repeated) else part for part in parts)
            first = drawn[0]
            if all(isinstance(each, Sampled) and isinstance(each.sampling, RandomAllocation) for each in drawn):
                assert isinstance(first, Sampled)
                return over_rounds(whole(first.sampling), first.release, charged)
            return InSequence(tuple(event_after(part, charged, rounds) for part in parts))
        case Repeated(inner, times) if times == _repetitions(inner, rounds):
            return Repeated(inner, min(times, _repetitions(inner, charged)))
        case _:
            return event


def _repetitions(inner: Release, rounds: int) -> int:
    if isinstance(inner, Sampled) and isinstance(inner.sampling, ShuffledEpochs | Cyclic):
        return inner.sampling.epochs_for(rounds)
    return rounds
