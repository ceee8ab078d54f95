"""Small runs of every algorithm that protects records or users, trained once, with research noise: reproducible."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from audit.runs.evidence import RunEvidence
from tests.privfair.small_runs import Desk

_HEAD = """algorithm = "{algorithm}"
[target]
epsilon = 1.0
delta = 1e-4
[privacy]
{privacy}
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
at-least = 100
{data}
[training]
seed = {seed}
{training}
"""
_STEPS = "sampling-rate = 0.4\nrounds = 8\nclip = 1.0\n"
SCALED = "sampling-rate = 1.0\nrounds = 10\nclip = 1.0\nscale-columns = 2\nscale-share = 0.1\n"
_USERS = "users = 202\ncohort = 81\nrounds = 8\nclip = 1.0\n"
_BY_USER = '[data.users]\nkind = "poisson"\nusers = 202\n'


@dataclass(frozen=True)
class CanaryCase:
    """A plan to be trained and audited."""

    name: str
    algorithm: str
    privacy: str
    data: str = ""
    training: str = "learning-rate = 0.5\n"

    def plan(self, seed: int = 0) -> str:
        return _HEAD.format(
            algorithm=self.algorithm, privacy=self.privacy, data=self.data, training=self.training, seed=seed
        )

    def __str__(self) -> str:
        return self.name


CANARY_CASES = (
    CanaryCase("gaussian", "gaussian", _STEPS),
    CanaryCase("gaussian, replace-one", "gaussian", _STEPS + 'relation = "replace-one"\n'),
    CanaryCase("gaussian, paid scales", "gaussian", SCALED),
    CanaryCase(
        "fedfdp",
        "fedfdp",
        _STEPS + "loss-clip = 2.0\nloss-noise-ratio = 2.5\n",
        training="learning-rate = 0.5\nfairness = 0.5\n",
    ),
    CanaryCase("fpfl, poisson cohorts", "fpfl", _USERS + 'sampling = "poisson"\n', _BY_USER),
    CanaryCase("fpfl, fixed cohorts", "fpfl", _USERS + 'sampling = "fixed"\n', _BY_USER),
    CanaryCase(
        "mmd-fedavg",
        "mmd-fedavg",
        "group-size = 100\nsamples-per-group = 5\nrounds = 12\nusers = 10\ncohort = 4\nupdate-clip = 0.2\n"
        "update-noise-ratio = 2.0\nhistogram-noise-ratio = 10.0\n",
        '[data.partition]\nkind = "equal"\nsilos = 10\n',
        "fairness = 1.0\nkernel-width = 80.0\nlocal-rate = 0.5\n",
    ),
)


def trained(case: CanaryCase, folder: Path, seed: int = 0) -> RunEvidence:
    """A finished run of the case, opened as an auditor would."""
    desk = Desk.at(folder, case.plan(seed))
    desk.train(desk.budget(research_noise=True))
    return evidence_of(desk)


def evidence_of(desk: Desk) -> RunEvidence:
    return RunEvidence.read(desk.folder / "run", plan_path=desk.plan)
