"""The [training] section of a plan, typed: what every algorithm shares, the model, and the algorithm's own keys.

::

    [training]
    rounds = 200              # updates to make; a private plan takes [privacy] rounds, and fewer may be asked for
    signed-rounds = 264       # only without a promise: rounds to sign, with some to spare for interruptions
    seed = 0                  # of the first model; of batches only where no one is promised privacy
    measure-every = "auto"    # steps between two lines of metrics.jsonl; auto: about a hundred lines per run
    positive = "defaults"     # the class of the one-sided gaps; default: the second
    batch-size = 256          # only without a promise: under a promise the manifest says how batches are drawn
    sampling = "shuffled"     # shuffled | poisson | fixed | with-replacement | full; without a promise
    block = 32                # rounds charged ahead in the ledger, default a 32nd of all, at most 32; a crash
                              # loses the rest of a block
    retention = 20            # the transcript keeps every k-th step in full, and digests of all;
                              # left out: every value
    model = "logistic"        # or a table [training.model] with kind and its own keys
    learning-rate = 0.5       # and whatever else the algorithm knows (docs/training.md)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, assert_never

from calibrate.errors import InvalidInput, UnsupportedCombination, count, nearest
from calibrate.manifest.document import BudgetDocument, DataBinding
from calibrate.plans import PLAN_PLUGINS
from calibrate.plans.clipped_sums import FpflPlan
from calibrate.plans.fair_plugin import FairPluginPlan
from calibrate.plans.steffle import StefflePlan
from calibrate.sampling import Batch, FixedSize, Poisson, Sampling, SamplingName, ShuffledEpochs, WithReplacement
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.fair_plugin import FairPluginOptions
from privfair.algorithms.recipe import MIN_MAX, Blueprint, Parameters, Recipe, Unpriced
from privfair.algorithms.registry import ALGORITHM_PLUGINS, methods_of, recipe_named
from privfair.fairness.fermi import Independence
from privfair.federation.coordinator import PublicFacts
from privfair.models.alone_module import ISOLATION_ASSUMED
from privfair.models.model import Model
from privfair.plan.data import AttributesAtSites, DataPlan, PluginSource, read_data_plan
from privfair.plan.model import (
    MODEL_PLUGINS,
    MinMaxPlan,
    ModelKind,
    ModelPlan,
    RuleForm,
    build_model,
    read_min_max_plan,
    read_model_plan,
)
from privfair.plan.plan import Plan
from privfair.plan.sections import Checked, Count, Options, Whole, dashed, key_names, read_section, refuse_unknown

_LARGEST_BLOCK = 32
"""Where syncing no longer dominates (docs/ledger.md)."""
_OF_COHORTS = ("fpfl", "tran")
"""The algorithms that draw cohorts of users, for which there may be a hypothetical population."""
_MEASUREMENTS = 100
"""The number of lines that metrics.jsonl has by default, about: a measurement can cost more than a round."""
_LOST_SHARE = 32
"""A crash may cost this part of the signed rounds, if no block is asked for."""


def block_for(signed: int) -> int:
    """Rounds to charge ahead by default."""
    return max(1, min(_LARGEST_BLOCK, signed // _LOST_SHARE))


class BatchChoice(Enum):
    """How batches are drawn where no manifest says it."""

    SHUFFLED = "shuffled"
    POISSON = "poisson"
    FIXED = "fixed"
    WITH_REPLACEMENT = "with-replacement"
    FULL = "full"


@dataclass(frozen=True)
class TrainingOptions(Checked):
    """What all algorithms share."""

    place = "[training]"
    rounds: Count | None = None
    """Rounds to train; default: those that are signed."""
    signed_rounds: int | None = None
    """Rounds to sign, at least `rounds`: spare ones for interruptions."""
    seed: Whole = 0
    """Of the first model; also of batches and noise where no privacy is guaranteed."""
    measure_every: Count | Literal["auto"] = "auto"
    """Steps between two measurements on the held-out records."""
    positive: str | None = None
    """Name of the positive class; default: the second class."""
    batch_size: Count | None = None
    """Records in a batch, where the budget does not fix it."""
    sampling: BatchChoice | None = None
    """How batches are drawn, where the budget does not fix it."""
    block: Count | None = None
    """Rounds charged at once; a crash costs at most these."""
    retention: Count | None = None
    """The transcript keeps one step in this many in full, the rest by digests; default: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.signed_rounds is not None:
            count("[training] signed-rounds", self.signed_rounds, least=self.rounds or 1)

    def measures(self, step: int, updates: int) -> bool:
        """Whether the model after this step, of `updates` in all, is measured; the last one always is."""
        every = max(1, updates // _MEASUREMENTS) if self.measure_every == "auto" else self.measure_every
        return step == updates or step % every == 0


@dataclass(frozen=True)
class TrainingPlan:
    """A whole plan file, as the engine reads it."""

    file: Plan
    recipe: Recipe[Any]
    data: DataPlan
    training: TrainingOptions
    model: ModelPlan
    own: Options
    """The algorithm's own options, of the recipe's type."""
    min_max: MinMaxPlan | None = None
    """The user's own loss, for `gaussian` alone."""

    def own_code(self) -> dict[str, bytes]:
        """The user's own files that the run needs, with their names, to be kept with it."""
        code = (self.model.code, None if self.min_max is None else self.min_max.code)
        return {one.name: one.source for one in code if one is not None}

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is signed in addition to the plan's own: a min-max loss is the user's code, like a module run alone."""
        alone = () if self.min_max is None else (ISOLATION_ASSUMED,)
        return tuple(dict.fromkeys((*self.model.assumptions, *alone)))

    def code_digests(self) -> dict[str, str]:
        """The SHA-256 of each of the user's files, with its name, and of each package that a plug-in comes from."""
        own = {name: hashlib.sha256(content).hexdigest() for name, content in self.own_code().items()}
        model = MODEL_PLUGINS.code(self.model.name or "") if self.model.kind is ModelKind.PLUGIN else {}
        method = ALGORITHM_PLUGINS.code(self.recipe.key)
        return own | plugin_digests(self.algorithm, self.data) | method | model

    @property
    def algorithm(self) -> str:
        return self.file.algorithm

    @property
    def planned_rounds(self) -> int:
        """The rounds to be signed: those of [privacy], else those of [training]."""
        rounds = self.training.signed_rounds or self.file.privacy.get("rounds") or self.training.rounds
        if rounds is None:
            section = "training" if self.recipe.baseline else "privacy"
            raise InvalidInput(
                f"[{section}] rounds", None, "is needed", f"write rounds = 200, for example, under [{section}]"
            )
        return count("rounds", rounds)

    def updates(self, signed: int) -> int:
        """The updates to make under a manifest that signed this number of rounds."""
        wanted = signed if self.training.rounds is None else self.training.rounds
        if wanted > signed:
            raise InvalidInput(
                "[training] rounds",
                wanted,
                f"exceeds the {signed} signed rounds",
                f"ask for fewer, or write rounds = {wanted} under [privacy] and calibrate again",
            )
        return wanted

    def block(self, signed: int) -> int:
        """Rounds to charge ahead: enough that syncing does not dominate, few enough that a crash loses little."""
        return self.training.block or block_for(signed)

    def refuse_unpromised_keys(self) -> None:
        """Under a promise only the manifest says how batches are drawn and how many rounds there are."""
        for key, value in (
            ("batch-size", self.training.batch_size),
            ("sampling", self.training.sampling),
            ("signed-rounds", self.training.signed_rounds),
        ):
            if value is not None:
                raise InvalidInput(
                    f"[training] {key}",
                    value.value if isinstance(value, Enum) else value,
                    "is only for runs that promise nothing; a manifest with a promise decides it",
                    "drop it, say it under [privacy], and calibrate again",
                )

    def unpromised_sampling(self, parameters: Parameters, smallest: int) -> Sampling | None:
        """How batches are drawn where nothing is promised; `smallest` is the smallest party's size."""
        # Without noise an algorithm keeps the batches of its private plan, so that runs can be compared.
        named, planned = _planned_batches(parameters)
        size = self.training.batch_size or planned
        choice = self.training.sampling or named or (BatchChoice.FULL if size is None else BatchChoice.SHUFFLED)
        return _sampling(choice, smallest, size)


def build(
    plan: TrainingPlan,
    facts: PublicFacts,
    parameters: Parameters,
    signed: DataBinding,
    document: BudgetDocument | None = None,
) -> tuple[Model, Algorithm[Any]]:
    """Model and algorithm of a plan, from its parameters and public facts about the data alone.

    Under a verified manifest (`document`) the parameters are those that `require_signed` returns, and `signed` are its
    names and sizes; without one they are those about to be signed.
    """
    model = build_model(plan.model, facts.feature_shape, facts.classes)
    blueprint = Blueprint(
        model=model,
        options=plan.own,
        parameters=parameters,
        parties=tuple((silo.name, silo.size) for silo in signed.silos),
        clients=facts.clients,
        sensitive=facts.sensitive,
        min_max=plan.min_max,
        numeric=facts.numeric,
        category_shares=facts.category_shares,
        feature_shape=facts.feature_shape,
        groups=facts.groups,
        rounds=plan.updates(plan.planned_rounds if document is None else document.rounds),
        document=document,
        seed=plan.training.seed,
    )
    if blueprint.sensitive and not plan.recipe.attributes_apart:
        raise InvalidInput(
            "[data.attributes]",
            list(blueprint.sensitive),
            f"is not known to {plan.recipe.name}, whose silos hold the attributes of their records",
            "use steffle, or drop the table",
        )
    by_chance = (SamplingName.POISSON, SamplingName.WITH_REPLACEMENT)
    at_sites = isinstance(plan.data.attributes, AttributesAtSites)
    if at_sites and isinstance(parameters, StefflePlan) and parameters.sampling in by_chance:
        raise UnsupportedCombination(
            "batches drawn by chance, of registries at separate sites",
            "a registry can count how often a record is asked for, and can't see whether chance decided it",
            'write sampling = "shuffled" or "full", or train in one process with files = [...]',
        )
    return model, plan.recipe.build(blueprint)


def plugin_digests(algorithm: str, data: DataPlan | None = None) -> dict[str, str]:
    """The digests of the packages that bring a plan, its algorithm and its data set; none for what is built in."""
    found = PLAN_PLUGINS.code(algorithm) | ALGORITHM_PLUGINS.code(algorithm)
    if data is not None and isinstance(data.source, PluginSource):
        found |= data.source.code
    return found


def read_training_plan(path: Path) -> TrainingPlan:
    """The plan in a TOML file; it must have [data] and [training]."""
    return training_plan(Plan.read(path))


def training_plan(file: Plan) -> TrainingPlan:
    """The typed plan of a file that was read."""
    given = dashed("training", file.training)
    recipe = _recipe(file.algorithm, given)
    for name, section in (("data", file.data), ("training", file.training)):
        if not section:
            raise InvalidInput(f"[{name}]", None, "is needed to train", f"add [{name}] to the plan (docs/training.md)")
    if recipe.baseline and file.privacy:
        raise InvalidInput(
            "[privacy]", "(a table)", f"has no meaning for {recipe.name}, which protects no one", "drop it"
        )
    users = file.data.get("users", {})
    if not isinstance(users, Mapping):
        raise InvalidInput("[data] users", users, "must be a table", "write [data.users] and its keys")
    if recipe.name not in _OF_COHORTS and "copies" in users:
        raise InvalidInput("[data.users] copies", users["copies"], f"is not known to {recipe.name}", "drop it")
    methods = methods_of(file.algorithm)
    names = ("model", *(("method",) if methods else ()), *((MIN_MAX,) if MIN_MAX in methods else ()))
    refuse_unknown("training", given, (*key_names(TrainingOptions), *key_names(recipe.options), *names))
    own = read_section(recipe.options, "training", _only(given, recipe.options))
    model = read_model_plan(given.get("model", "logistic"), file.folder)
    return TrainingPlan(
        file=file,
        recipe=recipe,
        data=read_data_plan(file.data, file.folder),
        training=read_section(TrainingOptions, "training", _only(given, TrainingOptions)),
        model=replace(model, rule=_rule_form(file, own), scaled=_is_scaled(file)),
        own=own,
        min_max=read_min_max_plan(given[MIN_MAX], file.folder) if MIN_MAX in given else None,
    )


def _is_scaled(file: Plan) -> bool:
    """Whether the plan scales columns before its model sees them."""
    return any(key.replace("_", "-") == "scale-columns" for key in file.privacy)


def _rule_form(file: Plan, own: Options) -> RuleForm | None:
    """The form of the rule that fair-plugin releases; None for every other algorithm, which releases its model."""
    if not isinstance(own, FairPluginOptions):
        return None
    groups = count("[privacy] groups", file.privacy.get("groups", FairPluginPlan.groups), least=2)
    return RuleForm(groups, own.notion is Independence.EQUAL_OPPORTUNITY, own.positive_class, own.distil_trees)


def _recipe(algorithm: str, given: Mapping[str, Any]) -> Recipe[Any]:
    """What the plan's algorithm and method choose; a key that only other methods know is refused with their names."""
    recipe, methods = recipe_named(algorithm), methods_of(algorithm)
    if MIN_MAX in given:
        if MIN_MAX not in methods:
            raise InvalidInput("[training.min-max]", "(a table)", f"is not known to {algorithm}", "use gaussian")
        if "method" in given:
            rule = "is not known to a min-max loss, which is trained by descent and ascent"
            raise InvalidInput("[training] method", given["method"], rule, "drop it")
        return recipe_named(algorithm, MIN_MAX)
    choices = [method for method in methods if method != MIN_MAX]
    if choices and "method" in given:
        method = str(given["method"])
        if method not in choices:
            raise InvalidInput("[training] method", method, "is not one of the choices", nearest(method, choices))
        recipe = recipe_named(algorithm, method)
    for key in set(given) - {*key_names(recipe.options), *key_names(TrainingOptions)}:
        others = [other for other in choices if key in key_names(recipe_named(algorithm, other).options)]
        if others:
            rule, other = (
                f"is not used by method = {recipe.method or recipe.name!r}",
                " or ".join(f"method = {o!r}" for o in others),
            )
            raise InvalidInput(f"[training] {key}", given[key], rule, f"drop it, or write {other}")
    return recipe


def _only(given: Mapping[str, Any], kind: type[TrainingOptions] | type[Options]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key in key_names(kind)}


def _planned_batches(parameters: Parameters) -> tuple[BatchChoice | None, int | None]:
    """How the private plan draws its batches, and their size, if it is known."""
    match parameters:
        case StefflePlan():
            return BatchChoice(parameters.sampling.value), parameters.batch_size
        case FpflPlan():
            return BatchChoice(parameters.sampling.value), parameters.cohort
        case Unpriced():
            named = parameters.given.get("sampling")
            known = named in [choice.value for choice in BatchChoice]
            return BatchChoice(named) if known else None, parameters.whole("batch_size")
        case _:
            return None, None


def _sampling(choice: BatchChoice, population: int, size: int | None) -> Sampling | None:
    if choice is BatchChoice.FULL:
        return None
    if size is None or size > population:
        raise InvalidInput(
            "[training] batch-size",
            size,
            f"must be at most the smallest silo's {population} for {choice.value} batches",
            'give a batch size, or sampling = "full"',
        )
    match choice:
        case BatchChoice.SHUFFLED:
            return ShuffledEpochs(population, size, Batch.REVEALED)
        case BatchChoice.POISSON:
            return Poisson(size / population, Batch.REVEALED)
        case BatchChoice.FIXED:
            return FixedSize(population, size, Batch.REVEALED)
        case BatchChoice.WITH_REPLACEMENT:
            return WithReplacement(population, size, Batch.REVEALED)
        case _:
            assert_never(choice)
