"""Everything the page shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.verify import UnverifiedManifest


@dataclass(frozen=True)
class ReportContent:
    """`manifest` is None for a model without a run; `verdict` is the JSON of an audit, None where there was none."""

    manifest: UnverifiedManifest | None
    verdict: dict[str, Any] | None
    metrics: tuple[dict[str, Any], ...]
    budget: tuple[tuple[int, float], ...]
    """Certified epsilon after so many rounds."""

    @property
    def document(self) -> BudgetDocument | None:
        return None if self.manifest is None else self.manifest.document

    @property
    def attribute(self) -> dict[str, Any] | None:
        """What attribute inference found, as in the audit's JSON."""
        return None if self.verdict is None else self.verdict.get("attribute_inference")

    @property
    def membership(self) -> dict[str, Any] | None:
        """What membership inference found, as in the audit's JSON."""
        return None if self.verdict is None else self.verdict.get("membership")
