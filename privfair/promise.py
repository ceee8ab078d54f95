"""What a run promises, in the few words that stand in every output, and as the terms the ledger claims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.guarantee import AsPrintedGuarantee, NoPrivacyPromised, PrivateGuarantee
from calibrate.manifest.mechanism import NoiseSource
from calibrate.manifest.verify import VerifiedManifest
from calibrate.privacy_unit import PrivacyUnit
from privfair.datasets.derived_facts import NoPrivacyPromised as NothingToCover
from privfair.ledger import ManifestTerms


@dataclass(frozen=True)
class Promise:
    """`epsilon` is None where nothing finite is promised; `claimed_epsilon` is a paper's word for its own noise."""

    kind: str
    text: str
    unit: PrivacyUnit
    epsilon: float | None
    delta: float
    claimed_epsilon: float | None
    not_protected: tuple[str, ...]
    research_noise: bool

    @property
    def nothing(self) -> bool:
        """Whether nobody is protected."""
        return self.epsilon is None

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "text": self.text,
            "unit": self.unit.protected.value,
            "adjacency": self.unit.relation.value,
            "epsilon": self.epsilon,
            "delta": None if self.nothing else self.delta,
            "claimed_epsilon": self.claimed_epsilon,
            "not_protected": list(self.not_protected),
            "research_noise": self.research_noise,
        }


def promise_of(document: BudgetDocument) -> Promise:
    """The promise of a manifest; seeded research noise turns every promise into none."""
    guarantee = document.guarantee
    research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    claimed: float | None = None
    match guarantee:
        case PrivateGuarantee(epsilon=epsilon, delta=delta):
            true: float | None = epsilon
            text = f"epsilon {epsilon:g} at delta {delta:g} for one {guarantee.unit.value}"
        case AsPrintedGuarantee(epsilon=true, delta=delta, claimed_epsilon=claimed):
            found = "no finite epsilon" if true is None else f"epsilon {true:.4g}"
            text = f"AS PRINTED: the paper claims epsilon {claimed:g}, the true cost is {found} at delta {delta:g}"
        case NoPrivacyPromised(why=why):
            true, delta = None, 0.0
            text = f"NO PRIVACY PROMISED: {why}"
        case _:
            assert_never(guarantee)
    if research:
        true = None
        text = f"UNSAFE RESEARCH NOISE, nobody is protected (the noise would otherwise mean: {text})"
    return Promise(
        kind=guarantee.kind,
        text=text,
        unit=guarantee.privacy_unit(),
        epsilon=true,
        delta=delta,
        claimed_epsilon=claimed,
        not_protected=guarantee.not_protected,
        research_noise=research,
    )


def facts_covered(document: BudgetDocument) -> PrivacyUnit | NothingToCover:
    """Against which promise facts read off the data are judged: research on a private plan keeps its rules."""
    guarantee = document.guarantee
    if isinstance(guarantee, NoPrivacyPromised):
        return NothingToCover(guarantee.why)
    return guarantee.privacy_unit()


def claim_terms(manifest: VerifiedManifest) -> ManifestTerms:
    """What the ledger is to enforce of a verified manifest."""
    document, promise = manifest.document, promise_of(manifest.document)
    return ManifestTerms(
        manifest_digest=manifest.digest,
        nonce=document.nonce,
        envelope_digest=manifest.authentic.envelope_digest,
        rounds=document.rounds,
        epsilon=promise.epsilon,
        delta=promise.delta,
        data_digest=document.data.digest(),
        valid_until=document.validity.not_after,
        unit=promise.unit,
    )
