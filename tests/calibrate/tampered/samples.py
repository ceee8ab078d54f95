"""A consistent budget document, keys and a trust file to tamper with. Loaded by path from several tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from calibrate.discrete_noise import ProfileSlack
from calibrate.manifest import keys as signature
from calibrate.manifest.document import (
    PAYLOAD_TYPE,
    Accounting,
    BudgetDocument,
    DataBinding,
    DataIdentity,
    LedgerBinding,
    Opinion,
    OwnCode,
    SamplingDeclaration,
    Validity,
)
from calibrate.manifest.keys import SigningKey
from calibrate.manifest.mechanism import GaussianNoise, InTheClear, NoiseSampler, NoiseSource, PrivateGuarantee
from calibrate.manifest.verify import IntendedRun
from calibrate.privacy_unit import EpsilonInterval, Protected, Relation
from calibrate.releases import Gaussian, InSequence, NonPrivate, Repeated, Sampled, Together
from calibrate.sampling import ShuffledEpochs

HERE = Path(__file__).parent
NOW = datetime(2030, 6, 1, 12, tzinfo=UTC)
EPOCH = ShuffledEpochs(7500, 256)
Z = 33.4
WHY_CLEAR = "the loss gradient does not depend on the sensitive attribute"
EVENT = InSequence(
    (Repeated(Sampled(EPOCH, Together((Gaussian(Z), Gaussian(Z)))), 40), NonPrivate(WHY_CLEAR, depends_on_unit=False))
)
DATA = DataBinding.of("ab" * 32, [("north hospital", 7500), ("south hospital", 7600)])
PLAN_DIGEST = "cd" * 32
CODE = {"net.py": "0c" * 32}
RUN = IntendedRun(PLAN_DIGEST, DATA, CODE)


def _interval(lower: float | None, upper: float | None) -> EpsilonInterval:
    infinity = float("inf")
    return EpsilonInterval(infinity if lower is None else lower, infinity if upper is None else upper)


def opinion(name: str, lower: float | None, upper: float | None) -> Opinion:
    return Opinion(accountant=name, library=f"lib-{name}", version="1.0", interval=_interval(lower, upper))


def accounting(**changes: Any) -> Accounting:
    fields: dict[str, Any] = {
        "accountant": "first",
        "library": "lib-first",
        "version": "1.0",
        "interval": EpsilonInterval(0.99, 0.999),
        "event": EVENT,
        "delta": 0.999e-5,
        "discrete_noise": ProfileSlack(1e-9, 1e-30),
        "assumptions": ("Batches are drawn independently of the sensitive attributes.",),
        "second_opinion": opinion("second", 0.0, 1.2),
    }
    return Accounting(**(fields | changes))


def gaussian(name: str, **changes: Any) -> GaussianNoise:
    fields: dict[str, Any] = {
        "name": name,
        "publications": 1172,
        "sensitivity": 0.25,
        "noise_multiplier": Z,
        "sigma": Z * 0.25,
        "sampler": NoiseSampler.DISCRETE_GRID,
        "shape": (200,),
    }
    return GaussianNoise(**(fields | changes))


def private(**changes: Any) -> PrivateGuarantee:
    fields: dict[str, Any] = {
        "unit": Protected.ATTRIBUTE,
        "adjacency": Relation.REPLACE_ATTRIBUTE,
        "scope": "the server and the other silos, who see everything a silo sends",
        "covered": ("every message of every round",),
        "not_protected": ("features and labels",),
        "epsilon": 1.0,
        "delta": 1e-5,
    }
    return PrivateGuarantee(**(fields | changes))


def document(**changes: Any) -> BudgetDocument:
    fields: dict[str, Any] = {
        "algorithm": "steffle",
        "parameters": {"silo_size": 7500, "batch_size": 256, "rounds": 1172, "sampling": "shuffled", "lipschitz": 1.0},
        "guarantee": private(),
        "releases": (
            gaussian("h_theta"),
            gaussian("h_W", clip=0.5),
            InTheClear(name="g", publications=1172, why=WHY_CLEAR, depends_on_unit=False),
        ),
        "rounds": 1172,
        "sampling": (SamplingDeclaration(scheme=EPOCH, assumption_enforced=True, enforced_by="the silo's engine"),),
        "accounting": accounting(),
        "data": DATA,
        "config_digest": PLAN_DIGEST,
        "noise_source": NoiseSource.OPERATING_SYSTEM,
        "nonce": "ef" * 32,
        "validity": Validity(
            issued_at=NOW - timedelta(days=1), not_before=NOW - timedelta(hours=1), not_after=NOW + timedelta(days=30)
        ),
        "dataset": DataIdentity(name="admissions", custodian="the hospitals' trust", version="2029"),
        "ledgers": (LedgerBinding(ledger="0a" * 32),),
        "code": tuple(OwnCode(name=name, sha256=digest) for name, digest in CODE.items()),
        "justification": "A fair model of treatment success, approved by the ethics board.",
    }
    return BudgetDocument(**(fields | changes))


def signed(payload: bytes, *keys: SigningKey, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """Any bytes in an envelope signed by all keys, without the checks that `issue` makes first."""
    envelope = signature.sign(payload_type, payload, keys[0])
    for key in keys[1:]:
        envelope = signature.add_signature(signature.open_envelope(envelope), key)
    return envelope
