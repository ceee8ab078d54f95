"""A transcript that keeps digests and every so many steps: the run goes on after any death, and is audited as it is."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.report.results import Check, CheckOutcome, Conclusion
from audit.runs.conformance import check_conformance
from audit.runs.evidence import RunEvidence
from audit.runs.noise import check_noise
from audit.runs.run_audit import _unseen
from audit.verdict import judge, on_trial
from calibrate.errors import InvalidInput, Refused
from calibrate.manifest.show import render
from calibrate.manifest.verify import read_unverified
from privfair.federation.gather import gather_run, is_merged_from, parties_of
from privfair.federation.guard import Guard
from privfair.ledger import Ledger
from privfair.noise import ExactNoise
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from privfair.transcript import Transcript
from privfair.transcript.storage import TranscriptRefused
from tests.federation.sites import Sites
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk
from tests.privfair.test_rounds_interrupted import Killed, interrupted, kill_after, theta

KEEPING = "block = 2\nretention = 4"
PLAN = FEDSGD.replace("batch-size = 32", 'sampling = "full"').format(rounds=7, more=f"signed-rounds = 60\n{KEEPING}")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Full batches without noise, so that every run is to end with the same model."""
    desk = Desk.at(tmp_path_factory.mktemp("desk"), PLAN)
    desk.train(desk.budget("whole.json"), "whole")
    return desk


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    more = f'{KEEPING}\n[training.model]\nkind = "perceptron"\nhidden = [16]'
    return Desk.at(tmp_path_factory.mktemp("noisy"), GAUSSIAN.format(rate=1.0, rounds=9, more=more))


def test_every_fourth_step_and_the_last_are_kept_with_their_states(desk: Desk) -> None:
    run = desk.folder / "whole"
    transcript = Transcript.read(run / "transcript.bin")
    assert transcript.header.retention == 4
    kept = {key.round for key in transcript.keys if transcript.keeps(key)}
    assert kept == {0, 4, 6}
    assert {int(path.name[:12]) for path in (run / "transcript.kept").iterdir()} == kept, "nothing else is left"
    assert len(transcript.keys) == 21
    assert transcript.rounds("north", "gradient").tolist() == [0, 4, 6]
    with pytest.raises(TranscriptRefused, match="only the digest is kept"):
        transcript.value(1, "north", "gradient")
    with open_ledger(desk.ledger) as ledger:
        assert not transcript.verify_against(ledger).unrecorded


@pytest.mark.parametrize("appends", range(1, 21, 2))
def test_a_run_killed_anywhere_goes_on_without_drawing_anything_twice(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, appends: int
) -> None:
    out = f"run-{appends}"
    manifest = interrupted(desk, out, monkeypatch, appends, before=appends % 4 == 1)
    result = desk.train(manifest, out, resume=True)
    np.testing.assert_array_equal(theta(desk, out), theta(desk, "whole"))
    transcript = Transcript.read(desk.folder / out / "transcript.bin")
    assert len(transcript.keys) == 21, "seven steps of three silos, each published once"
    with open_ledger(desk.ledger) as ledger:
        assert not transcript.verify_against(ledger).unrecorded
        assert ledger.manifest_status(result.summary["manifest"]["digest"]).releases == 21
    assert not list((desk.folder / out).glob("transcript.kept/*.recent"))


def test_noise_is_drawn_once_per_value_whatever_dies(noisy: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, draws, gaussian = noisy.budget("killed.json"), Counter[str](), ExactNoise.gaussian

    def counted(self: Any, *arguments: Any) -> Any:
        draws["gaussian"] += 1
        return gaussian(self, *arguments)

    monkeypatch.setattr(ExactNoise, "gaussian", counted)
    for appends in (4, 3, 2):
        with monkeypatch.context() as patched:
            kill_after(patched, appends, before_record=False)
            with pytest.raises(Killed):
                noisy.train(manifest, "killed", resume=draws["gaussian"] > 0)
    noisy.train(manifest, "killed", resume=True)
    transcript = Transcript.read(noisy.folder / "killed" / "transcript.bin")
    assert draws["gaussian"] == len(transcript.keys)


def test_without_its_checkpoint_such_a_run_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = interrupted(desk, "lost", monkeypatch, 16, before=True)
    checkpoint = RunFolder(desk.folder / "lost").checkpoint
    beside = checkpoint.with_suffix(".beside")
    checkpoint.rename(beside)
    with pytest.raises(Refused, match=r"only the digest is kept .*restore checkpoint.npz"):
        desk.train(manifest, "lost", resume=True)
    beside.rename(checkpoint)
    for recent in (desk.folder / "lost").glob("transcript.kept/*.recent"):
        content = bytearray(recent.read_bytes())
        content[-1] ^= 1
        recent.write_bytes(content)
    with pytest.raises(Refused, match="is not what was published"):
        desk.train(manifest, "lost", resume=True)


def test_a_value_off_its_grid_is_refused_when_it_is_published(noisy: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExactNoise, "gaussian", lambda self, values, sigma: np.asarray(values) + 1 / 3)
    with pytest.raises(TranscriptRefused, match="is not on its grid"):
        noisy.train(noisy.budget("off.json"), "off")


@pytest.fixture(scope="module")
def audited(noisy: Desk) -> Path:
    noisy.train(noisy.budget("audited.json"), "audited")
    return noisy.folder / "audited"


def _conformance(noisy: Desk, run: Path) -> dict[str, Check]:
    with open_ledger(noisy.ledger) as ledger:
        evidence = RunEvidence.read(run, plan_path=noisy.plan)
        return {check.name: check for check in check_conformance(evidence, ledger)}


def test_an_audit_checks_what_is_kept_and_says_how_much_that_is(noisy: Desk, audited: Path) -> None:
    checks = _conformance(noisy, audited)
    assert not [check for check in checks.values() if check.outcome is CheckOutcome.FAILED]
    assert checks["retention"].finding.startswith("3 of 9 steps are kept in full")
    assert checks["kept steps lead to the next state"].finding.startswith("2 states")
    assert checks["model follows from the transcript"].outcome is CheckOutcome.PASSED
    assert "that are kept" in checks["published on the signed grid"].finding
    evidence = RunEvidence.read(audited, plan_path=noisy.plan)
    assert evidence.seen == (0, 4, 8)
    (pooled, *others) = check_noise(evidence)
    verdict = judge(on_trial(evidence.document), (pooled, *others), (), 0.95, _unseen(evidence))
    assert verdict.verdict is Conclusion.CONSISTENT
    assert "the values that are kept were measured" in verdict.why
    assert "keeps 3 of 9 steps in full and digests of the rest" in verdict.why
    assert pooled.outcome is CheckOutcome.PASSED
    assert pooled.noise_power is not None
    numbers = 3 * 3 * evidence.model.size
    assert 0 < 1 - pooled.noise_power.noticed < 8 / np.sqrt(2 * numbers), (
        "the power is that of the values that are kept"
    )


def test_a_changed_state_is_refused(noisy: Desk, audited: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(audited, tmp_path / "run"))
    states = sorted((run / "transcript.kept").glob("*.state.npz"))
    shutil.copy(states[0], states[1])
    with pytest.raises(Refused, match="is not what was published from"):
        _conformance(noisy, run)
    states[1].unlink()
    assert _conformance(noisy, run)["retention"].outcome is CheckOutcome.FAILED


def test_the_manifest_says_what_is_kept(noisy: Desk) -> None:
    found = read_unverified(noisy.budget("shown.json").read_bytes())
    assert found.document.retention == 4
    page = " ".join(render(found).split())
    assert "TRANSCRIPT: Of every 4 steps one is kept in full" in page


def test_mixed_noise_can_not_be_kept_by_single_steps(tmp_path: Path) -> None:
    sites = Sites.at(tmp_path, "gaussian, banded")
    _keeping(sites)
    with pytest.raises(InvalidInput, match="retention keeps single steps"):
        sites.desk.budget()


def _keeping(sites: Sites, more: str = "") -> None:
    plan = sites.desk.plan
    text = re.sub(r"(?m)^block = .*\n", "", plan.read_text("utf-8"))
    plan.write_text(text.replace("[training]\n", f"[training]\n{KEEPING}\n{more}\n"), encoding="utf-8")


@contextmanager
def _guards(sites: Sites) -> Iterator[Any]:
    """All guards in this process."""
    import logging

    log, guards, ledgers = logging.getLogger("test"), {}, []
    for party in sites.parties:
        (sites.folder / party).mkdir(exist_ok=True)
        ledgers.append(Ledger.open(sites.ledger(party)))
        guards[party] = Guard(sites.prepare(party), RunFolder(sites.folder / party), ledgers[-1], log)
    try:
        yield lambda messages: {party: guards[party].answer(message) for party, message in messages.items()}
    finally:
        for guard in guards.values():
            guard.close()
        for ledger in ledgers:
            ledger.close()


class _Dying:
    """A transport whose coordinator dies after so many questions, before it hears the answer."""

    def __init__(self, transport: Any, asked: int) -> None:
        self.transport, self.left = transport, asked

    def __call__(self, messages: Mapping[str, bytes]) -> Mapping[str, bytes]:
        answers: Mapping[str, bytes] = self.transport(messages)
        self.left -= 1
        if self.left == 0:
            raise Killed
        return answers


def test_guards_answer_again_what_a_killed_coordinator_may_ask_for(tmp_path: Path) -> None:
    sites = Sites.at(tmp_path / "s", "gaussian", rounds=15)
    _keeping(sites, "rounds = 9")
    sites.desk.budget()
    for asked in (6, 4):
        with _guards(sites) as transport, pytest.raises(Killed):
            train_over(_Dying(transport, asked), sites.signed(), tmp_path / "run", resume=True)
    with _guards(sites) as transport:
        train_over(transport, sites.signed(), tmp_path / "run", resume=True)
    gather_run(tmp_path / "run", {party: sites.folder / party for party in sites.parties})
    merged, parts = Transcript.read(tmp_path / "run" / "transcript.bin"), parties_of(tmp_path / "run")
    assert is_merged_from(merged, parts)
    for part in parts:
        assert len(part.transcript.keys) == 9, "each step was published once"
    assert {key.round for key in merged.keys if merged.keeps(key)} == {0, 4, 8}
