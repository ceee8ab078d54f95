"""privfair: train private and fair models under a signed budget.

`privfair.train(...)` and `privfair.predict(...)` do what the commands of the same names do; they are loaded when
they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privfair.run.prediction import predict
    from privfair.training import train as train

__all__ = ["predict", "train"]

_HOMES = {"predict": "privfair.run.prediction", "train": "privfair.training"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'privfair' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
