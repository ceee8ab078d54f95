"""The attribute decoder reads every notion's h_W: without noise all coins that a message depends on come out right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.coins.attribute_coins import decode
from audit.runs.evidence import RunEvidence
from audit.runs.rerun import coin_runs
from tests.privfair.small_runs import Desk, steffle_plan


@pytest.mark.parametrize(
    ("notion", "blocks"),
    [
        pytest.param("demographic-parity", 1, marks=pytest.mark.slow),
        pytest.param("equalised-odds", 2, marks=pytest.mark.slow),
        pytest.param("equal-opportunity", 1, marks=pytest.mark.slow),
    ],
)
def test_coins_are_read_off_messages_without_noise(notion: str, blocks: int, tmp_path: Path) -> None:
    shares = [0.25 if notion != "demographic-parity" else 0.5] * 2 * blocks
    plan = steffle_plan(120, f'notion = "{notion}"\nmeasure-every = 200', minority=0.25, shares=tuple(shares))
    desk = Desk.at(tmp_path, plan)
    desk.train(desk.budget(research_noise=True))
    evidence = RunEvidence.read(desk.folder / "run", plan_path=desk.plan)
    (run,) = ((one.coins, decode(one)) for one in coin_runs(evidence, 1, seed=0))
    coins, decoded = run
    for silo in evidence.silos:
        asked = silo.y.numpy() == 1 if notion == "equal-opportunity" else np.ones(len(silo), dtype=bool)
        right = (decoded[silo.name].without_noise > 0) == (coins[silo.name] == 1)
        assert right[asked].mean() > 0.99
        # What the run published says far less: it was calibrated.
        assert ((decoded[silo.name].scores > 0) == (coins[silo.name] == 1))[asked].mean() < 0.8
