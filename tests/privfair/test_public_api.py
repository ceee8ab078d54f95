"""What is shown to users runs: doctests of the public names, the README's Python, the page about Python."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privfair as pf
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.run.public import RunPromise
from privfair.run.record import Rounds, RunRecord, SpentManifest
from privfair.training import TrainingResult
from tests.architecture.tree import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def blocks(page: Path) -> list[str]:
    """The Python of a page that is not a doctest, in its order."""
    return [block for block in BLOCK.findall(page.read_text("utf-8")) if ">>>" not in block]


def patients(number: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": rng.integers(18, 90, number), "sex": rng.choice(["f", "m"], number)})
    return frame.assign(readmitted=np.where(frame["age"] + 10 * rng.normal(size=number) > 50, "yes", "no"))


def test_doctests_of_public_names_hold() -> None:
    homes = {getattr(pf, name).__module__ for name in pf._HOMES}
    tried = 0
    for name in sorted(home for home in homes if home.startswith("privfair")):
        found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
        assert found.failed == 0, name
        tried += found.attempted
    assert tried >= 30


def test_what_people_look_at_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    assert "[<b>0.5</b>" in pf.EpsilonInterval(0.5, 1.0)._repr_html_()
    assert "<polyline" in pf.explain(epsilon=1.0, delta=1e-5)._repr_html_()
    assert "fails" in pf.check_theorem("steffle.theorem-3.3", epsilon=1)._repr_html_()
    promise = RunPromise(
        kind="private",
        text="epsilon <1",
        unit=PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE),
        epsilon=1.0,
        delta=1e-5,
        claimed_epsilon=None,
        not_protected=(),
        research_noise=False,
    )
    record = RunRecord.model_construct(
        algorithm="pay-once",
        rounds=Rounds(signed=5, charged=4, planned_steps=3, steps=3, sessions=1),
        promise=promise,
        metrics={"overall": {"accuracy": 0.75}},
        manifest=SpentManifest(digest="0", envelope="0", signed_by=()),
        transcript=None,
    )
    shown = TrainingResult(tmp_path, record)._repr_html_()
    assert "epsilon &lt;1" in shown
    assert "0.7500" in shown
    assert "not private" in shown


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_readmes_python_trains_audits_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (shown,) = blocks(ROOT / "README.md")
    assert len(shown.strip().splitlines()) == 6
    known: dict[str, object] = {"pf": pf, "df1": patients(150, 1), "df2": patients(160, 2)}
    exec(compile(shown, "README.md", "exec"), known)
    assert len(known["labels"]) == 150  # type: ignore[arg-type]
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_about_python_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    for number, block in enumerate(blocks(ROOT / "docs" / "how-to" / "python.md"), start=1):
        exec(compile(block, f"python.md, block {number}", "exec"), known)
    assert (tmp_path / "run" / "model.json").exists()
    assert (tmp_path / "loop" / "transcript.bin").exists()
    assert (tmp_path / "request-2.json").exists()
