"""Putting a signature under a budget, never without having it priced twice first."""

from __future__ import annotations

from calibrate.errors import ManifestRefused
from calibrate.manifest import signature
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.keys import SigningKey
from calibrate.manifest.recompute import recompute
from calibrate.manifest.signature import BrokenEnvelope, open_envelope
from calibrate.manifest.statement import PAYLOAD_TYPE, statement_bytes
from calibrate.manifest.steps import Step
from calibrate.manifest.verify import read_unverified


def issue(document: BudgetDocument, key: SigningKey) -> bytes:
    """The signed manifest of a document, as the bytes of its file.

    Two independent accountants price the embedded event first; `ManifestRefused` if they contradict each
    other or the document. The result is read back before it is returned, so that nothing is ever issued
    that verification would not understand.
    """
    recompute(document)
    envelope = signature.sign(PAYLOAD_TYPE, statement_bytes(document), key)
    if read_unverified(envelope).document != document:
        raise ManifestRefused(
            Step.DOCUMENT.label, "the document does not survive being written", "report this as a bug"
        )
    return envelope


def add_signature(envelope: bytes, key: SigningKey) -> bytes:
    """The manifest with one more signature, after the signer's own recomputation of its price.

    Earlier signatures are kept as they are; whether they are valid is for `verify` to say, which knows whom to
    trust. A key that signed already is refused.
    """
    recompute(read_unverified(envelope).document)
    try:
        return signature.add_signature(open_envelope(envelope), key)
    except BrokenEnvelope as broken:
        raise Step.SIGNATURES.refuse(
            str(broken), "sign with the key of a role that has not signed yet"
        ) from broken
