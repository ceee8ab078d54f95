"""The planner: from a few numbers to noise, its certified price, what it means, and what an assumption costs.

Everything is computed by the accountants that sign budgets. Prices are kept, so that a slider moved back answers at
once; one is computed at a time, and curves give way to answers between two of their points.
"""

from __future__ import annotations

import json
import math
import shlex
import threading
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import get_args, get_type_hints
from urllib.parse import urlencode

from markupsafe import Markup

from audit.report.charts import Axis, Series, line_chart
from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.show import describe_unit
from calibrate.meaning import Meaning
from calibrate.plans import PLAN_PLUGINS, algorithm_named, parameter_fields, plan_class, plan_from_mapping
from calibrate.plans.alternatives import Alternative, explain
from calibrate.plans.plan import AlgorithmName, Flag, NoisyValue, Plan, PluginName, RandomizedValue
from calibrate.privacy_unit import EpsilonDelta
from calibrate.releases import scale_noise

_ONE_AT_A_TIME = threading.Lock()
_EPSILONS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONGEST = 200

COMMON = {
    "epsilon": ("1", "The promise: how much one person's data may change what is seen.", 0.1, 10.0),
    "delta": ("1e-5", "The chance that the promise fails; far below one over the number of people.", 1e-9, 1e-3),
    "rounds": ("1000", "How often something is published.", 1, 100_000),
    "people": ("20000", "People, or records, at all sites together.", 100, 1_000_000),
    "sites": ("4", "Sites that train together; people are spread evenly.", 1, 100),
    "batch": ("256", "People, or records, that a site uses in one round.", 1, 10_000),
}
"""Fields that every algorithm is asked for: first value, help, and the ends of the slider."""

_SIZED: dict[AlgorithmName | PluginName, tuple[str, ...]] = {
    AlgorithmName.STEFFLE: ("silo_size", "batch_size"),
    AlgorithmName.FEDFDP: ("sampling_rate",),
    AlgorithmName.FPFL: ("users", "cohort"),
    AlgorithmName.MMD_FEDAVG: ("samples_per_group",),
    AlgorithmName.GAUSSIAN: ("sampling_rate",),
    AlgorithmName.PAY_ONCE: (),
    AlgorithmName.FAIR_PLUGIN: (),
}
"""Parameters of a plan that follow from people, sites and batch."""
_METHOD: dict[AlgorithmName | PluginName, str] = {
    AlgorithmName.STEFFLE: "SteFFLe",
    AlgorithmName.FEDFDP: "FedFDP",
    AlgorithmName.FPFL: "FPFL",
    AlgorithmName.MMD_FEDAVG: "MMD-FedAvg",
    AlgorithmName.GAUSSIAN: "DP-SGD",
    AlgorithmName.PAY_ONCE: "pay-once",
    AlgorithmName.FAIR_PLUGIN: "fair-plugin",
}
"""The rows of `expected.json` that trained under such a plan; `make experiments NAME=headlines` writes them."""


def algorithms() -> tuple[str, ...]:
    """What can be planned here: the algorithms that know sizes, and those of other packages."""
    return *(name.value for name in _SIZED), *PLAN_PLUGINS.names()


@dataclass(frozen=True)
class Field:
    """One further parameter of an algorithm, as the page asks for it."""

    name: str
    value: str
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlannerSetting:
    """What the page asks about, as text; parsed when it is priced, so that every mistake is said on the page."""

    algorithm: AlgorithmName | PluginName
    common: Mapping[str, str]
    more: Mapping[str, str]

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> PlannerSetting:
        """The setting that a link holds; what is not given has its first value."""
        algorithm = algorithm_named(query.get("algorithm", AlgorithmName.GAUSSIAN.value)[:_LONGEST])
        common = {name: query.get(name, first)[:_LONGEST].strip() for name, (first, *_) in COMMON.items()}
        more = {one.name: query.get(one.name, one.value)[:_LONGEST].strip() for one in further_fields(algorithm)}
        return cls(algorithm, common, more)

    @property
    def query(self) -> str:
        """The link that reproduces the setting."""
        return urlencode({"algorithm": self.algorithm.value, **self.common, **self.more})

    def target(self) -> EpsilonDelta:
        return EpsilonDelta(_number("epsilon", self.common["epsilon"]), _number("delta", self.common["delta"]))

    def parameters(self) -> dict[str, object]:
        """The plan's parameters, as a plan file spells their values."""
        people, sites, batch, rounds = (
            whole(name, self.common[name]) for name in ("people", "sites", "batch", "rounds")
        )
        here = people // sites
        if here < 1:
            raise InvalidInput("sites", sites, f"are more than the {people} people", "give fewer sites")
        sized: dict[str, object] = {
            "silo_size": here,
            "batch_size": batch,
            "sampling_rate": min(1.0, batch / here),
            "users": people,
            "cohort": batch,
            "samples_per_group": batch,
        }
        chosen: dict[str, object] = {name: sized[name] for name in _SIZED.get(self.algorithm, ())}
        hints = get_type_hints(plan_class(self.algorithm))
        for name, text in self.more.items():
            if text:
                chosen[name.replace("-", "_")] = _value(name, text, hints[name.replace("-", "_")])
        return chosen | {"rounds": rounds}

    def plan(self) -> Plan:
        return plan_from_mapping(self.algorithm, self.parameters())

    def silos(self) -> tuple[tuple[str, int], ...]:
        """The sites by number, with the people each of them has."""
        people, sites = (whole(name, self.common[name]) for name in ("people", "sites"))
        return tuple((f"site-{number}", people // sites) for number in range(1, sites + 1))

    def command(self) -> str:
        """The same question on the command line."""
        target, words = self.target(), []
        for name, value in self.parameters().items():
            words.append(f"--{name.replace('_', '-')} {value:g}" if isinstance(value, float) else _flag(name, value))
        return (
            f"privfair calibrate {self.algorithm.value} --epsilon {target.epsilon:g} --delta {target.delta:g} "
            + " ".join(words)
        )


def _flag(name: str, value: object) -> str:
    return f"--{name.replace('_', '-')} {shlex.quote(str(value))}"


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(name, text, "must be a number", "write for example 0.5")
    return value


def whole(name: str, text: str) -> int:
    """The whole number in a field, or the sentence that says what is wrong with it."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (1 <= value < 2**53 and value == int(value)):
        raise InvalidInput(name, text, "must be a whole number, at least 1", "write for example 100")
    return int(value)


def _value(name: str, text: str, hint: object) -> object:
    """The text of a field as the plan wants it; choices are left for the plan to judge."""
    kinds = {hint, *get_args(hint)}
    if int in kinds:
        return whole(name, text)
    return _number(name, text) if float in kinds else text


@cache
def further_fields(algorithm: AlgorithmName | PluginName) -> tuple[Field, ...]:
    """The parameters that do not follow from the common fields; first values are those of the plan's example."""
    plan = plan_class(algorithm)
    words = shlex.split(plan.example.replace("\\\n", " "))
    example = {flag.removeprefix("--"): value for flag, value in zip(words[::2], words[1::2], strict=False)}
    found, hints = [], get_type_hints(plan, include_extras=True)
    for name, default in ((field.name, field.default) for field in parameter_fields(plan)):
        kind, flag = get_args(hints[name])
        assert isinstance(flag, Flag)
        if name in (*_SIZED.get(algorithm, ()), "rounds") or isinstance(default, tuple):
            continue
        spelled = name.replace("_", "-")
        shown = "" if default is MISSING or default is None else _shown(default)
        choices = tuple(_shown(one) for one in kind) if isinstance(kind, type) and issubclass(kind, Enum) else ()
        value = "" if default is None else example.get(spelled, shown)
        found.append(Field(spelled, value, flag.help, flag.choices or choices))
    return tuple(found)


def _shown(value: object) -> str:
    return str(value.value) if isinstance(value, Enum) else f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Answer:
    """What the page says about a setting."""

    budget: CertifiedBudget
    meaning: Meaning
    right: str
    protected: str
    lower: str
    upper: str
    noises: tuple[tuple[str, str, str], ...]
    expected: tuple[Measured, ...]


def answer(setting: PlannerSetting) -> Answer:
    """The noise that keeps the promise, and what it costs and means; `PrivfairError` where there is none."""
    budget = _calibrated(setting.plan(), setting.target())
    certified = budget.certified
    return Answer(
        budget=budget,
        meaning=Meaning(budget.target),
        right=f"{math.ceil(Meaning(budget.target).right_guesses * 1000) / 10:.1f}%",
        protected=describe_unit(budget.plan.unit),
        lower=f"{math.floor(certified.lower * 1e4) / 1e4:.4f}",
        upper=f"{math.ceil(certified.upper * 1e4) / 1e4:.4f}",
        noises=tuple(_noise(value) for value in budget.values),
        expected=expected(setting.algorithm, budget.target.epsilon),
    )


def _noise(value: NoisyValue | RandomizedValue) -> tuple[str, str, str]:
    if isinstance(value, RandomizedValue):
        return value.name, f"kept with probability {value.keep_probability:.5g}", "once"
    return value.name, f"sigma {value.sigma:.6g}", value.often


@lru_cache(maxsize=4096)
def _calibrated(plan: Plan, target: EpsilonDelta) -> CertifiedBudget:
    with _ONE_AT_A_TIME:
        budget = calibrate_plan(plan, target)
        budget.certified  # noqa: B018  computed once, here
        return budget


@lru_cache(maxsize=4096)
def _cost(plan: Plan, factor: float, delta: float) -> float:
    with _ONE_AT_A_TIME:
        return best_epsilon(scale_noise(plan.template(), factor), plan.unit, delta).interval.upper


@lru_cache(maxsize=512)
def assumptions(plan: Plan, target: EpsilonDelta) -> tuple[Alternative, ...]:
    """The plan first, then the same promise under other assumptions, with the noise each of them needs."""
    with _ONE_AT_A_TIME:
        return explain(plan, target)


@dataclass(frozen=True)
class CurveFigure:
    caption: str
    chart: Markup
    reading: str


def curves(setting: PlannerSetting) -> tuple[CurveFigure, ...]:
    """Epsilon against rounds at the noise found, and noise against epsilon; none where rounds are free."""
    plan, target = setting.plan(), setting.target()
    budget = _calibrated(plan, target)
    if budget.factor is None:
        return ()
    return _epsilon_by_rounds(setting, budget.factor), _noise_by_epsilon(plan, target)


def _epsilon_by_rounds(setting: PlannerSetting, factor: float) -> CurveFigure:
    parameters, delta = setting.parameters(), setting.target().delta
    rounds = setting.plan().rounds
    counts = sorted({max(1, round(rounds * share)) for share in (0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)})
    points = []
    for count in counts:
        try:
            plan = plan_from_mapping(setting.algorithm, parameters | {"rounds": count})
            points.append((float(count), _cost(plan, factor, delta)))
        except PrivfairError:  # such as an epoch that does not end there: no point rather than a guess
            continue
    x = Axis.around("rounds", [a for a, _ in points])
    y = Axis.around("epsilon", [b for _, b in points])
    drawn = Series("certified epsilon", tuple(a for a, _ in points), tuple(b for _, b in points))
    kept = Series("the promise", (x.low, x.high), (setting.target().epsilon,) * 2, dashed=True)
    chart = line_chart("Certified epsilon against rounds", x, y, (drawn, kept))
    reading = "With the noise found above: more rounds than planned cost more than was promised."
    return CurveFigure("What rounds cost", Markup(chart), reading)


def _noise_by_epsilon(plan: Plan, target: EpsilonDelta) -> CurveFigure:
    grid = sorted({*_EPSILONS, target.epsilon})
    budgets = [_calibrated(plan, EpsilonDelta(epsilon, target.delta)) for epsilon in grid]
    names = [value.name for value in budgets[0].values if not isinstance(value, RandomizedValue)]
    lines = [Series(name, tuple(grid), tuple(budget.value(name).sigma for budget in budgets)) for name in names]
    every = [sigma for line in lines for sigma in line.y]
    x = Axis("epsilon", grid[0], grid[-1], logarithmic=True)
    low, high = 10 ** math.floor(math.log10(min(every))), 10 ** math.ceil(math.log10(max(every)))
    chart = line_chart("Noise against epsilon", x, Axis("sigma", low, max(high, 10 * low), logarithmic=True), lines)
    reading = "A stronger promise (to the left) needs more noise. Both axes are logarithmic."
    return CurveFigure("What the promise costs", Markup(chart), reading)


@dataclass(frozen=True)
class Measured:
    """What models of one method reached on one public data set, as the mean of this number of runs."""

    data: str
    method: str
    unit: str
    epsilon: float
    accuracy: float
    parity_gap: float | None
    runs: int
    majority: float


@cache
def _table() -> tuple[Measured, ...]:
    return tuple(Measured(**row) for row in json.loads((Path(__file__).parent / "expected.json").read_text("utf-8")))


def expected(algorithm: AlgorithmName | PluginName, epsilon: float) -> tuple[Measured, ...]:
    """Accuracies that our experiments measured with this method, at the nearest epsilon that they tried."""
    rows = [row for row in _table() if row.method == _METHOD.get(algorithm)]
    if not rows:
        return ()
    nearest = min({row.epsilon for row in rows}, key=lambda tried: abs(math.log(tried / epsilon)))
    return tuple(row for row in rows if row.epsilon == nearest)
