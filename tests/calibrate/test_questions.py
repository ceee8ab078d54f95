"""`pf.sigma`, `pf.epsilon`, `pf.rounds`, `pf.check_theorem`: what a notebook asks, and what the README shows."""

from __future__ import annotations

import doctest
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest

import privfair as pf
from calibrate import questions
from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.solve import solve_noise

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_shows_what_python_answers() -> None:
    flags = doctest.ELLIPSIS
    assert doctest.testfile(str(README), module_relative=False, optionflags=flags).failed == 0
    for module in (questions, pf):
        assert doctest.testmod(module, optionflags=flags).failed == 0


def test_importing_privfair_loads_neither_numpy_nor_torch() -> None:
    script = "import sys, privfair; assert not {'numpy', 'torch', 'calibrate'} & set(sys.modules); print(dir(privfair))"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "sigma" in shown
    assert "__version__" in shown


def test_rounds_stays_a_function_when_the_engine_is_loaded() -> None:
    pytest.importorskip("privfair.federation.coordinator", reason="the engine needs torch")

    assert callable(pf.rounds)
    with pytest.raises(AttributeError, match="sigma"):
        _ = pf.sigmas  # type: ignore[attr-defined]


def test_sigma_epsilon_and_rounds_agree() -> None:
    sampled = {"sampling_rate": 0.02, "delta": 1e-6}
    noise = pf.sigma(epsilon=2, rounds=500, **sampled)  # type: ignore[arg-type]
    assert pf.epsilon(noise_multiplier=noise, rounds=500, **sampled).upper <= 2 * (1 + 1e-9)  # type: ignore[arg-type]
    assert 500 <= pf.rounds(epsilon=2, noise_multiplier=noise, **sampled) <= 502  # type: ignore[arg-type]


def test_several_values_of_one_batch_are_given_as_ratios() -> None:
    first = pf.sigma(epsilon=3.5, delta=1e-5, sampling_rate=0.05, rounds=268, noise_ratios=(1.0, 2.5))
    both = pf.epsilon(noise_multiplier=(first, 2.5 * first), delta=1e-5, sampling_rate=0.05, rounds=268)
    assert both.lower <= 3.5
    assert both.upper == pytest.approx(3.5, rel=1e-4)


def test_shuffled_epochs_are_counted_in_batches() -> None:
    told = {"sampling": "shuffled", "relation": "replace-one", "delta": 1e-5}
    two = pf.epsilon(noise_multiplier=5.0, batches=10, epochs=2, **told)  # type: ignore[arg-type]
    assert two == pf.epsilon(noise_multiplier=5.0, sampling_rate="25/250", rounds=20, **told)  # type: ignore[arg-type]
    assert two == pf.epsilon(noise_multiplier=5.0, sampling_rate=Fraction(1, 10), rounds=20, **told)  # type: ignore[arg-type]
    assert pf.rounds(epsilon=two.upper, noise_multiplier=5.0, batches=10, **told) == 20  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"noise_multiplier": 1.0, "delta": 2.0}, "delta"),
        ({"noise_multiplier": 1e-3, "delta": 1e-5}, "noise_multiplier"),
        ({"noise_multiplier": 1e200, "delta": 1e-5}, "noise_multiplier"),
        ({"noise_multiplier": (), "delta": 1e-5}, "noise_multiplier"),
        ({"noise_multiplier": "loud", "delta": 1e-5}, "noise multiplier"),
        ({"noise_multiplier": math.nan, "delta": 1e-5}, "noise multiplier"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 10**13}, "rounds"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "rounds": 0}, "rounds"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "sampling": "sometimes"}, "poisson"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "relation": "remove"}, "add-remove"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "sampling_rate": 1.5}, "sampling_rate"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "sampling_rate": "1e-999999999"}, "sampling_rate"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "sampling": "shuffled", "sampling_rate": 0.3}, "1/3"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "sampling": "poisson"}, "sampling_rate"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "batches": 10}, "batches"),
        ({"noise_multiplier": 1.0, "delta": 1e-5, "epochs": 10}, "epochs"),
    ],
)
def test_a_bad_argument_is_named_with_the_rule(given: dict[str, object], names: str) -> None:
    with pytest.raises(InvalidInput, match=names):
        pf.epsilon(**given)  # type: ignore[arg-type]


def test_noise_that_can_not_pay_for_one_round_is_refused() -> None:
    with pytest.raises(InvalidInput, match="first round"):
        pf.rounds(epsilon=0.1, delta=1e-5, noise_multiplier=0.5, sampling_rate=0.5)
    with pytest.raises(UnsupportedCombination, match="add-remove"):
        pf.epsilon(noise_multiplier=1.0, delta=1e-5, sampling="shuffled", batches=10)


def test_theorems_are_listed_and_judged() -> None:
    assert {"fpfl.algorithm-1", "fedfdp.theorem-2"} <= {theorem.id for theorem in pf.theorems()}
    assert pf.check_theorem("fpfl.gaussian-rdp", Delta=1).outcome.value == "holds"


def test_an_interval_is_readable_in_a_notebook() -> None:
    shown = pf.EpsilonInterval(0.9, 1.0)._repr_html_()
    assert "0.9" in shown
    assert "certified" in shown


def test_a_question_that_was_asked_before_is_not_computed_again() -> None:
    cached = (solve_noise, best_epsilon, questions.most_rounds)

    def ask() -> list[int]:
        noise = questions.sigma(epsilon=1.0, rounds=100, sampling_rate=0.01, delta=1e-5)
        questions.epsilon(noise_multiplier=noise, rounds=100, sampling_rate=0.01, delta=1e-5)
        questions.rounds(epsilon=1.0, noise_multiplier=noise, sampling_rate=0.01, delta=1e-5)
        return [each.cache_info().misses for each in cached]

    assert ask() == ask()
