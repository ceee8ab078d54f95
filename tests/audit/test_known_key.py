"""What follows from an auditor's key is computed again by other code, and no one else can use such a key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.runs.evidence import AuditorsManifest
from audit.runs.reference import KnownStream, answered, known_bytes, noisy
from calibrate.errors import GateRefused
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, RandomizedCategory
from calibrate.manifest.verify import read_unverified
from privfair.gate import _scale_of
from privfair.noise import ExactNoise
from privfair.noise.source import EXACT_LABEL, REHEARSED_LABEL
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun
from privfair.run.prepare import prepare_run
from privfair.run.rehearsal import RehearsalKey
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import GAUSSIAN, Desk


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("bound", [3e-4, 1.0, 700.0])
@pytest.mark.parametrize("size", [1, 17, 40_000])
def test_the_reference_draws_the_engines_noise(kind: str, bound: float, size: int) -> None:
    """Bit for bit, two messages of one stream; the production code decides in other ways, so equality is a test."""
    fields = {"name": "v", "sensitivity": bound, "noise_multiplier": 1.3}
    declared: GaussianNoise | LaplaceNoise
    if kind == "gaussian":
        declared = GaussianNoise.model_construct(**fields, sigma=1.3 * bound)
    else:
        declared = LaplaceNoise.model_construct(**fields, scale=1.3 * bound)
    engine, stream = ExactNoise(RehearsalKey(b"k").source("noise")), KnownStream(known_bytes(b"k", "noise"))
    scale, values = _scale_of(declared, size), np.random.default_rng(1).normal(0.0, bound, size)
    for _ in range(2):
        published = engine.gaussian(values, scale) if kind == "gaussian" else engine.laplace(values, scale)
        assert np.array_equal(published, noisy(declared, values, stream))


@pytest.mark.parametrize("categories", [2, 3, 17])
def test_the_reference_gives_the_engines_answers(categories: int) -> None:
    engine, stream = ExactNoise(RehearsalKey(b"k").source("noise")), KnownStream(known_bytes(b"k", "noise"))
    declared = RandomizedCategory.model_construct(name="s", categories=categories, epsilon=0.7)
    truth = np.arange(2000) % categories
    assert np.array_equal(engine.randomized_response(truth, categories, 0.7), answered(declared, truth, stream))


def test_rehearsed_noise_names_itself() -> None:
    assert ExactNoise(RehearsalKey(b"k").source("noise")).label == REHEARSED_LABEL
    assert ExactNoise().label == EXACT_LABEL


def test_a_run_on_a_ledger_takes_no_key(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.2, rounds=4, more=""))
    document, auditor = read_unverified(desk.budget().read_bytes()).document, AuditorsManifest()
    prepared = prepare_run(desk.plan, auditor.envelope(document), auditor.trust)
    with open_ledger(tmp_path / "ledger.db") as ledger:
        spending = OpenRun(prepared.manifest, ledger, RunFolder.create(tmp_path / "run")).begin()
        with pytest.raises(GateRefused, match="the auditor can subtract"):
            spending.open_gate(prepared.values, key=RehearsalKey(b"k"))
    assert not (tmp_path / "run" / "transcript.bin").exists()
