"""The engine reads a plan's parameters from the signed manifest, and every default stands in the plan's class alone."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from calibrate.errors import InvalidInput, ManifestRefused
from calibrate.manifest.document import PAYLOAD_TYPE, BudgetDocument, statement_bytes
from calibrate.manifest.keys import load_private, sign
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.manifest.trust import read_trust
from calibrate.manifest.verify import read_unverified
from calibrate.plans import PLANS, plan_from_mapping
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import AlgorithmName, PlainValue
from calibrate.plans.steffle import StefflePlan
from calibrate.sampling import SamplingName
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.mmd_fedavg import MmdFedAvg
from privfair.algorithms.recipe import Unpriced, unpromised_parameters
from privfair.data.training_data import load_training_data
from privfair.plan.plan import Plan
from privfair.plan.training import build, read_training_plan
from privfair.run.prepare import PreparedRun, prepare_run
from tests.privfair.pinned_drafts import PINNED
from tests.privfair.pinned_drafts import PLANS as PLANS_PINNED
from tests.privfair.small_runs import GAUSSIAN, Desk, write_silos

PLAN = GAUSSIAN.format(rate=0.2, rounds=3, more="")


@dataclass(frozen=True)
class _ShortClip(GaussianPlan):
    clip: float = 0.25


def test_a_default_changed_in_the_plan_class_is_what_the_engine_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLANS, AlgorithmName.GAUSSIAN, _ShortClip)
    desk = Desk.at(tmp_path, PLAN.replace("clip = 1.0\n", ""))
    budget = desk.budget()
    signed = read_unverified(budget.read_bytes()).document
    assert signed.parameters["clip"] == 0.25
    run = prepare_run(desk.plan, budget.read_bytes(), read_trust(desk.trust.read_bytes()))
    assert isinstance(run.algorithm, DpFedSgd)
    assert run.algorithm.clip == 0.25


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk.at(tmp_path_factory.mktemp("desk"), PLAN)
    desk.budget()
    return desk


def _document(desk: Desk) -> BudgetDocument:
    return read_unverified((desk.folder / "budget.json").read_bytes()).document


def _prepare(desk: Desk, **changes: object) -> PreparedRun:
    """The plan under its own budget with other parameters in it, properly signed."""
    document = _document(desk)
    other = document.model_copy(update={"parameters": document.parameters | changes})
    envelope = sign(PAYLOAD_TYPE, statement_bytes(other), load_private(desk.key))
    return prepare_run(desk.plan, envelope, read_trust(desk.trust.read_bytes()))


OTHER_PARAMETERS: list[tuple[dict[str, object], str]] = [
    ({"sampling_rate": 0.1}, "not those of the plan's"),
    ({"rounds": 2}, "its parameters have 2 rounds, and it covers 3"),
    ({"relation": "replace-one"}, "not those of the plan's"),
]


@pytest.mark.parametrize(("changes", "reason"), OTHER_PARAMETERS)
def test_signed_parameters_that_are_not_the_plan_files_are_refused(
    desk: Desk, changes: dict[str, object], reason: str
) -> None:
    assert _prepare(desk).updates == 3
    with pytest.raises(ManifestRefused, match=reason):
        _prepare(desk, **changes)


def test_signed_parameters_with_another_bound_than_the_releases_are_refused(desk: Desk) -> None:
    with pytest.raises(ManifestRefused, match="its parameters bound value_1 by 2"):
        _prepare(desk, clip=2.0)


@pytest.mark.parametrize(
    ("name", "of_records"),
    [
        ("steffle", {"h_theta", "h_W"}),
        ("fedfdp", {"gradient", "loss"}),
        ("fpfl", {"user_statistics"}),
        ("gaussian", {"value_1"}),
        ("fair-plugin", {"score_gradient", "group_gradient"}),
    ],
)
def test_the_signed_bound_is_the_one_that_a_message_states(name: str, of_records: set[str], tmp_path: Path) -> None:
    algorithm, silo, signed = _with_halved_bounds(name, tmp_path)
    message = algorithm.contribution(algorithm.start(), 1, silo, torch.arange(len(silo)))
    stated = {one.name: one.bound for one in message.noisy if one.name in of_records}
    assert stated == {one.name: one.sensitivity for one in signed if one.name in of_records}
    clipped = of_records - {"h_W"}  # bounded by its floor and divisor, without a clip
    assert all(one.measured <= one.bound for one in message.noisy if one.name in clipped)


def test_the_signed_bound_is_the_clip_of_updates(tmp_path: Path) -> None:
    algorithm, _, signed = _with_halved_bounds("mmd-gaussian", tmp_path)
    assert isinstance(algorithm, MmdFedAvg)
    assert [algorithm.terms.update_clip] == [one.sensitivity for one in signed if one.name == "client_updates"]


def _with_halved_bounds(name: str, folder: Path) -> tuple[Algorithm[Any], SiloTensors, list[GaussianNoise]]:
    """A pinned plan's algorithm, its first silo, and the releases of a document that signs half of every bound."""
    write_silos(folder)
    (folder / "plan.toml").write_text(PLANS_PINNED[name][0], encoding="utf-8")
    training = read_training_plan(folder / "plan.toml")
    document = read_unverified((PINNED / f"{name}.json").read_bytes()).document
    plan = plan_from_mapping(document.algorithm, document.parameters)
    data = load_training_data(training.data, central=training.recipe.central, unit=plan.unit)
    noisy = [release for release in document.releases if isinstance(release, GaussianNoise)]
    halved = [release.model_copy(update={"sensitivity": release.sensitivity / 2}) for release in noisy]
    others = [release for release in document.releases if not isinstance(release, GaussianNoise)]
    signed = document.model_copy(update={"releases": (*halved, *others)})
    _, algorithm = build(training, data.facts, plan, data.binding, signed)
    return algorithm, data.tensors(training.model.dtype)[0], halved


def test_a_plan_that_is_not_signed_yet_is_built_with_the_parameters_that_will_be(desk: Desk) -> None:
    training = read_training_plan(desk.plan)
    data = load_training_data(training.data)
    plan = plan_from_mapping("gaussian", {"sampling-rate": 0.5, "rounds": 3, "clip": 0.125})
    _, algorithm = build(training, data.facts, plan, data.binding)
    assert isinstance(algorithm, DpFedSgd)
    assert algorithm.clip == 0.125


def test_the_parameters_in_the_manifest_make_the_same_plan_again(desk: Desk) -> None:
    document, file = _document(desk), Plan.read(desk.plan)
    plan = plan_from_mapping(document.algorithm, document.parameters)
    assert plan == plan_from_mapping(file.algorithm, file.privacy)
    assert plan.parameters() == document.parameters


class TestWithoutAPromise:
    def test_a_whole_section_is_a_plan_and_takes_its_rounds_from_the_run(self) -> None:
        section = {"silo-size": 9, "sampling": "full", "minority-fraction": 0.4, "lipschitz": 1, "w-radius": 1}
        found = unpromised_parameters("steffle", section, rounds=7)
        assert found == StefflePlan(9, 9, 7, 0.4, 1.0, 1.0, SamplingName.FULL)

    def test_part_of_a_section_keeps_what_is_given_and_says_what_is_missing(self) -> None:
        found = unpromised_parameters("fpfl", {"cohort": 4}, rounds=7)
        assert isinstance(found, Unpriced)
        assert (found.whole("cohort"), found.number("clip"), found.missing) == (4, None, "users")

    @pytest.mark.parametrize("value", ["4", (4.0,), -1, 0.5])
    def test_a_value_of_the_wrong_kind_is_refused(self, value: PlainValue) -> None:
        with pytest.raises(InvalidInput, match=r"\[privacy\] cohort"):
            Unpriced({"cohort": value}, "users").whole("cohort")

    def test_an_unknown_key_is_refused_with_the_nearest_one(self) -> None:
        with pytest.raises(InvalidInput, match="did you mean cohort"):
            unpromised_parameters("fpfl", {"cohorts": 4}, rounds=7)


@pytest.mark.parametrize("words", [["--help"], ["calibrate", "--help"], ["calibrate", "steffle", "--help"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    script = (
        f"import sys; from privfair.cli import main; sys.argv = {['privfair', *words]!r}\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'pandas', 'scipy', 'pyarrow', 'dp_accounting', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
