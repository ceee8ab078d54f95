"""One record more, and a thousand records at a kink of the public first parameters: the published step must not tell.

Where a matrix library rounds a row by its place in the batch, the record put in front of the others turns a unit of
every second one on or off, and the published sum moves by hundreds of clips. All through plan, signature and engine.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chi2

import privfair as pf
from privfair.models.perceptron import Perceptron
from privfair.transcript import Transcript

FEATURES, HIDDEN, RECORDS, CLIP = 10, 8, 1000, 0.1
COLUMNS = [f"f{place}" for place in range(FEATURES)]


THETA = Perceptron(FEATURES, (HIDDEN,), 2).initial(0)


def _at_a_kink() -> np.ndarray:
    """A record at a hidden unit's kink, seeded: one that torch.addmm puts on either side by its row, if there is one.

    Of those found, the one whose gradient differs most between the two sides.
    """
    named = Perceptron(FEATURES, (HIDDEN,), 2).named_parameters(THETA)
    weight, bias, second, _ = (piece.float() for piece in named.values())
    random, best = torch.Generator().manual_seed(5), (False, 0.0, np.zeros(FEATURES))
    for _ in range(4000):
        x = torch.rand(FEATURES, generator=random, dtype=torch.float64)
        unit = int(torch.randint(HIDDEN, (1,), generator=random))
        row, place = weight[unit].double(), int(weight[unit].abs().argmax())
        x[place] = -(x @ row - x[place] * row[place] + bias[unit].double()) / row[place]
        out = torch.addmm(bias, x.float().expand(4, FEATURES).contiguous(), weight.T)[:, unit]
        moves = float((second[1, unit] - second[0, unit]).abs() * x.norm())
        differs = bool((out[0] > 0) != (out[1] > 0))
        if 0 < float(x[place]) < 1 and (differs, moves) > best[:2]:
            best = (differs, moves, x.float().double().numpy())
    return best[2]


def _published_sum(frame: pd.DataFrame, out: Path) -> tuple[np.ndarray, float]:
    """The noisy sum of the one round, and the standard deviation of its noise."""
    plan = pf.Plan.from_frames(
        {"north": frame},
        target="outcome",
        epsilon=1.0,
        delta=1e-5,
        protect="record",
        algorithm="gaussian",
        classes=["no", "yes"],
        bounds=dict.fromkeys(COLUMNS, (0.0, 1.0)),
        at_least=RECORDS,
        rounds=1,
        privacy={"sampling_rate": 1.0, "clip": CLIP},
        training={"model": {"kind": "perceptron", "hidden": [HIDDEN]}},
    )
    budget = plan.sign(pf.generate_key())
    plan.train(budget, out=out)
    (value,) = budget.document.releases
    transcript = Transcript.read(out / "transcript.bin")
    return transcript.value(0, "north", value.name), value.sigma


@pytest.mark.true_noise
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_published_step_does_not_tell_whether_a_record_is_there(tmp_path: Path) -> None:
    """Fails by chance below 1e-9: the noise of two sums is longer than allowed with that probability."""
    kink = _at_a_kink()
    assert kink.any(), "no record at a kink was found"
    rows = np.stack([kink, np.zeros(FEATURES)] * (RECORDS // 2))
    absent = pd.DataFrame(rows, columns=COLUMNS).assign(outcome=["no", "yes"] * (RECORDS // 2))
    more = pd.DataFrame([np.full(FEATURES, 0.5)], columns=COLUMNS).assign(outcome="no")
    first, sigma = _published_sum(absent, tmp_path / "absent")
    second, _ = _published_sum(pd.concat([more, absent], ignore_index=True), tmp_path / "present")
    noise = sigma * math.sqrt(2.0 * float(chi2.isf(1e-10, first.size)))
    assert np.linalg.norm(second - first) <= CLIP + noise
