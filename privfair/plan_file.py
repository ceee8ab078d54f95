"""A plan file: one TOML file that says what is published, on which data, and how it is trained.

::

    algorithm = "steffle"

    [target]                     # the promise; --epsilon and --delta may give it instead
    epsilon = 1.0
    delta = 1e-5

    [privacy]                    # what is published: the plan's parameters, spelled as the flags
    silo-size = 7500
    batch-size = 256
    rounds = 1172
    minority-fraction = 0.4
    lipschitz = 1.0
    w-radius = 1.0

    [data]                       # which data (read by `privfair train`)
    [training]                   # how to train (read by `privfair train`)

A budget is bound to the file byte for byte: `digest` is the SHA-256 of its bytes. A plan given by flags alone is
bound to the canonical JSON of its parameters.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rfc8785

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonDelta

_SECTIONS = ("target", "privacy", "data", "training")


@dataclass(frozen=True)
class PlanFile:
    """The parsed plan and the digest a manifest is bound to."""

    algorithm: str
    target_section: Mapping[str, Any]
    privacy: Mapping[str, Any]
    data: Mapping[str, Any]
    training: Mapping[str, Any]
    digest: str
    folder: Path

    def target(self, epsilon: float | None = None, delta: float | None = None) -> EpsilonDelta:
        """The promise asked for: the given numbers, else the file's."""
        wanted = {"epsilon": epsilon, "delta": delta}
        for name in wanted:
            if wanted[name] is None:
                wanted[name] = self.target_section.get(name)
            if wanted[name] is None:
                raise InvalidInput(
                    f"--{name}", None, "is needed", f"give --{name}, or [target] {name} in the plan"
                )
        unknown = sorted(set(self.target_section) - set(wanted))
        if unknown:
            raise InvalidInput(
                f"[target] {unknown[0]}",
                self.target_section[unknown[0]],
                "is not known",
                "use epsilon and delta",
            )
        return EpsilonDelta(wanted["epsilon"], wanted["delta"])  # type: ignore[arg-type]


def read_plan_file(path: Path) -> PlanFile:
    """The plan in a TOML file; every section and name is checked."""
    try:
        content = path.read_bytes()
        parsed = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise InvalidInput(
            "plan", str(path), f"cannot be read ({error.strerror})", "check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput("plan", str(path), f"is not TOML: {error}", "mend the file") from error
    for key, value in parsed.items():
        if key == "algorithm":
            continue
        if key not in _SECTIONS or not isinstance(value, dict):
            known = ", ".join(f"[{section}]" for section in _SECTIONS)
            raise InvalidInput(f"{path}: {key}", value, "is not part of a plan", f"use algorithm and {known}")
    if "algorithm" not in parsed:
        raise InvalidInput(f"{path}: algorithm", None, "is needed", 'write algorithm = "steffle" at the top')
    sections = [parsed.get(section, {}) for section in _SECTIONS]
    digest = hashlib.sha256(content).hexdigest()
    return PlanFile(str(parsed["algorithm"]), *sections, digest, path.parent)


def plan_from_flags(algorithm: str, path: Path | None, flags: Mapping[str, Any]) -> PlanFile:
    """The plan of a file, of flags, or of a file with flags that win over it."""
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    for key, value in given.items():  # before the digest, which has no spelling for NaN
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                name = key.replace("_", "-")
                raise InvalidInput(name, number, "must be a finite number", "give a plain decimal number")
    if path is None:
        digest = _digest({"algorithm": algorithm, "privacy": _plain(given)})
        return PlanFile(algorithm, {}, given, {}, {}, digest, Path())
    file = read_plan_file(path)
    if file.algorithm != algorithm:
        rule = f"is a plan for {file.algorithm}, not for {algorithm}"
        raise InvalidInput("--plan", str(path), rule, "name that algorithm, or another file")
    if not given:
        return file
    merged = {key.replace("-", "_"): value for key, value in file.privacy.items()} | given
    digest = _digest({"file": file.digest, "algorithm": algorithm, "privacy": _plain(merged)})
    return replace(file, privacy=merged, digest=digest)


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps(document)).hexdigest()


def _plain(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in mapping.items()}
