"""Small runs, one per way in which batches are drawn."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from privfair.run.prepare import PreparedRun
from privfair.training import prepare
from tests.privfair.small_runs import FEDSGD, FPFL, GAUSSIAN, Desk

_THREE = 'files = ["north.csv", "south.csv", "west.csv"]'
_TWO = 'files = ["north.csv", "south.csv"]'
_DATA = f"""[data]
{_TWO}
schema = "schema.toml"
"""
_TARGET = """[target]
epsilon = 4.0
delta = 1e-5
"""
_STEFFLE = """algorithm = "steffle"
{target}[privacy]
silo-size = 120
batch-size = {batch}
rounds = 3
minority-fraction = 0.4
lipschitz = 0.5
w-radius = 0.5
sampling = "{sampling}"
{data}[training]
group-frequencies = [0.5, 0.5]
block = 2
measure-every = 2
"""
_REGISTRIES = '[data.attributes]\nfiles = ["census.csv", "clinic.csv"]\nrecord = "person no."\n'
_MMD = """algorithm = "mmd-fedavg"
{target}[privacy]
group-size = 100
samples-per-group = 10
rounds = 3
users = 2
cohort = 1
update-clip = 0.5
histogram-noise-ratio = 1.0
{data}[training]
kernel-width = 8.0
block = 2
"""
_PAY_ONCE = """algorithm = "pay-once"
{target}[privacy]
rounds = 8
{data}[training]
rounds = 3
block = 2
"""
_FAIR_PLUGIN = f"""algorithm = "fair-plugin"
{_TARGET}[privacy]
rounds = 3
{_DATA}at-least = 100
[training]
block = 2
measure-every = 2
"""
_MORE = "block = 2\nmeasure-every = 2"


def _steffle(sampling: str, batch: int = 60, data: str = _DATA) -> str:
    return _STEFFLE.format(target=_TARGET, sampling=sampling, batch=batch, data=data)


def _gaussian(rate: float, sampling: str = "") -> str:
    plan = GAUSSIAN.format(rate=rate, rounds=3, more=_MORE).replace(_THREE, _TWO)
    return plan.replace("clip = 1.0\n", f"clip = 1.0\n{sampling}")


SCHEMES: dict[str, str] = {
    "full batches": _gaussian(1.0),
    "Poisson, secret": _gaussian(0.2),
    "truncated Poisson": _gaussian(0.2, 'sampling = "truncated-poisson"\nbatch-limit = 110\nmost-units = 250\n'),
    "random allocation": _gaussian(0.5, 'sampling = "random-allocation"\n'),
    "Poisson, secret, digests kept": _gaussian(0.2).replace(_MORE, f"{_MORE}\nretention = 2"),
    "in a cycle, with banded noise": _gaussian(0.5, 'noise = "banded"\nbatches = 2\n'),
    "full batches, other values in the last rounds": _FAIR_PLUGIN,
    "Poisson, known": _steffle("poisson"),
    "shuffled epochs": _steffle("shuffled"),
    "Poisson, known, with registries": _steffle("poisson", data=_DATA + _REGISTRIES),
    "with replacement": _steffle("with-replacement"),
    "fixed size (cohorts of users)": f"{FPFL}block = 2\n".replace("rounds = 5", "rounds = 3"),
    "drawn by the algorithm, with replies": _MMD.format(target=_TARGET, data=_DATA),
    "randomised once": _PAY_ONCE.format(target=_TARGET, data=_DATA),
    "shuffled epochs, nothing promised": FEDSGD.format(rounds=3, more=f"signed-rounds = 40\n{_MORE}").replace(
        _THREE, _TWO
    ),
}


@dataclass(frozen=True)
class Scheme:
    """A plan with its signed budget, verified once; every trial claims it in a ledger of its own."""

    name: str
    run: PreparedRun

    @classmethod
    def at(cls, folder: Path, name: str) -> Scheme:
        plan = SCHEMES[name]
        desk = Desk.at(folder, plan)
        if _REGISTRIES in plan:
            _take_attributes_out(folder)
        return cls(name, prepare(desk.plan, desk.budget(), desk.trust))


def _take_attributes_out(folder: Path) -> None:
    """Banks keep features and classes; a census holds the attributes, and a clinic holds a few of them."""
    held = {"census": ["person no.,sex"], "clinic": ["person no.,sex"]}
    for bank in ("north", "south"):
        with (folder / f"{bank}.csv").open(encoding="utf-8", newline="") as file:
            people = list(csv.DictReader(file))
        kept = ["person no.,age,income,job,default"]
        for number, person in enumerate(people):
            held["clinic" if number % 40 == 3 else "census"].append(f"{bank}-{number},{person['sex']}")
            kept.append(",".join((f"{bank}-{number}", *(person[key] for key in ("age", "income", "job", "default")))))
        (folder / f"{bank}.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    for name, lines in held.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
