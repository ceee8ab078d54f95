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
    from calibrate.manifest.keys import generate as generate_key
    from calibrate.manifest.trust import TrustFile
    from calibrate.privacy_unit import EpsilonInterval
    from calibrate.questions import check_theorem, epsilon, rounds, sigma, theorems
    from privfair.api.budget import PricedBudget, budget
    from privfair.api.frames import TreatedAsPublic
    from privfair.api.plan import EmptyModel, Plan, SelfSigned, TrainedModel
    from privfair.api.reading import audit_run, compose, explain, report
    from privfair.ledger import Ledger
    from privfair.run.budgeted import BudgetedRun
    from privfair.run.prediction import predict
    from privfair.run.signed_budget import SignedBudget
    from privfair.training import train as train

    __version__: str

__all__ = [
    "BudgetedRun",
    "EmptyModel",
    "EpsilonInterval",
    "Ledger",
    "Plan",
    "PricedBudget",
    "SelfSigned",
    "SignedBudget",
    "TrainedModel",
    "TreatedAsPublic",
    "TrustFile",
    "assert_dp",
    "assert_sensitivity",
    "audit_model",
    "audit_run",
    "audit_training",
    "budget",
    "check_theorem",
    "coin_flip",
    "compose",
    "epsilon",
    "explain",
    "generate_key",
    "one_run",
    "predict",
    "report",
    "rounds",
    "sigma",
    "theorems",
    "train",
]

_HOMES = {
    "BudgetedRun": "privfair.run.budgeted",
    "EmptyModel": "privfair.api.plan",
    "EpsilonInterval": "calibrate.privacy_unit",
    "Ledger": "privfair.ledger",
    "Plan": "privfair.api.plan",
    "PricedBudget": "privfair.api.budget",
    "SelfSigned": "privfair.api.plan",
    "SignedBudget": "privfair.run.signed_budget",
    "TrainedModel": "privfair.api.plan",
    "TreatedAsPublic": "privfair.api.frames",
    "TrustFile": "calibrate.manifest.trust",
    "assert_dp": "audit.claims.assert_dp",
    "assert_sensitivity": "audit.claims.falsify",
    "audit_model": "audit.models.in_memory",
    "audit_run": "privfair.api.reading",
    "audit_training": "audit.coins.training_audit",
    "budget": "privfair.api.budget",
    "check_theorem": "calibrate.questions",
    "coin_flip": "audit.coins.one_run",
    "compose": "privfair.api.reading",
    "epsilon": "calibrate.questions",
    "explain": "privfair.api.reading",
    "generate_key": "calibrate.manifest.keys:generate",
    "one_run": "audit.coins.one_run",
    "predict": "privfair.run.prediction",
    "report": "privfair.api.reading",
    "rounds": "calibrate.questions",
    "sigma": "calibrate.questions",
    "theorems": "calibrate.questions",
    "train": "privfair.training",
}
"""The module that each public name lives in, and after a colon its name there, if that is another."""


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("privfair")
    if name not in _HOMES:
        raise AttributeError(f"module 'privfair' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, _, own_name = _HOMES[name].partition(":")
    return getattr(import_module(module), own_name or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
