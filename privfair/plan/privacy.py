"""The [privacy] section: the typed plan that was priced and signed, and which the engine reads from the manifest.

A plan class says what is published and with which bounds, and holds every default. It prices nothing: accountants and
solvers stay out of the engine's reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass

from calibrate.errors import InvalidInput, count, positive
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, NoPrivacyPromised
from calibrate.manifest.strict_json import Step
from calibrate.plans import PLAN_PLUGINS, add_implied, algorithm_named, parameter_fields, plan_class, plan_from_mapping
from calibrate.plans.plan import AlgorithmName, PlainValue, Plan
from privfair.plan.sections import refuse_unknown


@dataclass(frozen=True)
class Unpriced:
    """What a run that promises nothing says of a plan, where that is too little to be priced; by the fields' names."""

    given: Mapping[str, PlainValue]
    missing: str
    """The first parameter that a price would need, as a plan file spells it."""

    def number(self, name: str) -> float | None:
        """A positive number that may be left out."""
        value = self.given.get(name)
        if value is None:
            return None
        if isinstance(value, str | tuple):
            raise InvalidInput(_place(name), value, "must be a number", "write for example 0.5")
        return positive(_place(name), value)

    def whole(self, name: str) -> int | None:
        """A count that may be left out."""
        value = self.number(name)
        return None if value is None else count(_place(name), int(value) if value.is_integer() else 0)


Parameters = Plan | Unpriced | None
"""A priced plan; less than that where nothing is promised; None for an algorithm without a private variant."""


def _place(name: str) -> str:
    return f"[privacy] {name.replace('_', '-')}"


def needed(name: str, value: float | None) -> float:
    """A parameter that training cannot do without; works for counts too."""
    if value is None:
        raise InvalidInput(_place(name), None, "is needed to train", f"give {name.replace('_', '-')} under [privacy]")
    return value


def unpromised_parameters(algorithm: str, section: Mapping[str, object], rounds: int) -> Plan | Unpriced:
    """The parameters of a run without a promise: a plan if all are given, where `rounds` may come from [training]."""
    name = algorithm_named(algorithm)
    known = parameter_fields(plan_class(name))
    required = [field.name for field in known if field.default is MISSING]
    refuse_unknown("privacy", section, [field.name.replace("_", "-") for field in known])
    given: dict[str, object] = {"rounds": rounds}
    given |= {key.replace("-", "_"): value for key, value in section.items() if value is not None}
    add_implied(name, given)
    missing = [field for field in required if field not in given]
    if not missing:
        return plan_from_mapping(name, given)
    plain = {key: _plain(key, value) for key, value in given.items()}
    return Unpriced(plain, missing[0].replace("_", "-"))


def _plain(name: str, value: object) -> PlainValue:
    if isinstance(value, list | tuple):
        return tuple(positive(_place(name), item) for item in value)
    if not isinstance(value, bool | int | float | str):
        raise InvalidInput(_place(name), "(a table)", "must be a number or a word", "see docs/training.md")
    return value


def signed_parameters(document: BudgetDocument) -> Parameters:
    """The parameters that a manifest holds, which are the ones that were priced.

    Refused where the plan they make has another contribution bound than the manifest declares for the same value.
    """
    if isinstance(document.guarantee, NoPrivacyPromised):
        known = document.algorithm in (*(name.value for name in AlgorithmName), *PLAN_PLUGINS.names())
        return unpromised_parameters(document.algorithm, document.parameters, document.rounds) if known else None
    plan = plan_from_mapping(document.algorithm, document.parameters)
    for value in (*plan.values(), *plan.once()):
        declared = document.release(value.name)
        if isinstance(declared, GaussianNoise | LaplaceNoise) and declared.sensitivity != value.sensitivity:
            raise Step.PLAN.refuse(f"its parameters bound {value.name} by {value.sensitivity:g}, its releases do not")
    return plan


def require_signed(document: BudgetDocument, section: Mapping[str, object]) -> Parameters:
    """The signed parameters, which must be those of the plan file's [privacy] section."""
    signed = signed_parameters(document)
    match signed:
        case None:
            return None
        case Unpriced():
            given: Parameters = unpromised_parameters(document.algorithm, section, document.rounds)
        case _ if isinstance(document.guarantee, NoPrivacyPromised):
            given = unpromised_parameters(document.algorithm, section, document.rounds)
        case _:
            given = plan_from_mapping(document.algorithm, section)
    if given != signed:
        raise Step.PLAN.refuse("the parameters that were signed are not those of the plan's [privacy] section")
    return signed
