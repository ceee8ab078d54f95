"""What a claim binds: the signed terms of a manifest, the secret token of the claimer, and one release."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from calibrate.compose import SignedCurve
from calibrate.errors import InvalidInput, count, positive
from calibrate.privacy_unit import PrivacyUnit
from privfair.durable import write_new_file

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")


def digest_text(argument: str, value: str) -> str:
    """A SHA-256 digest as this package writes it."""
    if not isinstance(value, str) or not _HEX_64.fullmatch(value):
        raise InvalidInput(argument, value, "must be 64 lower-case hex digits", "give a SHA-256 digest")
    return value


def undeclared_dataset(data_digest: str) -> str:
    """What a data set without a declared identity is called: with another size it is another one."""
    return f"data {data_digest[:16]}"


def label(argument: str, value: str) -> str:
    """A short printable name, such as a party or a value name."""
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise InvalidInput(argument, value, "must be 1 to 200 printable characters", "give a shorter plain name")
    return value


@dataclass(frozen=True)
class ManifestTerms:
    """The part of a verified manifest that the ledger enforces; digests are SHA-256 in lower-case hex.

    `epsilon` and `delta` are the promise for all `rounds` together; an `epsilon` of None promises nothing
    finite, and is refused on data that has a budget. `dataset` is the declared identity of the data the promise is
    about and `unit` whom it protects: claims on one data set are added up. `data_digest` is that of the silos' names
    and sizes. `ledgers` are the identities of the ledgers it was signed for; every other one refuses it. `curve`
    are its signed Renyi divergences, without which only basic composition can keep a total.
    """

    manifest_digest: str
    nonce: str
    envelope_digest: str
    rounds: int
    epsilon: float | None
    delta: float
    dataset: str
    data_digest: str
    valid_until: datetime
    unit: PrivacyUnit
    ledgers: tuple[str, ...] = ()
    purpose: str = ""
    signers: tuple[str, ...] = ()
    curve: SignedCurve | None = None

    def __post_init__(self) -> None:
        digest_text("manifest_digest", self.manifest_digest)
        digest_text("envelope_digest", self.envelope_digest)
        digest_text("data_digest", self.data_digest)
        label("nonce", self.nonce)
        label("dataset", self.dataset)
        for ledger in self.ledgers:
            digest_text("ledgers", ledger)
        for signer in self.signers:
            label("signers", signer)
        count("rounds", self.rounds)
        promise(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.valid_until.tzinfo is None:
            raise InvalidInput("valid_until", self.valid_until, "must carry a time zone", "give it in UTC")


def promise(epsilon: float, delta: float) -> None:
    """Check an (epsilon, delta) that may also be pure (delta = 0)."""
    positive("epsilon", epsilon)
    if isinstance(delta, bool) or not isinstance(delta, float | int) or not 0 <= delta < 1:
        raise InvalidInput("delta", delta, "must be in [0, 1)", "give for example 1e-5")


class Release(NamedTuple):
    """One published value: which round, whose, what it is called, and the digest of its bytes."""

    round: int
    party: str
    name: str
    digest: str


@dataclass(frozen=True)
class ClaimToken:
    """The secret that lets its holder resume a claim; the ledger keeps only its digest.

    Save it in the run folder *before* claiming: then no crash can strand a manifest that was claimed by a
    process which died before it could write down how to resume.
    """

    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.secret, str) or not _HEX_64.fullmatch(self.secret):
            raise InvalidInput("token", "(hidden)", "must be 64 lower-case hex digits", "use the saved file")

    @classmethod
    def fresh(cls) -> ClaimToken:
        return cls(secrets.token_hex(32))

    @classmethod
    def load(cls, path: Path) -> ClaimToken:
        return cls(Path(path).read_text("ascii", errors="replace").strip())

    @classmethod
    def at(cls, path: Path) -> ClaimToken:
        """The token of a run, saved before it is ever used; a half-written one was never used and is replaced."""
        if path.exists():
            try:
                return cls.load(path)
            except InvalidInput:
                path.unlink()
        token = cls.fresh()
        token.save(path)
        return token

    def save(self, path: Path) -> None:
        """Write the token durably to a new file that only its owner may read."""
        write_new_file(Path(path), f"{self.secret}\n".encode("ascii"), mode=0o600)

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"privfair claim token\0" + self.secret.encode("ascii")).hexdigest()


def timestamp(moment: datetime) -> str:
    """UTC to the second, rounded down, so that a deadline is never later than signed."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def claimant_here() -> str:
    """The default claimant: user, machine and process."""
    return f"uid {os.getuid()} on {os.uname().nodename}, process {os.getpid()}"
