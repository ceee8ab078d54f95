"""Every private method as a plan: the same data, the same epsilon and delta, a schedule of its own.

Step sizes, clips and fairness weights were set after single trial runs on seed 100, or taken from the example plans
and the SteFFLe experiment; the table measures other seeds. They do not depend on epsilon. The data sets are public, so
that choice is charged to nobody; on private data it would have to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from privfair.data.benchmarks import Benchmark

EPSILONS, DELTA = (1.0, 3.0), 1e-5
SEEDS = (0, 1)
SILOS, HETEROGENEITY = 3, 0.75
MMD_CLIENTS = 500


@dataclass(frozen=True)
class Setting:
    """One data set; sizes are those of the training parts, and public."""

    benchmark: Benchmark
    title: str
    smallest_silo: int
    users: int
    """At two records each."""
    smaller_group: int
    """A public bound below the smaller group's training records."""
    minority: float
    frequencies: tuple[float, float]
    w_radius: float
    steffle_fairness: float
    pay_once_fairness: float
    ages: tuple[int, ...]
    """Public cuts between the silos where records are protected: a quantile of private records would not be public."""
    at_least: int
    """A public bound below each such silo's training records."""


SETTINGS = (
    Setting(Benchmark.ADULT, "Adult", 11_305, 16_958, 10_000, 0.3, (0.325, 0.675), 0.2, 5.0, 7.0, (31, 44), 10_000),
    Setting(
        Benchmark.CREDIT_CARD, "Credit Card", 7_500, 11_250, 8_500, 0.35, (0.4, 0.6), 0.05, 64.0, 100.0, (30, 38), 6_500
    ),
)


class Unit(Enum):
    """Whom a method's epsilon speaks of; only rows of one kind are comparable."""

    ATTRIBUTE = "attribute replaced"
    RECORD = "record added or removed"
    REPLACED = "record replaced"
    USER = "user added or removed"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Method:
    name: str
    algorithm: str
    unit: Unit
    privacy: Mapping[str, Any]
    training: Mapping[str, Any]
    data: Mapping[str, Mapping[str, Any]]
    """[data.partition] or [data.users]."""


_SGD = {"sampling-rate": 0.05, "rounds": 300, "clip": 1.0}
_PAIRS = _SGD | {"loss-clip": 2.0, "loss-noise-ratio": 2.5}


def methods(setting: Setting) -> tuple[Method, ...]:
    """All rows of one data set, by the unit they protect."""
    silos = {"partition": {"kind": "heterogeneous", "silos": SILOS, "h": HETEROGENEITY}}
    by_age = {"partition": {**silos["partition"], "cuts": list(setting.ages)}}
    return (
        *_attribute(setting, silos),
        *(_record(name, "gaussian", _SGD, training, by_age) for name, training in _STEPS.items()),
        *(_record(name, "fedfdp", _PAIRS, training, by_age) for name, training in _WITH_LOSSES.items()),
        *_users(setting),
        _mmd(setting),
        Method("central ERM", "central-erm", Unit.NOBODY, {}, {"rounds": 1, "l2": 1e-5}, silos),
    )


_STEPS: dict[str, dict[str, Any]] = {
    "DP-FedSGD": {"learning-rate": 4.0},
    "DP-FedProx": {"method": "fedprox", "learning-rate": 4.0, "local-steps": 3, "proximal": 0.1},
    "DP-SCAFFOLD": {"method": "scaffold", "learning-rate": 4.0, "local-steps": 3},
    "DP-FedDyn": {"method": "feddyn", "learning-rate": 1.0, "local-steps": 3, "regularisation": 0.1},
    "ALI-DPFL": {"method": "ali-dpfl", "learning-rate": 4.0, "communications": 100, "first-steps": 3},
}
_WITH_LOSSES: dict[str, dict[str, Any]] = {
    "FedFDP": {"learning-rate": 4.0, "fairness": 0.5},
    "DP-q-FFL": {"method": "q-ffl", "learning-rate": 4.0, "exponent": 1.0},
    "DP-agnostic FL": {"method": "agnostic-fl", "learning-rate": 4.0, "weight-rate": 0.1},
}


def _record(
    name: str, algorithm: str, privacy: Mapping[str, Any], training: Mapping[str, Any], silos: Mapping[str, Any]
) -> Method:
    return Method(name, algorithm, Unit.RECORD, privacy, training, silos)


def _attribute(setting: Setting, silos: Mapping[str, Any]) -> tuple[Method, Method]:
    """Their schedules, weights and balls are those of the SteFFLe experiment."""
    size, descent = setting.smallest_silo, {"warm-start": 100, "learning-rate": 4.0, "decay": 0.9}
    steffle = {
        "silo-size": size,
        "batch-size": size,
        "sampling": "full",
        "rounds": 81,
        "minority-fraction": setting.minority,
        "lipschitz": 0.3,
        "w-radius": setting.w_radius,
    }
    own = {"fairness": setting.steffle_fairness, "group-frequencies": list(setting.frequencies)}
    return (
        Method("SteFFLe", "steffle", Unit.ATTRIBUTE, steffle, descent | own | {"decay-every": 6}, silos),
        Method(
            "pay-once",
            "pay-once",
            Unit.ATTRIBUTE,
            {"groups": 2, "rounds": 201},
            descent | {"fairness": setting.pay_once_fairness, "decay-every": 14},
            silos,
        ),
    )


def _users(setting: Setting) -> tuple[Method, ...]:
    privacy = {"users": setting.users, "cohort": 1_000, "rounds": 150, "clip": 2.0, "sampling": "poisson"}
    training = {
        "learning-rate": 0.5,
        "tolerance": 0.02,
        "multiplier-rate": 0.05,
        "damping": 2.0,
        "choice": "last",
        "records-per-user": 2.0,
    }
    users = {"users": {"kind": "poisson", "users": setting.users}}
    notions = {"FPFL, FNR": "false-negative-rate", "FPFL, parity": "demographic-parity"}
    return tuple(
        Method(name, "fpfl", Unit.USER, privacy, training | {"notion": notion}, users)
        for name, notion in notions.items()
    )


def _mmd(setting: Setting) -> Method:
    privacy = {
        "group-size": setting.smaller_group,
        "samples-per-group": 100,
        "rounds": 40,
        "mechanism": "gaussian",
        "users": MMD_CLIENTS,
        "cohort": 50,
        "update-clip": 0.2,
        "update-noise-ratio": 4.0,
        "histogram-noise-ratio": 20.0,
    }
    training = {
        "fairness": 5.0,
        "kernel-width": 2.0,
        "local-rate": 1.0,
        "local-epochs": 3,
        "criterion": "statistical-parity",
    }
    parts = {"partition": {"kind": "equal", "silos": MMD_CLIENTS}}
    return Method("MMD-FedAvg", "mmd-fedavg", Unit.REPLACED, privacy, training, parts)


def plan_text(method: Method, setting: Setting, epsilon: float, seed: int) -> str:
    """The plan file; metrics of the last step only."""
    rounds = method.privacy.get("rounds", method.training.get("rounds"))
    sections: dict[str, Mapping[str, Any]] = {}
    if method.unit is not Unit.NOBODY:
        sections |= {"target": {"epsilon": epsilon, "delta": DELTA}, "privacy": method.privacy}
    sections["data"] = {"dataset": setting.benchmark.value, "seed": seed}
    if method.unit is Unit.RECORD:
        sections["data"] = {**sections["data"], "at-least": setting.at_least}
    sections |= {f"data.{name}": table for name, table in method.data.items()}
    sections["training"] = {**method.training, "seed": seed, "measure-every": rounds}
    tables = "\n\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
        for name, table in sections.items()
    )
    return f'algorithm = "{method.algorithm}"\n\n{tables}\n'


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
