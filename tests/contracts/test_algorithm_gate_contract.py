"""Every private algorithm behind the gate: noise as signed, once per round, nothing beyond its bound, and resumable."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrate.errors import GateRefused, Refused
from calibrate.manifest.mechanism import InTheClear, NoiseSource
from calibrate.manifest.verify import VerifiedManifest
from calibrate.privacy_unit import EpsilonDelta
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.federation.coordinator import Position, run_steps
from privfair.federation.local_party import LocalParties, PartySetup, require_declared
from privfair.gate import open_gate
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun
from privfair.run.record import FIRST_SESSION
from privfair.run.replay import replay
from privfair.transcript import Transcript
from tests.contracts.algorithm_cases import CASES, MODELS, NETS, ROUNDS, USERS, Case, silo
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import OpenGate, document_of, verified

KINDS = ("logistic", *NETS)
PRIVATE = [
    pytest.param(
        case,
        kind,
        id=f"{case.name}-{kind}",
        # The fast suite takes the kinds in turn, the slow one has them all.
        marks=[] if case.of_tables or KINDS[place % len(KINDS)] == kind else [pytest.mark.slow],
    )
    for place, case in enumerate(each for each in CASES if each.plan is not None)
    for kind in KINDS
    if kind == "logistic" or not case.of_tables
]
every_private = pytest.mark.parametrize(("case", "kind"), PRIVATE)
TARGET = EpsilonDelta(5.0, 1e-3)


@cache
def _manifest(case: Case, kind: str) -> VerifiedManifest:
    """Signed once; every test claims it in a ledger of its own."""
    assert case.plan is not None
    algorithm = case.build(MODELS[kind]())
    shapes = {name: tuple(shape) for name, shape in algorithm.shapes().items()}
    clear = tuple(
        InTheClear(name=v.name, publications=ROUNDS, shape=shapes[v.name], why=v.why, depends_on_unit=False)
        for v in algorithm.clear_values()
    )
    silos = tuple((name, _units(silo(name, MODELS[kind]()))) for name in case.parties)
    noise = NoiseSource.SEEDED_RESEARCH_ONLY
    document = document_of(case.plan, TARGET, silos, clear, shapes, noise_source=noise)
    require_declared(algorithm, document)
    return verified(document)


def _units(party: SiloTensors) -> int:
    return USERS if party.unit_of_row is not None else len(party)


def _open(
    case: Case, kind: str, folder: Path, seed: int = 0, strict: bool = False
) -> tuple[Algorithm[Any], OpenGate, LocalParties]:
    algorithm = case.build(MODELS[kind]())
    manifest, place = _manifest(case, kind), folder / "transcript.bin"
    ledger = open_ledger(folder / "ledger.db")
    claim = OpenRun(manifest, ledger, RunFolder(folder)).begin().claim
    silos = tuple(silo(name, MODELS[kind]()) for name in case.parties)
    setup = PartySetup(manifest.document, algorithm, silos, None if algorithm.draws else case.samplings[0], seed)
    with pytest.warns(UserWarning, match="research"):
        gate = open_gate(manifest, claim, place, setup.values, seed, 2, strict=strict)
    return algorithm, OpenGate(gate, claim, ledger, place, manifest), LocalParties.behind(gate, setup, claim)


@every_private
def test_a_run_can_be_rebuilt_from_its_transcript(case: Case, kind: str, tmp_path: Path) -> None:
    """Interrupted after any step, the state follows from what was published, noise and all."""
    algorithm, opened, local = _open(case, kind, tmp_path)
    live = list(run_steps(algorithm, local, Position(algorithm.start()), ROUNDS))
    assert len(live) == ROUNDS
    opened.gate.finish()
    transcript = Transcript.read(opened.transcript)
    assert {spec.name for spec in transcript.header.values} == set(algorithm.shapes())
    rebuilt = list(replay(case.build(MODELS[kind]()), transcript, (FIRST_SESSION,)))[1:]
    opened.ledger.close()
    first = {name: values.shape for name, values in algorithm.checkpoint(algorithm.start()).items()}
    for one, other in zip(live, rebuilt, strict=True):
        expected = algorithm.checkpoint(one.state)
        assert first.items() <= {name: v.shape for name, v in expected.items()}.items(), "guards compare shapes"
        found = algorithm.checkpoint(other.state)
        assert set(expected) == set(found)
        for name, values in expected.items():
            np.testing.assert_array_equal(values, found[name])


@every_private
def test_noise_is_as_signed(case: Case, kind: str, tmp_path: Path) -> None:
    """What the gate adds has the signed deviation: within five standard errors over all entries of all rounds."""
    algorithm, opened, _ = _open(case, kind, tmp_path, seed=1)
    silos = tuple(silo(name, MODELS[kind]()) for name in case.parties)
    state = algorithm.start()
    added: dict[str, list[float]] = {}
    exact = [
        contribution
        for party in silos
        for contribution in algorithm.contribution(state, 0, party, _first_units(party)).noisy
    ]
    for _ in range(ROUNDS):
        opened.gate.next_round()
        for contribution in {c.name: c for c in exact}.values():
            signed = opened.document.release(contribution.name)
            if signed.publications > len(added.get(contribution.name, ())) // contribution.values.size:
                sent = opened.gate.publish(silos[0].name, contribution)
                added.setdefault(contribution.name, []).extend((sent.values - contribution.values).ravel())
    assert added
    for name, noise in added.items():
        signed = opened.document.release(name)
        wanted = float(signed.sigma)  # type: ignore[union-attr]
        error = wanted / np.sqrt(2 * len(noise))
        assert np.std(noise) == pytest.approx(wanted, abs=5 * error)
        assert np.mean(noise) == pytest.approx(0.0, abs=5 * wanted / np.sqrt(len(noise)))
    opened.ledger.close()


@every_private
def test_the_gate_refuses_what_was_not_signed(case: Case, kind: str, tmp_path: Path) -> None:
    """A larger bound, a unit beyond its bound, another shape, another name, the same value twice in a round."""
    algorithm, opened, _ = _open(case, kind, tmp_path, seed=2, strict=True)
    party = silo(case.parties[0], MODELS[kind]())
    (contribution, *_) = algorithm.contribution(algorithm.start(), 0, party, _first_units(party)).noisy
    opened.gate.next_round()
    for wrong in (
        replace(contribution, bound=2 * contribution.bound),
        replace(contribution, measured=2 * contribution.bound),
        replace(contribution, values=np.append(contribution.values.ravel(), 0.0)),
        replace(contribution, name="something_else"),
    ):
        with pytest.raises(GateRefused):
            opened.gate.publish(party.name, wrong)
    opened.gate.publish(party.name, contribution)
    with pytest.raises(Refused, match="at most once"):
        opened.gate.publish(party.name, contribution)
    opened.ledger.close()


def _first_units(party: SiloTensors) -> Tensor:
    return torch.arange(min(6, _units(party)))
