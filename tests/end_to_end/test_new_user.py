"""A newcomer with three files of their own and strange column names: what `privfair train --help` says is enough."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.command_line import Outcome, privfair

FILES = ("Klinik Nord.csv", "branch.south.csv", "West #2.csv")
HEADER = ("Person ID", "Age (years)", "Income, monthly", "Job Title", "Geschlecht", "Defaulted?")
SCHEMA = """version = 1
[target]
column = "Defaulted?"
classes = ["N", "Y"]
[sensitive]
column = "Geschlecht"
groups = ["F", "M"]
[numeric."Age (years)"]
bounds = [18, 98]
steps = [30, 50]
[numeric."Income, monthly"]
mean = 8.0
scale = 0.5
transform = "signed-log"
[categorical."Job Title"]
values = ["Clerk", "Nurse / carer", "Other"]
"""
PLAN = """algorithm = "pay-once"
[target]
epsilon = 1.0
delta = 1e-5
[privacy]
rounds = 20
[data]
files = ["Klinik Nord.csv", "branch.south.csv", "West #2.csv"]
schema = "schema.toml"
[training]
fairness = 4.0
learning-rate = 1.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(1)
    for number, name in enumerate(FILES):
        with (tmp_path / name).open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(HEADER)
            for person in range(90 + 10 * number):
                age, late = int(generator.integers(18, 80)), generator.normal()
                job = ("Clerk", "Nurse / carer", "Other")[int(generator.integers(3))]
                row = (person, age, f"{generator.lognormal(8, 0.5):.2f}", job, "FM"[int(generator.integers(2))])
                writer.writerow((*row, "Y" if late + (40 - age) / 25 > 0 else "N"))
    (tmp_path / "schema.toml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "plan.toml").write_text(PLAN, encoding="utf-8")
    key = ("--role", "privacy-officer")
    assert privfair("keys", "generate", *key, "--out", tmp_path / "officer.pem").code == 0
    trust = ("--key", tmp_path / "officer.pem", *key, "--out", tmp_path / "trust.json")
    assert privfair("keys", "trust", *trust).code == 0
    return tmp_path


def signed(folder: Path) -> Outcome:
    key = ("--key", folder / "officer.pem")
    return privfair("calibrate", folder / "plan.toml", "--out", folder / "budget.json", *key)


def test_from_three_files_to_predictions(folder: Path) -> None:
    assert signed(folder).code == 0
    assert privfair("ledger", "init", folder / "ledger.db").code == 0
    words = ("--manifest", folder / "budget.json", "--trust", folder / "trust.json")
    more = ("--ledger", folder / "ledger.db", "--out", folder / "run", "--json")
    outcome = privfair("train", folder / "plan.toml", *words, *more)
    assert outcome.code == 0, outcome.err
    assert outcome.json()["epsilon"] == 1.0
    with (folder / FILES[0]).open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))[:6]
    with (folder / "new.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(row[:4] for row in rows)  # neither class nor attribute is known
    given = ("--input", folder / "new.csv", "--out", folder / "predictions.csv")
    done = privfair("predict", folder / "run", *given)
    assert done.code == 0, done.err
    predicted = (folder / "predictions.csv").read_text("utf-8").splitlines()
    assert len(predicted) == 6
    assert {line.split(",")[0] for line in predicted[1:]} <= {"N", "Y"}


def test_the_help_shows_every_key_that_was_needed() -> None:
    text = privfair("train", "--help").out
    for word in ("pay-once", "fairness", "rounds", "files", "schema", "bounds", "values", "predict", '[numeric."'):
        assert word in text


def test_more_rounds_than_will_be_signed_are_refused_before_signing(folder: Path) -> None:
    plan = PLAN.replace("learning-rate = 1.0", "learning-rate = 1.0\nrounds = 30")
    (folder / "plan.toml").write_text(plan, encoding="utf-8")
    outcome = signed(folder)
    assert outcome.code == 2
    assert "[training] rounds = 30: exceeds the 20 signed rounds" in outcome.err
    assert "write rounds = 30 under [privacy]" in outcome.err
    assert not (folder / "budget.json").exists()
    (folder / "plan.toml").write_text(PLAN.replace("[privacy]\nrounds = 20\n", ""), encoding="utf-8")
    assert "[privacy] rounds = None: is needed" in signed(folder).err


def test_another_delimiter_is_named(folder: Path) -> None:
    path = folder / FILES[1]
    path.write_text(re.sub(r'"?,"?', ";", path.read_text("utf-8")), encoding="utf-8")
    outcome = signed(folder)
    assert outcome.code == 2
    assert "branch.south.csv, column 'Defaulted?': is missing" in outcome.err
    assert "write delimiter = ';' under [file]" in outcome.err
