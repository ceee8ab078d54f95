"""privfair: train private and fair models under a signed budget.

Everything here is loaded when it is first used, so `import privfair` costs next to nothing:

>>> import privfair as pf
>>> round(pf.sigma(epsilon=1, delta=1e-5, sampling_rate=0.01, rounds=1000), 3)
1.415
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit.claims.assert_dp import assert_dp
    from audit.claims.falsify import assert_sensitivity
    from audit.coins.one_run import coin_flip, one_run
    from audit.coins.training_audit import audit_training
    from audit.models.in_memory import audit_model
    from calibrate.answers import Calibrated, calibrate, most
    from calibrate.dp_events import from_dp_event
    from calibrate.manifest.keys import generate as generate_key
    from calibrate.manifest.trust import TrustFile
    from calibrate.privacy_unit import CertifiedInterval, EpsilonInterval
    from calibrate.questions import check_theorem, epsilon, rounds, sigma, theorems
    from calibrate.releases import (
        Gaussian,
        InSequence,
        Laplace,
        NonPrivate,
        RandomizedResponse,
        Release,
        Repeated,
        Rounds,
        Sampled,
        Together,
    )
    from calibrate.sampling import (
        Batch,
        Cyclic,
        FixedSize,
        Poisson,
        RandomAllocation,
        ShuffledEpochs,
        TruncatedPoisson,
        WithReplacement,
    )
    from privfair.api.budget import PricedBudget, budget
    from privfair.api.charge import Charge
    from privfair.api.charge import SharedLedger as Ledger
    from privfair.api.frames import TreatedAsPublic
    from privfair.api.plan import EmptyModel, Plan, SelfSigned, TrainedModel
    from privfair.api.reading import audit_run, compose, explain, report
    from privfair.run.budgeted import BudgetedRun
    from privfair.run.metrics import predict
    from privfair.run.signed_budget import SignedBudget
    from privfair.training import train as train

    __version__: str

__all__ = [
    "Batch",
    "BudgetedRun",
    "Calibrated",
    "CertifiedInterval",
    "Charge",
    "Cyclic",
    "EmptyModel",
    "EpsilonInterval",
    "FixedSize",
    "Gaussian",
    "InSequence",
    "Laplace",
    "Ledger",
    "NonPrivate",
    "Plan",
    "Poisson",
    "PricedBudget",
    "RandomAllocation",
    "RandomizedResponse",
    "Release",
    "Repeated",
    "Rounds",
    "Sampled",
    "SelfSigned",
    "ShuffledEpochs",
    "SignedBudget",
    "Together",
    "TrainedModel",
    "TreatedAsPublic",
    "TruncatedPoisson",
    "TrustFile",
    "WithReplacement",
    "assert_dp",
    "assert_sensitivity",
    "audit_model",
    "audit_run",
    "audit_training",
    "budget",
    "calibrate",
    "check_theorem",
    "coin_flip",
    "compose",
    "epsilon",
    "explain",
    "from_dp_event",
    "generate_key",
    "most",
    "one_run",
    "predict",
    "report",
    "rounds",
    "sigma",
    "theorems",
    "train",
]

_NAMES = {
    "audit.claims.assert_dp": "assert_dp",
    "audit.claims.falsify": "assert_sensitivity",
    "audit.coins.one_run": "coin_flip one_run",
    "audit.coins.training_audit": "audit_training",
    "audit.models.in_memory": "audit_model",
    "calibrate.answers": "Calibrated calibrate most",
    "calibrate.dp_events": "from_dp_event",
    "calibrate.manifest.keys": "generate_key",
    "calibrate.manifest.trust": "TrustFile",
    "calibrate.privacy_unit": "CertifiedInterval EpsilonInterval",
    "calibrate.questions": "check_theorem epsilon rounds sigma theorems",
    "calibrate.releases": "Gaussian InSequence Laplace NonPrivate RandomizedResponse Release Repeated Rounds Sampled "
    "Together",
    "calibrate.sampling": "Batch Cyclic FixedSize Poisson RandomAllocation ShuffledEpochs TruncatedPoisson "
    "WithReplacement",
    "privfair.api.budget": "PricedBudget budget",
    "privfair.api.charge": "Charge Ledger",
    "privfair.api.frames": "TreatedAsPublic",
    "privfair.api.plan": "EmptyModel Plan SelfSigned TrainedModel",
    "privfair.api.reading": "audit_run compose explain report",
    "privfair.run.budgeted": "BudgetedRun",
    "privfair.run.metrics": "predict",
    "privfair.run.signed_budget": "SignedBudget",
    "privfair.training": "train",
}
"""The public names that each module brings."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # a type checker reads the imports above, and so finds a misspelt name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            return import_module("importlib.metadata").version("privfair")
        if name not in _HOMES:
            raise AttributeError(f"module 'privfair' has no attribute {name!r}; it has {', '.join(__all__)}")
        return getattr(
            import_module(_HOMES[name]), {"generate_key": "generate", "Ledger": "SharedLedger"}.get(name, name)
        )


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
