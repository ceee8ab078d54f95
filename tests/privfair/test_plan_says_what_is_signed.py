"""Guarantee, noise source and decision stand in the plan, so that the officer sees them in what is signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import NoiseSource
from privfair.api.draft import draft
from privfair.plan.plan import AS_IT_IS, Plan, ThresholdRule, Unprotected
from privfair.training import execute, prepare
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk


def _plan(text: str) -> Plan:
    return Plan.parse(text.encode(), Path("plan.toml"))


def test_a_plan_without_these_keys_asks_for_a_calibrated_guarantee() -> None:
    plan = _plan('algorithm = "gaussian"\n')
    assert (plan.guarantee, plan.research_noise, plan.decision) == ("calibrated", False, AS_IT_IS)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('guarantee = "none"', "guarantee"),
        ("guarantee = {none = 3}", "guarantee"),
        ('guarantee = {none = " "}', "needs a reason"),
        ('guarantee = {none = "a", why = "b"}', "guarantee"),
        ('noise-source = "seeded"', "noise-source"),
        ("[decision]\nthreshold = 2.0", "threshold"),
        ("[decision]\nthreshold = 0.5\ntarget-gap = 0.1", "exclude each other"),
        ("[decision]\ntreshold = 0.5", "did you mean threshold"),
        ("decision = 0.5", "is not part of a plan"),
    ],
)
def test_a_value_that_is_not_known_is_refused(line: str, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        _plan(f'algorithm = "gaussian"\n{line}\n')


def test_no_guarantee_and_its_reason_are_signed(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, 'guarantee = {none = "to compare with"}\n' + FEDSGD.format(rounds=2, more=""))
    assert Plan.read(desk.plan).guarantee == Unprotected("to compare with")
    document = draft(Plan.read(desk.plan)).document
    assert document.guarantee.kind == "no-privacy-promised"
    assert document.guarantee.why == "to compare with"


def test_reproducible_noise_is_signed_as_such(tmp_path: Path) -> None:
    text = GAUSSIAN.format(rate=0.5, rounds=2, more="")
    desk = Desk.at(tmp_path, text)
    assert draft(Plan.read(desk.plan)).document.noise_source is NoiseSource.OPERATING_SYSTEM
    desk.plan.write_text('noise-source = "seeded-research"\n' + text)
    assert draft(Plan.read(desk.plan)).document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY


def test_training_decides_as_the_plan_says(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.5, rounds=2, more="") + "[decision]\nthreshold = 0.3\n")
    assert Plan.read(desk.plan).decision == ThresholdRule(threshold=0.3)
    prepared = prepare(desk.plan, desk.budget(), desk.trust)
    assert execute(prepared, tmp_path / "run", desk.ledger).decision["threshold"] == 0.3
