"""A plan from plain values, as a TOML file or the command line gives them; unknown names are refused."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from enum import Enum
from typing import TYPE_CHECKING, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from calibrate.errors import InvalidInput
from calibrate.plans.fedfdp import FedfdpPlan
from calibrate.plans.fpfl import FpflPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.plans.own_loop import OwnLoopPlan
from calibrate.plans.pay_once import PayOncePlan
from calibrate.plans.plan import AlgorithmName, Plan
from calibrate.plans.steffle import StefflePlan, SteffleSampling

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Choice = TypeVar("Choice", bound=Enum)

PlanClass = (
    type[StefflePlan]
    | type[FedfdpPlan]
    | type[FpflPlan]
    | type[MmdFedavgPlan]
    | type[GaussianPlan]
    | type[PayOncePlan]
    | type[OwnLoopPlan]
)

PLANS: dict[AlgorithmName, PlanClass] = {
    AlgorithmName.STEFFLE: StefflePlan,
    AlgorithmName.FEDFDP: FedfdpPlan,
    AlgorithmName.FPFL: FpflPlan,
    AlgorithmName.MMD_FEDAVG: MmdFedavgPlan,
    AlgorithmName.GAUSSIAN: GaussianPlan,
    AlgorithmName.PAY_ONCE: PayOncePlan,
    AlgorithmName.OWN_LOOP: OwnLoopPlan,
}


def algorithm_named(name: str) -> AlgorithmName:
    """The algorithm of that name, or a refusal that lists them."""
    return _choice("algorithm", name, AlgorithmName)


def parameter_names(algorithm: AlgorithmName) -> tuple[str, ...]:
    """The parameters a plan of this algorithm takes, in order."""
    return tuple(field.name for field in fields(PLANS[algorithm]))


def plan_from_mapping(algorithm: AlgorithmName | str, mapping: Mapping[str, object]) -> Plan:
    """The plan with these parameters; keys may be spelled with dashes or underscores.

    Absent values (None) count as not given. Raises InvalidInput for an unknown or a missing name and for every
    value that breaks a rule of the plan.
    """
    name = algorithm if isinstance(algorithm, AlgorithmName) else algorithm_named(algorithm)
    plan_type = PLANS[name]
    given: dict[str, object] = {}
    for key, value in mapping.items():
        field = key.replace("-", "_")
        if field not in parameter_names(name):
            raise InvalidInput(key, value, f"is not a parameter of {name.value}", _nearest(field, name))
        if field in given:
            raise InvalidInput(key, value, "is given twice", "spell it once, with dashes or underscores")
        if value is not None:
            given[field] = value
    add_implied(name, given)
    _refuse_missing(plan_type, given, name)
    hints = get_type_hints(plan_type)
    # The types of the values are checked by each plan's own rules at construction.
    build = cast("Callable[..., Plan]", plan_type)
    return build(**{key: _convert(key, value, hints[key]) for key, value in given.items()})


def add_implied(name: AlgorithmName, given: dict[str, object]) -> None:
    """Add to the given parameters, by field name, those that follow from others."""
    batches = given.get("batches")
    if name is AlgorithmName.STEFFLE and given.get("sampling") in (SteffleSampling.FULL, "full"):
        given.setdefault("batch_size", given.get("silo_size"))
    if name is AlgorithmName.GAUSSIAN and isinstance(batches, int) and batches > 0:
        given.setdefault("sampling_rate", 1 / batches)


def _refuse_missing(plan_type: type[DataclassInstance], given: Mapping[str, object], name: AlgorithmName) -> None:
    for field in fields(plan_type):
        if field.default is MISSING and given.get(field.name) is None:
            flag = field.name.replace("_", "-")
            raise InvalidInput(flag, None, f"is needed by {name.value}", f"give {flag}")


def _convert(key: str, value: object, hint: object) -> object:
    """Text to the enum and lists to the tuple that the field wants; everything else is for the plan to judge."""
    kind = hint
    if get_origin(hint) in (Union, types.UnionType):
        kind = next(part for part in get_args(hint) if part is not type(None))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value if isinstance(value, kind) else _choice(key.replace("_", "-"), value, kind)
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _choice(argument: str, value: object, kind: type[Choice]) -> Choice:
    names = [member.value for member in kind]
    if value in names:
        return kind(value)
    raise InvalidInput(argument, value, "is not one of the choices", f"use {', '.join(names)}")


def _nearest(key: str, name: AlgorithmName) -> str:
    flags = [flag.replace("_", "-") for flag in parameter_names(name)]
    close = get_close_matches(key.replace("_", "-"), flags, n=1)
    return f"did you mean {close[0]}?" if close else f"use {', '.join(flags)}"
