"""From data frames to a model that keeps a signed promise: the same loader, budget, engine and audits as files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import privfair as pf
from calibrate.errors import InvalidInput, ManifestRefused, UnsupportedCombination
from calibrate.manifest.issue import read_request
from privfair.api.frames import read_frame, toml_text
from privfair.data.read import BadData
from privfair.ledger import ClaimEnded
from privfair.ledger.entries import AlreadyClaimed
from privfair.plan.plan import Plan

PUBLIC: dict[str, Any] = {
    "groups": ["f", "m"],
    "classes": ["no", "yes"],
    "bounds": {"age": (18, 90)},
    "categories": {"job": ["a", "b", "c"]},
}


def people(number: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    sex, age = rng.choice(["f", "m"], number), rng.integers(18, 90, number)
    outcome = np.where(age + 10 * rng.normal(size=number) + 8 * (sex == "m") > 55, "yes", "no")
    return pd.DataFrame({"age": age, "job": rng.choice(["a", "b", "c"], number), "sex": sex, "outcome": outcome})


NORTH, SOUTH = people(150, 1), people(180, 2)


def plan(**more: Any) -> pf.Plan:
    asked = {"target": "outcome", "sensitive": "sex", "epsilon": 1.0, "delta": 1e-5, "rounds": 15}
    frames = more.pop("frames", {"north": NORTH, "south": SOUTH})
    return pf.Plan.from_frames(frames, **(PUBLIC | asked | more))


@pytest.fixture(scope="module")
def model() -> pf.TrainedModel:
    made = plan()
    with pytest.warns(pf.SelfSigned):
        return made.train(made.sign(pf.generate_key()))


def test_frames_become_a_model_that_keeps_the_promise(model: pf.TrainedModel) -> None:
    assert model.promise.text == "epsilon 1 at delta 1e-05 for one attribute"
    assert model.classes == ("no", "yes")
    probabilities = model.predict_proba(SOUTH)
    assert probabilities.shape == (180, 2)
    assert np.allclose(probabilities.sum(axis=1), 1)
    right = model.predict(SOUTH.drop(columns=["sex", "outcome"])) == SOUTH["outcome"].to_numpy()
    assert right.mean() > 0.75
    assert model.budget.document.data.silos[1].size == 180
    assert "Not protected" in model._repr_html_()


@pytest.mark.slow
def test_the_model_is_audited_reported_and_saved_from_python(model: pf.TrainedModel, tmp_path: Path) -> None:
    found = model.audit(reruns=0)
    assert not [check for check in found.checks if check.outcome.value == "failed"]
    assert found.verdict.value.upper() in found._repr_html_()
    page = model.report(tmp_path / "page.html", found).read_text("utf-8")
    assert "SIGNATURES NOT CHECKED" not in page
    saved = model.save(tmp_path / "run")
    assert not (saved / "claim.token").exists()
    assert list(pf.predict(saved, read_frame(NORTH, "n")).predicted) == list(model.predict(NORTH))


def test_a_run_without_a_folder_leaves_nothing_behind() -> None:
    made = plan(rounds=1)
    with pytest.warns(pf.SelfSigned):
        trained = made.train(made.sign(pf.generate_key()))
    places = [trained.folder, made.path.parent]
    assert all(place.exists() for place in places)
    assert made.path.parent.stat().st_mode & 0o077 == 0
    del trained, made
    assert not any(place.exists() for place in places)


@pytest.mark.parametrize("kind", ["pandas", "arrow", "stream", "mapping", "structured", "polars"])
def test_every_kind_of_frame_is_the_same_plan(kind: str) -> None:
    plain = {column: SOUTH[column].to_numpy() for column in SOUTH}
    frame: Any
    match kind:
        case "pandas":
            frame = SOUTH.set_index(np.arange(180)[::-1])  # an index is not a column
        case "arrow":
            frame = pa.table({name: list(column) for name, column in plain.items()})
        case "stream":
            frame = _Stream(pa.table({name: list(column) for name, column in plain.items()}))
        case "mapping":
            frame = {name: list(column) for name, column in plain.items()}
        case "structured":
            frame = np.rec.fromarrays(
                [plain[c].astype("U4") if c != "age" else plain[c] for c in plain], names=list(plain)
            )
            frame = np.asarray(frame)
        case _:
            frame = pytest.importorskip("polars").DataFrame({name: list(column) for name, column in plain.items()})
    expected, found = (read_frame(one, "frame") for one in (SOUTH, frame))
    assert list(found.columns) == list(expected.columns)
    assert all(list(found.columns[c].astype(str)) == list(expected.columns[c].astype(str)) for c in expected.columns)
    assert plan(frames={"south": frame}).digest == plan(frames={"south": SOUTH}).digest


class _Stream:
    """What polars and others are to this library: something that hands out Arrow columns."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.columns = table.column_names

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def test_plain_numbers_get_names_of_columns() -> None:
    table = read_frame(np.arange(6).reshape(3, 2), "frame", ["a", "b"])
    assert list(table.columns) == ["a", "b"]
    assert list(read_frame(np.arange(6).reshape(3, 2), "frame").columns) == ["x0", "x1"]
    with pytest.raises(InvalidInput, match="two dimensions"):
        read_frame(np.arange(3), "frame")
    with pytest.raises(InvalidInput, match="must name the 2 columns"):
        read_frame(np.zeros((2, 2)), "frame", ["a"])


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        (3, "is not a table"),
        ("south.csv", "is not a table"),
        ({}, "must not be empty"),
        ({"south": object()}, "mixes types"),
        ({"../south": SOUTH}, "not plain"),
        (SOUTH.iloc[:0], "has no records"),
        (SOUTH.rename(columns={"age": ""}), "without a name"),
    ],
)
def test_what_is_not_a_frame_is_refused_in_one_sentence(frames: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        plan(frames=frames)


def test_a_column_of_mixed_types_is_refused_without_showing_a_cell() -> None:
    mixed = SOUTH.astype({"age": object})
    mixed.loc[3, "age"] = "secret-cell"
    with pytest.raises(BadData) as refusal:
        plan(frames=mixed)
    assert "secret-cell" not in str(refusal.value)


def test_a_bad_cell_is_named_by_its_frame_and_line_and_not_shown() -> None:
    odd = SOUTH.copy()
    odd.loc[4, "job"] = "secret-job"
    made = plan(frames={"north": NORTH, "south": odd})
    with pytest.raises(BadData, match="frame 'south', column 'job', line 5") as refusal:
        made.price()
    assert "secret-job" not in str(refusal.value)


def test_what_is_read_off_the_records_is_warned_about_and_stands_in_the_budget() -> None:
    nothing = dict.fromkeys(PUBLIC)
    with pytest.warns(pf.TreatedAsPublic, match="the groups of 'sex';"):
        by_attribute = plan(**nothing)
    assert any("the groups of 'sex'" in text for text in by_attribute.price().promise.not_protected)
    with pytest.warns(pf.TreatedAsPublic) as warned:
        by_record = plan(**nothing, protect="record")
    for fact in ("bounds of 'age'", "categories of 'job'", "classes of 'outcome'", "groups of 'sex'", "silos' sizes"):
        assert fact in str(warned[0].message)
    assert "[data.at-least]\nnorth = 150\nsouth = 180\n" in by_record.text


@pytest.mark.filterwarnings("error::privfair.api.frames.TreatedAsPublic")
def test_what_is_declared_is_not_warned_about() -> None:
    assert 'algorithm = "gaussian"' in plan(protect="record", at_least=100).text
    assert "at-least = 100" in plan(protect="record", at_least=100).text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned")
def test_records_are_protected_and_some_measure() -> None:
    made = plan(protect="record", at_least=90, test_fraction=0.25, epsilon=3.0)
    trained = made.train(made.sign(pf.generate_key()))
    assert trained.promise.unit.protected.value == "record"
    assert trained.result.accuracy is not None
    assert "not private" in trained._repr_html_()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned")
def test_users_are_protected() -> None:
    whose = people(400).assign(person=np.arange(400) % 120)
    made = plan(frames=whose, protect="user", user="person", at_least=100, epsilon=3.0, rounds=5)
    trained = made.train(made.sign(pf.generate_key()))
    assert trained.promise.unit.protected.value == "user"
    assert len(trained.predict(whose)) == 400
    with pytest.warns(pf.TreatedAsPublic, match="the number of users"):
        pf.Plan.from_frames(whose, target="outcome", protect="user", user="person", epsilon=1.0, delta=1e-5)


@pytest.mark.filterwarnings("ignore::privfair.api.plan.SelfSigned")
def test_steffle_pays_for_its_histogram_or_is_told_the_shares() -> None:
    paid, told = plan(algorithm="steffle", rounds=3), plan(algorithm="steffle", rounds=3, group_shares=[0.4, 0.6])
    assert "histogram-noise-ratio" in paid.text
    assert "group-frequencies = [0.4, 0.6]" in told.text
    trained = told.train(told.sign(pf.generate_key()))
    assert trained.budget.document.algorithm == "steffle"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sensitive": None}, "is needed to protect an attribute"),
        ({"user": "sex"}, "goes with protect"),
        ({"protect": "user"}, "goes with protect"),
        ({"protect": "family"}, "is not one of the choices"),
        ({"target": "result"}, "is not a column"),
        ({"bounds": {"height": (0, 1)}}, "is not a feature"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        plan(**more)


def test_a_budget_from_somebody_else_is_spent_from_a_real_ledger_once(tmp_path: Path) -> None:
    made, key = plan(), pf.generate_key()
    ledger, trust = tmp_path / "ledger.db", tmp_path / "trust.json"
    pf.Ledger.create(ledger).close()
    budget = made.sign(key, ledger=ledger, why="ward 7", valid_days=3)
    trust.write_bytes(budget.own_trust().to_bytes())
    path = budget.save(tmp_path / "budget.json")
    trained = made.train(path, trust=trust, ledger=ledger, out=tmp_path / "run")
    assert trained.folder == tmp_path / "run"
    assert trained.budget.document.justification == "ward 7"
    with pytest.raises((AlreadyClaimed, ClaimEnded)):
        made.train(path, trust=trust, ledger=ledger, out=tmp_path / "again")
    with pytest.raises(ManifestRefused, match="the budget is for the plan"):
        plan(rounds=14).train(path, trust=trust, ledger=ledger, out=tmp_path / "other")


def test_other_records_than_the_signed_ones_are_refused() -> None:
    budget = plan().sign(pf.generate_key())
    with pytest.warns(pf.SelfSigned), pytest.raises(ManifestRefused, match="the run has 149"):
        plan(frames={"north": NORTH.iloc[:149], "south": SOUTH}).train(budget)


def test_a_request_is_written_for_the_officer(tmp_path: Path) -> None:
    asked = read_request(plan().request(tmp_path / "request.json", by="the ward", why="readmissions").read_bytes())
    assert asked.asked_by == "the ward"
    assert asked.plan == plan().text
    assert asked.document.justification == "readmissions"


def test_a_plan_file_is_a_plan_too(tmp_path: Path) -> None:
    made = plan()
    shutil.copytree(made.path.parent, tmp_path / "plan", copy_function=shutil.copyfile)
    again = pf.Plan.from_file(tmp_path / "plan" / "plan.toml")
    assert again.digest == made.digest
    assert again.algorithm == "pay-once"
    assert isinstance(again, Plan)
    assert (again.content, again.digest) == (again.path.read_bytes(), sha256(again.path.read_bytes()).hexdigest())
    assert "nothing spent" in again._repr_html_()
    (tmp_path / "plan" / "north.parquet").write_bytes(b"")
    with pytest.raises(BadData, match=r"north\.parquet"):
        again.price()


def test_budgets_are_explained_and_composed() -> None:
    budget = plan().sign(pf.generate_key())
    assert pf.explain(budget, trust=budget.own_trust()).promise.epsilon == 1.0
    both = pf.compose([budget, budget], silos=1)
    assert (both.epsilon, both.unit.protected.value) == (2.0, "attribute")
    with pytest.raises(InvalidInput, match="epsilon and delta"):
        pf.explain(epsilon=1.0)
    nothing = plan().sign(pf.generate_key(), unsafe_seeded_research_noise=True)
    with pytest.raises(UnsupportedCombination):
        pf.explain(nothing)
    with pytest.raises(UnsupportedCombination, match="budget 1"):
        pf.compose([nothing])


def test_a_plan_is_written_as_toml_reads_it() -> None:
    import tomllib

    odd = {"a key": 1, "list": ["x\n", 'y"z', 2.5], "table": {"é.b": True, "deep": {"n": -1e-5}}, "empty": {}}
    assert tomllib.loads(toml_text(odd)) == odd


def test_importing_privfair_loads_next_to_nothing() -> None:
    heavy = ("numpy", "torch", "scipy", "pandas", "pyarrow", "sklearn", "pydantic", "calibrate", "audit", "click")
    code = f"import sys, privfair; print([m for m in {heavy!r} if m in sys.modules], privfair.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] ")


def test_every_public_name_is_shown_and_found() -> None:
    assert set(pf.__all__) < set(dir(pf))
    for name in pf.__all__:
        assert getattr(pf, name).__doc__, name
    with pytest.raises(AttributeError, match="it has"):
        _ = pf.nonsense  # type: ignore[attr-defined]
