"""What a site decides: its file, which names everything that its guard needs, and its policy, which can only tighten.

The file of `privfair serve`; paths are relative to it::


    role   = "guard"
    party  = "north"             # name of this site, as the plan has it
    data   = "north.csv"         # of a party that collects several silos: {east = "east.csv", west = "west.csv"}
    budget = "budget.json"
    plan   = "plan.toml"         # next to the budget unless it is named
    trust  = "trust.json"        # trust, root, ledger and anchor: the user's configuration unless they are named here
    root   = "root.pub"
    ledger = "ledger.db"
    folder = "run"               # transcript, batches, steps and log; kept for resuming and for audits
    socket = "guard.sock"
    policy = "policy.toml"       # optional: what the site allows (privfair.federation.policy)
    key    = "site.pem"          # optional: signs the receipt
    sites-key = "sites.key"      # optional: for plans with registries
    witness = "witness.sock"     # of a budget that names a witness: its socket
    deadline  = 60.0             # seconds for a frame to arrive, and for an answer to be read

The file of a witness, which remembers the charges of other sites (privfair.federation.countersign)::


    role   = "witness"
    folder = "witness"           # what it remembers
    socket = "witness.sock"
    key    = "witness.pem"       # budgets name its id

The policy::


    algorithms = ["steffle", "fedfdp"]   # only these
    signers = ["3f9a..."]                # only manifests that one of these keys signed
    largest-epsilon = 1.0                # only promises of at most this epsilon (and none without a promise)
    hours = ["08:00-18:00"]              # new rounds only at these times of day, in UTC
    rounds-per-day = 100                 # the most new rounds per day, in UTC
    seconds-per-answer = 2.0             # a new answer takes this long, or a multiple: its time reveals nothing

A key that is left out restricts nothing. What was published before is sent again at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Literal

from calibrate.errors import InvalidInput, Refused, count, positive
from calibrate.manifest.verify import VerifiedManifest
from privfair.durable import read_toml
from privfair.plan.sections import read_section
from privfair.run.public import promise_of


@dataclass(frozen=True)
class Site:
    """The keys of the file."""

    party: str
    data: Path | dict[str, Path]
    budget: Path
    folder: Path
    socket: Path
    role: Literal["guard"] = "guard"
    plan: Path | None = None
    trust: Path | None = None
    root: Path | None = None
    ledger: str | None = None
    anchor: Path | None = None
    policy: Path | None = None
    key: Path | None = None
    sites_key: Path | None = None
    witness: Path | None = None
    deadline: float = 60.0

    def __post_init__(self) -> None:
        positive("deadline", self.deadline)

    @classmethod
    def read(cls, path: Path) -> Site:
        """The site of a file."""
        folder = path.parent
        site = read_section(cls, path.name, read_toml(path, "SITE"), folder)
        if isinstance(site.data, dict):
            site = replace(site, data={name: folder / file for name, file in site.data.items()})
        if site.ledger is not None and "://" not in site.ledger:
            site = replace(site, ledger=str(folder / site.ledger))
        return site

    @property
    def files(self) -> dict[str, Path]:
        """The files of the site by silo; one file is the party's own."""
        return self.data if isinstance(self.data, dict) else {self.party: self.data}

    @property
    def plan_path(self) -> Path:
        """The signed plan."""
        return self.budget.with_name("plan.toml") if self.plan is None else self.plan


@dataclass(frozen=True)
class WitnessSite:
    """The keys of a witness's file."""

    folder: Path
    socket: Path
    key: Path
    role: Literal["witness"] = "witness"

    @classmethod
    def read(cls, path: Path) -> WitnessSite | None:
        """The witness of a file; None for the file of a guard."""
        found = read_toml(path, "SITE")
        return read_section(cls, path.name, found, path.parent) if found.get("role") == "witness" else None


class PolicyRefused(Refused):
    """The site's own policy says no, whatever was signed."""


@dataclass(frozen=True)
class Policy:
    """What the site allows; every field can only take away."""

    algorithms: tuple[str, ...] | None = None
    signers: tuple[str, ...] | None = None
    largest_epsilon: float | None = None
    hours: tuple[str, ...] | None = None
    rounds_per_day: int | None = None
    seconds_per_answer: float | None = None

    def __post_init__(self) -> None:
        if self.seconds_per_answer is not None:
            positive("seconds-per-answer", self.seconds_per_answer)
        if self.largest_epsilon is not None:
            positive("largest-epsilon", self.largest_epsilon)
        if self.rounds_per_day is not None:
            count("rounds-per-day", self.rounds_per_day)
        for window in self.hours or ():
            _window(window)

    def require_manifest(self, manifest: VerifiedManifest) -> None:
        """Refuse a manifest that this site does not want, before anything is claimed."""
        document, promise = manifest.document, promise_of(manifest.document)
        if self.algorithms is not None and document.algorithm not in self.algorithms:
            raise PolicyRefused(
                f"the site's policy allows {', '.join(self.algorithms)}, the budget is for {document.algorithm}; "
                "change the policy's algorithms, or refuse the study"
            )
        if self.signers is not None and not any(one.key_id in self.signers for one in manifest.signatures):
            raise PolicyRefused(
                "the site's policy accepts none of the keys that signed the budget; have one of its signers sign"
            )
        if self.largest_epsilon is not None and (promise.epsilon is None or promise.epsilon > self.largest_epsilon):
            raise PolicyRefused(
                f"the site's policy allows epsilon {self.largest_epsilon:g}, the budget says: {promise.text}; have a "
                "smaller one signed"
            )

    def require_now(self, now: datetime, rounds_today: int) -> None:
        """Refuse to open a new round at this time, or after the most rounds of a day."""
        moment = now.astimezone(UTC).time()
        if self.hours is not None and not any(_within(moment, _window(window)) for window in self.hours):
            raise PolicyRefused(
                f"the site's policy allows new rounds at {', '.join(self.hours)} UTC; continue then, with --resume"
            )
        if self.rounds_per_day is not None and rounds_today >= self.rounds_per_day:
            raise PolicyRefused(
                f"the site's policy allows {self.rounds_per_day} rounds per day; continue tomorrow (UTC), with --resume"
            )

    def seconds_left(self, worked: float) -> float:
        """How long to hold an answer back that took `worked` seconds to compute.

        What was computed on records, a secret batch's size among it, then shows in no answer's time, as long as it
        takes less than the policy's seconds.
        """
        return 0.0 if self.seconds_per_answer is None else -worked % self.seconds_per_answer


ANYTHING = Policy()


def read_policy(path: Path) -> Policy:
    """The policy in a TOML file; unknown keys are errors, so that a typing mistake loosens nothing."""
    return read_section(Policy, "policy", read_toml(path, "--policy"))


def _window(text: str) -> tuple[time, time]:
    begin, dash, end = text.partition("-")
    try:
        if not dash:
            raise ValueError
        return time.fromisoformat(begin.strip()), time.fromisoformat(end.strip())
    except ValueError:
        raise InvalidInput("hours", text, "is not a time of day", 'write for example "08:00-18:00"') from None


def _within(moment: time, window: tuple[time, time]) -> bool:
    """Whether the window holds the moment; one that ends before it begins goes past midnight."""
    begin, end = window
    return begin <= moment < end if begin <= end else moment >= begin or moment < end
