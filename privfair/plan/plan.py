"""A plan file: one TOML file that says what is published, on which data, how it is trained, and which settings to try.

Five keys are enough; the algorithm and its settings follow from them and from schema.toml next to the plan::

    protect  = "record"          # record | person | attribute
    epsilon  = 1.0
    delta    = 1e-6
    files    = ["north.csv", "south.csv"]
    at-least = 4000              # public lower bound on the training records of each site

Tables override what follows from them; without those keys a plan says everything itself::

    algorithm = "steffle"
    guarantee = "calibrated"     # or "as-printed" (a paper's own noise), or {none = "why"}; calibrated by default
    noise-source = "system"      # or "seeded-research": reproducible noise that protects no one
    witness = "3f9a..."          # optional: id of the key that countersigns each block of charges

    [target]                     # the promise; --epsilon and --delta may give it instead
    epsilon = 1.0
    delta = 1e-5

    [privacy]                    # what is published: the plan's parameters, spelled as the flags
    silo-size = 7500
    batch-size = 256
    rounds = 1172
    minority-fraction = 0.4
    lipschitz = 1.0
    w-radius = 1.0

    [data]                       # which data (read by `privfair train`)
    [training]                   # how to train (read by `privfair train`)

    [decision]                   # from which probability on the positive class is predicted; one half by default
    target-gap = 0.05            # or threshold, or target-rate; a target is taken from the held-out records

    [search]
    tries = 10                   # on average; the number itself is random and stays secret
    shape = 0                    # of the law of that number; 0 by default, 1 is the geometric law
    score = "accuracy"           # on the held-out records: accuracy, balanced_accuracy, auc or loss

    [[search.settings]]          # each try takes one of these at random, over what [training] says
    learning-rate = 0.1
    [[search.settings]]
    learning-rate = 1.0

A budget is bound to the file byte for byte: `digest` is the SHA-256 of its bytes. For a plan given by flags these are
the canonical JSON of its parameters.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Self

import rfc8785

from calibrate.choose import Fair, Need, Observer, choice_of, choose
from calibrate.errors import InvalidInput, UnsupportedCombination, nearest, open_unit
from calibrate.plans import algorithm_named, parameter_names, plan_from_mapping
from calibrate.privacy_unit import EpsilonDelta, Protected
from calibrate.tries import RandomTries
from privfair.durable import read_named
from privfair.plan.sections import read_section
from privfair.plan.settings import PublicNumbers, recipe, trains_its_own_way

_SECTIONS = ("target", "privacy", "data", "training", "search", "decision", "model")
_SHORT = ("protect", "epsilon", "delta", "files", "at-least", "at_least")
"""Keys of the short layout; any of them at the top makes a plan short."""
PROTECT = {
    "record": Protected.RECORD,
    "person": Protected.USER,
    "user": Protected.USER,
    "attribute": Protected.ATTRIBUTE,
}
SCHEMA_NAME = "schema.toml"
_NOISE_SOURCES = ("system", "seeded-research")
_NO_PLAN = "check the path; `privfair init` writes a plan for your own files"
Table = Mapping[str, Any]
"""A table of a plan file as TOML has it; the types of a plan read it."""


@dataclass(frozen=True)
class Unprotected:
    """No guarantee is wanted, and why: all outputs show it."""

    why: str

    def __post_init__(self) -> None:
        if not self.why.strip():
            raise InvalidInput("guarantee", self.why, "needs a reason, which all outputs show", "give one")


Promise = Literal["calibrated", "as-printed"] | Unprotected
"""The smallest noise that meets the target, the noise with which a paper claims to, or none at all."""


@dataclass(frozen=True)
class ThresholdRule:
    """How the threshold is chosen: as given, by a target, or (all None) one half. At most one is given."""

    threshold: float | None = None
    target_gap: float | None = None
    target_rate: float | None = None

    def __post_init__(self) -> None:
        given = {f"--{name.replace('_', '-')}": value for name, value in vars(self).items() if value is not None}
        if len(given) > 1:
            raise InvalidInput(" and ".join(given), tuple(given.values()), "exclude each other", "give one of them")
        for name, value in given.items():
            open_unit(name, value)

    @property
    def text(self) -> str:
        """The rule in words, for files and screens."""
        if self.threshold is not None:
            return "given"
        if self.target_gap is not None:
            return f"target gap {self.target_gap:g} on the held-out records"
        if self.target_rate is not None:
            return f"target rate {self.target_rate:g} on the held-out records"
        return "default"


AS_IT_IS = ThresholdRule()


@dataclass(frozen=True, eq=False)
class Plan:
    """What the user wrote: the sections, the bytes they were read from, and the digest that budgets are bound to."""

    algorithm: str
    target_section: Table
    privacy: Table
    data: Table
    training: Table
    search: Table | None = None
    """Settings to try, where the best of a secret random number of tries is to be shown."""
    content: bytes = field(default=b"", repr=False)
    """What `digest` is of: the file's bytes, or the canonical JSON of flags."""
    path: Path = Path()
    """The plan's file; empty for flags alone."""
    guarantee: Promise = "calibrated"
    research_noise: bool = False
    """Noise of a seed, which protects no one."""
    decision: ThresholdRule = AS_IT_IS
    witness: str | None = None
    """Id of the key of the witness, without which nothing is published."""
    beside: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """The files next to a short plan that decide what it leaves out, with their names; a copy of it needs them."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """The plan in a TOML file; every section and name is checked."""
        return cls.parse(read_named(path, "plan", _NO_PLAN), path)

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Self:
        """The plan in these bytes of the file at `path`."""
        try:
            parsed = tomllib.loads(content.decode("utf-8"))
        except RecursionError:
            raise InvalidInput("plan", str(path), "is nested too deeply", "fix the file") from None
        except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
            why = str(error).partition(": value has")[0]  # of too many digits Python also says how to change Python
            raise InvalidInput("plan", str(path), f"is not TOML: {why}", "fix the file") from error
        tables = {key: parsed.pop(key) for key in _SECTIONS if isinstance(parsed.get(key), dict)}
        if "model" in tables:
            tables["training"] = {**tables.get("training", {}), "model": tables.pop("model")}
        algorithm, guarantee = parsed.pop("algorithm", None), parsed.pop("guarantee", "calibrated")
        short = {key.replace("_", "-"): parsed.pop(key) for key in _SHORT if key in parsed}
        lists = _read_lists(path.with_name(SCHEMA_NAME)) if short else None
        if lists is not None:
            algorithm, tables = _whole(short, algorithm, tables, lists)
        noise, witness = parsed.pop("noise-source", _NOISE_SOURCES[0]), parsed.pop("witness", None)
        for key, value in parsed.items():
            known = ", ".join(f"[{section}]" for section in _SECTIONS)
            keys = "protect, epsilon, delta, files, at-least, algorithm, guarantee, noise-source, witness"
            remedy = f"use {keys} and {known}"
            raise InvalidInput(f"{path}: {key}", value, "is not part of a plan", remedy)
        if algorithm is None:
            raise InvalidInput(f"{path}: algorithm", None, "is needed", 'write algorithm = "steffle" at the top')
        if noise not in _NOISE_SOURCES:
            raise InvalidInput(f"{path}: noise-source", noise, "is not known", f"use {' or '.join(_NOISE_SOURCES)}")
        if witness is not None and not (isinstance(witness, str) and re.fullmatch("[0-9a-f]{64}", witness)):
            raise InvalidInput(f"{path}: witness", witness, "is no key id", "copy what `keys generate` printed")
        return cls(
            str(algorithm),
            tables.get("target", {}),
            tables.get("privacy", {}),
            tables.get("data", {}),
            tables.get("training", {}),
            tables.get("search") or None,
            content=content,
            path=path,
            guarantee=_promise(guarantee),
            research_noise=noise == _NOISE_SOURCES[1],
            decision=read_section(ThresholdRule, "decision", tables.get("decision", {})),
            witness=witness,
            beside={} if lists is None else {SCHEMA_NAME: lists.content},
        )

    @property
    def digest(self) -> str:
        """The SHA-256 that a budget for this plan names."""
        return hashlib.sha256(self.content).hexdigest()

    @property
    def folder(self) -> Path:
        """What paths in the plan are relative to."""
        return self.path.parent

    @property
    def on_file(self) -> bool:
        """Whether `digest` is of a file's bytes (and flags over it), and not of flags alone."""
        return self.path != Path()

    def target(self, epsilon: float | None = None, delta: float | None = None) -> EpsilonDelta:
        """The promise asked for: the given numbers, else the file's."""
        wanted = {"epsilon": epsilon, "delta": delta}
        for name in wanted:
            if wanted[name] is None:
                wanted[name] = self.target_section.get(name)
            if wanted[name] is None:
                raise InvalidInput(f"--{name}", None, "is needed", f"give --{name}, or write {name} = ... in the plan")
        unknown = sorted(set(self.target_section) - set(wanted))
        if unknown:
            raise InvalidInput(
                f"[target] {unknown[0]}", self.target_section[unknown[0]], "is not known", "use epsilon and delta"
            )
        return EpsilonDelta(wanted["epsilon"], wanted["delta"])  # type: ignore[arg-type]


# The short layout: what its keys and the lists of the schema leave open is filled with the algorithm's defaults.


def listed_values(entry: object) -> tuple[str, ...]:
    """The values that a line of a short schema lists, with the one for empty cells; none of anything else."""
    table = entry if isinstance(entry, Mapping) else {"values": entry}
    values = table.get("values")
    found = tuple(str(value) for value in values) if isinstance(values, list) else ()
    extra = (MISSING_NAME,) if table.get("missing") == "category" and MISSING_NAME not in found else ()
    return (*found, *extra)


MISSING_NAME = "missing"
"""The value for empty cells of a column whose line says missing = "category"."""


@dataclass(frozen=True)
class _Lists:
    """What a plan needs of a schema file: the numbers of classes and groups, the users' column, the file's bytes."""

    classes: int
    groups: int
    user: str | None
    content: bytes
    features: tuple[int, int, int] | None
    """How many columns are numbers within bounds, how many have listed values, and how many more indicators there are;
    None where a column is neither."""


def _read_lists(path: Path) -> _Lists:
    """The lists of the schema next to a short plan; mistakes in them are for anyone who reads the whole schema."""
    content = read_named(path, "schema", "write one next to the plan, or let `privfair init` write both")
    try:
        document = tomllib.loads(content.decode("utf-8"))
    except (ValueError, RecursionError):
        document = {}
    columns, user = document.get("columns"), document.get("user")

    def number(role: str, key: str) -> int:
        named = document.get(role)
        if isinstance(named, Mapping):
            return len(listed_values({"values": named.get(key)}))
        names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
        lines = columns if isinstance(columns, Mapping) else {}
        return math.prod(len(listed_values(lines.get(name))) for name in map(str, names)) if names else 0

    named_user = user if isinstance(user, str) else None
    classes, groups = number("target", "classes"), number("sensitive", "groups")
    return _Lists(classes, groups, named_user, content, count_features(document))


def count_features(document: Mapping[str, Any]) -> tuple[int, int, int] | None:
    """Of a schema file in either layout: numeric columns, categorical ones and further indicators."""
    roles = [document.get("target"), *_listed(document.get("sensitive", [])), document.get("user")]
    lines = {name: line for name, line in _table(document, "columns").items() if name not in roles}
    lines |= {**_table(document, "numeric"), **_table(document, "categorical")}
    numeric = categorical = indicators = 0
    for line in lines.values():
        entry = line if isinstance(line, Mapping) else {"values": line}
        ends = entry.get("range", entry.get("bounds", entry.get("values")))
        if isinstance(ends, list) and len(ends) == 2 and all(type(end) in (int, float) for end in ends):
            numeric += 1
            missing = entry.get("missing")
            marked = missing == "flag" or (isinstance(missing, Mapping) and missing.get("indicator") is True)
            indicators += len(_listed(entry.get("steps", []))) + marked
        elif isinstance(entry.get("values"), list):
            categorical += 1
        else:
            return None
    return numeric, categorical, indicators


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _whole(
    short: Table, algorithm: object, tables: Mapping[str, Any], lists: _Lists
) -> tuple[str, dict[str, dict[str, object]]]:
    """The algorithm and the tables of a short plan; what its own tables say wins over every default."""
    given = short.get("protect", "record")
    if not isinstance(given, str) or given not in PROTECT:
        raise InvalidInput("protect", given, "is not one of the choices", nearest(str(given), list(PROTECT)))
    unit, files, at_least = PROTECT[given], short.get("files", ()), short.get("at-least")
    if unit is Protected.USER and lists.user is None and "users" not in tables.get("data", {}):
        raise InvalidInput(
            "protect", given, "needs the column that names persons", f"write user = ... in {SCHEMA_NAME}"
        )
    sites = len(files) if isinstance(files, list) else 1
    observer = Observer.MODEL if unit is Protected.USER or sites <= 1 else Observer.COORDINATOR
    fair = Fair.GROUPS if lists.groups and not (unit is Protected.RECORD and lists.classes > 2) else Fair.NOTHING
    choice = choose(Need(unit, observer, max(1, sites), fair)) if algorithm is None else choice_of(str(algorithm))
    name = str(algorithm) if choice is None else choice.algorithm
    privacy = {} if choice is None else tomllib.loads(choice.privacy)
    if lists.groups and _has_parameter(name, "groups"):
        privacy["groups"] = lists.groups
    if unit is Protected.USER and _has_parameter(name, "cohort"):
        users = at_least if isinstance(at_least, int) and at_least > 0 else 1
        privacy |= {"users": users, "cohort": max(1, users // 10)}
    data: dict[str, object] = {"schema": SCHEMA_NAME}
    data |= {key: short[key] for key in ("files", "at-least") if key in short and unit is not Protected.ATTRIBUTE}
    data |= {"files": short["files"]} if "files" in short else {}
    if unit is Protected.USER and lists.user is not None:
        data["users"] = {"kind": "column", "column": lists.user}
    whole = {
        "target": {key: short[key] for key in ("epsilon", "delta") if key in short} | dict(tables.get("target", {})),
        "privacy": privacy | {key.replace("_", "-"): value for key, value in tables.get("privacy", {}).items()},
        "data": data | dict(tables.get("data", {})),
        "training": ({} if choice is None else tomllib.loads(choice.training)) | dict(tables.get("training", {})),
    }
    if name in RECIPES and unit is Protected.RECORD:
        whole |= _with_recipe(name, whole, tables, lists, sites)
    _require_unit(name, whole["privacy"], unit, str(given))
    return name, {**tables, **whole}


RECIPES = ("gaussian", "fair-plugin")
"""The algorithms whose settings `recipe` knows."""


def _with_recipe(
    name: str, whole: Mapping[str, Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]], lists: _Lists, sites: int
) -> dict[str, dict[str, object]]:
    """Both sections with the settings that follow from public numbers under what the plan says itself."""
    at_least, target = whole["data"].get("at-least"), whole["target"]
    privacy, training = own.get("privacy", {}), own.get("training", {})
    if lists.features is None or trains_its_own_way(privacy, training):
        return {}
    sizes = list(at_least.values()) if isinstance(at_least, Mapping) else [at_least] * max(1, sites)
    records = sum(size for size in sizes if type(size) is int)
    try:
        promised = EpsilonDelta(target.get("epsilon", 1.0), target.get("delta", 1e-5))
    except InvalidInput:
        return {}  # found again, and named, when it is priced
    numeric, categorical, indicators = lists.features
    groups = lists.groups if name == "fair-plugin" else 0
    known = PublicNumbers(max(records, 1), max(1, sites), numeric, categorical, indicators, groups)
    settings = dict(zip(("privacy", "training"), recipe(known, promised), strict=True))
    given = {"privacy": privacy, "training": training}
    if groups:
        settings["training"] |= {"target-gap": whole["training"].get("target-gap", 0.05)}
    return {
        section: found | {key.replace("_", "-"): value for key, value in given[section].items()}
        for section, found in settings.items()
    }


def _has_parameter(algorithm: str, name: str) -> bool:
    try:
        return name in parameter_names(algorithm_named(algorithm))
    except (InvalidInput, UnsupportedCombination):
        return False


def _require_unit(algorithm: str, privacy: Table, unit: Protected, given: str) -> None:
    """Refuse an algorithm that protects another unit than the plan says; its other mistakes are found later."""
    try:
        found = plan_from_mapping(algorithm, privacy).unit.protected
    except (InvalidInput, UnsupportedCombination):
        return
    if found is not unit:
        rule = f"is not what {algorithm} protects with these settings, which is one {found.value}"
        raise InvalidInput("protect", given, rule, f'write protect = "{found.value}", or leave algorithm out')


def _promise(given: object) -> Promise:
    match given:
        case "calibrated" | "as-printed":
            return given
        case {"none": str(why), **rest} if not rest:
            return Unprotected(why)
    raise InvalidInput("guarantee", str(given), "is not known", 'write "calibrated", "as-printed" or {none = "why"}')


def plan_from_flags(algorithm: str, path: Path | None, flags: Table) -> Plan:
    """The plan of a file, of flags, or of a file with flags that win over it."""
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    for key, value in given.items():  # before the digest, which has no spelling for NaN
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                name = key.replace("_", "-")
                raise InvalidInput(name, number, "must be a finite number", "give a plain decimal number")
    if path is None:
        return Plan(algorithm, {}, given, {}, {}, content=_canonical({"algorithm": algorithm, "privacy": given}))
    file = Plan.read(path)
    if file.algorithm != algorithm:
        rule = f"is a plan for {file.algorithm}, not for {algorithm}"
        raise InvalidInput("--plan", str(path), rule, "name that algorithm, or another file")
    if not given:
        return file
    merged = {key.replace("-", "_"): value for key, value in file.privacy.items()} | given
    content = _canonical({"file": file.digest, "algorithm": algorithm, "privacy": merged})
    return replace(file, privacy=merged, content=content)


def _canonical(document: Mapping[str, Any]) -> bytes:
    try:
        return rfc8785.dumps(dict(document))
    except rfc8785.CanonicalizationError as error:
        raise InvalidInput(
            "plan", "(its numbers)", "has a number that no double can hold", "give smaller ones"
        ) from error


# The [search] section: which settings to try, how often, and by what the best try is known.

_OF_THE_RUN = ("rounds", "signed-rounds", "model", "retention", "block", "positive", "sampling", "batch-size")
"""What all tries have in common: what is signed, and what a score must mean for all of them."""
_MOST_SETTINGS = 1000


class TryScore(Enum):
    """By what a try is judged on the held-out records."""

    ACCURACY = "accuracy"
    BALANCED_ACCURACY = "balanced_accuracy"
    AUC = "auc"
    LOSS = "loss"

    def of(self, metrics: Mapping[str, Any]) -> float:
        """Larger is better; minus infinity where none was measured."""
        value = metrics.get(self.value)
        if not isinstance(value, int | float) or math.isnan(value):
            return -math.inf
        return -float(value) if self is TryScore.LOSS else float(value)


@dataclass(frozen=True)
class _Search:
    """The [search] section."""

    tries: float
    settings: tuple[Table, ...]
    shape: float = 0.0
    score: TryScore = TryScore.ACCURACY

    def __post_init__(self) -> None:
        if not 1 <= len(self.settings) <= _MOST_SETTINGS:
            rule, remedy = f"must be 1 to {_MOST_SETTINGS} tables", "write [[search.settings]] for each"
            raise InvalidInput("[search] settings", len(self.settings), rule, remedy)
        for one in self.settings:
            common = sorted({key.replace("_", "-") for key in one} & set(_OF_THE_RUN))
            if common:
                rule = "is the same for all tries, because the budget is signed for it"
                raise InvalidInput(f"[[search.settings]] {common[0]}", "(a value)", rule, "write it under [training]")


@dataclass(frozen=True)
class SearchPlan:
    """What is tried: the law of the number of tries, the score, and one plan per setting."""

    tries: RandomTries
    score: TryScore
    settings: tuple[Table, ...]
    plans: tuple[Plan, ...]


def search_plan(plan: Plan) -> SearchPlan | None:
    """The typed [search] of a plan; None where it has none."""
    if plan.search is None:
        return None
    found = read_section(_Search, "search", plan.search)
    tries = RandomTries.with_mean(min(found.tries, 1e300), found.shape)
    plans = tuple(replace(plan, training={**plan.training, **one}, search=None) for one in found.settings)
    return SearchPlan(tries, found.score, found.settings, plans)
