"""The contracts of privfair, on this package: `pip install .`, then `pytest`."""

import torch
from autoclip.algorithm import Autoclip, AutoclipOptions
from autoclip.others import FIRMER, two_clouds
from autoclip.plan import AutoclipPlan
from autoclip.theorem import THEOREMS

from calibrate.sampling import Batch, Poisson
from privfair.algorithms.algorithm import SiloTensors
from privfair.models.linear import LogisticRegression
from privfair.testing import check_algorithm, check_attack, check_plan, check_theorem

PLAN = AutoclipPlan(sampling_rate=0.25, rounds=3)


def silo(name: str, first: int) -> SiloTensors:
    rows = two_clouds(None)
    part = slice(first, first + 40)
    x, y, s = (torch.from_numpy(column[part].copy()) for column in (rows.features, rows.label, rows.group))
    return SiloTensors(name, x, y, s)


def test_the_plan() -> None:
    check_plan(PLAN)


def test_the_algorithm() -> None:
    silos = (silo("north", 0), silo("south", 40))
    check_algorithm(
        lambda: Autoclip(LogisticRegression(3), AutoclipOptions(), PLAN.radius, 20.0),
        PLAN,
        silos,
        Poisson(PLAN.sampling_rate, Batch.SECRET),
    )


def test_the_theorem() -> None:
    for theorem in THEOREMS:
        check_theorem(theorem)


def test_the_attack() -> None:
    check_attack(FIRMER)
