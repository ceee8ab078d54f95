"""Every planted bug is caught by the layers made for it; the clean engine is never flagged."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from audit.runs import rerun
from tests.planted_bugs.bug import Bug, Caught
from tests.planted_bugs.catalogue import BUGS
from tests.planted_bugs.clean_runs import flagged, most_alarms
from tests.planted_bugs.clipping_bugs import weights_after_clipping
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.layers import findings, findings_of
from tests.planted_bugs.workshop import Engine, Workshop


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))


def _always(bug: Bug, layer: Caught) -> bool:
    """The cheapest layer that catches a bug is asked in every run of the tests, the others in the long ones; so are the
    twin of a bug with secret batches and the bugs that take longest to find."""
    twin = bug.name.endswith(", secret batches") and layer is Caught.PROBE
    return layer is bug.by[0] and layer is not Caught.ATTACK and not twin and bug.name not in LONG


LONG = (
    "Poisson batches accounted as random allocation",
    "a bit of the message in the 21st digit",
    "a column that is not of norm 1",
    "a record comes back within the bands",
    "cumulated rates in the last round but one",
    "every fifth round is not clipped",
    "groups of the cycle by position",
    "groups swapped in one silo",
    "mixed sums forgotten without a gap",
    "noise cut off at 3 sigma",
    "noise seeded by the manifest",
    "noise x 0.9, banded",
    "no noise at one place in one silo",
    "one allocation for all epochs",
    "the same noise once the gate is opened again",
    "one seed for all values of a message",
    "only the last chunk is clipped",
    "per-layer clip accounted as one",
    "shuffled batches accounted as random allocation",
)

FAINT = ("noise x 0.95, secret batches",)
"""Bugs that show only if the gate is asked as often as an audit asks it; elsewhere the tests ask it less often."""

CASES = [
    pytest.param(bug, layer, id=f"{bug.name}-{layer.value}", marks=[] if _always(bug, layer) else [pytest.mark.slow])
    for bug in BUGS
    for layer in bug.by
]


@pytest.mark.parametrize(("bug", "layer"), CASES)
def test_the_bug_is_caught(bug: Bug, layer: Caught, workshop: Workshop) -> None:
    as_an_audit_does = 10_000 if bug.name in FAINT else rerun.MESSAGES
    with patch.object(rerun, "MESSAGES", as_an_audit_does):
        assert findings_of(bug, layer, workshop)


PROBED_ELSEWHERE = {Engine.STEFFLE_LONG, Engine.FPFL, Engine.MMD, Engine.PAY_ONCE}


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            one, id=one.name, marks=[] if one in (Engine.FULL_BATCHES, Engine.SECRET_BATCHES) else [pytest.mark.slow]
        )
        for one in Engine
        if one not in PROBED_ELSEWHERE
    ],
)
def test_the_clean_engine_is_not_flagged(engine: Engine, workshop: Workshop) -> None:
    trained = workshop.clean(engine)
    with fixed_randomness(3):
        for layer in (Caught.CONFORMANCE, Caught.PROBE, Caught.NOISE):
            assert findings(layer, workshop, engine, trained, None) == []


def test_a_bug_that_does_not_blind_the_gate_is_refused_there(workshop: Workshop) -> None:
    """Weights after clipping, measured honestly: the engine stops before anything leaves, and the audit says so."""
    trained = workshop.clean(Engine.FEDFDP)
    with fixed_randomness(2), patch("privfair.algorithms.fedfdp.fair_clipping", weights_after_clipping):
        said = findings(Caught.PROBE, workshop, Engine.FEDFDP, trained, None)
    assert any(one.startswith("rehearsal") and "above its bound" in one for one in said)


def test_every_bug_has_a_layer_and_a_name_of_its_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert all(bug.by for bug in BUGS)


@pytest.mark.parametrize("name", ["small batches send nothing", "a record alone sends nothing"])
def test_where_nothing_is_sent_for_one_record_every_layer_still_answers(name: str, workshop: Workshop) -> None:
    """Noise and attack look at what single records add; nothing is then zero, not a missing key."""
    (bug,) = (one for one in BUGS if one.name == f"{name}, secret batches")
    assert findings_of(bug, Caught.NOISE, workshop) == []
    with patch("tests.planted_bugs.layers.CANARY_RUNS", 8):
        assert findings_of(bug, Caught.ATTACK, workshop) == []


@pytest.mark.slow
def test_the_attack_does_not_refute_the_clean_engine(workshop: Workshop) -> None:
    with fixed_randomness(4):
        clean = workshop.clean(Engine.STEFFLE_LONG)
        assert findings(Caught.ATTACK, workshop, Engine.STEFFLE_LONG, clean, None) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", [one for one in Engine if one is not Engine.STEFFLE_LONG], ids=lambda e: e.name)
def test_false_alarms_stay_within_what_is_stated(engine: Engine, workshop: Workshop) -> None:
    """Twenty clean runs, noise and batches drawn anew in each; `tests.planted_bugs.clean_runs` makes a hundred."""
    runs = 20
    alarms = [said for seed in range(runs) if (said := flagged(workshop, engine, 100 + seed))]
    assert len(alarms) <= most_alarms(runs), alarms
