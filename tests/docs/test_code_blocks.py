"""Every code block of the docs runs as copied, or says why it does not (README: tests/end_to_end/test_readme.py)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from calibrate.manifest.keys import Role, generate, load_private, save
from calibrate.manifest.trust import read_trust
from calibrate.manifest.verify import IntendedRun, read_unverified, verify
from privfair.run.prepare import claim_terms
from privfair.transcript import ValueSpec
from tests.docs.blocks import ROOT, World, blocks, commands, pages, run_page
from tests.privfair.small_runs import GAUSSIAN, Desk

RUN_AS_COPIED = (
    "audit-model.md",
    "audit-training.md",
    "audit.md",
    "data.md",
    "evidence.md",
    "explanation/accounting.md",
    "how-to/officer.md",
    "how-to/python.md",
    "integrations.md",
    "ledger.md",
    "manifest.md",
    "models.md",
    "reference/exit-codes.md",
    "reference/ledger-format.md",
    "sensitivity.md",
    "training-run.md",
    "training.md",
    "tutorials/audit-opacus.md",
    "tutorials/check-a-theorem.md",
    "tutorials/own-csv.md",
    "tutorials/sign-and-spend.md",
    "tutorials/three-sites.md",
)
"""Every page that has blocks to run; add yours, so that it stays true."""


def _files(folder: Path) -> None:
    """Three hospitals' files, their schema and a plan."""
    desk = Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))
    for path in (desk.key, desk.key.with_name("officer.pem.pub"), desk.trust, desk.ledger):
        path.unlink()
    (folder / "ledger.db.anchor").unlink()


def _keys(folder: Path) -> None:
    """The same, with an officer's key, the trust file and a ledger."""
    Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))


def _signed(folder: Path) -> dict[str, object]:
    """The same, with a signed budget, and an earlier one."""
    desk = Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))
    document = read_unverified(desk.budget().read_bytes()).document
    desk.budget("last.json")
    key = load_private(desk.key).key_id
    return {"plan_digest": document.config_digest, "data_binding": document.data, "ID": key}


def _trained(folder: Path) -> None:
    """The same after training, with an auditor's key."""
    desk = Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))
    desk.train(desk.budget())
    save(generate(), Role.AUDITOR, folder / "another.pem")


def _claim(folder: Path) -> dict[str, object]:
    """The signed budget as terms of a claim, and what a party would publish under it."""
    names = _signed(folder)
    run = IntendedRun(str(names["plan_digest"]), read_unverified((folder / "budget.json").read_bytes()).document.data)
    trust = read_trust((folder / "trust.json").read_bytes())
    verified = verify((folder / "budget.json").read_bytes(), trust, run)
    return {
        "run": folder,
        "terms": claim_terms(verified),
        "noise": SimpleNamespace(label="operating-system"),
        "parties": ("north",),
        "values": (ValueSpec("value_1", (3,)),),
        "party": "north",
        "name": "value_1",
        "noisy": np.zeros(3),
    }


def _table(random: np.random.Generator, rows: int = 60) -> list[str]:
    x = random.normal(size=(rows, 3))
    sex = random.integers(2, size=rows)
    outcome = (x[:, 0] + random.normal(size=rows) > 0).astype(int)
    lines = (f"{a:.4f},{b:.4f},{c:.4f},{s},{o}" for (a, b, c), s, o in zip(x, sex, outcome, strict=True))
    return ["a,b,c,sex,outcome", *lines]


def _model(folder: Path) -> None:
    """A model that somebody fitted, its training records and others; and a run."""
    _trained(folder)
    random = np.random.default_rng(0)
    tables = [_table(random), _table(random)]
    for name, table in zip(("members", "others"), tables, strict=True):
        (folder / f"{name}.csv").write_text("\n".join(table) + "\n", encoding="utf-8")
    records = np.loadtxt(tables[0][1:], delimiter=",")
    frame = pd.DataFrame(records[:, :4], columns=["a", "b", "c", "sex"])
    joblib.dump(LogisticRegression().fit(frame, records[:, 4].astype(int)), folder / "model.joblib")


_MY_CODE = """
import numpy as np
from sklearn.linear_model import LogisticRegression

def train(data):
    x = data.drop(columns="income")
    return LogisticRegression().fit(x, data["income"])

def train_watched(data, watch):
    x, y = data
    weights = np.zeros(x.shape[1])
    def gradients_of(records):
        x, y = records
        found = x * (1 / (1 + np.exp(-x @ weights)) - y)[:, None]
        return found / np.maximum(1, np.linalg.norm(found, axis=1, keepdims=True))
    for _ in range(3):
        noisy = gradients_of((x, y)).sum(axis=0) + np.random.default_rng().normal(size=len(weights))
        watch.gradient(noisy, gradients_of)
        weights = weights - noisy / len(x)
    return weights
"""


def _training(folder: Path) -> None:
    """A training function of somebody's, and a table."""
    (folder / "my_code.py").write_text(_MY_CODE, encoding="utf-8")
    table = "\n".join(_table(np.random.default_rng(0), 200)).replace("outcome", "income")
    (folder / "table.csv").write_text(table + "\n", encoding="utf-8")


def _opacus(folder: Path) -> dict[str, object]:
    """A module, data and a budget for a loop with Opacus."""
    pytest.importorskip("opacus", reason="opacus is not installed (pip install 'privfair[opacus]')")
    import torch

    import privfair as pf

    model = torch.nn.Linear(3, 2)
    pf.Ledger.create(folder / "ledger.db").close()
    budget = pf.budget(4.0, 1e-5, units=100, rounds=4, sampling_rate=0.2, shapes={"gradient": (8,)}).sign(generate())
    (folder / "budget.json").write_bytes(budget.envelope)
    (folder / "trust.json").write_bytes(budget.own_trust().to_bytes())
    data = torch.utils.data.TensorDataset(torch.randn(100, 3), torch.arange(100) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "data": data, "optimizer": optimizer, "epochs": 2, "loss": torch.nn.CrossEntropyLoss()}


_PREPARED: tuple[World, ...] = (_files, _keys, _signed, _trained, _claim, _model, _training, _opacus)
WORLDS = {getattr(world, "__name__", "").removeprefix("_"): world for world in _PREPARED}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_runnable_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        if block.left_out:
            assert len(block.directive("not run") or "") > 5, f"{block.where}: give the reason"
        elif block.kind == "python":
            if ">>> " not in block.body:
                compile(block.body, block.where, "exec")
        elif str(page.relative_to(ROOT / "docs" if "docs" in page.parts else ROOT)) in RUN_AS_COPIED:
            known = ("privfair", "mkdir", "cat")
            wrong = [line for line in commands(block.body) if line.split()[0] not in known]
            assert not wrong, f"{block.where}: say `<!-- not run: why -->` before {wrong[0]!r}"
        assert (block.directive("given") or "files") in WORLDS, block.where


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_AS_COPIED)
def test_the_blocks_run_as_copied(page: str, tmp_path: Path) -> None:
    run_page(ROOT / "docs" / page, tmp_path, WORLDS)


def test_the_generated_reference_has_every_command_key_and_message() -> None:
    """The pages are made when the site is built; here they are made without a site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install 'privfair[docs]')")
    from importlib.util import module_from_spec, spec_from_file_location

    from calibrate.plans import PLANS
    from privfair.algorithms.registry import _RECIPES
    from privfair.cli import _SECTIONS

    spec = spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    commands, keys, errors = (write() for write in hooks.GENERATED.values())
    assert all(f"## privfair {name}\n" in commands for part in _SECTIONS.values() for name in part)
    assert "### privfair ledger init" in commands
    assert all(f'## [privacy], algorithm = "{algorithm.value}"' in keys for algorithm in PLANS)
    assert all(f"## [training], {key}\n" in keys for key in _RECIPES)
    assert "| `learning-rate` | number | `0.5` |" in keys
    assert "| `measure-every` | whole number or `auto` | `auto` | Steps between" in keys
    assert "Optional" not in keys
    assert "Union" not in keys
    assert len(errors.splitlines()) > 300
    assert "| [data.attributes] | excludes [data.users] | drop one of the two tables |" in errors
    said = commands + keys + errors
    assert all(f"{place}" not in said for place in ("/work", "/home", "/root"))
