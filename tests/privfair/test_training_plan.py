"""Plan files: every key typed, every mistake named with its remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibrate.errors import InvalidInput
from calibrate.sampling import FixedSize, Poisson, ShuffledEpochs, WithReplacement
from privfair.algorithms.baselines.averaging import FedAvgOptions
from privfair.algorithms.baselines.central_erm import CentralErmOptions
from privfair.algorithms.recipe import MIN_MAX, unpromised_parameters
from privfair.algorithms.registry import methods_of, recipe_named
from privfair.models.linear import LogisticRegression
from privfair.models.model import Activation
from privfair.models.perceptron import Perceptron
from privfair.plan.data import (
    Benchmark,
    BenchmarkSource,
    ByColumn,
    DirichletByLabel,
    EqualAtRandom,
    FileSource,
    Heterogeneous,
    PoissonUsers,
    Pooled,
    UsersOfColumn,
)
from privfair.plan.model import ModelKind, build_model, read_model_plan
from privfair.plan.plan import Plan
from privfair.plan.sections import GradientOptions, key_names, read_section
from privfair.plan.training import TrainingOptions, TrainingPlan, read_training_plan, training_plan

DATA = '[data]\ndataset = "credit-card"\n'
TRAINING = "[training]\nrounds = 10\n"


def plan(tmp_path: Path, text: str) -> TrainingPlan:
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    return read_training_plan(tmp_path / "plan.toml")


def fedsgd(tmp_path: Path, data: str = DATA, training: str = TRAINING) -> TrainingPlan:
    return plan(tmp_path, f'algorithm = "fedsgd"\n{data}{training}')


def test_a_whole_plan(tmp_path: Path) -> None:
    found = fedsgd(
        tmp_path,
        DATA + 'test-fraction = 0.5\nseed = 3\n[data.partition]\nkind = "heterogeneous"\nsilos = 3\nh = 0.75\n',
        TRAINING + 'learning-rate = 2\nlearning_rate_decay = 0.1\nbatch-size = 64\npositive = "defaults"\n',
    )
    assert found.data.source == BenchmarkSource(Benchmark.CREDIT_CARD)
    assert found.data.partition == Heterogeneous(3, "AGE", 0.75), "the benchmark's own age column"
    assert (found.data.test_fraction, found.data.seed) == (0.5, 3)
    assert found.own == GradientOptions(2.0, 0.1)
    assert found.training.positive == "defaults"
    assert found.planned_rounds == 10
    assert found.model.kind is ModelKind.LOGISTIC


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ('kind = "equal"\nsilos = 4', EqualAtRandom(4)),
        ('kind = "heterogeneous"\nsilos = 2\nh = 1\ncolumn = "LIMIT"', Heterogeneous(2, "LIMIT", 1.0)),
        ('kind = "dirichlet"\nsilos = 3\nbeta = 0.5\nleast = 10', DirichletByLabel(3, 0.5, 10)),
        ('kind = "by-column"\ncolumn = "AGE"\nleast = 5', ByColumn("AGE", 5)),
        ('kind = "pooled"', Pooled()),
    ],
)
def test_partitions(tmp_path: Path, table: str, expected: Any) -> None:
    assert fedsgd(tmp_path, f"{DATA}[data.partition]\n{table}\n").data.partition == expected


def test_users_and_files(tmp_path: Path) -> None:
    own = '[data]\nfiles = ["a.csv", "b.csv"]\nschema = "s.toml"\n'
    found = fedsgd(tmp_path, own + '[data.users]\nkind = "poisson"\nmean = 3\n').data
    assert found.users == PoissonUsers(3.0)
    assert found.source == FileSource((tmp_path / "a.csv", tmp_path / "b.csv"), tmp_path / "s.toml")
    column = fedsgd(tmp_path, own + '[data.users]\nkind = "column"\ncolumn = "who"\n').data
    assert column.users == UsersOfColumn("who")


@pytest.mark.parametrize(
    ("data", "training", "words"),
    [
        (DATA, "[training]\nrounds = 10\nlearning-rat = 1\n", r"\[training\] learning-rat.*did you mean learning-rate"),
        (DATA, "[training]\nrounds = 10\nlocal-epochs = 1\n", "local-epochs.*is not known"),
        (DATA + "datset = 1\n", TRAINING, r"\[data\] datset.*did you mean dataset"),
        ('[data]\ndataset = "credit-cart"\n', TRAINING, "did you mean credit-card"),
        ("", TRAINING, r"\[data\].*is needed to train"),
        (DATA, "", r"\[training\].*is needed to train"),
        ("[data]\nseed = 1\n", TRAINING, "either a dataset or files"),
        (DATA + 'files = ["a.csv"]\nschema = "s"\n', TRAINING, "either a dataset or files"),
        ('[data]\nfiles = ["a.csv"]\n', TRAINING, r"\[data\] schema.*is needed"),
        ('[data]\nfiles = []\nschema = "s"\n', TRAINING, "files.*must not be empty"),
        ('[data]\nfiles = "a.csv"\nschema = "s"\n', TRAINING, "must be a list"),
        (DATA + "test-fraction = 1.5\n", TRAINING, "test-fraction"),
        (DATA + "partition = 3\n", TRAINING, r"write \[data.partition\]"),
        (DATA + '[data.partition]\nkind = "equl"\nsilos = 2\n', TRAINING, "did you mean equal"),
        (DATA + "[data.partition]\nsilos = 2\n", TRAINING, r"\[data.partition\] kind.*is needed"),
        (DATA + '[data.partition]\nkind = "equal"\nsilos = 2\nh = 1\n', TRAINING, r"\[data.partition\] h"),
        (DATA + '[data.partition]\nkind = "equal"\nsilos = 2\n[data.users]\nkind = "poisson"\n', TRAINING, "excludes"),
        (DATA, "[training]\nrounds = 1.5\n", "must be a whole number"),
        (DATA, "[training]\nrounds = true\n", "must be a whole number"),
        (DATA, "[training]\nrounds = 0\n", "rounds"),
        (DATA, '[training]\nrounds = 5\nlearning-rate = "fast"\n', "must be a number"),
        (DATA, "[training]\nrounds = 5\nlearning-rate = 0\n", "learning-rate"),
        (DATA, "[training]\nrounds = 5\nsigned-rounds = 4\n", "signed-rounds"),
        (DATA, '[training]\nrounds = 5\nsampling = "sorted"\n', "is not one of the choices"),
        (DATA, "[training]\nrounds = 5\nseed = -1\n", "seed"),
        (DATA, "[training]\nrounds = 5\nlearning-rate = 1\nlearning_rate = 2\n", "given twice"),
        ("[privacy]\nrounds = 4\n" + DATA, TRAINING, r"\[privacy\].*has no meaning for fedsgd"),
        (DATA, '[training]\nrounds = 5\nmodel = "logstic"\n', "did you mean logistic"),
        (DATA, "[training]\nrounds = 5\nmodel = 3\n", "must be a name or a table"),
        (DATA, '[training]\nrounds = 5\n[training.model]\nkind = "logistic"\nhidden = [3]\n', "has no meaning for"),
        (DATA, '[training]\nrounds = 5\n[training.model]\nkind = "module"\nfile = "../n.py"\n', "own folder"),
        (DATA, '[training]\nrounds = 5\n[training.model]\nkind = "module"\nfolder = "x"\n', "folder.*is not known"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, data: str, training: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        fedsgd(tmp_path, data, training)


def test_an_unknown_algorithm_gets_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"did you mean fedavg\?"):
        plan(tmp_path, f'algorithm = "fedavgg"\n{DATA}{TRAINING}')


def test_each_recipe_knows_its_options_without_being_built() -> None:
    assert recipe_named("fedavg").options is FedAvgOptions
    assert recipe_named("central-erm").options is CentralErmOptions
    assert recipe_named("central-erm").central
    assert not recipe_named("steffle").baseline


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ("", None),
        ("batch-size = 5\n", ShuffledEpochs(20, 5)),
        ('sampling = "full"\n', None),
        ('batch-size = 5\nsampling = "poisson"\n', "poisson"),
        ('batch-size = 5\nsampling = "fixed"\n', "fixed"),
        ('batch-size = 5\nsampling = "with-replacement"\n', "with-replacement"),
    ],
)
def test_batches_without_a_promise(tmp_path: Path, training: str, expected: Any) -> None:
    found = fedsgd(tmp_path, DATA, TRAINING + training).unpromised_sampling(None, 20)
    kinds = {"poisson": Poisson, "fixed": FixedSize, "with-replacement": WithReplacement}
    if isinstance(expected, str):
        assert isinstance(found, kinds[expected])
    else:
        assert found == expected


def test_a_batch_larger_than_the_smallest_silo_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="at most the smallest silo's 20"):
        fedsgd(tmp_path, DATA, TRAINING + "batch-size = 21\n").unpromised_sampling(None, 20)


def test_a_plan_without_a_promise_keeps_the_batches_of_its_private_twin(tmp_path: Path) -> None:
    privacy = "[privacy]\nbatch-size = 4\nrounds = 9\n"
    found = plan(tmp_path, f'algorithm = "steffle"\n{privacy}{DATA}[training]\nfairness = 1\n')
    parameters = unpromised_parameters("steffle", found.file.privacy, 9)
    assert found.unpromised_sampling(parameters, 20) == ShuffledEpochs(20, 4)
    assert found.planned_rounds == 9
    assert found.updates(9) == 9


def test_more_updates_than_signed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="exceeds the 9 signed rounds"):
        fedsgd(tmp_path).updates(9)


def test_under_a_promise_the_manifest_decides_about_batches(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        f'algorithm = "gaussian"\n[privacy]\nsampling-rate = 0.1\nrounds = 5\n{DATA}[training]\nbatch-size = 3\n',
    )
    with pytest.raises(InvalidInput, match="a manifest with a promise decides it"):
        found.refuse_unpromised_keys()


def test_models(tmp_path: Path) -> None:
    assert isinstance(build_model(read_model_plan("logistic"), (7,), 2), LogisticRegression)
    net = read_model_plan({"kind": "perceptron", "hidden": [8, 4], "activation": "tanh"})
    assert build_model(net, (7,), 3) == Perceptron(7, (8, 4), 3, Activation.TANH)
    cnn = build_model(read_model_plan({"kind": "cnn"}), (1, 28, 28), 10)
    assert cnn.classes == 10
    with pytest.raises(InvalidInput, match="needs images"):
        build_model(read_model_plan("cnn"), (7,), 2)


def test_a_users_own_module(tmp_path: Path) -> None:
    import hashlib

    net = "nn.Sequential(nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 2))"
    code = f"from torch import nn\n\ndef build():\n    return {net}\n"
    (tmp_path / "net.py").write_text(code, encoding="utf-8")
    digest = hashlib.sha256(code.encode()).hexdigest()
    model = build_model(read_model_plan({"kind": "module", "file": "net.py", "sha256": digest}, tmp_path), (7,), 2)
    assert model.size == 7 * 3 + 3 + 3 * 2 + 2
    for table, words in (
        ({"file": "net.py", "sha256": "0" * 64}, "is not the digest"),
        ({"file": "net.py", "function": "other"}, "is not defined"),
        ({"file": "none.py"}, "cannot be read"),
    ):
        with pytest.raises(InvalidInput, match=words):
            build_model(read_model_plan({"kind": "module"} | table, tmp_path), (7,), 2)
    with pytest.raises(InvalidInput, match="one score for each of 3 classes"):
        build_model(read_model_plan({"kind": "module", "file": "net.py"}, tmp_path), (7,), 3)


@pytest.mark.parametrize("bits", [7, 13, "largest"])
def test_bits_of_the_products_are_a_key(tmp_path: Path, bits: int | str) -> None:
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(7, 2)\n", "utf-8")
    for table in ({"kind": "perceptron"}, {"kind": "module", "file": "net.py"}):
        plan = read_model_plan(table | {"bits": bits}, tmp_path)
        assert plan.bits.value == bits
        assert read_model_plan(table, tmp_path).bits.value == 13
        assert build_model(plan, (7,), 2).classes == 2


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"kind": "perceptron", "bits": 8}, "bits"),
        ({"kind": "logistic", "bits": 7}, "has no meaning for logistic"),
        ({"kind": "cnn", "isolation": "alone"}, "has no meaning for cnn"),
        ({"kind": "module", "file": "net.py", "isolation": "maybe"}, "isolation"),
        ({"kind": "module", "file": "net.py", "isolation": "alone", "bits": 7}, "has no meaning for isolation"),
    ],
)
def test_bits_and_isolation_are_refused_where_they_mean_nothing(tmp_path: Path, table: dict, words: str) -> None:
    (tmp_path / "net.py").write_text("", encoding="utf-8")
    with pytest.raises(InvalidInput, match=words):
        read_model_plan(table, tmp_path)


def test_a_module_that_is_not_covered_is_run_alone(tmp_path: Path) -> None:
    code = "from torch import nn\n\ndef build():\n    return nn.Sequential(nn.Softplus(), nn.Linear(7, 2))\n"
    (tmp_path / "net.py").write_text(code, encoding="utf-8")
    table = {"kind": "module", "file": "net.py"}
    with pytest.raises(InvalidInput, match=r'0: Softplus.*isolation = "alone"'):
        build_model(read_model_plan(table, tmp_path), (7,), 2)
    assert build_model(read_model_plan(table | {"isolation": "alone"}, tmp_path), (7,), 2).size == 16


@pytest.mark.parametrize(("signed", "block"), [(1, 1), (40, 1), (400, 12), (1172, 32), (10**6, 32)])
def test_a_crash_costs_a_small_part_of_the_rounds(tmp_path: Path, signed: int, block: int) -> None:
    assert fedsgd(tmp_path).block(signed) == block
    assert fedsgd(tmp_path, DATA, TRAINING + "block = 5\n").block(signed) == 5


@pytest.mark.parametrize("text", ["x = " + "[" * 5000 + "]" * 5000, f"x = {'9' * 5000}", "x = \x00"])
def test_a_plan_that_chokes_the_parser_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match="fix the file"):
        read_training_plan(path)


def test_long_runs_are_measured_about_a_hundred_times_and_short_ones_at_every_step() -> None:
    """A measurement of a large network costs more than a round of its training."""
    for updates, lines in ((1, 1), (60, 60), (763, 109), (765, 110), (20_000, 100)):
        assert sum(TrainingOptions().measures(step, updates) for step in range(1, updates + 1)) == lines
    assert [step for step in range(1, 11) if TrainingOptions(measure_every=4).measures(step, 10)] == [4, 8, 10]
    with pytest.raises(InvalidInput, match="measure-every"):
        TrainingOptions(measure_every=0)
    with pytest.raises(InvalidInput, match="measure-every"):
        read_section(TrainingOptions, "training", {"measure-every": "often"})
    assert read_section(TrainingOptions, "training", {"measure-every": "auto"}) == TrainingOptions()


@pytest.mark.parametrize("algorithm", ["gaussian", "fedfdp", "fpfl"])
def test_a_key_of_another_method_is_refused(algorithm: str) -> None:
    """Every key of every method, under every method that does not use it."""
    methods = {name: recipe_named(algorithm, name).options for name in methods_of(algorithm) if name != MIN_MAX}
    refused = 0
    for method, options in methods.items():
        for other, theirs in methods.items():
            for key in set(key_names(theirs)) - set(key_names(options)):
                training = {"rounds": 4, "method": method, key: 1}
                file = Plan(algorithm, {}, {}, {"dataset": "credit-card"}, training)
                with pytest.raises(InvalidInput, match=f"{key} = 1: is not used by method = '{method}'.*'{other}'"):
                    training_plan(file)
                refused += 1
    assert refused >= 4


def test_a_min_max_loss_takes_its_own_keys_alone() -> None:
    loss = {"code": "loss.py", "loss": "loss", "w-size": 1}
    for key in ("momentum", "cosine", "iterate", "class-weight", "method"):
        file = Plan("gaussian", {}, {}, {"dataset": "credit-card"}, {"min-max": loss, key: 1})
        with pytest.raises(InvalidInput, match=key):
            training_plan(file)


def test_a_misspelt_method_is_refused_with_the_nearest() -> None:
    file = Plan("gaussian", {}, {}, {"dataset": "credit-card"}, {"method": "fedprx"})
    with pytest.raises(InvalidInput, match="did you mean fedprox"):
        training_plan(file)
