"""Three lines for one's own function: what it takes, what is claimed, and a search that tries to refute it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from audit.sensitivity.claim import DistanceClaim
from audit.sensitivity.domain import Domain
from audit.sensitivity.falsify import Finding, Search, Word, falsify
from audit.sensitivity.subject import Arrays, Subject


class SensitivityRefuted(AssertionError):
    """Two neighbouring data sets were found that the claimed bound does not cover."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(str(finding))


def assert_sensitivity(
    function: Callable[..., Any],
    claim: DistanceClaim | float,
    domain: Domain,
    *,
    arrays: Arrays = Arrays.NUMPY,
    search: Search | None = None,
) -> Finding:
    """Raise `SensitivityRefuted` with a readable counterexample, or return what was searched.

    The function's parameters are named after the domain's columns and public values. A plain number claims an L2
    distance under adding or removing one record. Not refuted is not proved: the finding states its effort and how
    near the bound it came.
    """
    stated = claim if isinstance(claim, DistanceClaim) else DistanceClaim(claim)
    finding = falsify(Subject(function, domain, arrays), stated, search)
    if finding.word is Word.REFUTED:
        raise SensitivityRefuted(finding)
    return finding
