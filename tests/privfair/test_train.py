"""`privfair.train`: what a run leaves behind, what it refuses, and that each algorithm does what it is called."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression as Oracle

import privfair
from calibrate.errors import InvalidInput, ManifestRefused, Refused, UnsupportedCombination
from calibrate.manifest.mechanism import GaussianNoise
from privfair.batch_record import BatchRecord
from privfair.ledger import Ledger
from privfair.replay import read_sessions, replay
from privfair.run_folder import RunFolder
from privfair.training import prepare
from privfair.transcript import Transcript
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, SCHEMA, Desk, write_silos

STEFFLE = """algorithm = "steffle"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
silo-size = 120
batch-size = 40
rounds = 30
minority-fraction = 0.4
lipschitz = 1.0
w-radius = 0.5
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
group-frequencies = [0.5, 0.5]
learning-rate = 0.5
"""
PAY_ONCE = """algorithm = "pay-once"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
rounds = 21
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
fairness = 5.0
"""
FPFL = """algorithm = "fpfl"
[target]
epsilon = 8.0
delta = 1e-3
[privacy]
users = 200
cohort = 40
rounds = 5
clip = 1.0
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[data.users]
kind = "poisson"
mean = 2.0
[training]
learning-rate = 0.1
"""


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
    assert summary["data"]["silos"] == {"north": 120, "south": 150, "west": 135}
    assert summary["rounds"] == {
        "signed": 40,
        "charged": 40,
        "planned_steps": 40,
        "steps": 40,
        "sessions": 1,
    }
    assert summary["batches"]["recorded"] is False
    for name, digest in summary["digests"].items():
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest
    assert {"plan.toml", "budget.json", "transcript.bin", "model.pt", "model.json"} == set(summary["digests"])
    assert "not private" in summary["metrics_note"]
    assert summary["versions"]["torch"] == torch.__version__
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 41))
    assert summary["metrics"] == lines[-1]


def test_ledger_transcript_and_receipts_tell_one_story(finished: Desk) -> None:
    run = finished.folder / "run"
    receipts = json.loads((run / "receipts.json").read_text())
    transcript = Transcript.read(run / "transcript.bin")
    with Ledger.open(finished.ledger) as ledger:
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
                message = run.algorithm.contribution(
                    position.state, position.step, silo, torch.arange(len(silo))
                )
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
    assert not desk.ledger.exists()


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
    desk = Desk.at(tmp_path, FPFL.replace('[data.users]\nkind = "poisson"\nmean = 2.0\n', ""))
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


def test_fedsgd_follows_the_mean_gradient(tmp_path: Path) -> None:
    """Two full-batch steps by hand, with torch's own gradients of the pooled mean loss."""
    desk = Desk.at(tmp_path, FEDSGD.replace("batch-size = 32", 'sampling = "full"').format(rounds=2, more=""))
    manifest = desk.budget()
    desk.train(manifest)
    data = prepare(desk.plan, manifest, desk.trust).data.parties.pooled()
    x, y = torch.tensor(data.features), torch.tensor(data.label)
    extended = torch.cat((x, torch.ones(len(x), 1)), dim=1)
    by_hand = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    for _ in range(2):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(extended @ by_hand, y.double())
        (gradient,) = torch.autograd.grad(loss, by_hand)
        by_hand = (by_hand - gradient).detach().requires_grad_()
    np.testing.assert_allclose(theta(tmp_path / "run"), by_hand.detach().numpy(), rtol=1e-12)


def test_fedavg_with_one_local_step_is_fedsgd(tmp_path: Path) -> None:
    plan = FEDSGD.replace("batch-size = 32", 'sampling = "full"').format(rounds=4, more="")
    models = []
    for name in ("fedsgd", "fedavg"):
        desk = Desk.at(tmp_path / name, plan.replace('"fedsgd"', f'"{name}"'))
        desk.train(desk.budget())
        models.append(theta(desk.folder / "run"))
    np.testing.assert_allclose(models[0], models[1], rtol=1e-12)


def test_fedavg_makes_its_local_steps_in_the_batchs_order(tmp_path: Path) -> None:
    more = "local-batch = 8\nlocal-epochs = 2"
    desk = Desk.at(tmp_path, FEDSGD.replace('"fedsgd"', '"fedavg"').format(rounds=1, more=more))
    manifest = desk.budget()
    desk.train(manifest)
    run, record = prepare(desk.plan, manifest, desk.trust), BatchRecord.read(tmp_path / "run" / "batches.bin")
    expected = np.zeros(6)
    for silo in run.silos:
        rows, local = torch.from_numpy(record.batch(0, silo.name)), torch.zeros(6, dtype=torch.float64)
        for _ in range(2):
            for piece in torch.split(rows, 8):
                x = torch.cat((silo.x[piece], torch.ones(len(piece), 1)), dim=1)
                local = local - x.T @ (torch.sigmoid(x @ local) - silo.y[piece]) / len(piece)
        expected += local.numpy() * len(silo) / 405
    np.testing.assert_allclose(theta(tmp_path / "run"), expected, rtol=1e-10)


def test_central_erm_is_the_minimiser(tmp_path: Path) -> None:
    plan = FEDSGD.replace('"fedsgd"', '"central-erm"').replace(
        "batch-size = 32\nlearning-rate = 1.0", "l2 = 0.01"
    )
    desk = Desk.at(tmp_path, plan.format(rounds=1, more=""))
    manifest = desk.budget()
    result = desk.train(manifest)
    assert result.summary["data"]["silos"] == {"central": 405}
    assert set(result.summary["metrics"]["silos"]) == {"north", "south", "west"}
    run = prepare(desk.plan, manifest, desk.trust)
    pooled = run.data.parties.pooled()
    extended = np.concatenate([pooled.features, np.ones((len(pooled), 1))], axis=1)
    oracle = Oracle(C=1 / (0.01 * len(pooled)), fit_intercept=False, tol=1e-10, max_iter=10_000)
    oracle.fit(extended, pooled.label)
    np.testing.assert_allclose(theta(tmp_path / "run"), oracle.coef_[0], atol=2e-4)


def test_training_learns(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=60, more=""))
    result = desk.train(desk.budget())
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert result.summary["metrics"]["overall"]["loss"] < 0.9 * first["overall"]["loss"]
    accuracy = result.accuracy
    assert accuracy is not None
    assert accuracy > 0.7


def test_baselines_are_reproducible_and_private_runs_are_not(tmp_path: Path) -> None:
    models: dict[str, list[Any]] = {"fedsgd": [], "gaussian": []}
    plans = {
        "fedsgd": FEDSGD.format(rounds=4, more=""),
        "gaussian": GAUSSIAN.format(rate=0.5, rounds=4, more=""),
    }
    for name, plan in plans.items():
        desk = Desk.at(tmp_path / name, plan)
        for run in ("first", "second"):
            desk.train(desk.budget(f"{run}.json"), run)
            models[name].append(theta(desk.folder / run))
    np.testing.assert_array_equal(*models["fedsgd"])
    assert not np.allclose(*models["gaussian"])


@pytest.mark.filterwarnings("ignore::privfair.noise.UnsafeNoiseWarning")
def test_research_noise_is_reproducible_and_promises_nothing(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.5, rounds=4, more=""))
    models = []
    for run in ("first", "second"):
        result = desk.train(desk.budget(f"{run}.json", research_noise=True), run)
        models.append(theta(tmp_path / run))
        assert result.to_json()["epsilon"] is None
        assert "UNSAFE RESEARCH NOISE, nobody is protected" in result.to_json()["promise"]
    np.testing.assert_array_equal(*models)


def test_steffle_trains_and_its_noise_is_the_signed_one(tmp_path: Path) -> None:
    """Batches count as known, so the whole run can be redone and the noise measured."""
    desk = Desk.at(tmp_path, STEFFLE)
    manifest = desk.budget()
    desk.train(manifest)
    run, folder = prepare(desk.plan, manifest, desk.trust), RunFolder(tmp_path / "run")
    transcript, record = Transcript.read(folder.transcript), BatchRecord.read(folder.batches)
    noise: dict[str, list[np.ndarray]] = {"h_theta": [], "h_W": []}
    for position in replay(run.algorithm, transcript, read_sessions(folder.sessions)):
        for silo in run.silos:
            if position.step == 30:
                continue
            rows = torch.from_numpy(record.batch(position.step, silo.name))
            message = run.algorithm.contribution(position.state, position.step, silo, rows)
            for value in message.noisy:
                sent = transcript.value(position.step, silo.name, value.name)
                noise[value.name].append((sent - value.values).ravel())
            assert message.clear is not None
            np.testing.assert_array_equal(transcript.value(position.step, silo.name, "g"), message.clear["g"])
    for name, parts in noise.items():
        declared = run.manifest.document.release(name)
        assert isinstance(declared, GaussianNoise)
        residuals = np.concatenate(parts)
        low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], residuals.size)
        assert low < float(residuals @ residuals) / declared.sigma**2 < high


def test_pay_once_sends_the_attribute_once(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, PAY_ONCE)
    manifest = desk.budget()
    result = desk.train(manifest)
    assert result.summary["rounds"]["steps"] == 21
    transcript = Transcript.read(tmp_path / "run" / "transcript.bin")
    for silo in ("north", "south", "west"):
        assert transcript.rounds(silo, "randomised_attribute").tolist() == [0]
        assert transcript.rounds(silo, "g").tolist() == list(range(1, 21))
    run = prepare(desk.plan, manifest, desk.trust)
    assert run.algorithm.channel.keep == pytest.approx(1 / (1 + np.exp(-2.0)))


def test_users_are_the_units_of_one_aggregator(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FPFL)
    result = desk.train(desk.budget())
    assert result.summary["data"]["silos"] == {"users": 202}
    assert result.summary["promise"]["unit"] == "user"
    assert set(result.summary["metrics"]["silos"]) == {"north", "south", "west"}


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
    found = privfair.predict(tmp_path / "run", tmp_path / "north.csv")
    from privfair.datasets.own_files import load_own_silo
    from privfair.datasets.schema_toml import load_schema

    silo = load_own_silo(tmp_path / "north.csv", load_schema(tmp_path / "schema.toml"))
    x = torch.tensor(silo.data.features, dtype=torch.float32)
    expected = run.model.probabilities(run.algorithm.theta(last.state), x)
    np.testing.assert_allclose(np.array(found.probabilities), expected.numpy(), rtol=1e-5)


def test_predictions_are_the_models_and_need_neither_class_nor_attribute(
    finished: Desk, tmp_path: Path
) -> None:
    write_silos(tmp_path, seed=9)
    rows = (tmp_path / "north.csv").read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(",".join(row.split(",")[:3]) for row in rows) + "\n")
    found = privfair.predict(finished.folder / "run", tmp_path / "new.csv")
    weights = theta(finished.folder / "run")
    for place, row in enumerate(rows[1:20]):
        age, income, job = row.split(",")[:3]
        x = [
            (float(age) - 18) / 80,
            (float(income) - 10) / 2,
            *(job == name for name in ("clerk", "nurse", "other")),
        ]
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

    from privfair.cli.train import command

    flags = {option.opts[0].lstrip("-") for option in command.params}
    arguments = set(inspect.signature(privfair.train).parameters)
    assert arguments - {"progress"} == flags - {"json", "quiet"}
