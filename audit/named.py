"""Code that is not privfair's: a function given as module:name, or whatever a pickle carries."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput, Refused

PICKLES = (".joblib", ".pkl", ".pickle", ".pt", ".pth")
"""Files that can run any code when they are opened."""


def refuse_pickle(path: Path) -> None:
    """For a pickle that no one vouched for."""
    suffix = path.suffix.lower()
    if suffix in PICKLES:
        raise Refused(
            f"--model {path}: opening a {suffix} file runs whatever code it carries; add --trust-pickle if you know "
            "who made it, or export the model as ONNX"
        )


def refuse_unknown_kind(path: Path) -> None:
    """For a model file that is neither ONNX nor a pickle."""
    if path.suffix.lower() not in (".onnx", *PICKLES):
        raise InvalidInput(
            "--model",
            str(path),
            "is of no known kind",
            f"give a run folder, .onnx, or {', '.join(PICKLES)}; for scores of your own leave --model out and "
            "name their column with --score",
        )


def load_named(path: str) -> Any:
    """The object at module:name; the working directory's modules count."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the module does when it is imported
        raise InvalidInput(
            "module:name", path, f"can't be loaded ({error})", "name an importable module and what is in it"
        ) from error
