"""FedFDP, FPFL and MMD-fair FedAvg from a plan through a signed budget to a trained model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput, Refused, UnsupportedCombination
from calibrate.manifest.mechanism import GaussianNoise
from privfair.algorithms.fedfdp import FedFdp
from privfair.contribution import BoundedContribution, Published
from privfair.gate import Gate
from privfair.ledger import Ledger
from privfair.run.public import Progress
from privfair.run.record import read_sessions
from privfair.run.replay import replay
from privfair.training import RunStopped, prepare
from privfair.transcript import Transcript
from tests.privfair.small_runs import Desk

DATA = """
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
at-least = 100
"""
TARGET = "\n[target]\nepsilon = 8.0\ndelta = 1e-5\n"

FEDFDP = """
[privacy]
sampling-rate = 0.2
rounds = {rounds}
clip = 1.0
loss-clip = 2.0
loss-noise-ratio = 2.5
"""
FPFL = """
[privacy]
users = 200
cohort = 40
rounds = {rounds}
clip = 3.0
sampling = "{sampling}"
"""
USERS = """
[data.users]
kind = "poisson"
users = 200
"""
MMD = """
[privacy]
group-size = 50
samples-per-group = 20
rounds = {rounds}
mechanism = "{mechanism}"
users = 3
cohort = 2
update-clip = 0.5
histogram-noise-ratio = 4.0
"""


def _plan(algorithm: str, privacy: str, training: str, target: bool = True, users: bool = False) -> str:
    # Sections after the algorithm's name, in any order.
    return (
        f'algorithm = "{algorithm}"\n'
        + (TARGET if target else "")
        + privacy
        + DATA
        + (USERS if users else "")
        + "\n[training]\n"
        + training
    )


GAUSSIAN = """
[privacy]
sampling-rate = 0.2
rounds = 12
clip = 1.0
"""

OPTIMAL = """fairness = "optimal"
smoothness = 1.0
strong-convexity = 0.1
heterogeneity = 2.0
start-distance = 4.0
loss-excess = [0.4, 0.4]
"""

WEIGHTED = """notion = "none"
group-weight = [[1.0, 1.0], [1.3, 1.0]]
momentum = 0.9
cosine = true
choice = "tail-average"
"""

PLANS = {
    "fedprox, private": _plan("gaussian", GAUSSIAN, 'method = "fedprox"\nlocal-steps = 3\n'),
    "scaffold, private": _plan("gaussian", GAUSSIAN, 'method = "scaffold"\nlocal-steps = 3\n'),
    "feddyn, private": _plan("gaussian", GAUSSIAN, 'method = "feddyn"\nlocal-steps = 3\n'),
    "q-ffl, private": _plan("fedfdp", FEDFDP.format(rounds=12), 'method = "q-ffl"\nexponent = 0.5\n'),
    "agnostic-fl, private": _plan("fedfdp", FEDFDP.format(rounds=12), 'method = "agnostic-fl"\n'),
    "fedfdp": _plan("fedfdp", FEDFDP.format(rounds=12), "fairness = 0.5\nlocal-steps = 2\n"),
    "fedfdp, lambda*": _plan("fedfdp", FEDFDP.format(rounds=12), OPTIMAL),
    "tran, private": _plan(
        "fpfl", FPFL.format(rounds=12, sampling="poisson"), 'method = "tran"\nnotion = "accuracy"\n', users=True
    ),
    "fpfl, fixed": _plan("fpfl", FPFL.format(rounds=12, sampling="fixed"), 'choice = "best-published"\n', users=True),
    "fpfl, poisson": _plan(
        "fpfl", FPFL.format(rounds=12, sampling="poisson"), 'notion = "equalised-odds"\n', users=True
    ),
    "fpfl, everybody weighted": _plan(
        "fpfl", FPFL.format(rounds=12, sampling="poisson").replace("cohort = 40", "cohort = 200"), WEIGHTED, users=True
    ),
    "mmd, gaussian": _plan(
        "mmd-fedavg", MMD.format(rounds=8, mechanism="gaussian"), 'correction = "none"\nkernel-width = 1.0\n'
    ),
    "mmd, energy": _plan(
        "mmd-fedavg", MMD.format(rounds=8, mechanism="gaussian"), 'correction = "none"\nkernel = "energy"\n'
    ),
    "mmd, laplace": _plan("mmd-fedavg", MMD.format(rounds=8, mechanism="laplace"), "kernel-width = 5.0\n"),
    "fedfair": _plan("fedfair", "", "rounds = 10\nlocal-batch = 32\nlearning-rate = 0.5\n", target=False),
    "ffl": _plan(
        "fpfl",
        "\n[privacy]\ncohort = 40\n",
        'rounds = 10\nsampling = "fixed"\nbatch-size = 40\n',
        target=False,
        users=True,
    ),
    "mmd, no privacy": _plan(
        "mmd-fedavg",
        "\n[privacy]\nsamples-per-group = 20\n",
        'rounds = 10\nkernel = "energy"\nscore = "logit"\nlocal-epochs = 2\n',
        target=False,
    ),
}


@pytest.mark.parametrize("name", list(PLANS))
def test_trained_from_a_plan(name: str, tmp_path: Path) -> None:
    """Calibrated, signed, claimed and trained; every declared value is in the transcript as often as signed."""
    desk = Desk.at(tmp_path, PLANS[name])
    result = desk.train(desk.budget())
    summary = result.summary
    assert summary["rounds"]["steps"] == summary["rounds"]["planned_steps"]
    assert result.accuracy is not None
    assert 0.3 < result.accuracy <= 1
    transcript = Transcript.read(result.run / "transcript.bin")
    prepared = prepare(desk.plan, desk.folder / "budget.json", desk.trust)
    assert {spec.name for spec in transcript.header.values} == set(prepared.algorithm.shapes())
    once = {"attribute_histogram"}
    for spec_number, spec in enumerate(transcript.header.values):
        times = sum(key.name == spec_number for key in transcript.keys) / len(transcript.header.parties)
        assert times == (1 if spec.name in once else summary["rounds"]["steps"])


@pytest.mark.usefixtures("installed_experiments")
@pytest.mark.parametrize(
    "name", ["fedprox", "scaffold", "feddyn", "q-ffl", "agnostic-fl", "local-mmd", "fairfed", "fedfb", "tran"]
)
def test_a_baseline_trains_without_a_promise_and_only_so(name: str, tmp_path: Path) -> None:
    by_user = name == "tran"
    training = "rounds = 12\nbatch-size = 40\n" + ('sampling = "fixed"\ncohort = 40\n' if by_user else "")
    desk = Desk.at(tmp_path, _plan(name, "", training, target=False, users=by_user))
    result = desk.train(desk.budget())
    assert result.to_json()["epsilon"] is None
    assert result.accuracy is not None


@pytest.mark.parametrize("name", ["fedfdp", "fpfl, fixed", "mmd, gaussian"])
def test_an_interrupted_run_goes_on(name: str, tmp_path: Path) -> None:
    """Stopped in the middle and resumed: the states follow from the transcript, in both halves."""

    class Stop(Exception):
        pass

    def after_five(progress: Progress) -> None:
        if progress.step == 5:
            raise Stop

    plan = PLANS[name].replace("[training]\n", "[training]\nblock = 3\n")
    desk = Desk.at(tmp_path, plan.replace("rounds = 12", "rounds = 16").replace("rounds = 8", "rounds = 12"))
    budget = desk.budget()
    with pytest.raises(Stop):
        desk.train(budget, progress=after_five)
    result = desk.train(budget, resume=True)
    prepared = prepare(desk.plan, budget, desk.trust)
    transcript = Transcript.read(result.run / "transcript.bin")
    *_, last = replay(prepared.algorithm, transcript, read_sessions(result.run / "sessions.jsonl"))
    assert last.step == result.summary["rounds"]["steps"]
    assert last.step > 5
    assert np.isfinite(prepared.algorithm.theta(last.state).numpy()).all()


def test_a_run_that_stops_between_predictions_and_updates_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predictions that are out stay out: the resumed step answers them and draws none again."""
    desk = Desk.at(tmp_path, PLANS["mmd, gaussian"].replace("[training]\n", "[training]\nblock = 3\n"))
    budget = desk.budget()
    publish, asked = Gate.publish, []

    def fails_once(gate: Gate, party: str, contribution: BoundedContribution) -> Published:
        asked.append(contribution.name)
        if asked.count("client_updates") == 3:
            raise OSError("the disk is full")
        return publish(gate, party, contribution)

    monkeypatch.setattr(Gate, "publish", fails_once)
    with pytest.raises(RunStopped):
        desk.train(budget)
    monkeypatch.setattr(Gate, "publish", publish)
    result = desk.train(budget, resume=True)
    transcript = Transcript.read(result.run / "transcript.bin")
    names = [spec.name for spec in transcript.header.values]
    times = {name: sum(names[key.name] == name for key in transcript.keys) for name in names}
    steps = result.summary["rounds"]["steps"]
    assert times == {
        "predictions_group_0": steps,
        "predictions_group_1": steps,
        "client_updates": steps,
        "attribute_histogram": 1,
    }
    apart = {key.round for key in transcript.keys if names[key.name] == "predictions_group_0"} ^ {
        key.round for key in transcript.keys if names[key.name] == "client_updates"
    }
    assert len(apart) == 2, "the third step's predictions and updates went out in two rounds"


@pytest.mark.parametrize(
    ("training", "error", "says"),
    [
        ("kernel-width = 0.001", InvalidInput, "wider kernel"),
        (
            'correction = "none"\ncriterion = "conditional-parity"\ncondition-feature = 0\ncondition-cut = 5.0\n',
            Refused,
            "fewer records",
        ),
    ],
)
def test_a_private_run_that_cannot_be_private_spends_nothing(
    training: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    plan = _plan("mmd-fedavg", MMD.format(rounds=4, mechanism="gaussian"), training + "\n")
    desk = Desk.at(tmp_path, plan)
    budget = desk.budget()
    with pytest.raises(error, match=says):
        desk.train(budget)
    with Ledger.open(desk.ledger) as ledger:
        assert not ledger.status().manifests


@pytest.mark.parametrize(
    ("privacy", "training", "says"),
    [
        (MMD, 'score = "logit"\n', "probability"),
        (MMD, 'kernel = "energy"\n', "Gaussian kernel"),
        (MMD, 'criterion = "risk-parity"\nscore = "log-loss"\n', "miss"),
        (MMD.replace("users = 3\ncohort = 2\nupdate-clip = 0.5\n", ""), "seed = 0\n", "update-clip"),
    ],
)
def test_no_budget_is_signed_that_no_run_could_use(privacy: str, training: str, says: str, tmp_path: Path) -> None:
    plan = _plan("mmd-fedavg", privacy.format(rounds=4, mechanism="gaussian"), training)
    with pytest.raises(UnsupportedCombination, match=says):
        Desk.at(tmp_path, plan).budget()


def test_counts_that_nobody_paid_for_are_refused(tmp_path: Path) -> None:
    unpaid = MMD.replace("histogram-noise-ratio = 4.0\n", "").format(rounds=4, mechanism="gaussian")
    desk = Desk.at(tmp_path, _plan("mmd-fedavg", unpaid, 'correction = "none"\n'))
    with pytest.raises(UnsupportedCombination, match="histogram-noise-ratio"):
        desk.budget()
    public = _plan("mmd-fedavg", unpaid, 'correction = "none"\ngroup-shares = [0.5, 0.5]\n')
    other = Desk.at(tmp_path / "public", public)
    assert other.train(other.budget()).accuracy is not None


def test_paying_for_statistics_that_nobody_publishes_is_refused(tmp_path: Path) -> None:
    desk = Desk.at(
        tmp_path, _plan("fedfdp", FEDFDP.format(rounds=4) + "normalisation-noise-ratio = 2.0\n", "seed = 0\n")
    )
    with pytest.raises(InvalidInput, match="normalisation-noise-ratio"):
        desk.budget()


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ("group-weight = [[1.0, 1.3]]\n", "for each of the 2 classes"),
        ("group-weight = [[1.0, 1.0], [-1.3, 1.0]]\n", "group-weight"),
        ('group-weight = "counts"\n', "group-weight"),
        (
            'method = "tran"\nnotion = "accuracy"\ngroup-weight = [[1.0, 1.0], [1.3, 1.0]]\n',
            "is not used by method = 'tran'",
        ),
        ('method = "tran"\nnotion = "accuracy"\nmomentum = 0.5\n', "or write method = 'fpfl'"),
    ],
)
def test_weights_of_groups_that_cannot_be_used_are_refused_before_signing(
    training: str, says: str, tmp_path: Path
) -> None:
    """Weights are numbers of the plan, one per class and group; there is no way to have them counted."""
    desk = Desk.at(tmp_path, _plan("fpfl", FPFL.format(rounds=4, sampling="poisson"), training, users=True))
    with pytest.raises(InvalidInput, match=says):
        desk.budget()


@pytest.mark.parametrize(
    ("algorithm", "privacy", "training"),
    [
        ("tran", "", "rounds = 3\n"),
        ("tran", "", 'rounds = 3\nbatch-size = 20\nsampling = "fixed"\ncohort = 20\n'),
        ("fpfl", "\n[privacy]\ncohort = 20\n", "rounds = 3\n"),
        ("fpfl", "\n[privacy]\ncohort = 20\nclip = 1.0\n", 'rounds = 3\nbatch-size = 20\nsampling = "poisson"\n'),
    ],
)
def test_users_of_several_silos_are_added_up_where_nothing_is_promised(
    tmp_path: Path, algorithm: str, privacy: str, training: str
) -> None:
    desk = Desk.at(tmp_path, _plan(algorithm, privacy, training, target=False))
    result = desk.train(desk.budget())
    assert result.summary["rounds"]["steps"] == 3
    prepared = prepare(desk.plan, desk.folder / "budget.json", desk.trust)
    assert len(prepared.silos) == 3
    expected = 60 if "20" in privacy + training else sum(len(silo) for silo in prepared.silos)
    assert prepared.algorithm.expected_cohort == expected  # type: ignore[union-attr]


def test_lambda_is_the_papers_optimum_for_the_signed_noise(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, PLANS["fedfdp, lambda*"])
    prepared = prepare(desk.plan, desk.budget(), desk.trust)
    algorithm = prepared.algorithm
    assert isinstance(algorithm, FedFdp)
    noise = prepared.manifest.document.release("gradient")
    assert isinstance(noise, GaussianNoise)
    # The bound of Theorem 1 by hand, up to what does not move its minimum: A(x) / (1 + 2 Q_0 x).
    q0, q1, drift, start = 0.4, 0.4, 2 * 1.0 * 2.0, 4.0
    noisy = 2 * (noise.sigma / min(algorithm.expected.values())) ** 2 * algorithm.model.size

    def bound(x: float) -> float:
        squared = q1**3 * x**3 + 6 * q1**2 * x**2 + 9 * q1 * x + 4
        return (squared + drift * (1 + q1 * x) + noisy + start * (1 + 2 * q0 * x)) / (1 + 2 * q0 * x)

    found = algorithm.fairness
    assert found > 0
    assert bound(found) <= min(bound(x) for x in np.linspace(0, 5, 501)) + 1e-9


def test_what_lambda_needs_is_given_with_it_and_only_with_it(tmp_path: Path) -> None:
    missing, needless = OPTIMAL.replace("heterogeneity = 2.0\n", ""), "fairness = 0.5\nsmoothness = 1.0\n"
    for name, training, says in (("a", missing, "heterogeneity"), ("b", needless, "smoothness")):
        desk = Desk.at(tmp_path / name, _plan("fedfdp", FEDFDP.format(rounds=4), training))
        with pytest.raises(InvalidInput, match=says):
            desk.budget()


def _hypothetical(copies: int, users: int) -> str:
    """FPFL on a population in which each of 200 users stands so often."""
    privacy = FPFL.format(rounds=6, sampling="poisson").replace("users = 200", f"users = {users}")
    plan = _plan("fpfl", privacy, 'choice = "best-published"\n', users=True)
    return plan.replace(USERS, f"{USERS}copies = {copies}\n")


@pytest.mark.filterwarnings("ignore::privfair.noise.UnsafeNoiseWarning")
def test_a_hypothetical_population_is_for_research_alone(tmp_path: Path) -> None:
    """A hundred times the users need less noise; one real user is a hundred of them, so nobody is promised anything."""
    desk = Desk.at(tmp_path, _hypothetical(100, 20_000))
    with pytest.raises(UnsupportedCombination, match="hypothetical population"):
        desk.budget()
    manifest = desk.budget(research_noise=True)
    prepared = prepare(desk.plan, manifest, desk.trust)
    (silo,) = prepared.silos
    assert (silo.units, silo.copies) == (20_000, 100)
    result = desk.train(manifest)
    assert result.to_json()["epsilon"] is None
    real = Desk.at(
        tmp_path / "real", _plan("fpfl", FPFL.format(rounds=6, sampling="poisson"), "seed = 0\n", users=True)
    )
    sigmas = [
        prepare(one.plan, one.budget("again.json", research_noise=True), one.trust).manifest.document.release(
            "user_statistics"
        )
        for one in (desk, real)
    ]
    assert sigmas[0].sigma < 0.9 * sigmas[1].sigma  # type: ignore[union-attr]


def test_only_cohorts_of_users_have_a_hypothetical_population(tmp_path: Path) -> None:
    plan = _plan("fair-plugin", '\n[privacy]\nrounds = 9\nprotect = "user"\n', "seed = 0\n", users=True)
    desk = Desk.at(tmp_path, plan.replace(USERS, f"{USERS}copies = 2\n"))
    with pytest.raises(InvalidInput, match="copies"):
        desk.budget()


@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
@pytest.mark.parametrize("users", [20, 201, 20_000])
def test_a_number_of_users_that_is_not_the_datas_is_refused(tmp_path: Path, sampling: str, users: int) -> None:
    privacy = FPFL.format(rounds=12, sampling=sampling).replace("users = 200", f"users = {users}")
    desk = Desk.at(tmp_path, _plan("fpfl", privacy.replace("cohort = 40", "cohort = 10"), "seed = 0\n", users=True))
    with pytest.raises(InvalidInput, match=r"\[privacy\] users"):
        desk.budget()
