"""What an attack may ask of a model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from audit.attacks.attribute.records import Codes
from calibrate.arrays import Floats


class Target(Protocol):
    """A classifier that answers with probabilities: all that a black-box attack needs."""

    def probabilities(self, features: Floats) -> Floats:
        """One row a record, one column a class."""
        ...


@runtime_checkable
class WhiteBoxTarget(Target, Protocol):
    """A classifier whose weights are at hand."""

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """What only the weights tell, one row a record: activations, scores, the norm of the loss gradient."""
        ...
