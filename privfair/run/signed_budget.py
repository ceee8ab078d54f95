"""A signed budget in memory: the bytes an engine verifies, and the page people read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.keys import PublicKey, Role
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.manifest.verify import read_unverified
from calibrate.notebook import as_html
from privfair.durable import read_named
from privfair.run.public import RunPromise, promise_of

_ALWAYS = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SignedBudget:
    """A budget manifest with at least one signature; what it says counts only once someone has verified it.

    `envelope` are the signed bytes, as `privfair calibrate --out` writes them to a file. `signer` is the public half of
    the key that signed it in this process; None for a budget that was read from elsewhere.

    >>> import privfair as pf, tempfile
    >>> priced = pf.budget(1.0, 1e-5, units=1000, rounds=10, sampling_rate=0.05, shapes={"gradient": (3,)})
    >>> signed = priced.sign(pf.generate_key())
    >>> path = signed.save(tempfile.mkdtemp() + "/budget.json")
    >>> pf.SignedBudget.load(path).document == signed.document
    True
    """

    envelope: bytes = field(repr=False)
    signer: PublicKey | None = field(default=None, repr=False)

    @classmethod
    def load(cls, path: str | Path) -> SignedBudget:
        """The budget in a file.

        Args:
            path: what `SignedBudget.save` or `privfair calibrate --out` wrote.
        """
        return cls(envelope_of(path))

    def save(self, path: str | Path) -> Path:
        """Write the budget to a file and return its path.

        Args:
            path: where to; an existing file is replaced.
        """
        Path(path).write_bytes(self.envelope)
        return Path(path)

    @cached_property
    def document(self) -> BudgetDocument:
        """What the budget says; no signature is checked here."""
        return read_unverified(self.envelope).document

    @property
    def promise(self) -> RunPromise:
        """What is promised, to whom, and what is not protected."""
        return promise_of(self.document)

    def own_trust(self) -> TrustFile:
        """A trust file that trusts the key which signed this budget, and no one else.

        For trying things out: a promise that its maker also attests binds no one else. The file depends on the key
        alone, so that one ledger takes all budgets of one key. A budget that was read from a file has none.
        """
        if self.signer is None:
            raise InvalidInput("trust", None, "is needed for someone else's budget", "name your trust file")
        return TrustFile(keys=(TrustedKey.of(self.signer, Role.PRIVACY_OFFICER, _ALWAYS[0], _ALWAYS[1]),))

    def noise(self, name: str) -> float:
        """The standard deviation of the noise on a value (the scale, for Laplace noise).

        Args:
            name: of the value, as the budget declares it.
        """
        match declared := self.document.release(name):
            case GaussianNoise():
                return declared.sigma
            case LaplaceNoise():
                return declared.scale
            case _:
                raise InvalidInput("name", name, f"is published by {declared.mechanism}", "it has no noise scale")

    def __str__(self) -> str:
        return f"budget for {self.document.algorithm}: {self.promise.text}, {self.document.rounds} rounds"

    def _repr_html_(self) -> str:
        """How a notebook shows it: the promise first, then what is published, then what is not protected."""
        document, promise = self.document, self.promise
        until = f"until {document.validity.not_after:%Y-%m-%d}"
        text = f" ({document.algorithm}, {document.rounds} rounds, {until})"
        rows = ((value.name, value.mechanism, value.publications) for value in document.releases)
        shown = as_html(promise.text, text, rows, header=("value", "mechanism", "times"))
        return shown + as_html("Not protected:", items=promise.not_protected)


BudgetSource = str | Path | bytes | SignedBudget
"""A signed budget as people have it: a file, its bytes, or the object that `sign` returned."""


def envelope_of(budget: BudgetSource) -> bytes:
    """The signed bytes."""
    match budget:
        case SignedBudget():
            return budget.envelope
        case bytes():
            return budget
        case str() | Path():
            return read_named(Path(budget), "budget")
        case _:
            raise InvalidInput(
                "budget", type(budget).__name__, "is not a signed budget", "give a path, bytes, or what sign() returned"
            )
