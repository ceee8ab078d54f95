"""An example plan that is compared with FedFDP is whole, and the page of FedFDP's rounds is computed, not written."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.plans import plan_from_mapping
from calibrate.questions import rounds
from privfair.algorithms.ali_dpfl import AliDpflOptions
from privfair.plan.plan import Plan
from privfair.plan.training import read_training_plan

DOCS = Path(__file__).parents[2] / "docs"


def test_the_ali_dpfl_example_is_whole() -> None:
    training = read_training_plan(DOCS / "examples" / "ali-dpfl.toml")
    file = Plan.read(DOCS / "examples" / "ali-dpfl.toml")
    assert plan_from_mapping(file.algorithm, file.privacy).rounds == 300
    assert training.own.communications == file.training["communications"]
    assert isinstance(training.own, AliDpflOptions)


@pytest.mark.parametrize(
    ("sigma", "printed", "alone", "charged"), [(1.0, 6, 20, 17), (2.0, 268, 321, 265), (3.0, 708, 824, 584)]
)
def test_rounds_that_the_printed_noise_of_fedfdp_affords(sigma: float, printed: int, alone: int, charged: int) -> None:
    """FedFDP, Section VIII: epsilon 2, q = 0.05, delta = 1e-5, sigma_l = 5; the loss on the gradient's batch."""
    promise = {"epsilon": 2.0, "delta": 1e-5, "sampling_rate": 0.05}
    assert rounds(**promise, noise_multiplier=sigma) == alone
    found = rounds(**promise, noise_multiplier=(sigma, 5.0))
    assert found == charged
    assert (found < printed) == (sigma >= 2)
