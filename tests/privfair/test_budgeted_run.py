"""A loop of somebody's own under a signed budget: charged before its body, batches as signed, nothing beyond."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privfair as pf
from calibrate.errors import GateRefused, InvalidInput, ManifestRefused, Refused, UnsupportedCombination
from calibrate.manifest.document import NO_PLAN_FILE
from calibrate.plans.gaussian import OwnLoopPlan
from calibrate.sampling import (
    Batch,
    FixedSize,
    Poisson,
    RandomAllocation,
    SamplingName,
    ShuffledEpochs,
    TruncatedPoisson,
)
from privfair.batches.participation import BatchRecord
from privfair.federation.coordinator import RoundsSpent
from privfair.ledger import ClaimEnded, Ledger
from privfair.ledger.entries import AlreadyClaimed
from privfair.run.folder import RunFolder
from privfair.transcript import Ending, Transcript

DATA = np.random.default_rng(0).normal(size=(200, 3))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    pf.Ledger.create(tmp_path / "ledger.db").close()
    return tmp_path / "ledger.db"


def priced(**more: Any) -> pf.PricedBudget:
    asked: dict[str, Any] = {"units": 200, "rounds": 6, "shapes": {"gradient": (3,)}, "sampling_rate": 0.2}
    return pf.budget(2.0, 1e-5, **(asked | more))


usual = cache(priced)
"""The budget of most tests, priced once; each test has a ledger of its own to spend it from."""


def signed(**more: Any) -> pf.SignedBudget:
    return (priced(**more) if more else usual()).sign(pf.generate_key())


def opened(budget: pf.SignedBudget, ledger: Path, out: Path | None = None, **more: Any) -> pf.BudgetedRun:
    return pf.BudgetedRun(budget, **({"trust": budget.own_trust(), "ledger": ledger, "units": 200, "out": out} | more))


def clipped_sum(batch: np.ndarray) -> tuple[np.ndarray, float]:
    norms = np.linalg.norm(DATA[batch], axis=1)
    parts = DATA[batch] / np.maximum(1.0, norms)[:, None]
    return parts.sum(axis=0), float(np.linalg.norm(parts, axis=1).max(initial=0.0))


def publish(round_: Any) -> np.ndarray:
    total, largest = clipped_sum(round_.batch)
    return np.asarray(round_.publish("gradient", total, bound=1.0, measured=largest))


def interrupted(run: pf.BudgetedRun, publications: int = 0) -> list[np.ndarray]:
    """Some rounds that publish, and one more in which somebody presses Ctrl-C."""
    published = []
    with suppress(KeyboardInterrupt), run:
        published = [publish(run.next_round()) for _ in range(publications)]
        run.next_round()
        raise KeyboardInterrupt
    return published


def charged(ledger: Path, run: pf.BudgetedRun) -> int:
    with pf.Ledger.open(ledger) as book:
        return book.manifest_status(run.manifest_digest).charged


def test_the_loop_ends_by_itself_when_the_signed_rounds_are_spent(ledger: Path, tmp_path: Path) -> None:
    budget = signed()
    with opened(budget, ledger, tmp_path / "run") as run:
        noisy = [publish(round_) for round_ in run]
        assert run.rounds_left == 0
        with pytest.raises(RoundsSpent):
            run.next_round()
    assert len(noisy) == 6
    assert all(value.shape == (3,) and value.flags.writeable for value in noisy)
    found = Transcript.read(tmp_path / "run" / "transcript.bin")
    assert found.ending is Ending.CLOSED
    assert np.array_equal(found.values("data", "gradient"), np.stack(noisy))
    summary = RunFolder(tmp_path / "run").read_json(tmp_path / "run" / "run.json")
    assert (summary["status"], summary["rounds"]["steps"], summary["promise"]["epsilon"]) == ("finished", 6, 2.0)
    assert budget.noise("gradient") > 1


def test_a_round_is_charged_on_disk_before_the_body_runs(ledger: Path) -> None:
    with opened(signed(), ledger, block=1) as run:
        for before, _ in enumerate(run, start=1):
            assert charged(ledger, run) == before


def test_making_a_run_spends_nothing(ledger: Path) -> None:
    run = opened(signed(), ledger)
    with pf.Ledger.open(ledger) as book:
        assert not book.status().manifests
    with pytest.raises(Refused, match="not open"):
        run.next_round()


def test_the_manifest_says_what_its_configuration_digest_is_of() -> None:
    assert NO_PLAN_FILE in signed().document.accounting.assumptions
    assert any("observers do not see such errors" in text for text in signed().document.accounting.assumptions)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"units": 199}, "fewer than the 200"),
        ({"shapes": {"gradient": (4,)}}, "the manifest signed"),
        ({"shapes": {"loss": ()}}, "does not declare"),
        ({"party": "north"}, "this silo is north"),
        ({"trust": signed().own_trust()}, "no trusted key"),
        ({"code": (__file__,)}, "was not signed"),
        ({"plan": __file__}, "the budget is for the plan"),
    ],
)
def test_a_run_that_does_not_fit_its_budget_is_refused_before_anything_is_spent(
    ledger: Path, more: dict[str, Any], why: str
) -> None:
    with pytest.raises((ManifestRefused, GateRefused), match=why):
        opened(signed(), ledger, **more)


def test_more_units_than_the_signed_lower_bound_are_welcome_and_all_are_drawn_from(ledger: Path) -> None:
    with opened(signed(rounds=8, sampling_rate=0.5), ledger, units=400) as run:
        assert max(int(round_.batch.max()) for round_ in run) >= 200


def test_under_replace_one_the_number_of_units_is_exact(ledger: Path) -> None:
    budget = signed(relation="replace-one")
    with pytest.raises(ManifestRefused, match="the run has 201"):
        opened(budget, ledger, units=201)
    with opened(budget, ledger) as run:
        assert sum(1 for _ in run) == 6


def test_a_budget_of_the_engines_own_algorithms_is_not_for_loops(ledger: Path, tmp_path: Path) -> None:
    from datetime import timedelta

    from calibrate.manifest.document import Issuer
    from calibrate.privacy_unit import EpsilonDelta
    from privfair.api.budget import PricedBudget
    from privfair.api.draft import draft
    from privfair.plan.plan import plan_from_flags

    file = plan_from_flags("pay-once", None, {"groups": 2, "rounds": 3})
    drafted = draft(file, Issuer((("data", 200),), lifetime=timedelta(days=1)), target=EpsilonDelta(1.0, 1e-5))
    with pytest.raises(ManifestRefused, match="own engine runs"):
        opened(PricedBudget(drafted).sign(pf.generate_key()), ledger)


def test_one_budget_is_spent_once(ledger: Path) -> None:
    budget = signed()
    with opened(budget, ledger) as run:
        next(iter(run))
    with pytest.raises((AlreadyClaimed, ClaimEnded)), opened(budget, ledger):
        pass


def test_a_larger_bound_a_broken_bound_and_a_second_publication_are_refused(ledger: Path) -> None:
    with opened(signed(), ledger) as run:
        first = run.next_round()
        with pytest.raises(GateRefused, match="claims the bound"):
            first.publish("gradient", np.zeros(3), bound=2.0, measured=1.0)
        with pytest.raises(GateRefused, match="above its bound"):
            first.publish("gradient", np.zeros(3), bound=1.0, measured=1.5)
        with pytest.raises(GateRefused, match="not declared"):
            first.publish("loss", np.zeros(3), bound=1.0, measured=1.0)
        with pytest.raises(GateRefused, match="can't be sent in the clear"):
            first.publish_in_the_clear("gradient", np.zeros(3))
        publish(first)
        with pytest.raises(GateRefused, match="once per round"):
            publish(first)
        run.next_round()
        with pytest.raises(GateRefused, match="is over"):
            first.publish("other", np.zeros(3), bound=1.0, measured=1.0)


def test_an_exception_keeps_the_claim_and_a_resumed_run_gets_fresh_rounds(ledger: Path, tmp_path: Path) -> None:
    budget, out = signed(), tmp_path / "run"
    (first,) = interrupted(opened(budget, ledger, out, block=1), publications=1)
    assert RunFolder(out).read_json(out / "run.json")["status"] == "interrupted"
    with pytest.raises(InvalidInput, match="holds a run already"), opened(budget, ledger, out):
        pass
    with opened(budget, ledger, out, resume=True) as run:
        assert [value.round for value in run.history()] == [0]
        assert np.array_equal(next(run.history()).values, first)
        assert [round_.number for round_ in run] == [2, 3, 4, 5]
    assert charged(ledger, run) == 6


def test_a_run_is_resumed_only_with_its_own_budget_and_from_its_own_folder(ledger: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    interrupted(opened(signed(), ledger, out))
    other = signed(rounds=5)
    with pytest.raises(Refused, match="was begun with the manifest"), opened(other, ledger, out, resume=True):
        pass
    with pytest.raises(InvalidInput, match="give out="), opened(signed(), ledger, resume=True):
        pass


def test_without_out_nothing_is_left_behind(ledger: Path) -> None:
    with opened(signed(), ledger) as run:
        place = run.folder
        publish(run.next_round())
        assert (place / "transcript.bin").exists()
    assert not place.exists()


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"sampling_rate": 0.3}, Poisson(0.3)),
        ({"sampling": "fixed", "sampling_rate": None, "batch_size": 20}, FixedSize(200, 20)),
        pytest.param(
            {"sampling": "random-allocation", "sampling_rate": None, "batches": 3},
            RandomAllocation(3),
            marks=pytest.mark.slow,
        ),
        (
            {"sampling": "shuffled", "sampling_rate": None, "batch_size": 70, "relation": "replace-one"},
            ShuffledEpochs(200, 70, Batch.REVEALED),
        ),
        ({"sampling": "full", "sampling_rate": None}, None),
        ({"sampling": "truncated-poisson", "batch_limit": 110, "most_units": 250}, TruncatedPoisson(0.2, 250, 110)),
    ],
)
def test_batches_are_drawn_as_signed(ledger: Path, tmp_path: Path, more: dict[str, Any], expected: object) -> None:
    budget = signed(**more)
    assert [one.scheme for one in budget.document.sampling] == ([] if expected is None else [expected])
    with opened(budget, ledger, tmp_path / "run") as run:
        drawn = [round_.batch for round_ in run]
    if expected is None:
        assert all(np.array_equal(batch, np.arange(200)) for batch in drawn)
    elif isinstance(expected, TruncatedPoisson):
        assert all(len(batch) <= 110 for batch in drawn)
        with pytest.raises(InvalidInput, match="more than the 250"):
            opened(budget, ledger, units=251)
    elif isinstance(expected, FixedSize):
        assert all(len(set(batch)) == 20 for batch in drawn)
    elif isinstance(expected, RandomAllocation | ShuffledEpochs):
        assert sorted(np.concatenate(drawn[:3])) == list(range(200))
    recorded = (tmp_path / "run" / "batches.bin").exists()
    assert recorded == isinstance(expected, ShuffledEpochs)
    if recorded:
        found = BatchRecord.read(tmp_path / "run" / "batches.bin")
        assert all(np.array_equal(found.batch(number, "data"), batch) for number, batch in enumerate(drawn))


def test_several_named_values_share_one_price(ledger: Path) -> None:
    shapes, bounds = {"gradient": (3,), "loss": ()}, {"gradient": 1.0, "loss": 0.5}
    budget = signed(shapes=shapes, bounds=bounds, noise={"gradient": 1.0, "loss": 3.0})
    assert budget.noise("loss") == pytest.approx(budget.noise("gradient") * 3 * 0.5)
    with opened(budget, ledger) as run:
        for round_ in run:
            publish(round_)
            assert round_.publish("loss", 0.0, bound=0.5, measured=0.5).shape == ()


def test_research_noise_is_the_same_for_the_same_seed_and_promises_nothing(ledger: Path) -> None:
    found = []
    for _ in range(2):
        with opened(signed(unsafe_seeded_research_noise=True, rounds=2), ledger, seed=7) as run:
            assert run.promise.nothing
            found.append([publish(round_) for round_ in run])
    assert np.array_equal(found[0], found[1])


def test_a_silo_of_several_says_which_one_it_is(ledger: Path) -> None:
    budget = signed(silos={"north": 200, "south": 300})
    with pytest.raises(InvalidInput, match="north, south"):
        opened(budget, ledger)
    with opened(budget, ledger, party="south", units=310) as run:
        assert run.next_round().publish("gradient", np.zeros(3), bound=1.0, measured=0.0).shape == (3,)


def test_the_ledger_can_be_bound_and_code_too(ledger: Path, tmp_path: Path) -> None:
    code = tmp_path / "loop.py"
    code.write_text("clip = 1.0\n")
    budget = signed(ledger=ledger, code=(code,), dataset=("patients", "clinic", "2026"))
    with opened(budget, ledger, code=(code,)) as run:
        publish(run.next_round())
    code.write_text("clip = 9.0\n")
    with pytest.raises(ManifestRefused, match="not the file that was signed"):
        opened(budget, ledger, code=(code,))
    with pytest.raises(InvalidInput, match="cannot be read"):
        signed(code=(tmp_path / "missing.py",))


def test_one_ledger_takes_the_trust_of_one_key_whenever_it_is_asked_for(tmp_path: Path) -> None:
    """A trust file with the hour in it would be another file of the same number, which a ledger refuses."""
    budget = signed()
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        for _ in range(2):
            ledger.remember_trust(budget.own_trust().seen())


def test_a_budget_is_saved_and_read_again(tmp_path: Path) -> None:
    budget = signed()
    again = pf.SignedBudget.load(budget.save(tmp_path / "budget.json"))
    assert again == pf.SignedBudget(budget.envelope)
    assert again.document == budget.document
    assert "epsilon 2" in again._repr_html_()
    assert "gradient" in again._repr_html_()
    with pytest.raises(InvalidInput, match="someone else's budget"):
        again.own_trust()
    with pytest.raises(InvalidInput, match="cannot be read"):
        pf.SignedBudget.load(tmp_path / "missing.json")
    with pytest.raises(InvalidInput, match="is not a signed budget"):
        pf.BudgetedRun(3, trust=budget.own_trust(), ledger="l", units=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sampling": "fixed"}, "sampling-rate"),
        ({"sampling": "fixed", "sampling_rate": None}, "batch-size"),
        ({"sampling": "fixed", "sampling_rate": None, "batch_size": 201}, "exceeds the 200 units"),
        ({"sampling": "random-allocation", "sampling_rate": None, "batches": 0}, "batches"),
        ({"sampling": "truncated-poisson", "batch_limit": 60}, "most-units"),
        ({"bounds": {"loss": 1.0}}, "must name exactly gradient"),
        ({"shapes": {}}, "at least one"),
        ({"protects": "family"}, "not one of the choices"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        signed(**more)


def test_a_combination_without_a_proof_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedCombination, match="shuffled"):
        signed(sampling="shuffled", sampling_rate=None, batch_size=20)


def test_an_own_loop_plan_says_whom_it_protects() -> None:
    plan = OwnLoopPlan(100, 4, SamplingName.FULL)
    assert any("full data" in text for text in plan.assumptions())
    user = pf.budget(2.0, 1e-5, units=50, rounds=2, shapes={"g": (1,)}, sampling="full", protects="user")
    assert user.document.guarantee.unit.value == "user"
    assert "not signed yet" in user._repr_html_()
    attribute = signed(relation="replace-attribute", sampling="full", sampling_rate=None)
    assert attribute.promise.unit.protected.value == "attribute"


def audited(out: Path, budget: pf.SignedBudget, ledger: Path) -> dict[str, str]:
    found = pf.audit_run(out, trust=budget.own_trust(), ledger=ledger)
    return {"verdict": found.verdict.value} | {check.name: check.outcome.value for check in found.checks}


def test_a_loop_is_audited_without_its_data(ledger: Path, tmp_path: Path) -> None:
    budget = signed(sampling="shuffled", sampling_rate=None, batch_size=70, relation="replace-one")
    with opened(budget, ledger, tmp_path / "run") as run:
        for round_ in run:
            publish(round_)
    found = audited(tmp_path / "run", budget, ledger)
    assert found["verdict"] == "inconclusive"  # a floor never speaks for a promise
    for name in ("signatures", "ledger", "publications", "price", "plan", "batches of data", "transcript is whole"):
        assert found[name] == "passed", name
    assert found["noise of gradient of data is fresh"] == "passed"
    assert found["at least the signed noise in gradient of data"] == "passed"
    assert found["probes"] == "not possible"


def test_missing_and_repeated_noise_of_a_loop_is_found(
    ledger: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privfair.noise import ExactNoise

    monkeypatch.setattr(ExactNoise, "gaussian", lambda self, values, scale: np.asarray(values, dtype=np.float64))
    budget = signed(rounds=12, sampling_rate=0.5)
    with opened(budget, ledger, tmp_path / "run") as run:
        for round_ in run:
            round_.publish("gradient", np.zeros(3), bound=1.0, measured=0.0)
    found = audited(tmp_path / "run", budget, ledger)
    assert found["verdict"] == "violated"
    assert found["noise of gradient of data is fresh"] == "failed"
    assert found["at least the signed noise in gradient of data"] == "failed"
    assert found["batches"] == "not possible"


def test_sums_far_above_their_noise_leave_the_floor_silent(ledger: Path, tmp_path: Path) -> None:
    budget = usual().sign(pf.generate_key())
    with opened(budget, ledger, tmp_path / "run") as run:
        for round_ in run:
            round_.publish("gradient", np.full(3, 1000.0 * (1 + round_.step) ** 2), bound=1.0, measured=1.0)
    assert audited(tmp_path / "run", budget, ledger)["at least the signed noise in gradient of data"] == "not possible"
