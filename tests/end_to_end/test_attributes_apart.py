"""Attributes held by others than the records, from a plan file through calibrate and train to the transcript."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from privfair.batches.participation import BatchRecord
from privfair.run.prepare import PreparedRun
from privfair.run.public import Progress
from privfair.training import prepare
from privfair.transcript import Transcript
from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import Desk

PLAN = """algorithm = "steffle"
[target]
epsilon = 4.0
delta = 1e-5
[privacy]
silo-size = {size}
batch-size = 8
rounds = {rounds}
minority-fraction = 0.4
lipschitz = 0.5
w-radius = 0.5
sampling = "{sampling}"
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
{data}
[training]
fairness = 1.0
group-frequencies = [0.5, 0.5]
learning-rate = 0.5
"""
TWO = """[data.attributes]
silos = ["census", "clinic"]
"""
ONE = """[data.attributes]
silos = ["census"]
"""


def signed(desk: Desk) -> Outcome:
    return privfair("calibrate", desk.plan, "--out", desk.folder / "budget.json", "--key", desk.key, "--json")


def trained(desk: Desk, *more: str) -> Outcome:
    words = ["train", desk.plan, "--manifest", desk.folder / "budget.json", "--trust", desk.trust]
    return privfair(*words, "--ledger", desk.ledger, "--out", desk.folder / "run", "--json", *more)


def plan_text(data: str, sampling: str = "poisson", size: int = 120, rounds: int = 12) -> str:
    return PLAN.format(data=data, sampling=sampling, size=size, rounds=rounds)


def full(data: str) -> str:
    return plan_text(data, "full").replace("batch-size = 8\n", "batch-size = 120\n")


def senders(desk: Desk) -> dict[str, dict[str, int]]:
    """For each party, how often it sent each value."""
    found: dict[str, dict[str, int]] = {}
    for release in Transcript.read(desk.folder / "run" / "transcript.bin").releases():
        of = found.setdefault(release.party, {})
        of[release.name] = of.get(release.name, 0) + 1
    return found


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Banks without attributes; a census that holds nearly all of them, and a clinic that holds four."""
    data = '[data.attributes]\nfiles = ["census.csv", "clinic.csv"]\nrecord = "person no."\n'
    desk = Desk.at(tmp_path_factory.mktemp("registry"), plan_text(data))
    take_attributes_out(desk.folder, {"north-3", "south-5", "west-7", "west-9"})
    assert signed(desk).code == 0
    assert trained(desk).code == 0
    return desk


def take_attributes_out(folder: Path, of_clinic: set[str]) -> None:
    held = {"census": ["person no.,sex"], "clinic": ["person no.,sex"]}
    for bank in ("north", "south", "west"):
        with (folder / f"{bank}.csv").open(encoding="utf-8", newline="") as file:
            people = list(csv.DictReader(file))
        kept = ["person no.,age,income,job,default"]
        for number, person in enumerate(people):
            name = f"{bank}-{number}"
            held["clinic" if name in of_clinic else "census"].append(f"{name},{person['sex']}")
            kept.append(",".join((name, *(person[key] for key in ("age", "income", "job", "default")))))
        (folder / f"{bank}.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    for name, lines in held.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def prepared(desk: Desk) -> PreparedRun:
    return prepare(desk.plan, desk.folder / "budget.json", desk.trust)


def test_holders_send_the_loss_gradient_and_the_registries_the_rest(registry: Desk) -> None:
    sent = senders(registry)
    assert all(sent[bank] == {"g": 12} for bank in ("north", "south", "west"))
    assert sent["census"] == sent["clinic"] == {"h_theta": 12, "h_W": 12}


def test_a_holder_is_given_no_attribute_and_each_lies_in_one_registry(registry: Desk) -> None:
    run = prepared(registry)
    by_name = {silo.name: silo for silo in run.silos}
    assert all(int(by_name[bank].s.max()) == 0 for bank in ("north", "south", "west"))
    assert len(set(by_name["census"].s.tolist())) == 2
    numbers = np.concatenate([by_name[name].record_numbers.numpy() for name in ("census", "clinic")])
    assert sorted(numbers.tolist()) == list(range(405))
    assert len(by_name["clinic"]) <= 4
    said = run.manifest.document.guarantee.not_protected
    assert any("which their holders hand to it" in line for line in said)


def test_a_registry_that_nobody_asks_sends_noise_all_the_same(registry: Desk) -> None:
    record = BatchRecord.read(registry.folder / "run" / "batches.bin")
    transcript = Transcript.read(registry.folder / "run" / "transcript.bin")
    silent = [round for round in range(12) if len(record.batch(round, "clinic")) == 0]
    assert silent  # four records, each drawn with probability 1/15 a round: twelve busy rounds never happen
    for round in silent:
        assert np.count_nonzero(transcript.value(round, "clinic", "h_W")) > 0


def test_a_registry_sums_over_exactly_the_records_that_were_drawn(registry: Desk) -> None:
    run, record = prepared(registry), BatchRecord.read(registry.folder / "run" / "batches.bin")
    numbers = {silo.name: silo.record_numbers.numpy() for silo in run.silos}
    for round in range(12):
        drawn = np.concatenate([numbers[bank][record.batch(round, bank)] for bank in ("north", "south", "west")])
        asked = np.concatenate([numbers[name][record.batch(round, name)] for name in ("census", "clinic")])
        assert sorted(drawn.tolist()) == sorted(asked.tolist())


@pytest.mark.slow
def test_the_audit_redoes_such_a_run(registry: Desk) -> None:
    outcome = privfair(
        "audit",
        registry.folder / "run",
        "--trust",
        registry.trust,
        "--ledger",
        registry.ledger,
        "--plan",
        registry.plan,
        "--json",
    )
    assert outcome.code in (0, 1), outcome.err
    found = outcome.json()
    assert found["verdict"] != "violated", found


def test_one_silo_that_holds_everything_is_central_training(tmp_path: Path) -> None:
    data = '[data.partition]\nkind = "pooled"\n'
    desk = Desk.at(tmp_path, full(data).replace("= 120", "= 405"))
    assert signed(desk).code == 0
    assert trained(desk).code == 0
    assert senders(desk) == {"all": {"g": 12, "h_theta": 12, "h_W": 12}}


@pytest.mark.slow
def test_a_run_with_a_warm_start_can_be_audited(tmp_path: Path) -> None:
    """Its first round publishes no fairness gradient for the attack to read."""
    desk = Desk.at(tmp_path, full(TWO) + "warm-start = 20\n")
    assert signed(desk).code == 0
    assert trained(desk).code == 0
    where = ("--trust", desk.trust, "--ledger", desk.ledger, "--plan", desk.plan)
    outcome = privfair("audit", desk.folder / "run", *where, "--reruns", "1", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json()["attacks"]


@pytest.mark.parametrize("attributes", [ONE, TWO])
def test_without_noise_and_with_full_batches_it_is_the_run_of_whole_silos(tmp_path: Path, attributes: str) -> None:
    models = []
    for name, data in (("whole", ""), ("apart", attributes)):
        desk = Desk.at(tmp_path / name, full(data))
        why = ("--no-privacy", "a comparison")
        out = ("--out", desk.folder / "budget.json", "--key", desk.key)
        assert privfair("calibrate", desk.plan, *why, *out).code == 0
        assert trained(desk).code == 0
        model = (desk.folder / "run" / "model.json").read_text("utf-8")
        models.append(model)
    first, second = (json.loads(model) for model in models)
    np.testing.assert_allclose(_numbers(first), _numbers(second), atol=1e-9)


def _numbers(document: object) -> list[float]:
    if isinstance(document, dict):
        return [number for value in document.values() for number in _numbers(value)]
    if isinstance(document, list):
        return [number for value in document for number in _numbers(value)]
    return [float(document)] if isinstance(document, float) else []


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, plan_text(TWO) + "rounds = 8\nblock = 2\n")
    assert signed(desk).code == 0

    def stop(progress: Progress) -> None:
        if progress.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        desk.train(desk.folder / "budget.json", progress=stop)
    outcome = trained(desk, "--resume")
    assert outcome.code == 0, outcome.err
    assert outcome.json()["rounds"] == 8
    assert senders(desk)["clinic"] == {"h_theta": 8, "h_W": 8}


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (plan_text(TWO, "shuffled"), ("[privacy] sampling", "unequal silos")),
        (full(TWO.replace("clinic", "north")), ("[data.attributes]", "also names a silo of records")),
        (full(TWO.replace("clinic", "census")), ("[data.attributes] silos", "distinct")),
        (full(TWO + 'record = "id"\n'), ("[data.attributes] record", "not known")),
        (full("[data.attributes]\n"), ("[data.attributes]", "either silos or files")),
        (
            full('[data.attributes]\nfiles = ["south.csv"]\nrecord = "age"\n'),
            ("south.csv", "'age'", "has an attribute already"),
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, plan: str, words: tuple[str, ...]) -> None:
    outcome = signed(Desk.at(tmp_path, plan))
    assert outcome.code in (2, 3)
    for word in words:
        assert word in outcome.err


def test_other_algorithms_refuse_attributes_held_apart(tmp_path: Path) -> None:
    plan = 'algorithm = "pay-once"\n[target]\nepsilon = 1.0\ndelta = 1e-5\n[privacy]\nrounds = 3\n[data]\n'
    plan += f'files = ["north.csv", "south.csv", "west.csv"]\nschema = "schema.toml"\n{ONE}[training]\nfairness = 1.0\n'
    outcome = signed(Desk.at(tmp_path, plan))
    assert outcome.code == 2
    assert "[data.attributes]" in outcome.err
    assert "use steffle" in outcome.err


def test_bad_attribute_files_are_refused_with_file_column_and_line(tmp_path: Path) -> None:
    data = '[data.attributes]\nfiles = ["census.csv", "clinic.csv"]\nrecord = "person no."\n'
    desk = Desk.at(tmp_path, full(data))
    outcome = signed(desk)
    assert "census.csv" in outcome.err
    take_attributes_out(tmp_path, set())
    clinic = tmp_path / "clinic.csv"
    clinic.write_text("person no.,sex\nnorth-1,male\n", encoding="utf-8")
    assert "clinic.csv, column 'person no.', line 2: this record has an attribute already" in signed(desk).err
    clinic.write_text("person no.,sex\nstranger,\n", encoding="utf-8")
    assert "clinic.csv, column 'sex', line 2: has no value" in signed(desk).err
    lines = (tmp_path / "census.csv").read_text("utf-8").splitlines()
    (tmp_path / "census.csv").write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    clinic.write_text("person no.,sex\nstranger,male\n", encoding="utf-8")
    assert "west.csv, column 'person no.', line 181: this record has no attribute in" in signed(desk).err
