"""`privfair train`, guards in processes of their own, and engines: the same model and published values, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from privfair.transcript import Transcript
from tests.end_to_end.command_line import privfair
from tests.federation.over_flower import ROUNDS
from tests.federation.sites import AGGREGATED, ENGINES, PLANS, ROOT, SIZES, Sites, desk_in_one_place

pytestmark = pytest.mark.filterwarnings("ignore")
CHEAP = ("pay-once", "gaussian, scaled")


def _require_equal(one: RunFolder, run: Path, sites: Path, parties: tuple[str, ...]) -> None:
    """The coordinator's `run` and what the guards keep in `sites` against the run in one process."""
    with np.load(one.checkpoint) as expected, np.load(run / "checkpoint.npz") as found:
        state = [name for name in expected.files if name.startswith("state.")]
        assert state
        assert int(found["step"]) == int(expected["step"])
        for name in state:
            np.testing.assert_array_equal(found[name], expected[name])
    whole = Transcript.read(one.transcript)
    assert whole.header.parties == parties
    for party in parties:
        own = Transcript.read(sites / party / "transcript.bin")
        assert own.header.parties == (party,)
        for spec in whole.header.values:
            np.testing.assert_array_equal(own.values(party, spec.name), whole.values(party, spec.name))
    assert (run / "model.json").exists() == one.linear_model.exists()
    if one.linear_model.exists():  # a rule of two models has no linear one; its state was compared above
        assert (run / "model.json").read_bytes() == one.linear_model.read_bytes()


def _in_one_process(folder: Path, plan: str, rounds: int | None = None) -> RunFolder:
    desk = desk_in_one_place(folder, plan, rounds)
    return RunFolder(desk.train(desk.budget(research_noise=True)).run)


def _require_guards_equal(plan: str, folder: Path) -> None:
    sites = Sites.at(folder / "s", plan)
    sites.desk.budget(research_noise=True)
    with sites.guards() as transport:
        train_over(transport, sites.signed(), folder / "run")
    _require_equal(_in_one_process(folder / "one", plan), folder / "run", sites.folder, sites.parties)


def test_guards_grow_trees_in_turn_and_distil_the_rule(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each guard's transcript has trees in its own turns and empty ones in the others'."""
    folder = tmp_path_factory.mktemp("t")
    _require_guards_equal("fair-plugin, distilled", folder)
    for name, turns in (("score_tree", (1, 2, 3)), ("pupil_tree", (5, 6))):
        for number, party in enumerate(SIZES):
            sent = Transcript.read(folder / "s" / party / "transcript.bin").values(party, name)
            grown = [bool(np.asarray(tree).any()) for tree in sent]
            assert grown == [place == number for place in range(len(turns))], (party, name)


@pytest.mark.parametrize("plan", CHEAP)
def test_a_federation_of_guards_is_the_run_in_one_process(plan: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    _require_guards_equal(plan, tmp_path_factory.mktemp("g"))


@pytest.mark.slow
@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan not in CHEAP])
def test_so_it_is_for_every_algorithm(plan: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    _require_guards_equal(plan, tmp_path_factory.mktemp("g"))


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_carries_every_plan_and_changes_no_value(
    engine: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One engine with three nodes for all plans, because engines are slow to start, and Flower for every message."""
    if not ENGINES[engine].exists():
        pytest.skip(f"the engine wants an environment of its own: `make {engine}`")
    folder = tmp_path_factory.mktemp("f")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [str(ENGINES[engine]), "-m", f"tests.federation.over_{engine}", str(folder)]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    logs = "".join(path.read_text()[-3000:] for path in (folder / "logs").glob("*.log"))
    assert ended.returncode == 0, ended.stderr + logs
    for number, plan in enumerate(PLANS):
        sites, parties = folder / str(number), (AGGREGATED[plan],) if plan in AGGREGATED else tuple(SIZES)
        one = _in_one_process(folder / "one" / str(number), plan, ROUNDS[plan])
        _require_equal(one, sites / "run", sites, parties)
        summary = json.loads((sites / "run" / "run.json").read_text())
        assert (summary["engine"], summary["rounds"]["steps"]) == (engine, ROUNDS[plan])


def test_every_kind_of_party_is_compared() -> None:
    assert set(AGGREGATED) <= set(PLANS)


def test_training_over_guards_from_the_command_line_needs_no_test_records(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("c")
    sites = Sites.at(folder / "s", "pay-once")
    sites.desk.budget()
    guards = folder / "guards.toml"
    guards.write_text("".join(f'[guards.{name}]\nsocket = "s/{name}.sock"\n' for name in sites.parties))
    words = ("train", sites.desk.plan, "--manifest", sites.manifest, "--trust", sites.desk.trust, "--guards", guards)
    with sites.guards():
        done = privfair(*words, "--out", folder / "run")
        assert done.code == 0, done.err
        assert "4 rounds trained; 4 of 4 signed rounds charged" in done.out
        again = privfair(*words, "--out", folder / "run", "--resume", "--json", "--quiet")
    assert again.code == 0, again.err
    assert again.json()["accuracy"] is None
    assert again.json()["rounds"] == 4
