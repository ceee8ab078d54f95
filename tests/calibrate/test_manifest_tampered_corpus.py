"""Every file of the fixed corpus is refused, and at the step its name says."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest

from calibrate.errors import ManifestRefused
from calibrate.manifest.strict_json import Step
from calibrate.manifest.trust import TrustFile, read_trust
from calibrate.manifest.verify import authenticate, verify

CORPUS = Path(__file__).parent / "tampered"
FAULTS = sorted(path for path in CORPUS.glob("*.json") if path.name[:2].isdigit())
samples = SimpleNamespace(**run_path(str(CORPUS / "samples.py")))


@pytest.fixture(scope="module")
def trust() -> TrustFile:
    return read_trust((CORPUS / "trust.json").read_bytes(), at=samples.NOW)


def test_the_untampered_manifest_verifies(trust: TrustFile) -> None:
    verified = verify((CORPUS / "good.json").read_bytes(), trust, samples.RUN, samples.NOW)
    assert verified.document == samples.document()
    assert [signature.role.value for signature in verified.authentic.signatures] == ["privacy-officer", "data-owner"]


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_fault_is_refused_at_its_step(path: Path, trust: TrustFile) -> None:
    with pytest.raises(ManifestRefused) as refusal:
        verify(path.read_bytes(), trust, samples.RUN, samples.NOW)
    number = int(refusal.value.step.split()[0])
    assert number == int(path.name[:2]), refusal.value
    assert refusal.value.why
    assert refusal.value.remedy
    assert refusal.value.exit_code == 3


def test_the_corpus_has_a_fault_for_every_step_but_the_price() -> None:
    assert {int(path.name[:2]) for path in FAULTS} == {step.number for step in Step if step is not Step.PRICE}


def test_wrong_plan_and_wrong_data_are_authentic_but_not_for_this_run(trust: TrustFile) -> None:
    """The split of the two entry points: who signed it is one question, what for is another."""
    for path in FAULTS:
        if int(path.name[:2]) in (Step.PLAN.number, Step.DATA.number):
            assert authenticate(path.read_bytes(), trust, samples.NOW).document.algorithm == "steffle"
