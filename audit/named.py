"""Somebody's own function by its name, as module:name."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from calibrate.errors import InvalidInput


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
