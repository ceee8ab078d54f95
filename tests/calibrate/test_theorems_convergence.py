"""Claims about convergence, hybrid modes and what FedFDP leaves out: formulas against simulations and worst cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from calibrate.theorems import convergence
from calibrate.theorems.catalogue import theorem_named
from calibrate.theorems.theorem import BoundComparison, EpsilonComparison, Outcome


def found(id: str, **given: object) -> float:
    comparison = theorem_named(id).judge(given).finding.comparison
    return comparison.found if isinstance(comparison, BoundComparison) else comparison.true.lower


def test_the_exact_course_of_noisy_steps_is_that_of_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step size and 16 rounds, d = 400: the mean square at a random iterate, 500 runs."""
    monkeypatch.setattr(convergence, "_STEPS", np.array([0.2]))
    monkeypatch.setattr(convergence, "_MOST_ROUNDS", 16)
    rng, rounds, dimension, size, silos = np.random.default_rng(1), 16, 400, 100, 4
    setting = theorem_named("steffle.theorem-3.4").setting(
        {"dimension": dimension, "silo_size": size, "silos": silos, "epsilon": 10}
    )
    exact, best = convergence._gap_of_noisy_steps(setting)
    assert best == rounds
    deviation = math.sqrt(8 * rounds * math.log(1e5) / (10 * size) ** 2 / silos)
    theta, squares = np.zeros((500, dimension)), []
    theta[:, 0] = 1.0
    for _ in range(rounds):
        theta = theta - 0.2 * (theta + deviation * rng.standard_normal(theta.shape))
        squares.append(np.square(theta).sum(axis=1).mean())
    assert float(np.mean(squares)) == pytest.approx(exact, rel=0.02)


def test_the_exact_course_of_local_steps_is_that_of_a_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of ten clients, three local steps, 30 rounds: averaged over 10,000 runs in one dimension."""
    monkeypatch.setattr(convergence, "_STEPS", np.array([0.1]))
    rng, runs = np.random.default_rng(2), 10_000
    setting = theorem_named("mmd.theorem-5.1").setting({"rounds": 30, "local_steps": 3, "clients": 2, "population": 10})
    exact = convergence._gap_of_local_steps(setting)
    optima = np.repeat([1.0, -1.0], 5)
    best = math.inf
    for server in (1.0, 2.0, 4.0):
        theta, squares = np.ones(runs), []
        for _ in range(30):
            first = rng.integers(10, size=runs)
            chosen = np.stack((first, (first + rng.integers(1, 10, size=runs)) % 10))
            local = np.tile(theta, (2, 1))
            for _ in range(3):
                local = local - 0.1 * (local - optima[chosen] + rng.standard_normal(local.shape))
            theta = theta + server * (local.mean(axis=0) - theta)
            squares.append(np.square(theta).mean())
        best = min(best, float(np.mean(squares)))
    assert best == pytest.approx(exact, rel=0.04)


def test_more_local_steps_do_not_average_out_clients_that_disagree() -> None:
    verdict = theorem_named("mmd.theorem-5.1").judge({"kernel": "gaussian"})
    assert verdict.outcome is Outcome.HOLDS
    assert verdict.as_quantified is not None
    assert verdict.as_quantified.outcome is Outcome.FAILS
    at = {"kernel": "gaussian", "rounds": 10**5, "clients": 1}
    assert found("mmd.theorem-5.1", **at, local_steps=10**4) > 0.9 / math.sqrt(10**5)
    assert found("mmd.theorem-5.1", **at, local_steps=10**4, population=1) < 1e-3
    proved = theorem_named("mmd.theorem-5.1").judge({"kernel": "gaussian", "reading": "proved"})
    assert proved.as_quantified is not None
    assert proved.as_quantified.outcome is Outcome.UNDECIDED


@pytest.mark.parametrize(("kernel", "smooth"), [("gaussian", True), ("laplacian", False), ("energy", False)])
def test_a_kernel_with_a_kink_is_outside_the_convergence_theorem(kernel: str, smooth: bool) -> None:
    verdict = theorem_named("mmd.theorem-5.1").judge({"kernel": kernel})
    assert (verdict.outcome is not Outcome.NOT_APPLICABLE) == smooth


def test_the_ball_must_hold_the_maximiser() -> None:
    """Two groups of half, predictions that tell them apart: W* has the entry 1/sqrt(rho) in each column."""
    theorem = theorem_named("steffle.theorem-C.9")
    assert theorem.judge().outcome is Outcome.HOLDS
    conditional, shares = np.eye(2), np.array([0.5, 0.5])
    needed = float(np.linalg.norm(conditional / np.sqrt(shares)[:, None]))
    assert theorem.judge({"w_radius": needed}).outcome is Outcome.HOLDS
    assert "holds every W*" in theorem.judge({"w_radius": 0.99 * needed}).broken[0]
    assert theorem.judge({"least_probability": 0}).outcome is Outcome.NOT_APPLICABLE
    assert theorem.judge({"groups": 3}).outcome is Outcome.NOT_APPLICABLE


def test_hybrid_modes_cost_what_theorem_33_costs() -> None:
    price = found("steffle.theorem-3.3")
    assert price == pytest.approx(7.485, abs=0.01)
    for silos in (1, 3, 40):
        assert found("steffle.section-4.central", silos=silos) == pytest.approx(price, rel=0.03)
    assert found("steffle.appendix-F.general") == pytest.approx(price)
    fixed = [found("steffle.appendix-F.general", noise="fixed", realised=b) for b in (1, 64, 256)]
    assert fixed[0] > fixed[1] > fixed[2] == pytest.approx(price)


def test_a_bound_that_is_the_mean_of_what_it_bounds_shrinks_to_nothing() -> None:
    rng, bound = np.random.default_rng(3), 2.5
    for _ in range(60):
        bound = float(np.minimum(bound, rng.exponential(size=20_000)).mean())
    assert bound == pytest.approx(found("fedfdp.equation-14", rounds=60), rel=0.05)
    assert found("fedfdp.equation-14") < 0.01
    assert theorem_named("fedfdp.equation-14").judge().outcome is Outcome.FAILS


def test_dividing_by_the_realised_size_doubles_the_sensitivity() -> None:
    """The extreme data set itself, one round of a large batch: the threshold test beats what the noisy sum allows."""
    others, sigma = 5000, 2.0
    without, with_it = 1.0, (others - 1) / (others + 1)
    apart = (without - with_it) / (sigma / (others + 1))
    assert apart == pytest.approx(2 / sigma, rel=1e-3)
    verdict = theorem_named("fedfdp.algorithm-2.division").judge()
    assert verdict.outcome is Outcome.FAILS
    assert isinstance(verdict.finding.comparison, EpsilonComparison)
    assert verdict.finding.comparison.true.lower == pytest.approx(5.483, abs=0.01)
    assert verdict.to_json()["true_epsilon"] is None
    assert theorem_named("fedfdp.algorithm-2.division").judge({"divisor": "expected"}).outcome is Outcome.HOLDS


def test_three_point_fifty_two_is_open_because_its_rounds_are_not_printed() -> None:
    verdict = theorem_named("fedfdp.section-VIII.epsilon").judge()
    assert verdict.outcome is Outcome.UNDECIDED
    assert verdict.finding.details["rounds"] == 776
    assert verdict.finding.details["rounds_with_loss"] == 683
    assert theorem_named("fedfdp.section-VIII.epsilon").judge({"sigma_l": 100}).outcome is Outcome.HOLDS
