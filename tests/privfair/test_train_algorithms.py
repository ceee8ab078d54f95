"""Each algorithm does what it is called, through a whole run: by hand, by oracles, and by its transcript."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression as Oracle

from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.sampling import TruncatedPoisson
from privfair.batches.participation import BatchRecord
from privfair.models.model import clipped_to
from privfair.run.folder import RunFolder
from privfair.run.record import read_sessions
from privfair.run.replay import replay
from privfair.training import prepare
from privfair.transcript import Transcript
from tests.privfair.plain_models import ROUNDED
from tests.privfair.small_runs import FEDSGD, FPFL, GAUSSIAN, Desk, steffle_plan

STEFFLE = steffle_plan(30, "learning-rate = 0.5", epsilon=8.0, batch=40, minority=0.4)
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


def theta(folder: Path) -> np.ndarray:
    document = json.loads((folder / "model.json").read_text())
    return np.array([*document["weights"]["yes"], document["intercepts"]["yes"]])


@pytest.mark.parametrize("method", ["fedsgd", "fedprox"])
def test_batches_of_one_shape_are_trained_on_and_change_nothing_but_the_shape(method: str, tmp_path: Path) -> None:
    """A truncated plan calibrates, signs and trains; blank rows add nothing to a sum, also where nobody was drawn."""
    plan = GAUSSIAN.format(rate=0.1, rounds=3, more=f'method = "{method}"')
    cut = 'sampling = "truncated-poisson"\nbatch-limit = 60\nmost-units = 250\nclip = 1.0'
    desk = Desk.at(tmp_path, plan.replace("clip = 1.0", cut))
    budget = desk.budget()
    prepared = prepare(desk.plan, budget, desk.trust)
    assert prepared.sampling == TruncatedPoisson(0.1, 250, 60)
    algorithm, silo = prepared.algorithm, prepared.silos[0]
    state = algorithm.start()
    for batch in (torch.arange(7), torch.arange(60), torch.arange(0)):
        (part,) = algorithm.contribution(state, 0, silo, batch).noisy
        theta = algorithm.theta(state)
        plain = prepared.model.weighted_gradient(theta, silo.x[batch], silo.y[batch], clipped_to(1.0))
        assert np.allclose(part.values, plain.total.numpy(), atol=1e-12)
        assert part.measured == pytest.approx(plain.largest_part if len(batch) else 0.0)
    desk.train(budget)


def test_a_silo_above_the_signed_number_of_units_is_refused_before_the_budget_is_claimed(tmp_path: Path) -> None:
    cut = 'sampling = "truncated-poisson"\nbatch-limit = 60\nmost-units = 110\nclip = 1.0'
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.1, rounds=3, more="").replace("clip = 1.0", cut))
    budget = desk.budget()
    with pytest.raises(InvalidInput, match="are more than the 110 that cutting batches was priced for"):
        prepare(desk.plan, budget, desk.trust)


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
    np.testing.assert_allclose(theta(tmp_path / "run"), by_hand.detach().numpy(), **ROUNDED)


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
    np.testing.assert_allclose(theta(tmp_path / "run"), expected, **ROUNDED)


def test_central_erm_is_the_minimiser(tmp_path: Path) -> None:
    plan = FEDSGD.replace('"fedsgd"', '"central-erm"').replace("batch-size = 32\nlearning-rate = 1.0", "l2 = 0.01")
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


@pytest.mark.slow
def test_baselines_are_reproducible_and_private_runs_are_not(tmp_path: Path) -> None:
    models: dict[str, list[Any]] = {"fedsgd": [], "gaussian": []}
    plans = {"fedsgd": FEDSGD.format(rounds=4, more=""), "gaussian": GAUSSIAN.format(rate=0.5, rounds=4, more="")}
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
    assert result.summary["data"]["silos"] == {"users": 200}
    assert result.summary["promise"]["unit"] == "user"
    assert set(result.summary["metrics"]["silos"]) == {"north", "south", "west"}
