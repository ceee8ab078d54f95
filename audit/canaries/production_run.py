"""Runs of the production rounds, gate, noise and ledger, many of them, in memory where the operating system has any.

Nothing of the engine is copied: the algorithm's `contribution` and `update`, `Rounds`, `Gate`, the noise source and
the ledger's claim are those that trained. Left out is what does not touch a published value: metrics, checkpoints,
the saved model. Each run claims a manifest of the auditor's own (same document, new nonce) in the auditor's ledger.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from audit.evidence import AuditorsManifest, RunEvidence, in_memory
from calibrate.arrays import Floats
from calibrate.manifest.document import DataBinding
from calibrate.manifest.mechanism import NoiseSource
from calibrate.manifest.verify import Run, VerifiedManifest, verify
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.batches.participation import DrawnParticipation, Participation, declared_sampling, word_source
from privfair.contribution import BoundedContribution, Published
from privfair.gate import Gate, open_gate
from privfair.ledger import Ledger
from privfair.round_loop import Position, Rounds
from privfair.run.prepare import claim_terms
from privfair.transcript import ValueSpec

NOISE_STREAM = 0x4015E
"""Beside the seed, so that noise shares no stream with coins."""


@dataclass(frozen=True, eq=False)
class Heard:
    """One run: what an observer was left with, and (for the control) the same messages before their noise.

    Both by party and name, one row a publication.
    """

    published: Mapping[tuple[str, str], Floats]
    clean: Mapping[tuple[str, str], Floats]
    theta: Floats


class ProductionRuns:
    """The auditor's own ledger and key, and the plan's run as often as asked for; use it as a context."""

    def __init__(self, evidence: RunEvidence, seed: int) -> None:
        self._document = evidence.document
        self._updates = evidence.plan.updates(evidence.document.rounds)
        self._seeds = np.random.default_rng((seed, NOISE_STREAM))
        self._auditor = AuditorsManifest()
        self._place: TemporaryDirectory[str] | None = None

    def __enter__(self) -> ProductionRuns:
        self._place = TemporaryDirectory(prefix="privfair-audit-", dir=in_memory())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._place is not None
        self._place.cleanup()

    def run(self, algorithm: Algorithm[Any], silos: tuple[SiloTensors, ...], sizes: Mapping[str, int]) -> Heard:
        """Train once on these silos, of `sizes` in units, and listen at the gate."""
        assert self._place is not None
        with TemporaryDirectory(dir=self._place.name) as folder:
            return self._listened(algorithm, silos, sizes, Path(folder))

    def _listened(
        self, algorithm: Algorithm[Any], silos: tuple[SiloTensors, ...], sizes: Mapping[str, int], place: Path
    ) -> Heard:
        manifest = self._manifest(sizes)
        document = manifest.document
        research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
        seed = int(self._seeds.integers(2**62))
        values = tuple(ValueSpec(name, tuple(shape)) for name, shape in algorithm.shapes().items())
        with Ledger.open(place / "ledger.db") as ledger:
            claim = ledger.claim(claim_terms(manifest))
            gate = open_gate(
                manifest, claim, place / "transcript.bin", values, seed if research else None, document.rounds
            )
            listening = _Listening(gate)
            participations = {silo.name: self._participation(algorithm, silo, sizes[silo.name], seed) for silo in silos}
            rounds = Rounds(algorithm, silos, participations, document, cast(Gate, listening), claim)
            try:
                start: Position[Any] = Position(algorithm.start(), 0, None, {})
                (last,) = deque(rounds.run(start, self._updates), maxlen=1)
                gate.finish()
            finally:
                gate.close()
        return listening.heard(algorithm.theta(last.state).numpy().astype(np.float64))

    def _participation(
        self, algorithm: Algorithm[Any], silo: SiloTensors, units: int, seed: int
    ) -> Participation | DrawnParticipation:
        source = word_source(self._document, seed, silo.name)
        if algorithm.draws:
            return DrawnParticipation(silo, algorithm, source)
        return Participation(silo.name, units, declared_sampling(self._document), source)

    def _manifest(self, sizes: Mapping[str, int]) -> VerifiedManifest:
        """The same promise for another single use, in the auditor's name, for silos of these sizes."""
        binding = DataBinding.of(self._document.data.schema_digest, sizes.items())
        envelope = self._auditor.envelope(self._document.model_copy(update={"data": binding}))
        return verify(envelope, self._auditor.trust, Run(self._document.config_digest, binding))


class _Listening:
    """The real gate, and a record of what went in and what came out; it decides nothing."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._published: dict[tuple[str, str], list[Floats]] = {}
        self._clean: dict[tuple[str, str], list[Floats]] = {}

    @property
    def round(self) -> int | None:
        return self._gate.round

    def next_round(self) -> int:
        return self._gate.next_round()

    def publish(self, party: str, contribution: BoundedContribution) -> Published:
        out = self._gate.publish(party, contribution)
        self._clean.setdefault((party, out.name), []).append(np.array(contribution.values, dtype=np.float64))
        self._published.setdefault((party, out.name), []).append(out.values)
        return out

    def publish_randomized(self, party: str, name: str, categories: ArrayLike) -> Published:
        return self._gate.publish_randomized(party, name, categories)

    def publish_in_the_clear(self, party: str, name: str, values: ArrayLike) -> Published:
        return self._gate.publish_in_the_clear(party, name, values)

    def heard(self, theta: Floats) -> Heard:
        def stacked(lists: dict[tuple[str, str], list[Floats]]) -> dict[tuple[str, str], Floats]:
            return {key: np.stack(rows).reshape(len(rows), -1) for key, rows in lists.items()}

        return Heard(stacked(self._published), stacked(self._clean), theta)


def with_model(algorithm: Algorithm[Any], model: object) -> Algorithm[Any]:
    """The same algorithm on another model; algorithms are frozen and hold their model by that name."""
    changed: Algorithm[Any] = replace(cast(Any, algorithm), model=model)
    return changed
