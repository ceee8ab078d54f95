"""From three files to an audited model in three commands and one edited file, at 80 columns."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import shutil
import stat
from pathlib import Path

import pytest

from audit.report.page import ReportContent, empty_model, render
from privfair.cli import limit_threads
from tests.end_to_end.command_line import Outcome, privfair

FRONTIER = ("--format", "frontier")
SITES = (("north", 140), ("south", 160), ("west", 120))


def write_sites(folder: Path, delimiter: str = ";", decimal: str = ",") -> list[Path]:
    """Three files as three hospitals' spreadsheets would write them, some numbers missing."""
    generator = random.Random(4)
    files = []
    for site, size in SITES:
        files.append(folder / f"{site}.csv")
        with files[-1].open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, delimiter=delimiter)
            writer.writerow(("patient", "age", "bmi", "ward", "sex", "readmitted"))
            for number in range(size):
                age = generator.randint(18, 95)
                bmi = "" if number % 19 == 0 else f"{generator.gauss(27, 5):.1f}".replace(".", decimal)
                answer = "yes" if generator.random() < age / 110 else "no"
                ward, sex = generator.choice(("cardio", "surgery", "other")), generator.choice("fm")
                writer.writerow((f"{site[0]}{number}", age, bmi, ward, sex, answer))
    return files


def run_honestly(out: Path, *words: object) -> Outcome:
    """`privfair run`, whose audit calls an honest pay-once run violated with probability 1e-3: thrice in a row 1e-9."""
    for _ in range(3):
        done = privfair(*words)
        if "VIOLATED" not in done.out:
            break
        shutil.rmtree(out)
    return done


def _unwrapped(text: str) -> str:
    return " ".join(text.split())


def fill_in(schema: Path) -> None:
    """What a person does in an editor: public ranges, and lists compared with a codebook."""
    text = schema.read_text("utf-8").replace("lists-from-codebook = false", "lists-from-codebook = true")
    text = text.replace("age = []", "age = [0, 120]").replace("{range = []", "{range = [10, 60]")
    schema.write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder after init, filling in and run."""
    folder = tmp_path_factory.mktemp("own")
    files = write_sites(folder)
    flags = ("--target", "readmitted", "--sensitive", "sex", "--protect", "attribute", "--out", folder)
    made = privfair("init", *files, *flags)
    assert made.code == 0, made.err
    assert "cells are separated by a semicolon; decimals" in made.out
    assert max(len(line) for line in made.out.splitlines() if str(folder) not in line) <= 80
    (folder / "init.txt").write_text(made.out, encoding="utf-8")
    before = privfair("check", folder / "plan.toml")
    (folder / "check.txt").write_text(before.out, encoding="utf-8")
    assert before.code == 1
    fill_in(folder / "schema.toml")
    after = privfair("check", folder / "plan.toml")
    assert after.code == 0, after.out
    assert after.out.startswith("Protected: the sensitive attribute of each record")
    assert "keep 0." in after.out, "the noise is printed"
    assert " MB of memory." in after.out
    with (folder / "plan.toml").open("a", encoding="utf-8") as plan:
        plan.write("[privacy]\nrounds = 40\n")
    out = folder / "trial"
    done = run_honestly(out, "run", folder / "plan.toml", "--out", out, "--reruns", 1)
    assert done.code == 0, done.err
    (folder / "run.txt").write_text(done.out, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_init_takes_no_statistic_for_public(tried: Path) -> None:
    made = tried / "again"
    again = privfair(
        "init", *sorted(tried.glob("*.csv")), "--target", "readmitted", "--protect", "record", "--out", made
    )
    assert again.code == 0, again.err
    schema, plan = (made / "schema.toml").read_text("utf-8"), (made / "plan.toml").read_text("utf-8")
    assert "age = []  # FILL IN" in schema
    assert 'bmi = {range = [], missing = "flag"}  # FILL IN' in schema
    assert "lists-from-codebook = false  # FILL IN" in schema
    assert 'ignore = ["patient"]' in schema
    assert len(plan.splitlines()) == 5
    assert "at-least = 0  # FILL IN" in plan
    assert "exists; remove it" in privfair("init", tried / "north.csv", "--target", "sex", "--out", made).err


@pytest.mark.slow
def test_check_names_all_mistakes_at_once(tried: Path) -> None:
    """Ranges that are not filled in, and lists that nobody compared: two causes, two lines."""
    text = (tried / "check.txt").read_text("utf-8")
    said = _unwrapped(text)
    assert "age, bmi': 2 columns have no range" in said
    assert "compare those of ward, sex, readmitted with your codebook" in said
    assert "2 mistakes" in said
    assert max(len(line) for line in text.splitlines() if str(tried) not in line) <= 80


def test_check_names_mistakes_of_plan_schema_and_files_together(tmp_path: Path) -> None:
    files = write_sites(tmp_path, ",", ".")
    flags = ("--target", "readmitted", "--sensitive", "sex", "--lists-are-public", "--out", tmp_path)
    assert privfair("init", *files, *flags).code == 0
    fill_in(tmp_path / "schema.toml")
    plan = (tmp_path / "plan.toml").read_text("utf-8").replace("epsilon  = 1", "epsilon = -1")
    (tmp_path / "plan.toml").write_text(plan + "[training]\nfairnes = 1\n", encoding="utf-8")
    text = files[1].read_text("utf-8").replace(",surgery,", ",moon,")
    files[1].write_text(text, encoding="utf-8")
    files[2].write_text(files[2].read_text("utf-8").replace(",", ";"), encoding="utf-8")
    found = privfair("check", tmp_path / "plan.toml", "--json")
    assert found.code == 1
    said = "\n".join(found.json()["mistakes"])
    assert "epsilon" in said
    assert "fairnes" in said
    assert "is not in the schema's list" in said
    assert "cells are separated by a semicolon" in said
    assert '[file.exceptions."west.csv"]' in said
    assert "moon" not in said
    assert "at-least = 0: is not filled in" in said, "found although other parts of the plan are wrong"


def test_check_says_each_cause_once_with_the_places_where_it_is(tmp_path: Path) -> None:
    files = write_sites(tmp_path, ",", ".")
    flags = ("--target", "readmitted", "--at-least", 60, "--lists-are-public", "--out", tmp_path)
    assert privfair("init", *files, *flags).code == 0
    fill_in(tmp_path / "schema.toml")
    for file in files:
        text = file.read_text("utf-8").splitlines()
        text[1:3] = [re.sub(r",\d+,", ",,", line, count=1) for line in text[1:3]]
        file.write_text("\n".join(text) + "\n", encoding="utf-8")
    found = privfair("check", tmp_path / "plan.toml", "--json").json()
    (only,) = found["mistakes"]
    assert "north.csv, column 'age', line 2: has no value (2 such cells)" in only
    assert only.endswith("(and 2 more: south.csv 'age', west.csv 'age')")


def test_check_warns_of_a_delta_that_lets_records_out(tmp_path: Path) -> None:
    files = write_sites(tmp_path, ",", ".")
    flags = ("--target", "readmitted", "--delta", 0.01, "--at-least", 60, "--lists-are-public", "--out", tmp_path)
    assert privfair("init", *files, *flags).code == 0
    fill_in(tmp_path / "schema.toml")
    found = privfair("check", tmp_path / "plan.toml", "--json")
    assert found.code == 0, found.out
    assert "write for example delta = 0.0001" in found.json()["warnings"][0]
    assert found.json()["settings"]["privacy"]["rounds"] > 0
    assert found.json()["cost"]["rounds"] == found.json()["settings"]["privacy"]["rounds"]
    assert found.json()["budget"]["epsilon"] == 1


@pytest.mark.slow
def test_run_ends_with_a_verdict_and_both_sides_of_the_promise(tried: Path) -> None:
    said = (tried / "run.txt").read_text("utf-8")
    assert "no one but you has agreed" in said
    assert "CONSISTENT" in said or "INCONCLUSIVE" in said
    for words in ("this model", "always '", "Protected:", "NOT protected:", "report.html", "privfair predict"):
        assert words in said
    assert max(len(line) for line in said.splitlines() if str(tried) not in line) <= 80
    for name in ("log.txt", "commands.sh", "report.html", "audit.json", "run/model.json"):
        assert (tried / "trial" / name).is_file()
    audit = json.loads((tried / "trial" / "audit.json").read_text("utf-8"))
    assert set(audit["model"]["groups"]) == {"f", "m"}
    assert audit["protected"].startswith("the sensitive attribute")


@pytest.mark.slow
def test_the_audit_finds_the_files_where_the_run_was_trained(tried: Path) -> None:
    audited = privfair("audit", tried / "trial" / "run", "--reruns", 0, "--no-attribute-inference", "--json")
    assert audited.code == 0, audited.err
    assert f"where the run was trained, in {tried}" in audited.err
    shown = privfair("audit", tried / "trial" / "run", "--reruns", 0, "--no-attribute-inference")
    assert shown.out.startswith("Protected: ")
    assert len(shown.out.splitlines()) <= 16


@pytest.mark.slow
def test_predictions_keep_ids_and_are_safe_in_a_spreadsheet(tried: Path) -> None:
    new = tried / "new.csv"
    rows = ["patient,age,bmi,ward,note", "=cmd|x,50,25.5,cardio,-3", "n2,40,,moon,+hello", "n3,90,33,surgery,ok"]
    new.write_text("\n".join(rows) + "\n", encoding="utf-8")
    out = tried / "predictions.csv"
    words = ("predict", tried / "trial" / "run", "--input", new, "--out", out)
    assert privfair(*words).code == 0
    with out.open(encoding="utf-8", newline="") as stream:
        yes = sorted(float(row[next(place for place in row if "yes" in place)]) for row in csv.DictReader(stream))
    flags = ("--id", "patient", "--keep", "note", "--threshold", (yes[1] + yes[2]) / 2)
    done = privfair(*words, *flags)
    assert done.code == 0, done.err
    assert "cells are separated by a comma, unlike in the training files" in _unwrapped(done.out)
    with out.open(encoding="utf-8", newline="") as stream:
        table = list(csv.reader(stream))
    assert table[0][:3] == ["patient", "note", "prediction"]
    assert [row[:2] for row in table[1:]] == [["'=cmd|x", "-3"], ["n2", "'+hello"], ["n3", "ok"]]
    assert [row[2] for row in table[1:]].count("yes") == 1
    all_alike = privfair("predict", tried / "trial" / "run", "--input", new, "--out", out, "--threshold", 0.999)
    assert "WARNING  all 3 records get 'no'" in all_alike.out


@pytest.mark.slow
def test_the_frontier_is_said_to_be_not_private_and_chooses_for_predict(tried: Path) -> None:
    run = tried / "trial" / "run"
    chosen = privfair("report", run, *FRONTIER, "--decide", "target-rate=0.3", "--out", tried / "frontier.svg")
    assert chosen.code == 0, chosen.err
    assert "NOT private" in chosen.out
    assert "<- used" in chosen.out
    assert "NOT private" in (tried / "frontier.svg").read_text("utf-8") or (tried / "frontier.svg").stat().st_size
    decision = json.loads((run / "decision.json").read_text("utf-8"))
    assert decision["held_out"]["positive_rate"] == pytest.approx(0.3, abs=0.05)
    done = privfair("predict", run, "--input", tried / "north.csv", "--out", tried / "all.csv", "--json")
    assert done.json()["threshold"] == decision["threshold"]
    empty = privfair("report", run, *FRONTIER, "--decide", "threshold=0.9999", "--json")
    assert empty.json()["private"] is False
    assert "WARNING  EMPTY MODEL" in privfair("report", run, *FRONTIER).out
    (run / "decision.json").unlink()
    assert "used: 0.5 (default)" in privfair("report", run, *FRONTIER).out


@pytest.mark.slow
def test_a_damaged_frontier_is_refused(tried: Path) -> None:
    run = tried / "trial" / "run"
    kept = (run / "frontier.json").read_bytes()
    try:
        (run / "frontier.json").write_text('{"points": [{"threshold": "x"}]}', encoding="utf-8")
        assert "is not what a run writes" in privfair("report", run, *FRONTIER).err
        (run / "decision.json").write_text('{"threshold": 7}', encoding="utf-8")
        words = ("predict", run, "--input", tried / "north.csv", "--out", tried / "all.csv")
        assert "is not what a run writes" in privfair(*words).err
    finally:
        (run / "frontier.json").write_bytes(kept)
        (run / "decision.json").unlink(missing_ok=True)


@pytest.mark.slow
def test_the_commands_can_be_read_and_the_key_is_private(tried: Path) -> None:
    commands = (tried / "trial" / "commands.sh").read_text("utf-8")
    for word in ("keys generate", "ledger init", "calibrate", "train", "audit", "report"):
        assert f"privfair {word}" in commands
    mode = (tried / "trial" / "officer.pem").stat().st_mode
    assert not mode & (stat.S_IRWXG | stat.S_IRWXO)


def test_a_wrong_name_is_answered_with_the_nearest_one() -> None:
    assert "Did you mean train?" in privfair("tran").err
    assert "--threads" in privfair("train", "--threds", "2").err
    assert "lists the commands" in privfair("qqq").err


def test_one_thread_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    for name in names:
        monkeypatch.setenv(name, "7")  # so that what follows is taken back after the test
        monkeypatch.delenv(name)
    limit_threads(["train", "plan.toml"])
    assert [os.environ[name] for name in names] == ["1", "1", "1"]
    for words in (["train", "--threads", "3"], ["train", "--threads=3"]):
        limit_threads(words)
        assert [os.environ[name] for name in names] == ["3", "3", "3"]
    limit_threads(["train", "--threads", "many"])  # refused later, by the option itself
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert privfair("train", "x", "--threads", "0").code == 2


def test_an_empty_model_is_called_empty_on_its_page_and_card() -> None:
    group = {"records": 9, "accuracy": 0.83, "selection_rates": [1.0, 0.0]}
    overall = {
        "most_predicted": {"class": "no", "share": 1.0},
        "majority": {"class": "no", "accuracy": 0.83},
        "balanced_accuracy": 0.5,
        "groups": {"f": group, "m": group},
    }
    content = ReportContent(None, None, ({"overall": overall},), ())
    assert str(empty_model(content)).startswith("EMPTY MODEL: it answers 'no' to every record")
    assert "EMPTY MODEL" in render(content)
    damaged = ReportContent(None, None, ({"overall": {"most_predicted": 3, "majority": 1}},), ())
    assert empty_model(damaged) is None


def test_init_asks_what_to_protect_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("init", *write_sites(tmp_path), "--target", "readmitted", "--sensitive", "sex", "--protect", "ask")
    silent = privfair(*words, "--out", tmp_path / "silent")
    assert silent.code == 2
    assert "there is no terminal to ask on" in silent.err

    answers = iter(("record", "coordinator", "groups"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(answers))
    said = privfair(*words, "--out", tmp_path / "asked")
    assert said.code == 0, said.err
    assert "Why:" in said.out
    assert "NOT protected:" in said.out
    assert max(map(len, said.out.replace(str(tmp_path), "").splitlines())) <= 80
    assert "Chosen: fair-plugin" in said.out
    assert (tmp_path / "asked" / "plan.toml").read_text("utf-8").startswith('protect  = "record"')
