"""A run over guards, gathered into one folder, is audited as a whole; each site audits its own half."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from audit.report.results import AuditReport, CheckOutcome
from audit.runs.papers import SitesInHand
from audit.runs.run_audit import audit_run
from audit.settings import AuditOptions
from calibrate.errors import InvalidInput, Refused
from calibrate.manifest.keys import Role, SigningKey, generate, load_public, save
from calibrate.manifest.trust import FolderTrust
from privfair.federation.gather import gather_run, parties_of
from privfair.federation.guard import GuardOptions
from privfair.ledger import Ledger, LedgerAccess
from privfair.run.federated import train_over
from privfair.run.open_run import TrustInForce
from privfair.transcript import PartOfRun, Transcript
from tests.end_to_end.command_line import privfair
from tests.federation.sites import Sites

pytestmark = pytest.mark.filterwarnings("ignore")
NO_RERUNS = AuditOptions(reruns=0)


class Finished:
    """A run over three guards that has ended, with the key of north's silo."""

    def __init__(self, folder: Path) -> None:
        self.sites = Sites.at(folder / "s", "steffle, shuffled")
        self.sites.desk.budget()
        self.key: SigningKey = generate()
        self.public = save(self.key, Role.DATA_OWNER, folder / "silo.pem")
        self.run = folder / "run"
        with self.sites.guards(GuardOptions(key=self.key)) as transport:
            train_over(transport, self.sites.signed(), self.run)
        self.folders = {party: self.sites.folder / party for party in self.sites.parties}
        gather_run(self.run, self.folders)

    @property
    def trusted(self) -> FolderTrust:
        return FolderTrust(TrustInForce(self.sites.desk.trust).file)

    def copy(self, folder: Path) -> Path:
        return Path(shutil.copytree(self.run, folder / "copy"))

    def in_hand(self, *, files: bool) -> SitesInHand:
        silos = {party: self.sites.folder / f"{party}.csv" for party in self.folders} if files else {}
        ledgers = {party: Ledger.open(self.sites.ledger(party), access=LedgerAccess.READ) for party in self.folders}
        return SitesInHand(silos, ledgers, dict.fromkeys(self.folders, load_public(self.public)))

    def audit(self, run: Path, *, files: bool = False) -> AuditReport:
        found = self.in_hand(files=files)
        try:
            return audit_run(run, NO_RERUNS, self.trusted, sites=found)
        finally:
            for ledger in found.ledgers.values():
                ledger.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(tmp_path_factory.mktemp("f"))


def _failed(report: AuditReport) -> list[str]:
    return [check.name for check in report.checks if check.outcome is CheckOutcome.FAILED]


def _passed(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if check.outcome is CheckOutcome.PASSED}


def test_the_papers_of_a_gathered_run_name_one_another(finished: Finished) -> None:
    report = finished.audit(finished.run)
    assert not _failed(report)
    found = _passed(report)
    for party in finished.folders:
        assert {f"ledger, {party}", f"receipt of {party}", f"signature under the receipt of {party}"} <= found
        assert f"batches of {party}" in found
    assert {"merged transcript", "model follows from the transcript", "price", "data"} <= found
    assert report.verdict.value == "inconclusive", "without records nothing is known about the noise"


@pytest.mark.slow
def test_with_the_records_of_all_sites_the_whole_audit_is_possible(finished: Finished) -> None:
    report = finished.audit(finished.run, files=True)
    assert not _failed(report)
    layers = {check.layer.value for check in report.checks}
    assert {"conformance", "L0", "L1"} <= layers, layers


def test_each_site_audits_its_own_half_alone(finished: Finished) -> None:
    with Ledger.open(finished.sites.ledger("north"), access=LedgerAccess.READ) as ledger:
        own = SitesInHand({"north": finished.sites.folder / "north.csv"}, {"north": ledger})
        report = audit_run(finished.folders["north"], NO_RERUNS, finished.trusted, sites=own)
    assert not _failed(report)
    assert {"ledger, north", "records of north", "batches of north", "price"} <= _passed(report)
    assert not [check.name for check in report.checks if "south" in check.name]


def test_the_coordinators_half_alone_says_what_is_missing(finished: Finished, tmp_path: Path) -> None:
    alone = finished.copy(tmp_path)
    shutil.rmtree(alone / "parties")
    with pytest.raises(Refused, match=r"audit run .* --site"):
        finished.audit(alone)


def test_a_value_that_no_site_sent_is_found_in_the_merged_transcript(finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy(tmp_path)
    moved = [
        PartOfRun(one.transcript, {number: 3 - step for number, step in one.steps.step_of_round.items()})
        for one in parties_of(copy)
    ]
    (copy / "transcript.bin").unlink()
    Transcript.merge(copy / "transcript.bin", moved)
    failed = _failed(finished.audit(copy))
    assert "merged transcript" in failed
    assert "model follows from the transcript" in failed


def test_a_receipt_about_another_transcript_is_found(finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy(tmp_path)
    path = copy / "parties" / "north" / "receipts.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "transcript": "ab" * 32}))
    assert _failed(finished.audit(copy)) == ["receipt of north", "signature under the receipt of north"]


def test_a_ledger_of_another_site_is_found(finished: Finished) -> None:
    with Ledger.open(finished.sites.ledger("south"), access=LedgerAccess.READ) as south:
        report = audit_run(finished.run, NO_RERUNS, finished.trusted, sites=SitesInHand(ledgers={"north": south}))
    assert _failed(report) == ["ledger, north"]


def test_only_the_transcripts_that_have_receipts_are_gathered(finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy(tmp_path)
    swapped = {**finished.folders, "north": finished.folders["south"]}
    with pytest.raises(InvalidInput, match="is of south"):
        gather_run(copy, swapped)
    with pytest.raises(InvalidInput, match="one for each of"):
        gather_run(copy, {"north": finished.folders["north"]})
    summary = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**summary, "transcripts": dict.fromkeys(finished.folders, "ab" * 32)}))
    with pytest.raises(Refused, match="receipt"):
        gather_run(copy, finished.folders)
    with pytest.raises(InvalidInput, match="not a finished run over guards"):
        gather_run(finished.folders["north"], finished.folders)


def test_gathering_again_changes_nothing(finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy(tmp_path)
    before = Transcript.read(copy / "transcript.bin").digest
    assert gather_run(copy, finished.folders)["transcript"] == before
    merged = Transcript.read(copy / "transcript.bin")
    for part in parties_of(copy):
        for spec in merged.header.values:
            own = part.transcript.values(part.name, spec.name)
            np.testing.assert_array_equal(merged.values(part.name, spec.name), own)


def test_neither_token_nor_log_nor_record_is_gathered(finished: Finished) -> None:
    gathered = {path.name for path in (finished.run / "parties").rglob("*") if path.is_file()}
    assert gathered == {"transcript.bin", "steps.jsonl", "batches.bin", "receipts.json"}


def test_the_command_line_names_what_an_auditor_has(finished: Finished) -> None:
    words = [word for party in finished.folders for word in ("--ledger", f"{party}={finished.sites.ledger(party)}")]
    trust = ("--trust", finished.sites.desk.trust)
    done = privfair("audit", finished.run, *trust, *words, "--reruns", 0, "--json")
    assert done.code == 0, done.err
    assert done.json()["verdict"] == "inconclusive"
    assert privfair("audit", finished.run, *trust, "--data", "north.csv").code == 2
    assert privfair("audit", finished.run, *trust, "--ledger", "a.db", "--ledger", "b.db").code == 2
