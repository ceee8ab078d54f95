"""All plans by their algorithm, and a plan from plain values as a TOML file or the command line gives them."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from calibrate.errors import InvalidInput, nearest
from calibrate.plans.clipped_sums import FedfdpPlan, FpflPlan
from calibrate.plans.fair_plugin import FairPluginPlan, PayOncePlan
from calibrate.plans.gaussian import GaussianPlan, OwnLoopPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.plans.plan import AlgorithmName, Plan, PluginName
from calibrate.plans.steffle import StefflePlan
from calibrate.plugins import PluginGroup, Plugins
from calibrate.sampling import SamplingName

Choice = TypeVar("Choice", bound=Enum)

PLANS: dict[AlgorithmName, type[Plan]] = {
    AlgorithmName.STEFFLE: StefflePlan,
    AlgorithmName.FEDFDP: FedfdpPlan,
    AlgorithmName.FPFL: FpflPlan,
    AlgorithmName.MMD_FEDAVG: MmdFedavgPlan,
    AlgorithmName.GAUSSIAN: GaussianPlan,
    AlgorithmName.PAY_ONCE: PayOncePlan,
    AlgorithmName.FAIR_PLUGIN: FairPluginPlan,
    AlgorithmName.OWN_LOOP: OwnLoopPlan,
}


def _read_plan_class(name: str, found: object) -> type[Plan] | None:
    if not isinstance(found, type) or not issubclass(found, Plan) or not is_dataclass(found):
        return None
    return found if getattr(found, "algorithm", None) == PluginName(name) else None


PLAN_PLUGINS: Plugins[type[Plan]] = Plugins(
    PluginGroup.PLANS,
    "a frozen dataclass derived from calibrate.plans.plan.Plan, with PluginName(its name) as `algorithm`",
    _read_plan_class,
    lambda: {name.value for name in AlgorithmName},
)
"""The plans of other packages: what their algorithms publish."""


def algorithm_named(name: str) -> AlgorithmName | PluginName:
    """The algorithm of that name, or a refusal that lists them."""
    built_in = {member.value: member for member in AlgorithmName}
    if name in built_in:
        return built_in[name]
    if PLAN_PLUGINS.find(name) is not None:
        return PluginName(name)
    names = ", ".join((*built_in, *PLAN_PLUGINS.names()))
    raise InvalidInput("algorithm", name, "is not one of the choices", f"use {names}")


def plan_class(algorithm: AlgorithmName | PluginName) -> type[Plan]:
    """The plan of an algorithm, built in or from another package."""
    if isinstance(algorithm, AlgorithmName):
        return PLANS[algorithm]
    found = PLAN_PLUGINS.get(algorithm.value)
    if found is None:
        raise InvalidInput("algorithm", algorithm.value, "is not installed", "install the package that brings it")
    return found


def parameter_fields(plan: type[Plan]) -> tuple[Field[Any], ...]:
    """The parameters that a plan takes, in order."""
    assert is_dataclass(plan)
    return fields(plan)


def parameter_names(algorithm: AlgorithmName | PluginName) -> tuple[str, ...]:
    """The names of the parameters that a plan of this algorithm takes, in order."""
    return tuple(field.name for field in parameter_fields(plan_class(algorithm)))


def plan_from_mapping(algorithm: AlgorithmName | PluginName | str, mapping: Mapping[str, object]) -> Plan:
    """The plan with these parameters; keys may be spelled with dashes or underscores.

    Absent values (None) are treated as not given. Raises InvalidInput for an unknown or a missing name and for every
    value that breaks a rule of the plan.
    """
    name = algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm
    plan_type = plan_class(name)
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


def add_implied(name: AlgorithmName | PluginName, given: dict[str, object]) -> None:
    """Add to the given parameters, by field name, those that follow from others."""
    batches = given.get("batches")
    if name is AlgorithmName.STEFFLE and given.get("sampling") == SamplingName.FULL:
        given.setdefault("batch_size", given.get("silo_size"))
    if name is AlgorithmName.GAUSSIAN and isinstance(batches, int) and batches > 0:
        given.setdefault("sampling_rate", 1 / batches)


def _refuse_missing(plan_type: type[Plan], given: Mapping[str, object], name: AlgorithmName | PluginName) -> None:
    for field in parameter_fields(plan_type):
        if field.default is MISSING and given.get(field.name) is None:
            flag = field.name.replace("_", "-")
            raise InvalidInput(flag, None, f"is needed by {name.value}", f"give {flag}")


def _convert(key: str, value: object, hint: object) -> object:
    """Text to the enum and lists to the tuple that the field wants; everything else is for the plan to judge."""
    kind = hint
    if get_origin(hint) in (Union, types.UnionType):
        parts = [part for part in get_args(hint) if part is not type(None)]
        kind = _spoken(parts, value) or parts[0]
        value = value[0] if kind is not parts[0] and isinstance(value, list | tuple) else value
    if kind is SamplingName:  # which of the names are offered is for the plan to say
        return next((name for name in SamplingName if name == value), value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return value if isinstance(value, kind) else _choice(key.replace("_", "-"), value, kind)
    if get_origin(kind) is tuple and isinstance(value, (list, tuple)):
        return tuple(value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value


def _spoken(kinds: Sequence[object], value: object) -> object:
    """The enum among several types of a parameter, where the value is a word, or a flag that was given a word."""
    words = value if isinstance(value, list | tuple) else (value,)
    if len(kinds) < 2 or not any(isinstance(word, str) for word in words):
        return None
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Enum)), None)


def _choice(argument: str, value: object, kind: type[Choice]) -> Choice:
    names = [member.value for member in kind]
    if value in names:
        return kind(value)
    raise InvalidInput(argument, value, "is not one of the choices", f"use {', '.join(names)}")


def _nearest(key: str, name: AlgorithmName | PluginName) -> str:
    return nearest(key.replace("_", "-"), [flag.replace("_", "-") for flag in parameter_names(name)])
