"""Taking a signed budget into use: the one place that claims, and that takes a claim up again.

What is refused before anything was claimed leaves no file behind. Only a ledger that could not be reached may have
noted the claim all the same: then the folder keeps its token, and `--resume` continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from calibrate.errors import PrivfairError, Refused
from calibrate.manifest.trust import TrustSeen
from calibrate.manifest.verify import AuthenticManifest, VerifiedManifest
from privfair.durable import replace_file
from privfair.ledger import Claim, ClaimEnded, ClaimToken, Ledger, RolledBack, Unavailable, UnknownClaim
from privfair.run.folder import RunFolder
from privfair.run.prepare import claim_terms
from privfair.transcript import Ending, Transcript

_NOT_REACHED = (Unavailable, RolledBack)
"""A ledger or its anchor could not be read or written; the claim may have been noted by then."""


class Trust(Protocol):
    """The trust file in force, as it can be asked while a run is open."""

    @property
    def seen(self) -> TrustSeen: ...

    def require_signed(self, manifest: AuthenticManifest) -> None:
        """Refuse to continue unless the manifest's signers are trusted now."""
        ...


def require_trust(trust: Trust | None, manifest: VerifiedManifest, ledger: Ledger) -> None:
    """The manifest's signers are still trusted, by a file that is not older than one the ledger has seen.

    Raises `Refused`. Blocks that were charged stay spent, published values stay published, and nothing further is
    drawn; the run continues with --resume once the same manifest is signed by a key that is live.
    """
    if trust is not None:
        trust.require_signed(manifest.authentic)
        ledger.remember_trust(trust.seen)


def begin(
    manifest: VerifiedManifest,
    ledger: Ledger,
    folder: RunFolder,
    files: Mapping[str, bytes],
    trust: Trust | None,
    party: str | None = None,
) -> Claim:
    """Ask the trust file, write the files of a new run, then claim; `party` is the silo whose ledger this is."""
    asked = False
    try:
        require_trust(trust, manifest, ledger)
        for name, content in files.items():
            replace_file(folder.path / name, content)
        token = ClaimToken.at(folder.token)
        asked = True
        return ledger.claim(claim_terms(manifest, party), token)
    except PrivfairError as refused:
        if not (asked and isinstance(refused, _NOT_REACHED)):
            folder.discard(files)
        raise


def take_up(manifest: VerifiedManifest, ledger: Ledger, folder: RunFolder, party: str | None = None) -> Claim | None:
    """The claim of this folder's token; None if the run has ended, for then only files are left to be written."""
    past = Transcript.read(folder.transcript) if folder.transcript.exists() else None
    closed = past is not None and past.ending is Ending.CLOSED
    token = ClaimToken.at(folder.token)
    if past is not None:
        past.verify_against(ledger)
    try:
        claim = ledger.resume(token)
    except UnknownClaim:  # stopped between token and claim
        if past is not None:
            raise
        return ledger.claim(claim_terms(manifest, party), token)
    except ClaimEnded:
        if closed:
            return None
        raise Refused(
            f"the ledger closed this run, but {folder.transcript} is missing or has no end; put the untouched "
            "file back, nothing can be published any more"
        ) from None
    if past is None or not closed:
        return claim
    claim.reconcile(past.releases())  # stopped between the end of the transcript and the end of the claim
    claim.close(past.digest)
    return None
