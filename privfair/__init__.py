"""privfair: train private and fair models under a signed budget.

Everything here is loaded when it is first used, so `import privfair` costs next to nothing:

>>> import privfair as pf
>>> round(pf.sigma(epsilon=1, delta=1e-5, sampling_rate=0.01, rounds=1000), 3)
1.415
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from audit.mechanisms.assert_dp import assert_dp
    from audit.one_run import coin_flip, one_run
    from audit.sensitivity.falsify import assert_sensitivity
    from calibrate.manifest.keys import generate as generate_key
    from calibrate.manifest.trust import TrustFile
    from calibrate.privacy_unit import EpsilonInterval
    from calibrate.questions import check_theorem, epsilon, rounds, sigma, theorems
    from privfair.api.budget import PricedBudget, budget
    from privfair.ledger import Ledger
    from privfair.run.budgeted import BudgetedRun
    from privfair.run.prediction import predict
    from privfair.run.signed_budget import SignedBudget
    from privfair.training import train as train

    __version__: str

__all__ = [
    "BudgetedRun",
    "EpsilonInterval",
    "Ledger",
    "PricedBudget",
    "SignedBudget",
    "TrustFile",
    "assert_dp",
    "assert_sensitivity",
    "budget",
    "check_theorem",
    "coin_flip",
    "epsilon",
    "generate_key",
    "one_run",
    "predict",
    "rounds",
    "sigma",
    "theorems",
    "train",
]

_HOMES = {
    "BudgetedRun": "privfair.run.budgeted",
    "EpsilonInterval": "calibrate.privacy_unit",
    "Ledger": "privfair.ledger",
    "PricedBudget": "privfair.api.budget",
    "SignedBudget": "privfair.run.signed_budget",
    "TrustFile": "calibrate.manifest.trust",
    "assert_dp": "audit.mechanisms.assert_dp",
    "assert_sensitivity": "audit.sensitivity.falsify",
    "budget": "privfair.api.budget",
    "check_theorem": "calibrate.questions",
    "coin_flip": "audit.one_run",
    "epsilon": "calibrate.questions",
    "generate_key": "calibrate.manifest.keys:generate",
    "one_run": "audit.one_run",
    "predict": "privfair.run.prediction",
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
    from importlib import import_module

    module, _, own_name = _HOMES[name].partition(":")
    return getattr(import_module(module), own_name or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
