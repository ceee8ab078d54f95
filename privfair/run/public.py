"""What is known of a run without a single record: its promise, public facts about the data, model and algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument, DataBinding
from calibrate.manifest.mechanism import AsPrintedGuarantee, NoiseSource, NoPrivacyPromised, PrivateGuarantee
from calibrate.privacy_unit import PrivacyUnit
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.recipe import Blueprint
from privfair.federation.party import PublicFacts
from privfair.models.model import Model
from privfair.plan.model import build_model
from privfair.plan.privacy import Parameters
from privfair.plan.training import TrainingPlan

# What a run promises, in the few words that stand in every output, and as the terms the ledger claims.


@dataclass(frozen=True)
class Promise:
    """`epsilon` is None where nothing finite is promised; `claimed_epsilon` is what a paper claims of its own noise."""

    kind: str
    text: str
    unit: PrivacyUnit
    epsilon: float | None
    delta: float
    claimed_epsilon: float | None
    not_protected: tuple[str, ...]
    research_noise: bool

    @property
    def nothing(self) -> bool:
        """Whether nobody is protected."""
        return self.epsilon is None

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "text": self.text,
            "unit": self.unit.protected.value,
            "adjacency": self.unit.relation.value,
            "epsilon": self.epsilon,
            "delta": None if self.nothing else self.delta,
            "claimed_epsilon": self.claimed_epsilon,
            "not_protected": list(self.not_protected),
            "research_noise": self.research_noise,
        }


def promise_of(document: BudgetDocument) -> Promise:
    """The promise of a manifest; seeded research noise turns every promise into none."""
    guarantee = document.guarantee
    research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    claimed: float | None = None
    match guarantee:
        case PrivateGuarantee(epsilon=epsilon, delta=delta):
            true: float | None = epsilon
            text = f"epsilon {epsilon:g} at delta {delta:g} for one {guarantee.unit.value}"
        case AsPrintedGuarantee(epsilon=true, delta=delta, claimed_epsilon=claimed):
            found = "no finite epsilon" if true is None else f"epsilon {true:.4g}"
            text = f"AS PRINTED: the paper claims epsilon {claimed:g}, the true cost is {found} at delta {delta:g}"
        case NoPrivacyPromised(why=why):
            true, delta = None, 0.0
            text = f"NO PRIVACY PROMISED: {why}"
        case _:
            assert_never(guarantee)
    if research:
        true = None
        text = f"UNSAFE RESEARCH NOISE, nobody is protected (the noise would otherwise mean: {text})"
    return Promise(
        kind=guarantee.kind,
        text=text,
        unit=guarantee.privacy_unit(),
        epsilon=true,
        delta=delta,
        claimed_epsilon=claimed,
        not_protected=guarantee.not_protected,
        research_noise=research,
    )


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
            f"is not known to {plan.recipe.name}, whose silos hold the attributes of their own records",
            "use steffle, or drop the table",
        )
    return model, plan.recipe.build(blueprint)
