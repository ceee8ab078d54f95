"""Anyone's training function under audit: what is refuted, what is not, what is refused, and that nothing is lost."""

from __future__ import annotations

import functools
import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import privfair as pf
from audit.coins.training_audit import audit_training
from audit.coins.training_canaries import TrainingCanaries, TrainingCanaryKind, training_data
from audit.coins.training_signals import Access, Watch
from calibrate.errors import InvalidInput
from privfair.cli import cli
from tests.audit import strangers_training as strangers
from tests.end_to_end.command_line import privfair

CENSUS = strangers.census()


def test_the_noise_of_the_honest_loop_is_enough_for_epsilon_one() -> None:
    needed = pf.sigma(epsilon=1, delta=1e-5, sampling_rate=strangers.RATE, rounds=strangers.STEPS)
    assert needed <= strangers.SIGMA_OF_ONE < needed + 0.02


@pytest.mark.parametrize("access", ["gradients", "iterates"])
def test_too_little_noise_is_refuted_from_the_steps(access: str) -> None:
    report = pf.audit_training(strangers.no_noise_to_speak_of, CENSUS, epsilon=1.0, access=access, runs=24)
    assert report.verdict.value == "violated"
    assert report.epsilon_lower is not None
    assert report.epsilon_lower > 1


def test_clipping_the_mean_is_refuted_from_gradients() -> None:
    loop = strangers.LogisticLoop(wrong="the mean is clipped")
    assert audit_training(loop, CENSUS, epsilon=1.0, access="gradients", runs=16).verdict.value == "violated"


def test_a_model_without_privacy_is_refuted_from_the_model_alone() -> None:
    with ThreadPoolExecutor(1) as pool:
        report = audit_training(strangers.scikit_learn, CENSUS, runs=12, executor=pool)
    assert report.verdict.value == "leaks"
    assert report.epsilon_lower is not None
    assert report.epsilon_lower > 1


def test_a_training_that_seeds_itself_is_told_so() -> None:
    def seeded(data: Any, watch: Any) -> Any:
        np.random.seed(0)
        return strangers.honest(data, watch)

    asked = {"epsilon": 1.0, "access": "gradients", "runs": 8}
    report = audit_training(seeded, CENSUS, control=strangers.without_noise, **asked)
    assert report.verdict.value in ("inconclusive", "violated")
    assert "seeds its noise itself" in report.why
    assert "seeds" not in audit_training(strangers.honest, CENSUS, **asked).why
    assert "seeds" not in audit_training(strangers.silent, CENSUS, epsilon=1.0, runs=2).why, "it learns nothing"


def test_an_honest_loop_is_consistent_only_with_a_control() -> None:
    asked = {"epsilon": 1.0, "access": "gradients", "runs": 20}
    undecided = audit_training(strangers.honest, CENSUS, **asked)
    assert undecided.verdict.value == "inconclusive"
    assert undecided.why.endswith("Next: name a control, the same training without noise")
    report = audit_training(strangers.honest, CENSUS, control=strangers.without_noise, **asked)
    assert report.verdict.value == "consistent"
    assert report.attacks[0].power > 0.5
    assert report.attacks[0].right_without_noise is not None
    assert "slightly too little noise might not" in report.why


def test_a_control_that_learns_nothing_gives_no_power() -> None:
    report = audit_training(strangers.silent, CENSUS, epsilon=1.0, runs=8, control=strangers.silent)
    assert report.verdict.value == "inconclusive"
    assert report.attacks[0].power < 0.5


def test_one_run_is_enough_for_a_bound() -> None:
    loop = strangers.LogisticLoop(0.0, wrong="the mean is clipped")
    report = audit_training(loop, CENSUS, access="gradients", runs=1, canaries=60)
    assert "60 coins" in report.attacks[0].evidence


def test_people_share_one_coin() -> None:
    pd = pytest.importorskip("pandas")
    x, y = strangers.census(300)
    frame = pd.DataFrame(x[:, :8], columns=[f"c{i}" for i in range(8)])
    frame["text"] = np.where(np.arange(300) % 7 == 0, "seldom", "often")
    frame["label"], frame["person"] = y, np.arange(300) // 3
    data = training_data(frame, "label", "person")
    canaries = TrainingCanaries.take(data, 20, "person", 3)
    assert len(canaries.records) == 60
    coins = canaries.coins(0, 3)
    used = canaries.dataset(coins, 0, 3).given
    people = used[used["person"].isin(canaries.records.given["person"])]
    assert people.groupby("person").size().eq(3).all()
    assert len(used) == 240 + 3 * coins.sum()
    rare = [kind is TrainingCanaryKind.RARE for kind in canaries.kinds]
    marks = canaries.records.given[np.array(rare)[canaries.unit_of_record]]
    assert set(marks["text"]) == {"seldom"}
    assert np.linalg.norm(marks[[f"c{i}" for i in range(8)]], axis=1).min() > 5


def test_mislabelled_canaries_have_another_label_and_quantities_the_far_end() -> None:
    x, y = CENSUS
    canaries = TrainingCanaries.take(training_data((x, y)), 40, None, 0)
    assert set(canaries.kinds) == set(TrainingCanaryKind)
    amounts = np.linspace(0.0, 1.0, len(y))
    wrong = TrainingCanaries.take(training_data((x, amounts)), 40, None, 0)
    marked = np.array([kind is TrainingCanaryKind.MISLABELLED for kind in wrong.kinds])[wrong.unit_of_record]
    assert set(wrong.records.labels[marked]) <= {wrong.rest.labels.min(), wrong.rest.labels.max()}


class Interrupted(Exception):
    pass


def test_an_interrupted_audit_goes_on_where_it_stopped(tmp_path: Path) -> None:
    done: list[int] = []

    def stop(finished: int, total: int) -> None:
        done.append(finished)
        if finished == 5:
            raise Interrupted

    asked: dict[str, Any] = {"epsilon": 1.0, "access": "gradients", "runs": 10, "folder": tmp_path}
    with pytest.raises(Interrupted):
        audit_training(strangers.honest, CENSUS, progress=stop, **asked)
    assert len(list((tmp_path / "runs").glob("run-*.npz"))) == 5
    done.clear()
    report = audit_training(strangers.honest, CENSUS, progress=lambda finished, total: done.append(finished), **asked)
    assert done == [6, 7, 8, 9, 10]
    assert report == audit_training(strangers.honest, CENSUS, **{**asked, "folder": None})
    with pytest.raises(InvalidInput, match="another function"):
        audit_training(strangers.honest, CENSUS, **{**asked, "seed": 1})


def test_a_budget_in_seconds_limits_the_runs_and_does_not_count_the_timed_one() -> None:
    report = audit_training(strangers.silent, CENSUS, epsilon=1.0, runs=3, canaries=20, budget_seconds=600)
    assert "40 coins" in report.attacks[0].evidence
    short = audit_training(strangers.silent, CENSUS, epsilon=1.0, runs=3, canaries=20, budget_seconds=1e-9)
    assert "20 coins" in short.attacks[0].evidence


def test_any_executor_gives_the_same_answer() -> None:
    loop = functools.partial(strangers.scikit_learn)
    alone = audit_training(loop, CENSUS, runs=4, canaries=20)
    with ThreadPoolExecutor(1) as threads:
        assert audit_training(loop, CENSUS, runs=4, canaries=20, executor=threads) == alone
    with ProcessPoolExecutor(2) as processes:
        assert audit_training(loop, CENSUS, runs=4, canaries=20, executor=processes) == alone


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"access": "gradients"}, "never called watch"),
        ({"canaries": 1499}, "half of the 1500 units"),
        ({"unit": "person"}, "these data are arrays"),
        ({"runs": 0}, "runs"),
        ({"budget_seconds": -1.0}, "budget"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"score": lambda model, records: np.zeros(3)}, "one finite number per record"),
    ],
)
def test_what_cannot_be_audited_is_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        audit_training(strangers.silent, CENSUS, **{"runs": 2, "canaries": 10, **change})


def test_the_command_refutes_and_keeps_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    x, y = strangers.census(400)
    pd.DataFrame({**{f"c{i}": x[:, i] for i in range(12)}, "label": y}).to_csv("data.csv", index=False)
    asked = [
        "tests.audit.strangers_training:scikit_learn",
        "--data",
        "data.csv",
        "--label",
        "label",
        "--epsilon",
        "0.1",
    ]
    asked += ["--runs", "10", "--folder", "kept", "--json", "--out", "report.json"]
    done = CliRunner().invoke(cli, ["audit", "training", *asked])
    assert done.exit_code == 1, done.output
    assert json.loads(done.stdout)["verdict"] == "violated"
    assert json.loads(Path("report.json").read_text())["promised"]["epsilon"] == 0.1
    assert len(list(Path("kept/runs").glob("run-*.npz"))) == 10
    shown = CliRunner().invoke(cli, ["audit", "training", *asked[:-3], "--arrays"])
    assert "another function" in str(shown.exception) or shown.exit_code == 2
    missing = CliRunner().invoke(cli, ["audit", "training", "no_such:thing", "--data", "data.csv", "--label", "label"])
    assert "can't be loaded" in str(missing.exception)


def test_a_column_of_numbers_arrives_as_numbers_and_an_own_mistake_is_no_fault_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("data.csv").write_text("a,job,y\n" + "".join(f"{n / 7:.3f},nurse,{n % 2}\n" for n in range(60)))
    Path("own_mistake.py").write_text(
        "def train(data):\n"
        "    assert data['a'].dtype == float and data['y'].dtype == int and data['job'][0] == 'nurse'\n"
        "    raise ValueError('a secret cell')\n"
    )
    asked = ("audit", "training", "own_mistake:train", "--data", "data.csv", "--label", "y", "--runs", 2)
    done = privfair(*asked, "--canaries", 8)
    assert done.code == 2
    assert "raises ValueError in line 3 of " in done.err
    assert "secret" not in done.err
    Path("data.csv").write_text("a secret cell,1\nanother,0\n")
    assert "secret" not in privfair(*asked).err, "in a file without a header line, the names of columns are cells"
    Path("data.csv").write_text("a,y\na secret cell,1\nanother,0\n")
    assert "secret" not in privfair(*asked, "--arrays").err


def test_a_function_that_prints_leaves_the_json_alone_and_an_empty_file_is_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("data.csv").write_text("a,y\n" + "".join(f"{n / 7:.3f},{n % 2}\n" for n in range(60)))
    Path("talkative.py").write_text(
        "print('imported')\n"
        "class Model:\n"
        "    def loss(self, record):\n"
        "        print('asked')\n"
        "        return 0.0\n"
        "def train(data):\n"
        "    print('training')\n"
        "    return Model()\n"
    )
    asked = ("audit", "training", "talkative:train", "--data", "data.csv", "--label", "y", "--runs", 2)
    done = privfair(*asked, "--canaries", 8, "--epsilon", 1, "--json")
    assert done.code == 0, done.err
    assert done.json()["verdict"] == "inconclusive"
    assert all(word in done.err for word in ("imported", "asked", "training"))
    Path("data.csv").write_text("")
    assert "is empty" in privfair(*asked).err


def test_data_of_no_known_kind_are_refused() -> None:
    for data, match in (("text", "pandas table or a pair"), ((CENSUS[0], CENSUS[1][:5]), "one label per record")):
        with pytest.raises(InvalidInput, match=match):
            audit_training(strangers.silent, data)


def test_watch_refuses_gradients_that_do_not_fit() -> None:
    watch = Watch(Access.GRADIENTS, (np.zeros((3, 2)), np.zeros(3)))
    with pytest.raises(InvalidInput, match="rows of 2 numbers"):
        watch.gradient(np.zeros(2), lambda records: np.ones((3, 5)))
    with pytest.raises(InvalidInput, match="one row per record"):
        watch.gradient(np.zeros(2), lambda records: np.ones(3))
    with pytest.raises(InvalidInput, match="finite"):
        watch.gradient(np.full(2, np.nan), lambda records: np.ones((3, 2)))
    with pytest.raises(InvalidInput, match="every parameter"):
        watch.gradient([None], lambda records: np.ones((3, 2)))


def test_of_a_large_model_some_coordinates_are_looked_at() -> None:
    watch = Watch(Access.GRADIENTS, (np.zeros((2, 1)), np.zeros(2)))
    watch.gradient([np.ones(15_000), np.ones(15_000)], lambda records: np.ones((2, 30_000)))
    assert watch.steps[0].shape == (2,)


def test_a_step_is_compared_with_gradients_where_it_began() -> None:
    """Where it ended, the gradients of a net are others: the crowd's would drown every canary."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model, loss = (
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)),
        torch.nn.CrossEntropyLoss(),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    x, y = torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0])
    watch = Watch(Access.GRADIENTS, (x, y))
    for _ in range(2):
        optimizer.zero_grad()
        loss(model(x[:1]), y[:1]).backward()
        norm = float(torch.cat([one.grad.flatten() for one in model.parameters()]).norm())
        optimizer.step()
        watch.step(model, loss)
    assert len(watch.steps) == 1
    assert watch.steps[0][0] == pytest.approx(norm, rel=1e-5)


def test_what_the_crowd_does_counts_less() -> None:
    crowd = np.eye(4)[[0, 0, 0, 1]]
    watch = Watch(Access.GRADIENTS, "canaries", "crowd")
    own = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    watch.gradient(np.ones(4), lambda records: crowd if records == "crowd" else own)
    assert watch.steps[0] == pytest.approx([0.5**0.5, 1.0], rel=0.01)


def test_a_torch_module_is_watched_by_one_line() -> None:
    torch = pytest.importorskip("torch")

    def train(data: Any, watch: Any) -> Any:
        x, y = torch.as_tensor(data[0], dtype=torch.float32), torch.as_tensor(data[1])  # the data are double
        model, loss = torch.nn.Linear(x.shape[1], 2), torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(5):
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            watch.step(model, loss)
        return model

    x, y = strangers.census(300)
    for access in (Access.ITERATES, Access.GRADIENTS):
        report = audit_training(train, (x.astype(np.float64), y), epsilon=1.0, access=access, runs=8)
        assert report.verdict.value == "violated", access


OPACUS = pytest.mark.skipif(not __import__("importlib.util").util.find_spec("opacus"), reason="needs opacus")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@OPACUS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("hidden", [0, 8], ids=["logistic", "perceptron"])
def test_opacus_with_a_third_of_the_noise_or_a_clipped_mean_is_refuted(hidden: int) -> None:
    sigma = pf.sigma(epsilon=1, delta=1e-5, sampling_rate=0.05, rounds=20)
    x, y = strangers.census(2000)
    asked: dict[str, Any] = {"epsilon": 1.0, "access": "gradients"}
    third = functools.partial(strangers.opacus_loop, hidden=hidden, noise=sigma / 3, rate=0.05)
    assert audit_training(third, (x, y), runs=60, **asked).verdict.value == "violated"
    mean = functools.partial(strangers.opacus_loop, hidden=hidden, noise=sigma, clip_mean=True, rate=0.05)
    assert audit_training(mean, (x, y), runs=16, **asked).verdict.value == "violated"


@pytest.mark.slow
@pytest.mark.timeout(1800)
@OPACUS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_honest_opacus_loops_are_not_refuted(epsilon: float) -> None:
    sigma = pf.sigma(epsilon=epsilon, delta=1e-5, sampling_rate=0.05, rounds=20)
    honest = functools.partial(strangers.opacus_loop, noise=sigma, rate=0.05)
    for seed in range(3):
        report = audit_training(honest, strangers.census(1000), epsilon=epsilon, access="gradients", runs=16, seed=seed)
        assert report.verdict.value in ("consistent", "inconclusive")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@OPACUS
@pytest.mark.filterwarnings("ignore")
def test_the_tutorial_says_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs/tutorials/audit-opacus.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "tutorial"}
    for block in page.split("```python\n")[1:]:
        exec(compile(block.split("```")[0], "audit-opacus.md", "exec"), names)
    assert names["honest"].verdict.value == "consistent"
    assert names["found"].verdict.value == "violated"
