"""What audits find: the only result types, as models whose JSON is published (docs/audit-report.schema.json).

Keys that are here stay; new ones may be added, so readers must ignore keys they do not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.json_schema import SkipJsonSchema

from audit.bounds import LowerBound
from calibrate.errors import InvalidInput
from calibrate.manifest.strict_json import Json
from calibrate.notebook import as_html
from privfair.fairness.measurement import emptiness

SCHEMA_ID = "urn:privfair:audit-report:v1"

Rate = Annotated[float, Field(ge=0, le=1)]
Confidence = Annotated[float, Field(gt=0, lt=1)]
Epsilon = Annotated[float, Field(ge=0)]
Delta = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=-2, le=2)]
AtLeastOne = Annotated[int, Field(ge=1)]


class Result(BaseModel):
    """Strict about what is there, tolerant of what later versions add."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)

    def to_json(self) -> dict[str, Json]:
        """Plain values, as they are written to files."""
        return self.model_dump(mode="json")


def _is_none(value: object) -> bool:
    return value is None


# The verdict and what it rests on: checks, attacks, the promise tested.


class Layer(Enum):
    """Which kind of evidence, cheapest first."""

    CONFORMANCE = "conformance"
    """Do manifest, ledger, transcript, plan and model name one another?"""
    PROBE = "L0"
    """Noise off: sensitivities, isolation, step counts."""
    NOISE = "L1"
    """Is the noise in one run's messages what was signed?"""
    ATTACK = "L2"
    """Statistical lower bounds on epsilon."""


class CheckOutcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible"
    """The question cannot be answered from what is available; never counted as passed."""


NOISE_SHARES = (0.0, 0.25, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
"""Of the signed noise: where the power of a test is computed."""
FLOOR = "noise floor of all values together"
"""The name of the check of a run's own noise where batches are secret."""
OTHER_CODE = "code that trained is installed"
"""The name of the check that could not be made because the auditor has other code than the run."""
KNOWN_KEY = "noise of a known key"
"""The name of the check that compares every number of a rehearsal with the noise that its auditor's key gives."""
STATED_BREACH = 0.8
"""An audit that supports a promise must have an even chance of noticing that only this share of the noise is there."""
STATED_EXCESS = 0.5
"""And that one unit's bound is exceeded by this share of it."""


class PowerPoint(Result):
    share: Rate
    power: Rate


class NoisePower(Result):
    """How little of the signed noise a test would have noticed, computed."""

    noticed: Rate = Field(description="The largest share of the noise at which an alarm has an even chance.")
    curve: tuple[PowerPoint, ...]


class BoundPower(Result):
    """How likely it was to notice that one unit of the data, whichever it is, moves a message further than signed."""

    tried: int = Field(ge=0, description="Units whose own contribution was measured, alone and without noise.")
    units: AtLeastOne
    excess: Epsilon = Field(description="By this share of the bound or more; every tried unit would have shown it.")

    @property
    def power(self) -> float:
        """If the unit is any of them with the same probability."""
        return min(1.0, self.tried / self.units)


class AuditPower(Result):
    """What the whole audit would have noticed, over all layers; computed, not measured."""

    noise: NoisePower | None = Field(
        description="Of noise that is smaller in all values alike; an alarm of any layer counts, and layers draw noise "
        "of their own. null where no layer measures noise."
    )
    bound: BoundPower | None = Field(description="Of one unit's bound exceeded; null where units cannot be tried.")


class Check(Result):
    """One question put to a run or a model, and its answer."""

    layer: Layer
    name: str
    outcome: CheckOutcome
    finding: str
    noise_power: NoisePower | None = Field(default=None, exclude_if=_is_none)
    bound_power: BoundPower | None = Field(default=None, exclude_if=_is_none)
    part_noticed: Rate | None = Field(
        default=None, exclude_if=_is_none, description="Share of the noise of one part that had been noticed."
    )


def passed_if(layer: Layer, name: str, condition: bool, finding: str) -> Check:
    """A check that passed or failed."""
    outcome = CheckOutcome.PASSED if condition else CheckOutcome.FAILED
    return Check(layer=layer, name=name, outcome=outcome, finding=finding)


def not_possible(layer: Layer, name: str, why: str) -> Check:
    """A question that cannot be answered, with the reason."""
    return Check(layer=layer, name=name, outcome=CheckOutcome.NOT_POSSIBLE, finding=why)


class Conclusion(Enum):
    CONSISTENT = "consistent"
    """Nothing contradicts the promise, and the audit had the power to see a breach."""
    VIOLATED = "violated"
    """Evidence contradicts the promise, at the stated confidence."""
    INCONCLUSIVE = "inconclusive"
    """Nothing contradicts the promise, but the audit would barely have noticed."""
    LEAKS = "leaks"
    """Without a promise: members are told from others, so no small epsilon is true."""
    NO_LEAK_FOUND = "no-leak-found"
    """Without a promise: these attacks refute no epsilon at all."""


class Standing(Enum):
    """Whether the signed noise is known to keep the promise, if it is really there."""

    PRICED = "priced"
    """The manifest's own promise: accountants certified it for the signed noise."""
    CLAIMED = "claimed"
    """Somebody's word, which the signed noise need not keep."""
    CONTESTED = "contested"
    """Somebody's word, and the certified cost of the signed noise is above it."""


class Promise(Result):
    """What is tested: the epsilon that was promised or claimed, at its delta."""

    epsilon: Epsilon
    delta: Delta
    source: str = Field(description="In whose words: the manifest's own promise, or a claim that it quotes.")
    standing: SkipJsonSchema[Standing] = Field(default=Standing.CLAIMED, exclude=True)

    @property
    def word(self) -> str:
        """Whether it is a promise or only a claim."""
        return "promised" if self.source.startswith("promised") else "claimed"


class CurveTest(Result):
    """The manifest's own trade-off curve tested, at every delta at once."""

    p_value: Rate
    level: Rate = Field(description="The test's share of the allowed error; a smaller p-value refutes the curve.")
    refuted: bool

    @classmethod
    def at(cls, p_value: float, level: float) -> CurveTest:
        """The outcome of a test with this p-value at this level."""
        return cls(p_value=p_value, level=level, refuted=p_value < level)


class Attack(Result):
    """One statistical attack: the lower bound it reached, and its power against noise that is missing.

    With several attacks in one verdict each bound and each curve test has its share of the error.
    """

    name: str
    power: Rate
    evidence: str
    bound: LowerBound
    curve: CurveTest | None = Field(default=None, description="null where only one (epsilon, delta) is on trial.")
    right: Rate | None = Field(default=None, exclude_if=_is_none, description="Share of right guesses.")
    right_without_noise: Rate | None = Field(default=None, exclude_if=_is_none)
    at_ceiling: bool = Field(default=False, description="As right as without any noise, and not by luck.")


class Interval(Result):
    """An estimate and the ends of its interval, at the confidence of the result that holds it."""

    value: Share
    lower: Share
    upper: Share

    @model_validator(mode="after")
    def _ordered(self) -> Interval:
        if not self.lower <= self.value <= self.upper:
            raise ValueError(f"an interval must be ordered, got {self.lower}, {self.value}, {self.upper}")
        return self


class BlindRule(Result):
    """How well a rule that never sees the model tells members from non-members, on records it was not fitted to."""

    auc: Rate
    p_value: Rate

    @property
    def tells_apart(self) -> bool:
        """Whether members and non-members differ without the model."""
        return self.p_value < BLIND_LEVEL


BLIND_LEVEL = 1e-3
"""A blind rule that would come out so well with this probability at most is taken as a difference."""


# Attribute inference.


class AttributeFinding(Enum):
    LEAKAGE = "leakage"
    """The model tells more of its members' attribute than of others': an attack's interval is above zero."""
    NONE_FOUND = "no leakage found"
    """No attack's interval is above zero; their upper ends say what these attacks exclude, and nothing more."""
    NOT_COMPARABLE = "not comparable"
    """Members and non-members differ without any model, so a difference between them proves nothing."""


class OnOneSet(Result):
    """How an attack did on members, or on non-members."""

    accuracy: Interval
    advantage: Interval = Field(description="Over imputation, paired record by record.")


class AttributeAttackResult(Result):
    name: str
    members: OnOneSet
    nonmembers: OnOneSet
    leakage: Interval = Field(description="Advantage over imputation on members minus that on non-members.")
    leaks: bool
    beats_imputation: bool = Field(description="On members, an attacker gains by it over imputing.")

    @classmethod
    def of(cls, name: str, members: OnOneSet, nonmembers: OnOneSet, leakage: Interval) -> AttributeAttackResult:
        """An attack may show memory and still guess worse than imputation."""
        leaks, beats = leakage.lower > 0, members.advantage.lower > 0
        return cls(
            name=name, members=members, nonmembers=nonmembers, leakage=leakage, leaks=leaks, beats_imputation=beats
        )


class RecordCounts(Result):
    members: AtLeastOne
    nonmembers: AtLeastOne
    auxiliary: AtLeastOne = Field(description="Apart from those asked about; imputation and attacks learn from them.")


class Imputation(Result):
    """Accuracy of a classifier that never sees the model."""

    members: Interval
    nonmembers: Interval


class NotApplied(Result):
    name: str
    why: str


class AttributeInference(Result):
    """All attacks on one attribute of one model."""

    attribute: str
    values: Annotated[tuple[str, ...], Field(min_length=2)]
    finding: AttributeFinding
    why: str
    confidence: Confidence
    records: RecordCounts
    imputation: Imputation
    attacks: tuple[AttributeAttackResult, ...]
    blind: BlindRule | None = Field(default=None, description="Can the two sets be told apart without the model?")
    not_applied: tuple[NotApplied, ...]
    method: str


# Membership inference.

AUC_INTERVAL = "Wilson score interval with the largest variance the area can have, A (1 - A) / min(members, nonmembers)"
TPR_INTERVAL = (
    "exact and free of assumptions about the scores: order statistics for the threshold, Clopper-Pearson for the rate, "
    "the error split evenly over the four sides; each rate has its own interval"
)


class AttackName(Enum):
    """The attacks by the names used on the command line and in reports."""

    LOSS = "loss"
    LIRA_ONLINE = "lira-online"
    LIRA_OFFLINE = "lira-offline"
    RMIA = "rmia"
    SCORE = "score"
    """A score that the user brings."""
    PLUGIN = "plug-in"
    """An attack that another package brings."""


class Assignment(Enum):
    """How it was decided which records are members; the bound on epsilon stands on it."""

    EXCHANGEABLE = "exchangeable"
    """Members are a uniformly random part, of fixed size, of all audited records."""
    COINS = "coins"
    """Each record became a member by a fair coin of its own."""


class ShadowDesign(Enum):
    """What shadow models were trained on."""

    ONLINE = "online"
    """Random halves of the audited records."""
    OFFLINE = "offline"
    """Random halves of other records."""


class RocPoint(Result):
    """The share of members found when this share of non-members is accused."""

    fpr: Rate
    tpr: Rate
    lower: Rate
    upper: Rate


class RateAt(Interval):
    """The same for one of the rates by which membership attacks are compared."""

    fpr: Rate


class MembershipAttackResult(Result):
    """One attack's strength against the target."""

    name: AttackName
    plugin: str | None = Field(default=None, description="Which plug-in, where the name is plug-in.")
    auc: Interval
    tpr_at_fpr: tuple[RateAt, ...]
    roc: tuple[RocPoint, ...] = Field(description="Growing fpr, evenly spaced on a log axis, last 1.")
    control_auc: Rate | None = Field(default=None, description="The same attack on shadow models in the target's place")


class ShadowFacts(Result):
    """Which models the attacks compared the target with."""

    kind: str
    models: int
    design: ShadowDesign
    training: str


class AuditedModel(Result):
    kind: str
    source: str


class IntervalMethods(Result):
    """Which intervals these are, in words."""

    auc: str = AUC_INTERVAL
    tpr: str = TPR_INTERVAL


class GroupExposure(Result):
    """How far the members of one group are told from its non-members."""

    name: str
    members: AtLeastOne
    nonmembers: AtLeastOne
    auc: Interval
    epsilon_lower: Epsilon | None = Field(description="null where no bound can be drawn, or by correctness.")


class Grouping(Result):
    """Leakage in the groups of one class, column or correctness."""

    by: str
    groups: tuple[GroupExposure, ...]
    left_out: tuple[str, ...] = Field(description="Groups with too few members or non-members.")
    uneven: bool = Field(description="Two groups' intervals have no point in common.")


class ExposedRecord(Result):
    """One record, named by its place and never by its cells."""

    file: Literal["members", "nonmembers"]
    record: AtLeastOne = Field(description="Its number in the file, counted from 1 without the header.")
    advantage: Interval = Field(description="True minus false positive rate on models trained with and without it.")
    epsilon_lower: Epsilon
    exposed: bool = Field(description="The interval lies above 0.")


class ExposedRecords(Result):
    """The most exposed records; chosen by one half of the shadow models, measured by the other."""

    records: tuple[ExposedRecord, ...]
    looked_at: AtLeastOne
    taught_by: AtLeastOne
    counted: AtLeastOne
    reachable: Rate = Field(description="The lower end of a record of which every guess was right.")


class Exposure(Result):
    """Is privacy fair? The groupings hold together at `confidence`, and so do the records; the verdict uses neither."""

    attack: str = Field(
        description="The attack behind the groups: the strongest on shadow models in the target's place."
    )
    confidence: Confidence
    groupings: tuple[Grouping, ...] = ()
    records: ExposedRecords | None = None


class MembershipResult(Result):
    """Every attack that ran against one target; bounds on epsilon are among the report's own attacks."""

    kind: Literal["membership"] = "membership"
    target: AuditedModel | None = None
    members: AtLeastOne
    nonmembers: AtLeastOne
    confidence: Confidence
    assignment: Assignment = Assignment.EXCHANGEABLE
    shadow: ShadowFacts | None = None
    intervals: IntervalMethods = IntervalMethods()
    attacks: tuple[MembershipAttackResult, ...]
    exposure: Exposure | None = Field(default=None, exclude_if=_is_none)

    def attack(self, name: AttackName) -> MembershipAttackResult:
        """One attack's result; refused if it did not run."""
        for one in self.attacks:
            if one.name is name:
                return one
        ran = ", ".join(one.name.value for one in self.attacks)
        raise InvalidInput("attack", name.value, f"did not run (these did: {ran})", "ask for it")


class StepShares(Result):
    """One step: the largest and the middle distance that a unit of the data made, as shares of the worst case."""

    step: int
    largest_share: float
    median_share: float


class LocalSensitivity(Result):
    """How far the units of a data set moved one published value over the rounds."""

    name: str
    worst_case: float = Field(description="The distance that one unit may make at most, by the signed bound.")
    largest: float
    largest_share: float
    median_share: float
    by_step: tuple[StepShares, ...]


class GroupRates(Result):
    """What the model does to the held-out records of one group."""

    records: int
    accuracy: Rate | None
    positive_rate: Rate | None
    true_positive_rate: Rate | None
    false_positive_rate: Rate | None


class ModelQuality(Result):
    """What the model is worth, measured by the auditor; not private.

    A run's model on the held-out records, a model with members and non-members on the non-members.
    """

    records: int
    accuracy: Rate | None
    balanced_accuracy: Rate | None
    auc: Rate | None
    demographic_parity: Rate | None
    majority_class: str
    majority_accuracy: Rate | None = Field(description="The accuracy of always answering the most frequent class.")
    positive_class: str
    groups: dict[str, GroupRates]
    warning: str | None = Field(description="Why the model is worth nothing; null if it tells records apart.")

    @classmethod
    def of(cls, overall: Mapping[str, Any]) -> ModelQuality:
        """From what `Measurement.as_json` gave, with the area under the curve."""
        shared = ("records", "accuracy", "balanced_accuracy", "auc", "demographic_parity", "positive_class")
        rates = ("records", "accuracy", "positive_rate", "true_positive_rate", "false_positive_rate")
        groups = {name: GroupRates(**{one: group[one] for one in rates}) for name, group in overall["groups"].items()}
        return cls(
            **{name: overall[name] for name in shared},
            majority_class=overall["majority"]["class"],
            majority_accuracy=overall["majority"]["accuracy"],
            groups=groups,
            warning=emptiness(overall),
        )


class AuditReport(Result):
    """What `privfair audit --json` prints and `--out` writes."""

    verdict: Conclusion
    why: str
    epsilon_lower: Epsilon | None = Field(description="With `confidence`, no smaller epsilon is true.")
    confidence: Confidence
    promised: Promise | None = Field(description="What is on trial; null where nothing was promised.")
    attacks: tuple[Attack, ...]
    checks: tuple[Check, ...]
    noise_noticed: Rate | None = Field(
        default=None, exclude_if=_is_none, description="At this share of the signed noise an alarm had an even chance."
    )
    power: AuditPower | None = Field(default=None, exclude_if=_is_none)
    attribute_inference: AttributeInference | None = None
    attribute_inference_not_possible: str | None = Field(default=None, exclude_if=_is_none)
    membership: MembershipResult | None = Field(default=None, exclude_if=_is_none)
    protected: str | None = Field(default=None, exclude_if=_is_none, description="Who is protected, in plain words.")
    not_protected: tuple[str, ...] | None = Field(default=None, exclude_if=_is_none)
    model: ModelQuality | None = Field(default=None, exclude_if=_is_none)
    subjects: dict[str, str] = Field(default_factory=dict, description="SHA-256 of the audited files, by role.")
    audited_at: str | None = None

    def _repr_html_(self) -> str:
        """How a notebook shows it: the verdict and why, then each check that did not pass."""
        failed = [check for check in self.checks if check.outcome is not CheckOutcome.PASSED]
        lower = "" if self.epsilon_lower is None else f" Epsilon is at least {self.epsilon_lower:.3f}"
        sure = f" with {100 * self.confidence:g}% confidence." if lower else ""
        passed = f"{len(self.checks) - len(failed)} of {len(self.checks)} checks passed."
        rows = ((check.layer.value, check.name, check.outcome.value, check.finding) for check in failed)
        return as_html(self.verdict.value.upper(), f": {self.why}.{lower}{sure} {passed}", rows)


def schema() -> dict[str, Json]:
    """The JSON schema that is published."""
    found = AuditReport.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **found}


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))
