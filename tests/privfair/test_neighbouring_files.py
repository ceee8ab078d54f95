"""One unit of the *file* moves what is sent by no more than was signed: neighbouring files through the real loader.

A budget is signed once, for one set of files. Every neighbour of them, with a row (or a user's rows) added, removed or
changed at the start, in the middle and at the end, must be accepted by the same signature, and what the algorithm
sends on all of its units must lie within the signed distance of what it sends on the first files.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from audit.probes.setting import MessageValues, ProbeSetting, ReachedState, message_values
from calibrate.errors import InvalidInput, ManifestRefused, UnsupportedCombination
from privfair.algorithms.fair_plugin import FairPlugin
from privfair.batches import randomness
from privfair.batches.randomness import SeededWords
from privfair.data.encode import load_own_silos
from privfair.data.schema_toml import load_schema
from privfair.data.stability import RECORD_ADDED, RecordHash
from privfair.data.training_data import TrainingData, load_training_data
from privfair.noise.source import ExactNoise
from privfair.plan.training import read_training_plan
from privfair.run.prepare import PreparedRun
from privfair.training import prepare
from privfair.transcript import Transcript
from tests.privfair.small_runs import SCHEMA, Desk

Rows = dict[str, list[str]]
"""The records of each file, without its header."""
HEADER = "age,income,job,sex,default,user,id,town"
NAMES = ("north", "south")
STRANGE = "98,16.000,other,male,yes,u-new,i-new,t1"
"""Somebody unlike everybody else."""


def _rows(size: int = 64, seed: int = 0) -> Rows:
    generator = np.random.default_rng(seed)
    rows: Rows = {}
    for name in NAMES:
        rows[name] = [
            f"{generator.integers(18, 90)},{generator.normal(10, 2):.3f},{generator.choice(['clerk', 'nurse'])},"
            f"{'male' if number % 2 else 'female'},{'yes' if generator.random() < 0.5 else 'no'},"
            f"u{generator.integers(24)},i-{name}-{number},t{number % 2}"
            for number in range(size)
        ]
        rows[name][7] = rows[name][3]  # a copy, id and all
    return rows


@dataclass(frozen=True)
class Case:
    """A plan and what one unit of its promise is: `units` makes neighbours of the files."""

    algorithm: str
    privacy: str
    units: Callable[[Rows, Path], Iterator[Rows]]
    data: str = ""
    training: str = ""

    @property
    def plan(self) -> str:
        return (
            f'algorithm = "{self.algorithm}"\n[target]\nepsilon = 8.0\ndelta = 1e-3\n[privacy]\n{self.privacy}'
            f'[data]\nfiles = ["north.csv", "south.csv"]\nschema = "schema.toml"\n{self.data}'
            f"[training]\nseed = 0\n{self.training}"
        )


def _places(rows: list[str]) -> tuple[int, int, int]:
    return 0, len(rows) // 2, len(rows) - 1


def _with(rows: Rows, name: str, changed: list[str]) -> Rows:
    return {**rows, name: changed}


def records_added_or_removed(rows: Rows, folder: Path) -> Iterator[Rows]:
    for name in NAMES:
        own = rows[name]
        for place in _places(own):
            yield _with(rows, name, own[:place] + own[place + 1 :])
            yield _with(rows, name, [*own[:place], STRANGE, *own[place:]])
    own = rows["north"]
    yield _with(rows, "north", [*own, own[3]])  # one more copy
    yield _with(rows, "north", own[:7] + own[8:])  # one copy fewer


def records_replaced(rows: Rows, folder: Path) -> Iterator[Rows]:
    for name in NAMES:
        own = rows[name]
        for place in (*_places(own), 7):
            yield _with(rows, name, [*own[:place], STRANGE, *own[place + 1 :]])


def records_replaced_in_their_cell(rows: Rows, folder: Path) -> Iterator[Rows]:
    """Another age, income and job: a draw from the cells of class and group keeps its places."""
    for name in NAMES:
        own = rows[name]
        for place in (*_places(own), 7):
            _, _, _, *rest = own[place].split(",")
            yield _with(rows, name, [*own[:place], ",".join(("98", "16.000", "other", *rest)), *own[place + 1 :]])


def attributes_replaced(rows: Rows, folder: Path) -> Iterator[Rows]:
    other = {"male": "female", "female": "male"}
    for name in NAMES:
        own = rows[name]
        for place in (*_places(own), 3, 7):
            cells = own[place].split(",")
            cells[3] = other[cells[3]]
            yield _with(rows, name, [*own[:place], ",".join(cells), *own[place + 1 :]])


def users_added_or_removed(rows: Rows, folder: Path) -> Iterator[Rows]:
    """A user's rows lie in both files; a new one brings many, all over the place."""
    for user in ("u0", "u11", "u23"):
        yield {name: [row for row in own if row.split(",")[5] != user] for name, own in rows.items()}
    for count in (1, 15):
        more = {name: list(own) for name, own in rows.items()}
        for place in range(count):
            more["north"].insert(4 * place, STRANGE)
            more["south"].insert(3 * place, STRANGE.replace("yes", "no"))
        yield more


def users_replaced(rows: Rows, folder: Path) -> Iterator[Rows]:
    """All rows of a user become other rows, more or fewer, at other places; the user keeps the name."""
    for user, count in (("u0", 1), ("u11", 9), ("u23", 3)):
        other = {name: [row for row in own if row.split(",")[5] != user] for name, own in rows.items()}
        for place in range(count):
            other["north"].insert(5 * place, STRANGE.replace("u-new", user))
            other["south"].append(STRANGE.replace("u-new", user).replace("yes", "no"))
        yield other
    for user in ("u0", "u11", "u23"):  # somebody else in the same rows
        yield {name: [row.replace(f",{user},", ",u-new,") for row in own] for name, own in rows.items()}


def users_of_numbers(rows: Rows, folder: Path) -> Iterator[Rows]:
    """Identifiers that look like numbers, and a new one that makes them look like decimals, or like words."""
    for user in ("3.5", "007x"):
        for name in NAMES:
            yield _with(rows, name, [STRANGE.replace("u-new", user), *rows[name]])
    yield {name: [row for row in own if row.split(",")[5] != "11"] for name, own in rows.items()}


def dealt_users_removed(rows: Rows, folder: Path) -> Iterator[Rows]:
    """All training rows of some users that the records were dealt to."""
    data = load_own_silos([folder / f"{name}.csv" for name in NAMES], load_schema(folder / "schema.toml"))
    for user in range(0, 20, 4):
        fewer: Rows = {}
        for silo in data:
            dealt = RecordHash().one_of(silo.data, 0, "user", 20) == user
            tests = RecordHash().below(silo.data, 0, "split", 0.25)
            fewer[silo.name] = [row for row, gone in zip(rows[silo.name], dealt & ~tests, strict=True) if not gone]
        yield fewer


POISSON = "sampling-rate = 0.5\nrounds = 3\n"
AT_LEAST = "at-least = 20\n"
MMD = "group-size = 10\nsamples-per-group = 8\nrounds = 3\nusers = 2\ncohort = 1\nupdate-clip = 0.5\n"
MMD += "histogram-noise-ratio = 4.0\n"
STEFFLE = 'silo-size = 48\nsampling = "full"\nrounds = 3\nminority-fraction = 0.2\nlipschitz = 1.0\nw-radius = 0.5\n'
POISSON_USERS = 'sampling = "poisson"\n'
FPFL = "users = {users}\ncohort = 10\nrounds = 3\nclip = 1.0\n"
_CUT_BY_AGE = '[data.partition]\nkind = "heterogeneous"\nsilos = 2\nh = 0.75\ncolumn = "age"\n'
CASES = {
    "gaussian": Case("gaussian", POISSON, records_added_or_removed, AT_LEAST),
    "gaussian, split by id": Case("gaussian", POISSON, records_added_or_removed, AT_LEAST + 'id-column = "id"\n'),
    "gaussian, cut equally": Case(
        "gaussian", POISSON, records_added_or_removed, AT_LEAST + '[data.partition]\nkind = "equal"\nsilos = 3\n'
    ),
    "gaussian, cut by class": Case(
        "gaussian",
        POISSON,
        records_added_or_removed,
        'at-least = 1\n[data.partition]\nkind = "dirichlet"\nsilos = 2\nbeta = 3.0\n',
    ),
    "gaussian, cut by age": Case(
        "gaussian",
        POISSON,
        records_added_or_removed,
        AT_LEAST + '[data.partition]\nkind = "heterogeneous"\nsilos = 2\nh = 0.5\ncolumn = "age"\ncuts = [50]\n',
    ),
    "gaussian, cut by town": Case(
        "gaussian",
        POISSON,
        records_added_or_removed,
        AT_LEAST + '[data.partition]\nkind = "by-column"\ncolumn = "town"\nnames = ["t0", "t1"]\n',
    ),
    "gaussian, pooled": Case(
        "gaussian", POISSON, records_added_or_removed, AT_LEAST + '[data.partition]\nkind = "pooled"\n'
    ),
    "gaussian, replaced": Case("gaussian", POISSON + 'relation = "replace-one"\n', records_replaced),
    "gaussian, replaced, cut equally": Case(
        "gaussian",
        POISSON + 'relation = "replace-one"\n',
        records_replaced,
        '[data.partition]\nkind = "equal"\nsilos = 3\n',
    ),
    "fedfdp": Case(
        "fedfdp", POISSON + "clip = 1.0\nloss-clip = 2.0\nloss-noise-ratio = 2.5\n", records_added_or_removed, AT_LEAST
    ),
    "mmd-fedavg": Case("mmd-fedavg", MMD, records_replaced_in_their_cell, training="kernel-width = 5.0\n"),
    "steffle": Case("steffle", STEFFLE, attributes_replaced, training="group-frequencies = [0.5, 0.5]\n"),
    "steffle, cut by age": Case(
        "steffle", STEFFLE, attributes_replaced, _CUT_BY_AGE, "group-frequencies = [0.5, 0.5]\n"
    ),
    "pay-once": Case("pay-once", "rounds = 3\n", attributes_replaced),
    "fpfl, users of a column": Case(
        "fpfl",
        FPFL.format(users=12) + 'sampling = "poisson"\n',
        users_added_or_removed,
        'at-least = 12\n[data.users]\nkind = "column"\ncolumn = "user"\n',
    ),
    "fpfl, users replaced": Case(
        "fpfl", FPFL.format(users=18), users_replaced, '[data.users]\nkind = "column"\ncolumn = "user"\n'
    ),
    "fpfl, users of numbers": Case(
        "fpfl",
        FPFL.format(users=12) + 'sampling = "poisson"\n',
        users_of_numbers,
        'at-least = 12\n[data.users]\nkind = "column"\ncolumn = "user"\n',
    ),
    "fair-plugin": Case("fair-plugin", "rounds = 3\n", records_added_or_removed, "at-least = 30\n"),
    "fair-plugin, users": Case(
        "fair-plugin",
        'rounds = 3\nprotect = "user"\ncount-clip = 2.0\n',
        dealt_users_removed,
        '[data.users]\nkind = "poisson"\nusers = 20\n',
    ),
    "fair-plugin, users of a column": Case(
        "fair-plugin",
        'rounds = 3\nprotect = "user"\ncount-clip = 2.0\n',
        users_added_or_removed,
        'at-least = 12\n[data.users]\nkind = "column"\ncolumn = "user"\n',
    ),
    "fair-plugin, attributes": Case("fair-plugin", 'rounds = 3\nprotect = "attribute"\n', attributes_replaced),
    "fair-plugin, trees": Case(
        "fair-plugin",
        'rounds = 5\nprotect = "attribute"\n',
        attributes_replaced,
        training='[training.model]\nkind = "trees"\ntrees = 3\n',
    ),
    "fair-plugin, distilled": Case(
        "fair-plugin",
        'rounds = 7\nprotect = "attribute"\n',
        attributes_replaced,
        training='distil-trees = 2\n[training.model]\nkind = "trees"\ntrees = 3\nleaves = 3\n',
    ),
    "gaussian, classes weighed": Case(
        "gaussian", POISSON, records_added_or_removed, AT_LEAST, "class-weight = [1.0, 4.0]\n"
    ),
    "gaussian, in a cycle": Case(
        "gaussian", 'noise = "banded"\nbatches = 2\nrounds = 4\n', records_added_or_removed, AT_LEAST
    ),
    "fpfl, dealt users": Case(
        "fpfl",
        FPFL.format(users=20) + 'sampling = "poisson"\n',
        dealt_users_removed,
        '[data.users]\nkind = "poisson"\nusers = 20\n',
    ),
}


def _write(folder: Path, rows: Rows) -> None:
    for name, own in rows.items():
        (folder / f"{name}.csv").write_text("\n".join((HEADER, *own)) + "\n", encoding="utf-8")


def _signed(folder: Path, case: Case, size: int = 64) -> tuple[Desk, Rows, bytes]:
    desk, rows = Desk.at(folder, case.plan), _rows(size)
    if case.units is users_of_numbers:
        rows = {name: [row.replace(",u", ",") for row in own] for name, own in rows.items()}
    (folder / "schema.toml").write_text(SCHEMA + '[file]\nkeep = ["age", "user", "id", "town"]\n', encoding="utf-8")
    _write(folder, rows)
    return desk, rows, desk.budget().read_bytes()


def _prepare(desk: Desk, envelope: bytes) -> PreparedRun:
    (desk.folder / "budget.json").write_bytes(envelope)
    return prepare(desk.plan, desk.folder / "budget.json", desk.trust)


def _sendings(run: PreparedRun) -> tuple[ProbeSetting, dict[str, MessageValues]]:
    """What each party sends of all its units in the first round; of a fair plug-in, in all of three, of one state."""
    state, steps = run.algorithm.start(), 1
    if isinstance(run.algorithm, FairPlugin) and run.algorithm.clips is not None:
        theta = torch.randn(state.descent.theta.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        rates = torch.tensor([[30.0, 10.0], [10.0, 30.0]], dtype=torch.float64)
        state, steps = replace(state, descent=replace(state.descent, theta=theta, kept=theta), rates=rates), 3
    reached = [ReachedState(step, state) for step in range(steps)]
    setting = ProbeSetting(run.algorithm, run.model, run.silos, run.manifest.document, tuple(reached))
    found = {}
    for silo in run.silos:
        batch = torch.arange(silo.units)
        if run.algorithm.draws:
            batch = torch.from_numpy(run.algorithm.draw(silo, SeededWords(0, "draw")))
        sent = [message_values(setting, one, silo, batch) for one in reached]
        found[silo.name] = replace(sent[0], noisy={name: value for each in sent for name, value in each.noisy.items()})
    return setting, found


def _default_or_slow() -> Iterator[object]:
    """One case for each private algorithm by default; the other steps and units among the slow tests."""
    default = ("gaussian", "fedfdp", "mmd-fedavg", "steffle", "pay-once", "fpfl, users of numbers", "fair-plugin")
    for name in CASES:
        yield pytest.param(name, marks=() if name in default else pytest.mark.slow)


@pytest.mark.parametrize("name", list(_default_or_slow()))
def test_one_unit_of_the_file_moves_what_is_sent_by_no_more_than_signed(name: str, tmp_path: Path) -> None:
    desk, rows, envelope = _signed(tmp_path, CASES[name])
    setting, base = _sendings(_prepare(desk, envelope))
    seen = 0
    for neighbour in list(CASES[name].units(rows, tmp_path)):
        _write(tmp_path, neighbour)
        _, other = _sendings(_prepare(desk, envelope))
        assert list(other) == list(base)
        moved = 0
        for party, values in base.items():
            apart = [
                setting.distance(of, sums, other[party].noisy[of]) / setting.allowed(of)
                for of, sums in values.noisy.items()
            ]
            assert all(share <= 1 + 1e-9 for share in apart), (party, apart)
            for of, answers in values.randomised.items():
                apart.append(float((answers != other[party].randomised[of]).sum()))
                assert apart[-1] <= 1
            for of in setting.independent & set(values.clear):
                np.testing.assert_allclose(values.clear[of], other[party].clear[of], atol=1e-9)
            moved += any(share > 1e-9 for share in apart)
        assert moved <= 1, "a unit is in one silo only"
        seen += moved
    assert seen > 1, "some neighbours differ in a training record, or the test shows nothing"


def _training_records(data: TrainingData) -> Counter[bytes]:
    whole = data.parties.pooled()
    return Counter(
        x.tobytes() + bytes([y, s]) for x, y, s in zip(whole.features, whole.label, whole.group, strict=True)
    )


def test_one_row_fewer_shifts_no_other_row_between_training_and_test(tmp_path: Path) -> None:
    """402 rows and 401: by position both give as many training records, and more than a hundred change sides."""
    desk, _, _ = _signed(tmp_path, CASES["gaussian, pooled"])
    plan, unit = read_training_plan(desk.plan).data, read_training_plan(desk.plan).recipe.unit
    rows = _rows(201)
    _write(tmp_path, rows)
    whole = load_training_data(plan, unit=unit)
    by_position = _training_records(load_training_data(plan))
    for place in (0, 100, 200):
        _write(tmp_path, _with(rows, "north", rows["north"][:place] + rows["north"][place + 1 :]))
        fewer = load_training_data(plan, unit=unit)
        assert (_training_records(whole) - _training_records(fewer)).total() <= 1
        assert (_training_records(fewer) - _training_records(whole)).total() == 0
    _write(tmp_path, _with(rows, "north", rows["north"][1:]))
    shifted = _training_records(load_training_data(plan)) - by_position
    assert shifted.total() > 50, "what a split by position does, and why it is refused"


@pytest.mark.parametrize(
    ("case", "data", "words"),
    [
        ("gaussian", 'split = "position"\n', "splitting train and test by position with add-remove"),
        (
            "gaussian",
            '[data.partition]\nkind = "heterogeneous"\nsilos = 2\nh = 1\ncolumn = "age"\n',
            "declare public cuts",
        ),
        ("gaussian", '[data.partition]\nkind = "by-column"\ncolumn = "town"\n', "declare the silos' public names"),
        ("gaussian, replaced", 'split = "record"\n', "splitting train and test by record with replace-one"),
        (
            "gaussian, replaced",
            '[data.partition]\nkind = "dirichlet"\nsilos = 2\nbeta = 3.0\n',
            "by a share of each class with replace-one",
        ),
        ("fpfl, dealt users", "", "write the public number of users"),
    ],
)
def test_a_step_without_a_proof_is_refused_by_name(case: str, data: str, words: str, tmp_path: Path) -> None:
    kept = CASES[case].data if case.startswith("fpfl") else data
    plan = replace(CASES[case], data=AT_LEAST + kept).plan.replace("users = 20\n[training]", "[training]")
    desk = Desk.at(tmp_path, plan)
    (tmp_path / "schema.toml").write_text(SCHEMA + '[file]\nkeep = ["age", "user", "id", "town"]\n', encoding="utf-8")
    _write(tmp_path, _rows())
    with pytest.raises(UnsupportedCombination, match=words):
        desk.budget()


def test_neighbouring_files_are_accepted_alike_and_told_apart_by_no_size(tmp_path: Path) -> None:
    """Under add-remove the manifest carries the declared bound, and says which; the exact number is nowhere."""
    desk, rows, envelope = _signed(tmp_path, CASES["gaussian"])
    for own in (rows["north"], [*rows["north"], STRANGE], rows["north"][1:]):
        _write(tmp_path, _with(rows, "north", own))
        document = _prepare(desk, envelope).manifest.document
        assert {silo.name: silo.size for silo in document.data.silos} == {"north": 20, "south": 20}
    assert any("at least the signed number of records" in said for said in document.guarantee.not_protected)
    measured = "Records held out of the files for measuring: exact metrics on them are written; a threshold may be"
    assert any(said.startswith(measured) for said in document.guarantee.not_protected)
    exact, _, signed = _signed(tmp_path / "exact", CASES["gaussian, replaced"])
    guarantee = _prepare(exact, signed).manifest.document.guarantee
    assert any("exactly the signed number of records" in said for said in guarantee.not_protected)


def test_the_whole_engine_without_noise_publishes_neighbouring_sums(tmp_path: Path) -> None:
    """Loader, ledger, gate and transcript as they are; only the noise is off, and every record is in the batch."""
    case = Case("gaussian", "sampling-rate = 1.0\nrounds = 2\n", records_added_or_removed, AT_LEAST)
    desk, rows, _ = _signed(tmp_path, case)
    published = []
    for number, own in enumerate((rows["north"], [STRANGE, *rows["north"]], rows["north"][1:])):
        _write(tmp_path, _with(rows, "north", own))
        with patch.object(ExactNoise, "gaussian", lambda self, values, sigma: np.array(values, dtype=np.float64)):
            result = desk.train(desk.budget(f"budget-{number}.json"), out=f"run-{number}")
        transcript = Transcript.read(result.run / "transcript.bin")
        published.append({party: transcript.value(0, party, "value_1") for party in NAMES})
    for other in published[1:]:
        apart = [float(np.linalg.norm(published[0][party] - other[party])) for party in NAMES]
        assert max(apart) <= 1 + 1e-5
        assert sum(distance > 1e-5 for distance in apart) <= 1


WHOLE = {
    "fedfdp": replace(CASES["fedfdp"], privacy=CASES["fedfdp"].privacy.replace("rate = 0.5", "rate = 1.0")),
    "mmd-fedavg": replace(CASES["mmd-fedavg"], privacy=MMD.replace("cohort = 1", "cohort = 2")),
    "steffle": CASES["steffle"],
    "pay-once": CASES["pay-once"],
    "fpfl": replace(
        CASES["fpfl, users of a column"], privacy=FPFL.format(users=12).replace("10", "12") + POISSON_USERS
    ),
    "fair-plugin": CASES["fair-plugin"],
    "fpfl, replaced": replace(CASES["fpfl, users replaced"], privacy=FPFL.format(users=18).replace("10", "18")),
}
"""Every unit in the batch, or batches drawn by the same words: what is published differs by the unit alone."""


def _first_round(desk: Desk, name: str) -> dict[tuple[str, str], np.ndarray]:
    """What loader, ledger, gate and transcript publish in the first round; only noise is off and batches repeat."""
    words = SimpleNamespace(urandom=lambda size: hashlib.shake_256(b"the same in every run").digest(size))
    off = {
        "gaussian": lambda self, values, sigma: np.array(values, dtype=np.float64),
        "laplace": lambda self, values, scale: np.array(values, dtype=np.float64),
        "randomized_response": lambda self, categories, k, epsilon: np.array(categories),
    }
    with patch.multiple(ExactNoise, **off), patch.object(randomness, "os", words):
        result = desk.train(desk.budget(f"budget-{name}.json"), out=f"run-{name}")
    transcript = Transcript.read(result.run / "transcript.bin")
    header = transcript.header
    return {
        (party, value.name): transcript.value(0, party, value.name)
        for party in header.parties
        for value in header.values
        if transcript.holds(0, party, value.name)
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WHOLE))
def test_every_algorithms_engine_without_noise_publishes_neighbouring_values(name: str, tmp_path: Path) -> None:
    """Through the real gate: first round, one unit changed at the start, in the middle, at the end, and a copy."""
    case = WHOLE[name]
    desk, rows, envelope = _signed(tmp_path, case)
    run = _prepare(desk, envelope)
    setting = ProbeSetting(run.algorithm, run.model, run.silos, run.manifest.document, ())
    base = _first_round(desk, "base")
    neighbours, moved = list(case.units(rows, tmp_path)), 0
    for number, neighbour in enumerate(neighbours[:: max(1, len(neighbours) // 4)]):
        _write(tmp_path, neighbour)
        other = _first_round(desk, str(number))
        assert set(other) == set(base)
        changed = set()
        for (party, value), sent in base.items():
            if value in setting.bounded:
                share = setting.distance(value, sent, other[party, value]) / setting.allowed(value)
                assert share <= 1 + 1e-5, (party, value, share)
            elif value in setting.randomised:
                share = float((sent != other[party, value]).sum())
                assert share <= 1
            else:
                continue
            changed |= {party} if share > 1e-5 else set()
        assert len(changed) <= 1, "a unit is in one silo only"
        moved += len(changed)
    assert moved, "some neighbour differs in a training record, or the test shows nothing"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "gaussian, split by id", "steffle"])
def test_random_neighbours_of_random_files(name: str, tmp_path: Path) -> None:
    """Seeded: other files, records at any place, several copies, two files at once for one copy each."""
    desk, _, _ = _signed(tmp_path, CASES[name])
    generator = np.random.default_rng(7)
    rows = _rows(seed=5)
    for _ in range(6):
        rows["north"].insert(int(generator.integers(60)), rows["north"][int(generator.integers(60))])
    rows = {party: own[:64] for party, own in rows.items()}
    _write(tmp_path, rows)
    envelope = desk.budget("random.json").read_bytes()
    setting, base = _sendings(_prepare(desk, envelope))
    for _ in range(16):
        party, place = NAMES[int(generator.integers(2))], int(generator.integers(64))
        own, row = rows[party], rows[party][place]
        if name == "steffle":
            flipped = row.replace(",male,", ",x,").replace(",female,", ",male,").replace(",x,", ",female,")
            changed = [*own[:place], flipped, *own[place + 1 :]]
        else:
            more = STRANGE if generator.random() < 0.5 else own[int(generator.integers(64))]
            changed = [*own[:place], more, *own[place:]] if generator.random() < 0.5 else own[:place] + own[place + 1 :]
        _write(tmp_path, _with(rows, party, changed))
        _, other = _sendings(_prepare(desk, envelope))
        for of_party, values in base.items():
            for of, sums in values.noisy.items():
                assert setting.distance(of, sums, other[of_party].noisy[of]) <= setting.allowed(of) * (1 + 1e-9)


APART = CASES["gaussian"].plan.replace(
    'schema = "schema.toml"\n', 'schema = "schema.toml"\ntest-files = ["n.csv", "s.csv"]\n'
)


def _same_file(folder: Path, rows: Rows) -> None:
    (folder / "n.csv").hardlink_to(folder / "north.csv")
    _write(folder, {"s": _rows(seed=9)["south"]})


def _same_content(folder: Path, rows: Rows) -> None:
    _write(folder, {"n": _rows(seed=9)["north"], "s": rows["north"]})


def _same_records(folder: Path, rows: Rows) -> None:
    """Every fourth test record trains, in another order."""
    fresh = _rows(seed=9)
    _write(folder, {"n": fresh["north"], "s": [*reversed(rows["south"][:20]), *fresh["south"][:44]]})


def _same_ids(folder: Path, rows: Rows) -> None:
    fresh = _rows(seed=9)
    others = {"n" if name == "north" else "s": [row.replace("i-", "j-") for row in own] for name, own in fresh.items()}
    others["s"][5] = others["s"][5].replace("j-south-5", "i-north-5")
    _write(folder, others)


@pytest.mark.parametrize(
    ("test_files", "data", "words"),
    [
        (_same_file, "", "a test file is a training file"),
        (_same_content, "", "a test file is a training file"),
        (_same_records, "", "many test records equal training records"),
        (_same_ids, 'id-column = "id"\n', "share ids"),
    ],
)
def test_metrics_on_training_records_are_refused_under_a_promise(
    test_files: Callable[[Path, Rows], None], data: str, words: str, tmp_path: Path
) -> None:
    desk, rows = Desk.at(tmp_path, APART.replace(AT_LEAST, AT_LEAST + data)), _rows()
    (tmp_path / "schema.toml").write_text(SCHEMA + '[file]\nkeep = ["age", "user", "id", "town"]\n', encoding="utf-8")
    _write(tmp_path, rows)
    test_files(tmp_path, rows)
    with pytest.raises(UnsupportedCombination, match=words) as refused:
        desk.budget()
    assert not any(letter.isdigit() for letter in str(refused.value)), "the refusal tells no count"


def test_test_files_that_are_apart_are_accepted_twins_included(tmp_path: Path) -> None:
    desk, rows = Desk.at(tmp_path, APART), _rows()
    (tmp_path / "schema.toml").write_text(SCHEMA + '[file]\nkeep = ["age", "user", "id", "town"]\n', encoding="utf-8")
    fresh = _rows(seed=9)
    _write(tmp_path, {**rows, "n": [rows["north"][0], *fresh["north"]], "s": fresh["south"]})
    run = _prepare(desk, desk.budget().read_bytes())
    assert any("Records in the test files" in said for said in run.manifest.document.guarantee.not_protected)


def test_a_missing_or_false_lower_bound_is_refused_and_no_size_is_told(tmp_path: Path) -> None:
    desk, rows, envelope = _signed(tmp_path, CASES["gaussian"])
    sizes = load_training_data(read_training_plan(desk.plan).data, unit=RECORD_ADDED).parties.sizes
    for bound, words in ((None, "is needed for 'north'"), (60, "exceeds what 'north' has")):
        desk.plan.write_text(CASES["gaussian"].plan.replace(AT_LEAST, "" if bound is None else f"at-least = {bound}\n"))
        with pytest.raises(InvalidInput, match=words) as refused:
            desk.budget("other.json")
        assert not any(str(size) in str(refused.value) for size in sizes)
    desk.plan.write_text(CASES["gaussian"].plan)
    _write(tmp_path, _with(rows, "north", rows["north"][:16]))
    with pytest.raises(ManifestRefused, match="north has fewer than the 20 units"):
        _prepare(desk, envelope)
