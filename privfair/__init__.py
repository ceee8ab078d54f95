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
    from calibrate.privacy_unit import EpsilonInterval
    from calibrate.questions import check_theorem, epsilon, rounds, sigma, theorems
    from privfair.run.prediction import predict
    from privfair.training import train as train

    __version__: str

__all__ = [
    "EpsilonInterval",
    "assert_dp",
    "assert_sensitivity",
    "check_theorem",
    "coin_flip",
    "epsilon",
    "one_run",
    "predict",
    "rounds",
    "sigma",
    "theorems",
    "train",
]

_HOMES = {
    "EpsilonInterval": "calibrate.privacy_unit",
    "assert_dp": "audit.mechanisms.assert_dp",
    "assert_sensitivity": "audit.sensitivity.falsify",
    "check_theorem": "calibrate.questions",
    "coin_flip": "audit.one_run",
    "epsilon": "calibrate.questions",
    "one_run": "audit.one_run",
    "predict": "privfair.run.prediction",
    "rounds": "calibrate.questions",
    "sigma": "calibrate.questions",
    "theorems": "calibrate.questions",
    "train": "privfair.training",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("privfair")
    if name not in _HOMES:
        raise AttributeError(f"module 'privfair' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
