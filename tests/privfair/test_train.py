"""`privfair.train`: what a run leaves behind, what it refuses, and that each algorithm does what it is called."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import privfair
from calibrate.errors import InvalidInput, ManifestRefused, Refused, UnsupportedCombination
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.manifest.trust import FolderTrust, read_trust
from privfair.run.folder import RunFolder
from privfair.run.record import read_sessions
from privfair.run.replay import replay
from privfair.training import prepare
from privfair.transcript import Transcript
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import FEDSGD, FPFL, GAUSSIAN, SCHEMA, Desk, write_silos


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One private run: DP-FedSGD in three silos."""
    desk = Desk.at(tmp_path_factory.mktemp("gaussian"), GAUSSIAN.format(rate=0.3, rounds=40, more=""))
    desk.train(desk.budget())
    return desk


def theta(folder: Path) -> np.ndarray:
    document = json.loads((folder / "model.json").read_text())
    return np.array([*document["weights"]["yes"], document["intercepts"]["yes"]])


def test_a_run_folder_is_complete_and_its_secret_is_the_owners_alone(finished: Desk) -> None:
    run = finished.folder / "run"
    assert {path.name for path in run.iterdir()} == {
        "plan.toml",
        "budget.json",
        "run.json",
        "claim.token",
        "sessions.jsonl",
        "transcript.bin",
        "metrics.jsonl",
        "checkpoint.npz",
        "encoding.json",
        "model.pt",
        "model.json",
        "receipts.json",
        "frontier.json",
        "decision.json",
        "origin.json",
        "lock",
    }, "and no batches.bin: they are secret"
    assert stat.S_IMODE(os.stat(run / "claim.token").st_mode) == 0o600
    assert (run / "plan.toml").read_bytes() == finished.plan.read_bytes()
    assert (run / "budget.json").read_bytes() == (finished.folder / "budget.json").read_bytes()


def test_the_summary_says_what_ran_and_binds_the_files(finished: Desk) -> None:
    run = finished.folder / "run"
    summary = json.loads((run / "run.json").read_text())
    assert summary["status"] == "finished"
    assert summary["promise"]["epsilon"] == 8.0
    assert summary["data"]["silos"] == {"north": 100, "south": 100, "west": 100}, "the signed bounds, not who is in it"
    assert summary["rounds"] == {"signed": 40, "charged": 40, "planned_steps": 40, "steps": 40, "sessions": 1}
    assert summary["batches"]["recorded"] is False
    for name, digest in summary["digests"].items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest
    assert {"plan.toml", "budget.json", "transcript.bin", "model.pt", "model.json"} == set(summary["digests"])
    assert "not private" in summary["metrics_note"]
    assert summary["versions"]["torch"] == importlib.metadata.version("torch")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 41))
    assert summary["metrics"] == lines[-1]


def test_ledger_transcript_and_receipts_tell_one_story(finished: Desk) -> None:
    run = finished.folder / "run"
    receipts = json.loads((run / "receipts.json").read_text())
    transcript = Transcript.read(run / "transcript.bin")
    with open_ledger(finished.ledger) as ledger:
        assert transcript.verify_against(ledger).recorded == 120
        assert ledger.anchor().ledger == receipts["ledger"]
    assert receipts["releases"] == 120
    assert receipts["rounds"] == {"signed": 40, "charged": 40, "released": 40}
    assert receipts["transcript"] == transcript.digest
    assert receipts["state"] == "closed"


def test_the_model_is_what_the_transcript_leads_to(finished: Desk) -> None:
    run = prepare(finished.plan, finished.folder / "budget.json", finished.trust)
    folder = RunFolder(finished.folder / "run")
    transcript = Transcript.read(folder.transcript)
    *_, last = replay(run.algorithm, transcript, read_sessions(folder.sessions))
    np.testing.assert_array_equal(run.algorithm.theta(last.state).numpy(), theta(folder.path))
    saved = torch.load(folder.model, weights_only=True)
    linear = torch.nn.Linear(5, 1, dtype=torch.float64)
    linear.load_state_dict(saved)


def test_noise_measured_from_the_transcript_is_the_signed_sigma(finished: Desk) -> None:
    """Without its secret batches a run cannot be redone; with a rate of 1 the clean sums are known."""
    desk = Desk.at(finished.folder / "full", GAUSSIAN.format(rate=1.0, rounds=60, more=""))
    manifest = desk.budget()
    desk.train(manifest)
    run = prepare(desk.plan, manifest, desk.trust)
    folder = RunFolder(desk.folder / "run")
    transcript = Transcript.read(folder.transcript)
    declared = run.manifest.document.release("value_1")
    assert isinstance(declared, GaussianNoise)
    residuals = []
    for position in replay(run.algorithm, transcript, read_sessions(folder.sessions)):
        for silo in run.silos:
            if position.step < 60:
                message = run.algorithm.contribution(position.state, position.step, silo, torch.arange(len(silo)))
                sent = transcript.value(position.step, silo.name, "value_1")
                residuals.append(sent - message.noisy[0].values)
    noise = np.concatenate(residuals)
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], noise.size)
    assert low < float(noise @ noise) / declared.sigma**2 < high
    assert stats.kstest(noise / declared.sigma, "norm").pvalue > 1e-6


def test_a_used_manifest_is_refused_and_leaves_no_folder(finished: Desk) -> None:
    with pytest.raises(Refused, match="a manifest is claimed once"):
        finished.train(finished.folder / "budget.json", "again")
    assert not (finished.folder / "again").exists()


def test_a_folder_with_other_things_in_it_is_refused(finished: Desk) -> None:
    (finished.folder / "full-of-things").mkdir()
    (finished.folder / "full-of-things" / "thesis.tex").write_text("!")
    with pytest.raises(InvalidInput, match="is not empty"):
        finished.train(finished.folder / "budget.json", "full-of-things")
    assert (finished.folder / "full-of-things" / "thesis.tex").read_text() == "!"


@pytest.mark.parametrize("change", ["plan", "manifest", "size", "schema"])
def test_one_changed_byte_is_refused_before_anything_is_claimed(tmp_path: Path, change: str) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=3, more=""))
    manifest = desk.budget()
    if change == "plan":
        desk.plan.write_text(desk.plan.read_text().replace("learning-rate = 1.0", "learning-rate = 1.1"))
    elif change == "manifest":
        content = bytearray(manifest.read_bytes())
        content[len(content) // 2] ^= 1
        manifest.write_bytes(bytes(content))
    elif change == "size":
        lines = (tmp_path / "north.csv").read_text().splitlines()
        (tmp_path / "north.csv").write_text("\n".join(lines[:-4]) + "\n")
    else:
        (tmp_path / "schema.toml").write_text(SCHEMA.replace("[18, 98]", "[18, 99]"))
    with pytest.raises(ManifestRefused):
        desk.train(manifest)
    assert not (tmp_path / "run").exists()
    with open_ledger(desk.ledger) as ledger:
        assert not ledger.status().manifests


def test_facts_read_off_private_records_are_refused_at_issuing(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=1.0, rounds=3, more=""))
    open_list = SCHEMA.replace('values = ["clerk", "nurse", "other"]', "")
    (tmp_path / "schema.toml").write_text(open_list)
    with pytest.raises(UnsupportedCombination, match="the categories of a feature"):
        desk.budget()
    baseline = Desk.at(tmp_path / "baseline", FEDSGD.format(rounds=3, more=""))
    (baseline.folder / "schema.toml").write_text(open_list)
    baseline.train(baseline.budget())


def test_users_are_promised_privacy_exactly_when_records_are_grouped_by_user(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FPFL.replace('[data.users]\nkind = "poisson"\nusers = 200\n', ""))
    with pytest.raises(InvalidInput, match="does not fit a promise to each user"):
        desk.budget()


def test_the_promise_of_nothing_stands_in_every_output(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=3, more=""))
    result = desk.train(desk.budget())
    words = "NO PRIVACY PROMISED: a test"
    assert result.to_json()["promise"] == words
    assert result.to_json()["epsilon"] is None
    assert json.loads((tmp_path / "run" / "run.json").read_text())["promise"]["text"] == words
    assert json.loads((tmp_path / "run" / "model.json").read_text())["promise"] == words
    assert json.loads((tmp_path / "run" / "receipts.json").read_text())["epsilon"] is None


@pytest.mark.parametrize("model", ['kind = "perceptron"\nhidden = [6]', 'kind = "module"\nfile = "net.py"'])
def test_networks_train_predict_and_come_back_from_disk(tmp_path: Path, model: str) -> None:
    net = "nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))"
    plan = GAUSSIAN.format(rate=0.5, rounds=3, more=f"[training.model]\n{model}")
    desk = Desk.at(tmp_path, plan)
    (tmp_path / "net.py").write_text(f"from torch import nn\n\ndef build():\n    return {net}\n")
    manifest = desk.budget()
    desk.train(manifest)
    assert not (tmp_path / "run" / "model.json").exists()
    run, folder = prepare(desk.plan, manifest, desk.trust), RunFolder(tmp_path / "run")
    *_, last = replay(run.algorithm, Transcript.read(folder.transcript), read_sessions(folder.sessions))
    trusted = FolderTrust(read_trust(desk.trust.read_bytes()), code=True)
    found = privfair.predict(tmp_path / "run", tmp_path / "north.csv", trusted)
    from privfair.data.encode import load_own_silo
    from privfair.data.schema_toml import load_schema

    silo = load_own_silo(tmp_path / "north.csv", load_schema(tmp_path / "schema.toml"))
    x = torch.tensor(silo.data.features, dtype=torch.float32)
    expected = run.model.probabilities(run.algorithm.theta(last.state), x)
    np.testing.assert_allclose(np.array(found.probabilities), expected.numpy(), rtol=1e-5)


def test_predictions_are_the_models_and_need_neither_class_nor_attribute(finished: Desk, tmp_path: Path) -> None:
    write_silos(tmp_path, seed=9)
    rows = (tmp_path / "north.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(",".join(row.split(",")[:3]) for row in rows) + "\n")
    found = privfair.predict(finished.folder / "run", tmp_path / "new.csv")
    weights = theta(finished.folder / "run")
    for place, row in enumerate(rows[1:20]):
        age, income, job = row.split(",")[:3]
        x = [(float(age) - 18) / 80, (float(income) - 10) / 2, *(job == name for name in ("clerk", "nurse", "other"))]
        probability = 1 / (1 + np.exp(-(np.array([*x, 1.0]) @ weights)))
        assert found.probabilities[place][1] == pytest.approx(probability)
        assert found.predicted[place] == ("yes" if probability > 0.5 else "no")
    assert found.as_csv().decode().splitlines()[0] == "prediction,probability of no,probability of yes"


def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=3, more=""))
    manifest = desk.budget()

    def intrude(_: Any) -> None:
        with pytest.raises(Refused, match="another process is training"):
            desk.train(manifest, resume=True)

    desk.train(manifest, progress=intrude)


def test_python_names_are_the_command_lines(tmp_path: Path) -> None:
    import inspect

    from privfair.cli.model import train_command as command
    from privfair.cli.options import GLOBAL_OPTIONS

    flags = {name.lstrip("-") for option in command.params for name in option.opts}
    arguments = set(inspect.signature(privfair.train).parameters)
    of_the_screen = {name.lstrip("-") for option in GLOBAL_OPTIONS for name in option.opts}
    elsewhere = {
        "budget",
        "guards",
        "sites",
        "test-file",
        "steps-per-message",
        "target-gap",
        "target-rate",
    }  # train_with_guards, and the threshold's rule
    assert arguments - {"progress"} == flags - of_the_screen - elsewhere
