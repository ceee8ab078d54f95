"""All probes of one run; about a second each, most of it in the rehearsal."""

from __future__ import annotations

import math

from audit.check import Check, Layer, Outcome
from audit.evidence import RunEvidence
from audit.probes.batches import check_batches
from audit.probes.fresh_noise import check_fresh_noise
from audit.probes.isolation import check_isolation
from audit.probes.rehearsal import DEFAULT_ROUNDS, rehearse
from audit.probes.scaling import check_scaling
from audit.probes.scene import Scene
from audit.probes.sensitivity import check_sensitivity
from audit.probes.steps import check_rehearsed_steps, check_steps
from calibrate.errors import PrivfairError
from calibrate.manifest.guarantee import NoPrivacyPromised
from privfair.ledger import Ledger

_FEWEST_ROUNDS, _MOST_VALUES = 4, 400_000


def check_probes(
    evidence: RunEvidence, ledger: Ledger | None = None, seed: int = 0, rounds: int = DEFAULT_ROUNDS
) -> tuple[Check, ...]:
    """L0: sensitivities, isolation, step counts, fresh noise and batches of the code that trained this run.

    A clean run is flagged with probability at most `fresh_noise.ALPHA + batches.ALPHA`; all else is deterministic.
    """
    if isinstance(evidence.document.guarantee, NoPrivacyPromised):
        why = "no privacy is promised, so there is no bound to keep"
        return (Check(Layer.PROBE, "probes", Outcome.NOT_POSSIBLE, why),)
    scene = Scene.of(evidence)
    return (
        *check_sensitivity(scene, seed),
        *check_isolation(scene, seed),
        *check_scaling(evidence),
        check_steps(evidence, ledger),
        *_rehearsed(evidence, min(rounds, _affordable(evidence))),
    )


def _rehearsed(evidence: RunEvidence, rounds: int) -> tuple[Check, ...]:
    try:
        rehearsal = rehearse(evidence.plan_path, evidence.document, rounds)
    except PrivfairError as refusal:
        return (Check(Layer.PROBE, "rehearsal", Outcome.FAILED, f"the engine refuses: {refusal}"),)
    return (
        check_rehearsed_steps(rehearsal),
        *check_batches(rehearsal),
        *check_fresh_noise(rehearsal),
    )


def _affordable(evidence: RunEvidence) -> int:
    """Rounds whose noise is drawn in about a second; more would tell little more."""
    values = sum(math.prod(shape) for shape in evidence.algorithm.shapes().values()) * len(evidence.silos)
    return max(_FEWEST_ROUNDS, _MOST_VALUES // max(1, values))
