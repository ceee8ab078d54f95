"""From a signed plan to an algorithm: its parameters, what a builder is given, what the registry knows of each.

The engine reads the [privacy] section from the manifest, as the plan that was priced and signed. A plan class names
what is published and with which bounds, and holds every default. It prices nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, Generic, TypeVar

from calibrate.errors import InvalidInput, count, positive
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, NoPrivacyPromised, RandomizedCategory
from calibrate.manifest.strict_json import Step
from calibrate.plans import PLAN_PLUGINS, add_implied, algorithm_named, parameter_fields, plan_class, plan_from_mapping
from calibrate.plans.plan import AlgorithmName, PlainValue, Plan
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.algorithms.algorithm import Algorithm
from privfair.models.model import Model, require_class_weights
from privfair.plan.model import MinMaxPlan
from privfair.plan.sections import Options, refuse_unknown


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

    Refused where the plan they make has other rounds than the manifest, or another contribution bound than it declares
    for the same value.
    """
    if isinstance(document.guarantee, NoPrivacyPromised):
        known = document.algorithm in (*(name.value for name in AlgorithmName), *PLAN_PLUGINS.names())
        return unpromised_parameters(document.algorithm, document.parameters, document.rounds) if known else None
    plan = plan_from_mapping(document.algorithm, document.parameters)
    if plan.rounds != document.rounds:
        raise Step.PLAN.refuse(f"its parameters have {plan.rounds} rounds, and it covers {document.rounds}")
    for value in (*plan.values(), *plan.once()):
        declared = document.release(value.name)
        times = value.publications(document.rounds)
        if declared.publications != times:
            raise Step.PLAN.refuse(f"its parameters publish {value.name} {times} times, its releases do not")
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


MIN_MAX = "min-max"
"""The method that a table [training.min-max] chooses, by a loss of the user's own."""

OptionsT = TypeVar("OptionsT", bound=Options)
PlanT = TypeVar("PlanT", bound=Plan)

RECORD_REPLACED = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)
RECORD_ADDED = PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)
USER_ADDED = PrivacyUnit(Protected.USER, Relation.ADD_REMOVE)
ATTRIBUTE_REPLACED = PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)


@dataclass(frozen=True, eq=False)
class Blueprint(Generic[OptionsT]):
    """All that an algorithm is built from: options, signed parameters, public facts about the data; never records."""

    model: Model
    options: OptionsT
    parameters: Parameters
    """The priced plan as it was signed; what is known of one where nothing is promised; None for a baseline."""
    parties: tuple[tuple[str, int], ...]
    """Names and sizes in units, as the manifest binds them."""
    feature_shape: tuple[int, ...]
    """The shape of one record's features."""
    groups: int
    rounds: int
    """The updates to make."""
    seed: int
    clients: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the clients whose records a central party collects."""
    sensitive: tuple[str, ...] = ()
    """The parties that hold nothing but attributes; none where every silo holds those of its records."""
    min_max: MinMaxPlan | None = None
    """A min-max loss of the user's own, to be trained by noisy Fed-SGDA."""
    numeric: int | None = None
    """How many of the first features are numeric columns; None where they are of no table."""
    category_shares: tuple[float, ...] = ()
    """Of each indicator of a categorical column, one over the number of that column's values; they come next."""
    document: BudgetDocument | None = None
    """The verified manifest; None while it is being issued, when only names and shapes matter."""

    def plan(self, kind: type[PlanT]) -> PlanT:
        """The parameters as a plan of this kind; refused where [privacy] does not give all of them."""
        if isinstance(self.parameters, kind):
            return self.parameters
        missing = self.parameters.missing if isinstance(self.parameters, Unpriced) else "rounds"
        raise InvalidInput(f"[privacy] {missing}", None, "is needed to train", f"give {missing} under [privacy]")

    def signed(self, name: str) -> GaussianNoise | LaplaceNoise | RandomizedCategory | None:
        """The signed noise of a value; None where nothing is promised, or while the manifest is being issued."""
        found = None if self.document is None else self.document.release(name)
        return found if isinstance(found, GaussianNoise | LaplaceNoise | RandomizedCategory) else None

    def bound(self, name: str) -> float:
        """The contribution bound of a noisy value: as it was signed; the plan's own while none is signed."""
        signed = self.signed(name)
        if isinstance(signed, GaussianNoise | LaplaceNoise):
            return signed.sensitivity
        plan = self.plan(Plan)  # type: ignore[type-abstract]
        return next(value.sensitivity for value in (*plan.values(), *plan.once()) if value.name == name)

    def require_groups(self, planned: int) -> None:
        """Refuse another number of groups than the data's schema has."""
        if planned != self.groups:
            raise InvalidInput(
                "[privacy] groups", planned, f"is not the data's {self.groups} groups", f"write groups = {self.groups}"
            )

    def require_two_groups(self) -> None:
        """Refuse data with more than two groups, for algorithms that compare two."""
        if self.groups != 2:
            raise InvalidInput("groups", self.groups, "must be 2 here", "compare two groups")

    def require_users(self, planned: int | None) -> None:
        """Refuse a number of users other than the one that cohorts are drawn from."""
        units = self.units
        if planned is not None and planned != units:
            raise InvalidInput("[privacy] users", planned, f"is not the data's {units} users", f"write users = {units}")

    @property
    def units(self) -> int:
        """The units of all parties together."""
        return sum(size for _, size in self.parties)

    @property
    def shares(self) -> dict[str, float]:
        """Each party's share of all units."""
        return {name: size / self.units for name, size in self.parties}

    def expected(self, rate: float) -> dict[str, float]:
        """Each party's expected batch size at this sampling rate."""
        return {name: rate * size for name, size in self.parties}


@dataclass(frozen=True)
class Recipe(Generic[OptionsT]):
    """How one algorithm, or one method of it, gets from a plan to a run."""

    name: str
    options: type[OptionsT]
    """What its [training] section may say."""
    build: Callable[[Blueprint[OptionsT]], Algorithm[Any]]
    unit: PrivacyUnit = RECORD_REPLACED
    """Whom its manifest speaks of, also where it promises nothing."""
    baseline: bool = False
    """Whether no private variant exists, so that only a manifest without a promise can be issued."""
    central: bool = False
    """Whether all records are trained on in one place."""
    attributes_apart: bool = False
    """Whether it can run with attributes held by others than the records."""
    method: str | None = None
    """The name under `method` that chooses it, where the algorithm has several; `MIN_MAX` is chosen by its table."""

    @property
    def key(self) -> str:
        """The name that a plug-in's entry point has: the algorithm's, or `algorithm.method`."""
        return self.name if self.method is None else f"{self.name}.{self.method}"


def from_shares(
    kind: Callable[..., Algorithm[Any]], *sending: Callable[[Blueprint[Any]], object]
) -> Callable[[Blueprint[Any]], Algorithm[Any]]:
    """Build an algorithm from a model, options, the parties' shares, its messages if not plain means, and a seed."""

    def build(blueprint: Blueprint[Any]) -> Algorithm[Any]:
        made = (make(blueprint) for make in sending)
        return kind(blueprint.model, blueprint.options, blueprint.shares, *made, seed=blueprint.seed)

    return build


def refuse_normalisation(ratio: float | None) -> None:
    """Refuse to pay for statistics that no algorithm here publishes."""
    if ratio is not None:
        raise InvalidInput(
            "[privacy] normalisation-noise-ratio",
            ratio,
            "pays for statistics that training does not publish",
            "drop it: features are scaled by the public bounds of their schema",
        )


def require_classes(classes: int, positive_class: int, class_weight: Sequence[float], warm_start: int) -> None:
    """Refuse a positive class and weights that are none of these classes, and weights next to a warm start."""
    require_class_weights(class_weight, classes)
    if class_weight and warm_start:
        raise InvalidInput("class-weight", class_weight, "excludes warm-start, which counts all alike", "drop one")
    if positive_class >= classes:
        rule = f"must be below {classes}, the number of classes"
        raise InvalidInput("positive-class", positive_class, rule, "give a class's number")
