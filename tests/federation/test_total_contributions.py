"""From the first charge on, what a coordinator sees does not depend on a record, except through published values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from calibrate.arrays import Floats
from privfair.algorithms.algorithm import Message
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.contribution import BoundedContribution
from privfair.federation import wire
from privfair.federation.coordinator import PublicState
from privfair.federation.guard import Guard
from privfair.federation.wire import MessageKind, decode
from privfair.ledger import Ledger
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from tests.federation.sites import PLANS, Sites
from tests.privfair.small_runs import Desk

pytestmark = pytest.mark.filterwarnings("ignore")
FULL = PLANS["gaussian"].replace("sampling-rate = 0.2", "sampling-rate = 1.0")
DEEP = FULL.replace("rounds = 4", "rounds = 12") + f'[training.model]\nkind = "perceptron"\nhidden = {[1] * 20}\n'
SILOS = 'schema = "schema.toml"\n[data.silos]\nnorth = 120\nsouth = 160\nwest = 140\n'
RECORD = "60,400,nurse,female,yes\n"
"""One record of north, whose income is beyond all others."""


def _sites(folder: Path, plan: str, present: bool) -> Sites:
    """Three sites under seeded research noise; north has the record, or not."""
    sites = Sites(Desk.at(folder, plan.format(data=SILOS)), "gaussian")
    sites.desk.budget(research_noise=True)
    if present:
        with (folder / "north.csv").open("a") as file:
            file.write(RECORD)
    return sites


def _at_one_place(number: float) -> Callable[[BoundedContribution], BoundedContribution]:
    return lambda one: replace(one, values=np.where(np.arange(one.values.size) == 1, number, one.values))


DAMAGES: dict[str, tuple[Callable[[BoundedContribution], BoundedContribution], Callable[[Floats], Floats]]] = {
    "nan": (_at_one_place(np.nan), lambda total: np.where(np.arange(total.size) == 1, 0.0, total)),
    "infinite": (_at_one_place(-np.inf), lambda total: np.where(np.arange(total.size) == 1, 0.0, total)),
    "too long": (lambda one: replace(one, values=8.0 * one.values, measured=8.0 * one.bound), lambda total: total),
    "infinitely long": (lambda one: replace(one, measured=np.inf), np.zeros_like),
    "of no length": (lambda one: replace(one, measured=np.nan), np.zeros_like),
}
"""What one record makes of the sum under an algorithm whose clipping is wrong, and what gets the noise then."""


@contextmanager
def _wrong_clipping(damage: str) -> Iterator[list[Floats]]:
    """Contributions with the record in their batch are damaged; what is to get the noise is listed."""
    right, meant = DpFedSgd.contribution, list[Floats]()
    damaged, published = DAMAGES[damage]

    def contribution(self: Any, state: Any, step: int, silo: Any, batch: Any) -> Message:
        (one,) = right(self, state, step, silo, batch).noisy
        present = bool((silo.x[batch] > 9).any())
        meant.append(published(one.values) if present else one.values)
        return Message((damaged(one) if present else one,))

    with patch.object(DpFedSgd, "contribution", contribution):
        yield meant


def _seen(answer: bytes) -> tuple[Any, ...]:
    """All of an answer but its numbers."""
    message = decode(answer)
    fields = [message.fields.get(name) for name in ("error", "code", "of", "step")]
    return message.kind, *fields, {name: one.shape for name, one in message.arrays.items()}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_breaks_the_clipping_is_answered_like_its_absence(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen, noise = [], []
    for present in (True, False):
        folder = tmp_path / str(present)
        run = _sites(folder, FULL, present).prepare("north")
        (folder / "own").mkdir()
        state = run.algorithm.checkpoint(run.algorithm.start())
        caplog.clear()
        with _wrong_clipping(damage) as meant, Ledger.create(folder / "own.db") as ledger:
            guard = Guard(run, RunFolder(folder / "own"), ledger, logging.getLogger("silo"))
            answers = [guard.answer(wire.ask_contribution(run.manifest.digest, step, state)) for step in range(3)]
            guard.close()
        seen.append([_seen(answer) for answer in answers])
        noise.append([decode(answer).arrays["0"] - total for answer, total in zip(answers, meant, strict=True)])
        notes = [one.name for one in caplog.records if "changed and published" in one.getMessage()]
        assert notes == ["silo"] * 3 * present, "noted in the silo's own log, once for each value"
        assert not (folder / "own" / "halted").exists()
    assert seen[0] == seen[1]
    np.testing.assert_allclose(noise[0], noise[1], atol=1e-9)


@pytest.mark.parametrize("damage", ["nan", "too long"])
def test_the_same_files_are_written_outside_the_silos_with_the_record_and_without(damage: str, tmp_path: Path) -> None:
    """Separate guard processes and an honest coordinator."""
    written = []
    for present in (True, False):
        sites = _sites(tmp_path / str(present), FULL, present)
        with _wrong_clipping(damage), sites.guards() as transport:
            told = train_over(transport, sites.signed(), sites.folder / "out")
        files = sorted(path for path in (sites.folder / "out").rglob("*") if path.is_file())
        # model.json holds the published model's numbers as text.
        sizes = {path.name: 0 if path.name == "model.json" else path.stat().st_size for path in files}
        written.append((told.status, told.rounds, sizes))
        log = (sites.folder / "north" / "guard.log").read_text()
        assert ("changed and published" in log) == present
        assert "halted" not in log
    assert written[0] == written[1]


def _firing_state(state: PublicState) -> PublicState:
    """Entries up to 1e9: the first unit fires for that income alone, and the layers after it multiply by 1e9 each."""
    theta = np.full(state["theta"].shape, 1e9)
    theta[:6] = (0.0, 1.6e8, 0.0, 0.0, 0.0, -1e9)
    theta[7::2] = 0.0
    return {**state, "theta": theta}


def test_a_state_that_fires_for_one_record_only_is_no_membership_oracle(tmp_path: Path) -> None:
    """A coordinator that means harm asks it in every step, of guards that are restarted in between."""
    seen = []
    for present in (True, False):
        sites = _sites(tmp_path / str(present), DEEP, present)
        run = sites.signed().manifest.digest
        algorithm = sites.prepare("north").algorithm
        state = _firing_state(algorithm.checkpoint(algorithm.start()))
        answers = []
        for step in range(3):
            with sites.guards() as transport:
                for question in (wire.ask_contribution(run, step, state), wire.ask_hello(run)):
                    answers.append(transport(dict.fromkeys(sites.parties, question))["north"])
        seen.append([_seen(answer) for answer in answers])
    assert seen[0] == seen[1]
    assert [one[0] for one in seen[0]] == [MessageKind.PUBLISHED, MessageKind.GREETING] * 3
