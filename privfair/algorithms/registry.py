"""The algorithms that can be trained, by the name a plan uses; each is imported when it is built."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.algorithms import fair_recipes

if TYPE_CHECKING:
    from calibrate.manifest.document import BudgetDocument
    from privfair.algorithms.algorithm import Algorithm
    from privfair.models.model import Model
    from privfair.plan.model import MinMaxPlan


@dataclass(frozen=True, eq=False)
class Blueprint:
    """All that an algorithm is built from: the plan's words and public facts about the data, never records."""

    model: Model
    options: Any
    privacy: Mapping[str, Any]
    """The [privacy] section, keys with dashes; it is signed with the plan."""
    parties: tuple[tuple[str, int], ...]
    """Names and sizes in units, as the manifest binds them."""
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
    document: BudgetDocument | None = None
    """The verified manifest; None while it is being issued, when only names and shapes matter."""

    def needed(self, key: str) -> Any:
        """A parameter of [privacy] that the algorithm cannot do without."""
        if self.privacy.get(key) is None:
            raise InvalidInput(f"[privacy] {key}", None, "is needed to train", f"give {key} under [privacy]")
        return self.privacy[key]

    def require_groups(self) -> None:
        """Refuse a plan priced for another number of groups than the data's schema has."""
        planned = self.privacy.get("groups", 2)
        if planned != self.groups:
            raise InvalidInput(
                "[privacy] groups", planned, f"is not the data's {self.groups} groups", f"write groups = {self.groups}"
            )

    @property
    def shares(self) -> dict[str, float]:
        """Each party's share of all units."""
        total = sum(size for _, size in self.parties)
        return {name: size / total for name, size in self.parties}


@dataclass(frozen=True)
class Recipe:
    """How one algorithm gets from a plan to a run."""

    name: str
    options_at: str
    """Module and class of its [training] options."""
    build: Callable[[Blueprint], Algorithm[Any]]
    unit: PrivacyUnit
    """Whom its manifest speaks of, also where it promises nothing."""
    baseline: bool = False
    """Whether no private variant exists, so that only a manifest without a promise can be issued."""
    central: bool = False
    """Whether all records are trained on in one place."""
    attributes_apart: bool = False
    """Whether it can run with attributes held by others than the records."""

    def options(self) -> Any:
        module, name = self.options_at.split(":")
        return getattr(importlib.import_module(module), name)


_RECORD = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)
_OPTIONS = "privfair.algorithms.parts.options"


def _fedsgd(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.fedsgd import FedSgd

    return FedSgd(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


def _fedavg(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.fedavg import FedAvg

    return FedAvg(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


def _central_erm(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.central_erm import CentralErm

    return CentralErm(blueprint.model, blueprint.options, blueprint.seed)


def _gaussian(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.dp_fedsgd import DpFedSgd

    if blueprint.min_max is not None:
        return _fed_sgda(blueprint, blueprint.min_max)
    if len(blueprint.privacy.get("noise", (1.0,))) != 1:
        raise InvalidInput(
            "[privacy] noise",
            blueprint.privacy["noise"],
            "lists several values, and training sends one",
            "drop it, or give a min-max loss of your own under [training.min-max], which sends two",
        )
    if blueprint.privacy.get("relation") == Relation.REPLACE_ATTRIBUTE.value:
        raise InvalidInput(
            "[privacy] relation", "replace-attribute", "is not what clipped gradients bound", "use steffle or pay-once"
        )
    rate, clip = float(blueprint.needed("sampling-rate")), float(blueprint.privacy.get("clip", 1.0))
    corrected = fair_recipes.private_local_steps(blueprint, rate, clip)
    if corrected is not None:
        return corrected
    expected = rate * sum(size for _, size in blueprint.parties)
    return DpFedSgd(blueprint.model, blueprint.options.plain, clip, expected, blueprint.seed)


def _fed_sgda(blueprint: Blueprint, game: MinMaxPlan) -> Algorithm[Any]:
    """Noisy Fed-SGDA of the plan's model and the user's own loss; one record is the unit."""
    import torch

    from privfair.algorithms.fed_sgda import FedSgda
    from privfair.algorithms.parts.descent import DescentRule

    noise = blueprint.privacy.get("noise", (1.0,))
    if len(noise) != 2 or blueprint.privacy.get("relation") == Relation.REPLACE_ATTRIBUTE.value:
        raise InvalidInput(
            "[privacy] noise",
            tuple(noise),
            "must be two ratios, for the gradients in theta and in w, with a relation between whole records",
            "write noise = [1.0, 1.0]",
        )
    table, rate = game.table, float(blueprint.needed("sampling-rate"))
    return FedSgda(
        loss=game.code.load("name a function of theta, w, x, y and s"),
        theta_start=blueprint.model.initial(blueprint.seed),
        w_start=torch.zeros(table.w_size, dtype=torch.float64),
        theta_clip=table.theta_clip,
        w_clip=table.w_clip,
        expected=rate * sum(size for _, size in blueprint.parties),
        w_step=table.w_step,
        w_radius=table.w_radius,
        rule=DescentRule(blueprint.options.learning_rate, table.momentum, rounds=blueprint.rounds, seed=blueprint.seed),
        clip=float(blueprint.privacy.get("clip", 1.0)),
    )


def _steffle(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.steffle import BatchLaw, Steffle, SteffleBounds, centralisation_of, silo_weights

    blueprint.require_groups()
    paid = blueprint.privacy.get("histogram-noise-ratio") is not None
    if paid == (blueprint.options.group_frequencies is not None):
        raise InvalidInput(
            "[training] group-frequencies",
            blueprint.options.group_frequencies,
            "must be given exactly if [privacy] histogram-noise-ratio is not",
            "give public frequencies, or pay for a noisy histogram of the groups",
        )
    sampling = blueprint.privacy.get("sampling", "shuffled")
    law = BatchLaw.SAME_RATE if sampling in ("full", "poisson") else BatchLaw.SAME_SIZE
    centralisation = centralisation_of(blueprint.sensitive)
    sizes = {name: size for name, size in blueprint.parties if name not in blueprint.sensitive}
    if blueprint.sensitive and law is BatchLaw.SAME_SIZE and len(set(sizes.values())) > 1:
        raise InvalidInput(
            "[privacy] sampling",
            sampling,
            "weighs records of unequal silos unequally, which a sensitive silo that sums over all can't follow",
            'write sampling = "full" or "poisson", or make the silos equal',
        )
    weights = silo_weights(sizes, blueprint.needed("silo-size"), law)
    bounds = SteffleBounds(
        batch_size=blueprint.needed("silo-size" if sampling == "full" else "batch-size"),
        minority_fraction=float(blueprint.needed("minority-fraction")),
        lipschitz=float(blueprint.needed("lipschitz")),
        w_radius=float(blueprint.needed("w-radius")),
    )
    return Steffle(
        model=blueprint.model,
        options=blueprint.options,
        bounds=bounds,
        weights=weights | dict.fromkeys(blueprint.sensitive, next(iter(weights.values()))),
        groups=blueprint.groups,
        rounds=blueprint.rounds,
        seed=blueprint.seed,
        centralisation=centralisation,
    )


def _pay_once(blueprint: Blueprint) -> Algorithm[Any]:
    from calibrate.manifest.mechanism import RandomizedCategory
    from privfair.algorithms.pay_once import ATTRIBUTE, PayOnce
    from privfair.fairness.penalty import ResponseChannel

    blueprint.require_groups()
    signed = None if blueprint.document is None else blueprint.document.release(ATTRIBUTE)
    # Sent in the clear (nothing promised), the responses are the truth.
    epsilon = signed.epsilon if isinstance(signed, RandomizedCategory) else None
    return PayOnce(
        model=blueprint.model,
        options=blueprint.options,
        channel=ResponseChannel.of_epsilon(blueprint.groups, epsilon),
        largest_silo=max(size for _, size in blueprint.parties),
        weights=blueprint.shares,
        rounds=blueprint.rounds,
        seed=blueprint.seed,
    )


_ATTRIBUTE = PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)
_ADDED_RECORD = PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)
_ADDED_USER = PrivacyUnit(Protected.USER, Relation.ADD_REMOVE)
_FAIR = "privfair.algorithms.fair_options"
_BASELINES = (
    ("fedprox", "FedProxOptions", fair_recipes.fedprox, _RECORD),
    ("scaffold", "ScaffoldOptions", fair_recipes.scaffold, _RECORD),
    ("feddyn", "FedDynOptions", fair_recipes.feddyn, _RECORD),
    ("q-ffl", "QFflOptions", fair_recipes.q_ffl, _RECORD),
    ("agnostic-fl", "AgnosticOptions", fair_recipes.agnostic_fl, _RECORD),
    ("local-mmd", "LocalMmdOptions", fair_recipes.local_mmd, _RECORD),
    ("fairfed", "FairFedOptions", fair_recipes.fairfed, _RECORD),
    ("fedfb", "FedFbOptions", fair_recipes.fedfb, _RECORD),
    ("tran", "TranOptions", fair_recipes.tran, _ADDED_USER),
)
"""Of the papers' experiments: name, options, builder, unit."""

_RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("steffle", "privfair.algorithms.steffle:SteffleOptions", _steffle, _ATTRIBUTE, attributes_apart=True),
        Recipe("pay-once", "privfair.algorithms.pay_once:PayOnceOptions", _pay_once, _ATTRIBUTE),
        Recipe("fedfdp", f"{_FAIR}:FedFdpOptions", fair_recipes.fedfdp, _ADDED_RECORD),
        Recipe("fpfl", f"{_FAIR}:FpflOptions", fair_recipes.fpfl, _ADDED_USER),
        Recipe("mmd-fedavg", f"{_FAIR}:MmdFedAvgOptions", fair_recipes.mmd_fedavg, _RECORD, central=True),
        Recipe("gaussian", "privfair.algorithms.baselines.options:PrivateStepOptions", _gaussian, _ADDED_RECORD),
        Recipe("fedsgd", f"{_OPTIONS}:GradientOptions", _fedsgd, _RECORD, baseline=True),
        Recipe("fedavg", f"{_OPTIONS}:FedAvgOptions", _fedavg, _RECORD, baseline=True),
        *(
            Recipe(name, f"privfair.algorithms.baselines.options:{options}", build, unit, baseline=True)
            for name, options, build, unit in _BASELINES
        ),
        Recipe("central-erm", f"{_OPTIONS}:CentralErmOptions", _central_erm, _RECORD, baseline=True, central=True),
    )
}


def recipe_named(name: str) -> Recipe:
    """The algorithm of that name, or a refusal that lists what can be trained."""
    if name not in _RECIPES:
        close = get_close_matches(name, _RECIPES, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"use {', '.join(_RECIPES)}"
        raise InvalidInput("algorithm", name, "cannot be trained here", remedy)
    return _RECIPES[name]


def baseline_names() -> tuple[str, ...]:
    """The algorithms without a private variant."""
    return tuple(name for name, recipe in _RECIPES.items() if recipe.baseline)
