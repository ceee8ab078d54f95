"""Were features scaled by statistics of the private records? By what the data says of itself, and by its looks."""

from __future__ import annotations

import torch

from audit.check import Check, Layer, passed_if
from audit.evidence import RunEvidence
from calibrate.errors import PrivfairError
from calibrate.manifest.guarantee import NoPrivacyPromised
from calibrate.privacy_unit import Protected
from privfair.promise import facts_covered

_EXACT = 1e-5
"""Single precision; a public scale leaves means and deviations that differ from 0 and 1 by far more."""
_FEWEST = 20


def check_scaling(evidence: RunEvidence) -> tuple[Check, ...]:
    """A feature with mean 0 and deviation 1 to five digits was brought there by the very records."""
    name = "features scaled by public facts"
    if isinstance(evidence.document.guarantee, NoPrivacyPromised):
        return ()
    try:
        evidence.data.require_allowed(facts_covered(evidence.document))
    except PrivfairError as refusal:
        return (passed_if(Layer.PROBE, name, False, str(refusal)),)
    if evidence.document.guarantee.unit is Protected.ATTRIBUTE:
        return (passed_if(Layer.PROBE, name, True, "features are not protected, so their scale is free"),)
    tables = {silo.name: silo.x for silo in evidence.silos}
    tables["all silos"] = torch.cat([silo.x for silo in evidence.silos])
    suspicious = [f"{of}, feature {column}" for of, x in tables.items() for column in _standardised(x)]
    text = f"mean 0 and deviation 1 exactly: {suspicious[0]}" if suspicious else "no feature was standardised"
    return (passed_if(Layer.PROBE, name, not suspicious, text),)


def _standardised(x: torch.Tensor) -> list[int]:
    flat = x.reshape(len(x), -1).to(torch.float64)
    if len(flat) < _FEWEST:
        return []
    means = flat.mean(dim=0).abs()
    apart = torch.stack([(flat.std(dim=0, correction=each) - 1).abs() for each in (0, 1)]).amin(dim=0)
    return [int(column) for column in ((means < _EXACT) & (apart < _EXACT)).nonzero()[:, 0]]
