"""The same promise once more, in the auditor's name: for rehearsals and reruns that touch nobody's budget."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import final

from calibrate.manifest import signature
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.keys import Role, SigningKey, generate
from calibrate.manifest.statement import PAYLOAD_TYPE, statement_bytes
from calibrate.manifest.terms import fresh_nonce, valid_for
from calibrate.manifest.trust import TrustedKey, TrustFile


@final
@dataclass(frozen=True)
class AuditorsManifest:
    """A key made for one audit and trusted by nobody else; what it signs was priced when it was first issued."""

    key: SigningKey = field(default_factory=generate)
    since: datetime = field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))

    @property
    def trust(self) -> TrustFile:
        return TrustFile(keys=(TrustedKey.of(self.key.public, Role.PRIVACY_OFFICER, self.since),))

    def envelope(self, document: BudgetDocument) -> bytes:
        """The document for another single use."""
        copy = document.model_copy(update={"nonce": fresh_nonce(), "validity": valid_for(), "ledger": None})
        return signature.sign(PAYLOAD_TYPE, statement_bytes(copy), self.key)
