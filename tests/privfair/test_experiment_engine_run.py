"""The experiments' helper trains by the engine: without a promise as by hand, with one under the signed noise."""

from __future__ import annotations

import numpy as np
import torch

from calibrate.budget import calibrate_plan
from calibrate.plans.clipped_sums import FpflPlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.sampling import SamplingName
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fpfl import STATISTICS, Fpfl, FpflOptions
from privfair.contribution import Published
from privfair.models.linear import LogisticRegression
from privfair_experiments import engine_run

USERS, ROUNDS = 20, 5


def _silo() -> SiloTensors:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=torch.float64)
    numbers = torch.arange(60)
    return SiloTensors("users", x, numbers % 2, numbers // 2 % 2, numbers % USERS)


def _algorithm(clip: float | None) -> Fpfl:
    return Fpfl(LogisticRegression(3), FpflOptions(records_per_user=3.0), 2, float(USERS), clip)


def test_without_a_promise_it_is_the_loop_by_hand() -> None:
    algorithm, silo = _algorithm(None), _silo()
    signed = engine_run.unpromised(algorithm, ROUNDS, {"users": USERS})
    theta = engine_run.train(algorithm, signed, (silo,), seed=3)
    state = algorithm.start()
    for _ in range(ROUNDS):
        message = algorithm.contribution(state, 0, silo, torch.arange(USERS))
        values = np.array((message.clear or {})[STATISTICS])
        state = algorithm.update(state, {"users": {STATISTICS: Published(0, "users", STATISTICS, values)}})
    np.testing.assert_array_equal(theta, algorithm.theta(state))


def test_with_a_promise_noise_follows_the_seed() -> None:
    algorithm, silo = _algorithm(1.0), _silo()
    plan = FpflPlan(USERS, 10, ROUNDS, 1.0, SamplingName.POISSON)
    signed = engine_run.promised(algorithm, calibrate_plan(plan, EpsilonDelta(4.0, 1e-3)), {"users": USERS})
    one, again, other = (engine_run.train(algorithm, signed, (silo,), seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.allclose(one, other)
    assert signed.manifest.document.guarantee.epsilon == 4.0
