"""Attribute privacy from the file on: an attribute reaches its randomised response, and no bit of what follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from calibrate.plans.fair_plugin import ATTRIBUTE
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import FairPlugin
from privfair.algorithms.pay_once import PayOnce
from privfair.contribution import Published
from privfair.models.trees import LEFT
from privfair.run.prepare import PreparedRun
from tests.privfair.test_neighbouring_files import _CUT_BY_AGE, CASES, _prepare, _signed, _write, attributes_replaced


def _clear_run(run: PreparedRun, responses: Callable[[SiloTensors], np.ndarray]) -> dict[str, bytes]:
    """Everything that all parties send after the responses, to the last bit, if these are the responses."""
    algorithm, sent = run.algorithm, dict[str, bytes]()
    assert isinstance(algorithm, FairPlugin | PayOnce)
    state = algorithm.start()
    for step in range(run.updates):
        received = {}
        for silo in run.silos:
            message = algorithm.contribution(state, step, silo, torch.arange(silo.units))
            values = {name: np.array(value) for name, value in (message.clear or {}).items()}
            assert not message.noisy
            assert set(message.randomized or {}) == (set() if step else {ATTRIBUTE})
            sent |= {f"{step} {silo.name} {name}": value.tobytes() for name, value in values.items()}
            if not step:
                values[ATTRIBUTE] = responses(silo)
            received[silo.name] = {n: Published(step, silo.name, n, v.astype(float)) for n, v in values.items()}
        state = algorithm.update(state, received)
    return sent | {"model": algorithm.theta(state).numpy().tobytes()}


@pytest.mark.parametrize("data", ["", 'split = "record"\n', _CUT_BY_AGE], ids=["by position", "by record", "by age"])
@pytest.mark.parametrize(
    "name", ["pay-once", "fair-plugin, attributes", "fair-plugin, trees", "fair-plugin, distilled"]
)
def test_an_attribute_of_the_file_reaches_its_response_and_nothing_else(name: str, data: str, tmp_path: Path) -> None:
    """Loader, split, cut, all rounds: whoever changes one attribute changes no bit of what follows the responses."""
    desk, rows, envelope = _signed(tmp_path, replace(CASES[name], data=data), 200)
    changed, base = 0, _prepare(desk, envelope)
    told = _clear_run(base, lambda silo: np.arange(len(silo)) % 2)
    trees = [np.frombuffer(value) for key, value in told.items() if key.endswith("tree")]
    assert bool(trees) == ("trees" in CASES[name].training)
    assert not trees or any(tree[LEFT] > 0 for tree in trees), "trees that split nothing show nothing"
    for neighbour in list(attributes_replaced(rows, tmp_path))[::2]:
        _write(tmp_path, neighbour)
        run = _prepare(desk, envelope)
        changed += any(not torch.equal(one.s, other.s) for one, other in zip(base.silos, run.silos, strict=True))
        assert _clear_run(run, lambda silo: np.arange(len(silo)) % 2) == told
    assert changed > 1, "some neighbours differ in a training record, or the test shows nothing"
    assert _clear_run(base, lambda silo: silo.s.numpy()) != told, "what is sent hangs on the responses"
