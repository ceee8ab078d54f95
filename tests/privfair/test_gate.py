"""What the gate lets out, and what it refuses before any noise is drawn."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import privfair.gate
from calibrate.arrays import Floats
from calibrate.errors import GateRefused, LedgerRefused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, InTheClear, NoiseSource
from calibrate.plans.fair_plugin import PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta
from privfair.contribution import BoundedContribution
from privfair.noise import UnsafeNoiseWarning
from privfair.transcript import Transcript
from privfair.transcript.storage import TranscriptRefused
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import OpenGate, document_of, gate_for

SHAPES = {"value_1": (4,), "plain": (2,)}
CLEAR = InTheClear(name="plain", publications=3, shape=(2,), why="independent of the record", depends_on_unit=False)


@pytest.fixture(scope="module")
def document() -> BudgetDocument:
    plan = GaussianPlan(sampling_rate=1.0, rounds=3, clip=0.5)
    return document_of(plan, EpsilonDelta(1.0, 1e-5), clear=(CLEAR,), shapes=SHAPES)


@pytest.fixture
def opened(document: BudgetDocument, tmp_path: Path) -> OpenGate:
    return gate_for(document, tmp_path, SHAPES, block=2)


def value(name: str = "value_1", size: int = 4, bound: float = 0.5, measured: float = 0.5) -> BoundedContribution:
    return BoundedContribution(name, np.linspace(0.0, 1.0, size), bound, measured)


def published(opened: OpenGate) -> int:
    return len(Transcript.read(opened.transcript).keys)


def test_a_value_goes_out_once_for_each_party_and_round(opened: OpenGate) -> None:
    assert [opened.gate.next_round() for _ in range(3)] == [0, 1, 2]
    sent = [opened.gate.publish(party, value()) for party in ("north", "south")]
    assert {one.round for one in sent} == {2}
    assert published(opened) == 2
    transcript = Transcript.read(opened.transcript)
    np.testing.assert_array_equal(transcript.value(2, "north", "value_1"), sent[0].values)
    with pytest.raises(ValueError, match="read-only"):
        sent[0].values[0] = 1.0


@pytest.mark.parametrize(
    ("contribution", "words"),
    [
        (value("value_2"), "is not declared in the manifest; it allows only value_1, plain"),
        (value(bound=0.5001), "claims the bound 0.5001, the manifest signed 0.5"),
        (value(size=5), r"has shape \(5,\), the manifest signed \(4,\)"),
        (value("plain", 2), "is declared as none, not as a noisy value"),
    ],
    ids=["undeclared", "larger bound", "shape", "clear"],
)
def test_what_was_not_signed_is_refused_and_leaves_nothing_behind(
    opened: OpenGate, contribution: BoundedContribution, words: str
) -> None:
    opened.gate.next_round()
    with pytest.raises(GateRefused, match=words):
        opened.gate.publish("north", contribution)
    assert published(opened) == 0
    opened.gate.publish("north", value())


def holding(number: float) -> BoundedContribution:
    return BoundedContribution("value_1", np.array([0.25, number, -0.25, 0.0]), 0.5, 0.5)


WRONGLY_CLIPPED = {
    "norm": (value(measured=1.0), np.linspace(0.0, 0.5, 4), "measures 1, above its bound 0.5"),
    "infinite norm": (value(measured=np.inf), np.zeros(4), "measures inf, above its bound"),
    "norm that is no number": (value(measured=np.nan), np.zeros(4), "measures nan, above its bound"),
    "negative norm": (value(measured=-1.0), np.zeros(4), "measures -1, above its bound"),
    "nan": (holding(np.nan), np.array([0.25, 0.0, -0.25, 0.0]), "not finite"),
    "infinity": (holding(np.inf), np.array([0.25, 0.0, -0.25, 0.0]), "not finite"),
    "huge": (holding(-1e300), np.array([0.25, -np.inf, -0.25, 0.0]), "not finite, or beyond"),
}
"""A contribution that no correct clipping produces, what a total gate puts noise on, and why a strict one refuses."""
every_wrong = pytest.mark.parametrize(("contribution", "meant", "words"), WRONGLY_CLIPPED.values(), ids=WRONGLY_CLIPPED)


@every_wrong
def test_a_strict_gate_refuses_what_no_clipping_produces(
    document: BudgetDocument, tmp_path: Path, contribution: BoundedContribution, meant: Floats, words: str
) -> None:
    opened = gate_for(document, tmp_path, SHAPES, block=2, strict=True)
    opened.gate.next_round()
    with pytest.raises(GateRefused, match=words):
        opened.gate.publish("north", contribution)
    assert published(opened) == 0
    opened.gate.publish("north", value())


@every_wrong
def test_a_total_gate_publishes_it_with_the_signed_noise_and_notes_it_without_a_number(
    opened: OpenGate, contribution: BoundedContribution, meant: Floats, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    opened.gate.next_round()
    sent = opened.gate.publish("north", contribution).values
    (declared,) = (one for one in opened.document.releases if isinstance(one, GaussianNoise))
    huge = np.isinf(meant)
    np.testing.assert_allclose(sent[~huge], meant[~huge], atol=10 * declared.sigma)
    assert np.isfinite(sent).all()
    assert (sent[huge] < -(2**20) * declared.sigma).all(), "cut where the grid ends, never turned round"
    assert len(np.unique(sent)) == 4, "every number has its own noise"
    (note,) = caplog.records
    assert (note.name, note.levelname) == ("privfair.gate", "WARNING")
    assert note.getMessage().startswith("round 0: 'value_1' h")
    assert not any(private in note.getMessage() for private in ("inf,", "nan", "measures", "1e+300"))


def test_what_no_record_decides_is_refused_before_the_contribution_is_looked_at(
    opened: OpenGate, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GateRefused, match="no round is open"):
        opened.gate.publish("north", holding(np.nan))
    opened.gate.next_round()
    opened.gate.publish("north", value())
    with pytest.raises(LedgerRefused, match="at most once per round"):
        opened.gate.publish("north", holding(np.nan))
    assert not caplog.records


@pytest.mark.parametrize("bad", [-1, 2, 2**40])
def test_a_category_outside_its_range_counts_as_the_first(tmp_path: Path, bad: int) -> None:
    source = NoiseSource.SEEDED_RESEARCH_ONLY
    shapes = {"randomised_attribute": (40,)}
    document = document_of(PayOncePlan(rounds=1), EpsilonDelta(3.0, 1e-5), shapes=shapes, noise_source=source)
    codes, sent = np.arange(40) % 2, []
    for place, category in (("known", 0), ("outside", bad)):
        with pytest.warns(UnsafeNoiseWarning):
            opened = gate_for(document, tmp_path / place, shapes, research_seed=1)
        opened.gate.next_round()
        codes[3] = category
        sent.append(opened.gate.publish_randomized("north", "randomised_attribute", codes).values)
    np.testing.assert_array_equal(*sent)
    with pytest.warns(UnsafeNoiseWarning):
        strict = gate_for(document, tmp_path / "strict", shapes, research_seed=1, strict=True)
    strict.gate.next_round()
    with pytest.raises(GateRefused, match=r"outside 0 \.\. 1"):
        strict.gate.publish_randomized("north", "randomised_attribute", codes)


def test_a_smaller_bound_is_welcome(opened: OpenGate) -> None:
    opened.gate.next_round()
    opened.gate.publish("north", value(bound=0.4, measured=0.4))
    assert published(opened) == 1


def test_a_second_publication_of_a_round_is_refused(opened: OpenGate) -> None:
    opened.gate.next_round()
    opened.gate.publish("north", value())
    with pytest.raises(LedgerRefused, match="at most once per round"):
        opened.gate.publish("north", value())
    assert published(opened) == 1


def test_an_unknown_party_is_refused(opened: OpenGate) -> None:
    opened.gate.next_round()
    with pytest.raises(GateRefused, match="'east' is not a silo of the manifest; it names north, south"):
        opened.gate.publish("east", value())


def test_nothing_goes_out_before_a_round_is_open(opened: OpenGate) -> None:
    with pytest.raises(GateRefused, match="no round is open"):
        opened.gate.publish("north", value())
    assert opened.claim.charged == 0


def test_nothing_goes_out_beyond_the_last_signed_round(opened: OpenGate) -> None:
    for _ in range(3):
        opened.gate.next_round()
    with pytest.raises(GateRefused, match="round 3 is beyond the 3 signed rounds"):
        opened.gate.next_round()
    assert opened.claim.charged == 3


def test_rounds_are_charged_on_disk_before_their_noise_is_drawn(opened: OpenGate) -> None:
    manifest = opened.claim.manifest
    opened.gate.next_round()
    assert opened.ledger.manifest_status(manifest).charged == 2
    opened.gate.next_round()
    assert opened.ledger.manifest_status(manifest).charged == 2
    opened.gate.next_round()
    assert opened.ledger.manifest_status(manifest).charged == 3


def test_an_expired_manifest_opens_no_round(opened: OpenGate, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) + timedelta(days=2)

    opened.gate.next_round()
    monkeypatch.setattr(privfair.gate, "datetime", Later)
    with pytest.raises(GateRefused, match="expired at"):
        opened.gate.next_round()


def test_only_what_is_listed_in_the_clear_goes_out_in_the_clear(opened: OpenGate) -> None:
    opened.gate.next_round()
    sent = opened.gate.publish_in_the_clear("north", "plain", [1.5, -2.0])
    np.testing.assert_array_equal(sent.values, [1.5, -2.0])
    for name, words in (("value_1", "can't be sent in the clear"), ("other", "is not declared")):
        with pytest.raises(GateRefused, match=words):
            opened.gate.publish_in_the_clear("north", name, [0.0])
    with pytest.raises(GateRefused, match="not as randomised response"):
        opened.gate.publish_randomized("north", "value_1", [0, 1])
    sent = opened.gate.publish_in_the_clear("south", "plain", [np.nan, -2.0])
    np.testing.assert_array_equal(sent.values, [0.0, -2.0])


def test_a_value_signed_once_goes_out_once_in_all_rounds(tmp_path: Path) -> None:
    shapes = {"randomised_attribute": (50,)}
    document = document_of(PayOncePlan(rounds=5), EpsilonDelta(1.0, 1e-5), shapes=shapes)
    opened = gate_for(document, tmp_path, shapes)
    opened.gate.next_round()
    opened.gate.publish_randomized("north", "randomised_attribute", np.zeros(50, dtype=np.int64))
    opened.gate.next_round()
    with pytest.raises(GateRefused, match="was published 1 times, as often as signed"):
        opened.gate.publish_randomized("north", "randomised_attribute", np.zeros(50, dtype=np.int64))
    opened.gate.publish_randomized("south", "randomised_attribute", np.zeros(50, dtype=np.int64))
    with pytest.raises(GateRefused, match="not as a noisy value"):
        opened.gate.publish("south", value("randomised_attribute", 50))


def test_a_finished_gate_publishes_nothing_more(opened: OpenGate) -> None:
    opened.gate.next_round()
    opened.gate.publish("north", value())
    digest = opened.gate.finish()
    assert opened.ledger.manifest_status(opened.claim.manifest).transcript_digest == digest
    with pytest.raises(TranscriptRefused):
        opened.gate.publish("south", value())
    with pytest.raises(LedgerRefused, match="closed it"):
        opened.claim.charge(1)


def test_the_noise_is_the_one_the_manifest_names(document: BudgetDocument, tmp_path: Path) -> None:
    with pytest.raises(GateRefused, match="a seed was given but the manifest signed noise from the operating"):
        gate_for(document, tmp_path, SHAPES, research_seed=1)
    plan = GaussianPlan(sampling_rate=1.0, rounds=2)
    research = document_of(
        plan, EpsilonDelta(1.0, 1e-5), shapes={"value_1": (4,)}, noise_source=NoiseSource.SEEDED_RESEARCH_ONLY
    )
    with pytest.raises(GateRefused, match="give its seed"):
        gate_for(research, tmp_path / "a", {"value_1": (4,)})
    drawn = []
    for place in ("b", "c"):
        with pytest.warns(UnsafeNoiseWarning):
            opened = gate_for(research, tmp_path / place, {"value_1": (4,)}, research_seed=7)
        opened.gate.next_round()
        drawn.append(opened.gate.publish("north", value(bound=1.0)).values)
    np.testing.assert_array_equal(drawn[0], drawn[1])


def test_a_resumed_gate_goes_on_with_fresh_rounds_and_remembers_what_was_published(
    document: BudgetDocument, tmp_path: Path
) -> None:
    from privfair.gate import open_gate
    from privfair.run.folder import RunFolder
    from privfair.run.open_run import OpenRun
    from privfair.transcript import ValueSpec
    from tests.privfair.small_runs import verified

    manifest = verified(document)
    specs = tuple(ValueSpec(name, shape) for name, shape in SHAPES.items())
    with open_ledger(tmp_path / "ledger.db") as ledger:
        claim = OpenRun(manifest, ledger, RunFolder(tmp_path)).begin().claim
        gate = open_gate(manifest, claim, tmp_path / "transcript.bin", specs, block=2)
        gate.next_round()
        gate.publish("north", value())
        gate._transcript.close()  # as a killed process would, without a record in the ledger
        again = ledger.resume(claim.token)
        gate = open_gate(manifest, again, tmp_path / "transcript.bin", specs, block=2)
        assert ledger.manifest_status(claim.manifest).releases == 1
        assert gate.next_round() == 2
        gate.publish("north", value())
        with pytest.raises(GateRefused, match="beyond"):
            gate.next_round()


def test_the_signed_noise_is_what_the_document_declares(document: BudgetDocument) -> None:
    declared = document.release("value_1")
    assert isinstance(declared, GaussianNoise)
    assert declared.sensitivity == 0.5
    assert declared.sigma == pytest.approx(0.5 * declared.noise_multiplier)
