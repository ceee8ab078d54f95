"""Which algorithm, and whose promise: from what must be protected, from whom, and how the records are spread."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from enum import Enum

from calibrate.errors import UnsupportedCombination, count
from calibrate.meaning import Protection
from calibrate.plans import plan_from_mapping
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Protected


class Observer(Enum):
    """From whom it must be protected; each sees all that the one before it sees."""

    MODEL = "model"
    """Anyone who gets the trained model; one party may see all records."""
    COORDINATOR = "coordinator"
    """The server that coordinates the sites, and the other sites, as well."""


class Fair(Enum):
    """What the model should be fair to."""

    NOTHING = "nothing"
    GROUPS = "groups"
    """Equal for the groups of a sensitive attribute."""
    SITES = "sites"
    """As good for the worst site as for the others."""


@dataclass(frozen=True)
class Question:
    """One question of the chooser, as the command line and the page of the desk put it: answers and their meaning."""

    option: str
    text: str
    answers: dict[str, str]


QUESTIONS = (
    Question(
        "protect",
        "What must be protected?",
        {
            "attribute": "one sensitive attribute of each record (sex, origin, diagnosis); the rest may be seen",
            "record": "everything about each record, and whether it is there",
            "user": "everything about each person, who may have many records",
        },
    ),
    Question(
        "from",
        "From whom?",
        {
            "model": "those who get the trained model; one party may see all records",
            "coordinator": "also the server and the other sites: nothing readable leaves a site",
        },
    ),
    Question(
        "fair",
        "To whom should the model be fair?",
        {
            "groups": "equally for the groups of a sensitive attribute",
            "sites": "as good for the worst site as for the others",
            "nothing": "fairness is not asked for",
        },
    ),
)


@dataclass(frozen=True)
class Need:
    """What someone wants: the unit, the observer, the number of sites, and the kind of fairness."""

    protect: Protected
    observer: Observer = Observer.COORDINATOR
    sites: int = 1
    fair: Fair = Fair.GROUPS

    def __post_init__(self) -> None:
        count("--sites", self.sites)


@dataclass(frozen=True)
class Choice:
    """An algorithm with the reasons; `privacy` and `training` are the plan's sections to start from."""

    algorithm: str
    unit: Protected
    why: tuple[str, ...]
    instead: tuple[str, ...] = ()
    privacy: str = ""
    training: str = ""

    def privacy_unit(self) -> PrivacyUnit:
        """Whose data the plan to start from covers."""
        return plan_from_mapping(self.algorithm, tomllib.loads(self.privacy)).unit

    def protection(self) -> Protection:
        """What is protected and what is not, at epsilon 1 and delta 1e-5."""
        return Protection(self.privacy_unit(), EpsilonDelta(1.0, 1e-5))

    @property
    def next_command(self) -> str:
        """What to type next."""
        column = "--user COLUMN" if self.unit is Protected.USER else "--sensitive COLUMN"
        return f"privfair init FILES --target COLUMN {column} --protect {self.unit.value}"

    def to_json(self) -> dict[str, object]:
        """The choice as plain values."""
        return {
            "algorithm": self.algorithm,
            "unit": self.unit.value,
            "why": list(self.why),
            "instead": list(self.instead),
            "privacy": self.privacy,
            "training": self.training,
        }


_PAY_ONCE = Choice(
    "pay-once",
    Protected.ATTRIBUTE,
    (
        "Each site randomises the attribute once, before anything leaves; all later rounds are free.",
        "It trains for small gaps between the groups, and knows how often an answer was randomised.",
        "Every other column and the outcome leave the site readable: if these must be protected, protect records.",
    ),
    (
        'fair-plugin with protect = "attribute" and boosted trees: less error on Adult, and it guesses the attribute.',
        "steffle: the same unit with noise in every round; for comparison with its paper.",
    ),
    "rounds = 200                    # free: the attribute is paid for once\n",
    "fairness = 4.0                  # weight of the gap against the loss; 0 ignores it\nlearning-rate = 1.0\n",
)
_FAIR_PLUGIN = Choice(
    "fair-plugin",
    Protected.RECORD,
    (
        "Each site sends noisy gradients of two models, of the outcome and of the group, and one noisy histogram.",
        "What is built from them is a rule with the gap between the groups that you ask for (target-gap).",
        "Whether a record is there, its columns, its outcome and its attribute are all covered.",
        "The rule guesses the group from the columns when it answers; it never sees the attribute.",
    ),
    (
        "gaussian: the same unit without a look at groups, and for more than two classes.",
        "mmd-fedavg: fair to groups, if one trusted party collects all records (docs/fair-algorithms.md).",
    ),
    "rounds = 100\n",
    "target-gap = 0.05               # the largest gap between two groups' rates, as noisy counts tell it\n",
)
_GAUSSIAN = Choice(
    "gaussian",
    Protected.RECORD,
    (
        "DP-SGD in every site: each record's gradient is clipped, and the noise is added inside the site.",
        "Whether a record is there, its columns, its outcome and its attribute are all covered.",
    ),
    ("fedfdp: the same unit, with more weight on the sites where the model is worse.",),
    "sampling-rate = 0.05            # share of a site's records in each round\nrounds = 200\nclip = 1.0\n",
    "learning-rate = 1.0\n",
)
_FEDFDP = Choice(
    "fedfdp",
    Protected.RECORD,
    (
        "Each site sends noisy gradients and its noisy loss; sites with a larger loss get more weight.",
        "Whether a record is there, its columns, its outcome and its attribute are all covered.",
    ),
    ("gaussian: the same unit without weights, which needs less noise.",),
    "sampling-rate = 0.05\nrounds = 200\nclip = 1.0\nloss-clip = 2.0\nloss-noise-ratio = 2.5\n",
    "learning-rate = 0.5\nfairness = 0.5\n",
)
_FPFL = Choice(
    "fpfl",
    Protected.USER,
    (
        "All records of one person are covered, however many there are.",
        "One trusted party collects them, and adds the noise; no one who gets the model is trusted.",
    ),
    (
        "gaussian: if every person has one record, which protects the same people with less noise.",
        'fair-plugin with protect = "user": the same unit and collector, with a gap that you ask for.',
    ),
    "users = 1000                    # their public number\ncohort = 100\nrounds = 100\nclip = 2.0\n"
    'sampling = "poisson"\n',
    'learning-rate = 0.8\nnotion = "demographic-parity"\n',
)


def choice_of(algorithm: str) -> Choice | None:
    """What a plan of this algorithm starts from; None where it has to say all of it."""
    choices = (_PAY_ONCE, _FAIR_PLUGIN, _GAUSSIAN, _FEDFDP, _FPFL)
    return next((choice for choice in choices if choice.algorithm == algorithm), None)


def choose(need: Need) -> Choice:
    """The algorithm for a need; refused with the way out where none of ours covers it."""
    match need.protect, need.fair:
        case Protected.ATTRIBUTE, Fair.SITES:
            raise UnsupportedCombination(
                "fairness between sites with attribute privacy",
                "no algorithm here has both",
                "protect records (fedfdp), or ask for fairness between groups (pay-once)",
            )
        case Protected.ATTRIBUTE, _:
            return _PAY_ONCE
        case Protected.RECORD, Fair.GROUPS:
            return _FAIR_PLUGIN
        case Protected.RECORD, Fair.SITES if need.sites > 1:
            return _FEDFDP
        case Protected.RECORD, _:
            return _GAUSSIAN
        case Protected.USER, _ if need.observer is Observer.COORDINATOR and need.sites > 1:
            raise UnsupportedCombination(
                "user privacy against the coordinator of several sites",
                "FPFL's collector sees each user's contribution and is trusted",
                "let one party that may see the records train (--from model), or protect records (gaussian)",
            )
        case _:
            return _FPFL
