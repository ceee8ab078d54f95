"""Banded noise: columns of norm 1, separation, the price by brute force, and every refusal by name."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from calibrate.accountants.gaussian import gaussian_delta
from calibrate.banded import banded_strategy, prefix_error
from calibrate.budget import calibrate_plan
from calibrate.epsilon_so_far import event_after
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import DataBinding, Issuer
from calibrate.manifest.draft import BudgetSubject, draft_document
from calibrate.plans import plan_from_mapping
from calibrate.plans.gaussian import CorrelatedNoise, GaussianPlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.questions import choose_bands, epsilon, rounds, sigma
from calibrate.releases import MOST_BANDS, Gaussian, Repeated, Sampled, check_column
from calibrate.sampling import Batch, Cyclic, SamplingName
from privfair.cli import cli

DELTA = 1e-5


def _matrix(column: tuple[float, ...], rounds_: int) -> np.ndarray:
    """The lower-triangular Toeplitz matrix of a column."""
    first = np.zeros(rounds_)
    first[: min(rounds_, len(column))] = column[:rounds_]
    return np.tril(toeplitz(first))


# The strategy.


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 40), st.integers(1, 300))
def test_columns_have_norm_one_and_never_more(bands: int, rounds_: int) -> None:
    column = banded_strategy(bands, rounds_)
    squares = sum(Fraction(value) ** 2 for value in column)
    assert len(column) == bands
    assert 1 - 1e-9 < squares <= 1
    assert min(column) >= 0


@pytest.mark.parametrize(("bands", "rounds_"), [(2, 2), (3, 10), (8, 40), (40, 40)])
def test_the_predicted_error_is_that_of_the_matrices(bands: int, rounds_: int) -> None:
    column = banded_strategy(bands, rounds_)
    factor = np.tril(np.ones((rounds_, rounds_))) @ np.linalg.inv(_matrix(column, rounds_))
    assert prefix_error(column, rounds_) == pytest.approx(np.square(factor).sum() / rounds_, rel=1e-8)
    assert prefix_error((1.0,), rounds_) == (rounds_ + 1) / 2


def test_more_bands_never_hurt_and_no_small_change_helps() -> None:
    errors = [prefix_error(banded_strategy(bands, 200), 200) for bands in (1, 2, 4, 8, 16, 32)]
    assert all(more < fewer for fewer, more in pairwise(errors))
    column = np.array(banded_strategy(6, 50))
    for place, change in product(range(1, 6), (-1e-3, 1e-3)):
        moved = column.copy()
        moved[place] += change
        assert prefix_error(moved, 50) > prefix_error(column, 50)


def test_the_strategy_beats_the_truncated_square_root() -> None:
    root = np.cumprod(np.concatenate(([1.0], 1 - 0.5 / np.arange(1.0, 10))))
    assert prefix_error(banded_strategy(10, 1000), 1000) < 0.8 * prefix_error(root, 1000)


def test_a_strategy_is_the_same_every_time() -> None:
    first = banded_strategy(7, 90)
    banded_strategy.cache_clear()
    assert banded_strategy(7, 90) == first


@pytest.mark.parametrize("column", [(), (0.0, 1.0), (0.9, 0.9), (0.5, 0.5), (-0.8, 0.6)])
def test_a_column_that_cannot_be_signed_is_refused(column: tuple[float, ...]) -> None:
    with pytest.raises(InvalidInput, match="norm 1"):
        check_column(column)


def test_too_many_bands_are_refused() -> None:
    with pytest.raises(InvalidInput, match="exceeds"):
        banded_strategy(MOST_BANDS + 1, 10)


# The price.


@pytest.mark.parametrize(("groups", "bands", "rounds_"), [(2, 2, 5), (3, 2, 7), (3, 3, 9), (4, 3, 8)])
def test_sensitivity_over_all_patterns_is_the_root_of_the_participations(groups: int, bands: int, rounds_: int) -> None:
    """Every sign pattern of contributions at every group's rounds, by brute force."""
    matrix = _matrix(banded_strategy(bands, rounds_), rounds_)
    largest = 0.0
    for group in range(groups):
        own = range(group, rounds_, groups)
        columns = matrix[:, list(own)]
        gram = columns.T @ columns
        assert np.allclose(gram - np.diag(np.diag(gram)), 0)  # separation makes columns orthogonal
        for signs in product((-1.0, 1.0), repeat=len(own)):
            largest = max(largest, float(np.linalg.norm(columns @ np.array(signs))))
    cyclic = Cyclic(groups, bands=bands)
    assert largest <= math.sqrt(cyclic.epochs_for(rounds_)) + 1e-9
    assert largest >= math.sqrt(cyclic.whole_columns(rounds_)) - 1e-6


def test_without_separation_the_columns_meet() -> None:
    """Why fewer groups than bands are refused: two equal contributions one round apart move more than sqrt(2)."""
    matrix = _matrix(banded_strategy(3, 9), 9)
    assert np.linalg.norm(matrix[:, 2] + matrix[:, 3]) > 1.2 * math.sqrt(2)
    with pytest.raises(InvalidInput, match="bands"):
        Cyclic(2, bands=3)


def test_whole_groups_cost_one_gaussian_per_cycle() -> None:
    found = epsilon(noise_multiplier=4.0, sampling="cyclic", batches=20, bands=20, epochs=10, delta=DELTA)
    exact = epsilon(noise_multiplier=4.0, rounds=10, delta=DELTA)
    assert found.upper == exact.upper
    assert exact.lower * (1 - 1e-8) < found.lower <= exact.lower
    assert gaussian_delta(math.sqrt(10) / 4, found.upper) == pytest.approx(DELTA, rel=1e-6)


def test_a_begun_cycle_counts_whole_and_only_whole_columns_are_attained() -> None:
    found = epsilon(noise_multiplier=2.0, sampling="cyclic", batches=5, bands=4, rounds=12, delta=DELTA)
    assert found.upper == epsilon(noise_multiplier=2.0, rounds=3, delta=DELTA).upper
    assert found.lower == pytest.approx(epsilon(noise_multiplier=2.0, rounds=2, delta=DELTA).lower, rel=1e-6)
    short = epsilon(noise_multiplier=2.0, sampling="cyclic", batches=5, bands=4, rounds=3, delta=DELTA)
    assert short.lower == 0
    assert short.upper == epsilon(noise_multiplier=2.0, rounds=1, delta=DELTA).upper


def test_one_group_is_poisson_sampling() -> None:
    one = epsilon(noise_multiplier=1.0, sampling="cyclic", batches=1, sampling_rate=0.01, rounds=100, delta=DELTA)
    poisson = epsilon(noise_multiplier=1.0, sampling_rate=0.01, rounds=100, delta=DELTA)
    assert one == poisson


def test_drawing_from_groups_amplifies_as_poisson_with_the_larger_rate() -> None:
    drawn = epsilon(
        noise_multiplier=2.0, sampling="cyclic", batches=4, bands=4, sampling_rate="1/40", rounds=200, delta=DELTA
    )
    poisson = epsilon(noise_multiplier=2.0, sampling_rate=0.1, rounds=50, delta=DELTA)
    assert drawn.upper == poisson.upper
    assert drawn.lower == pytest.approx(poisson.lower, rel=1e-6)


def test_the_price_is_monotone_in_every_parameter() -> None:
    def price(z: float = 2.0, batches: int = 4, rate: str = "1/40", rounds_: int = 80) -> float:
        found = epsilon(
            noise_multiplier=z, sampling="cyclic", batches=batches, sampling_rate=rate, rounds=rounds_, delta=DELTA
        )
        return found.upper

    assert price(z=2.5) < price() < price(z=1.5)
    assert price(rounds_=40) < price() < price(rounds_=160)
    assert price(rate="1/80") < price() < price(rate="1/20")
    assert price() < price(batches=8)  # at the same rate, larger shares of smaller groups amplify less


def test_sigma_and_rounds_answer_the_same_question() -> None:
    z = sigma(epsilon=2.0, delta=DELTA, sampling="cyclic", batches=10, bands=10, rounds=50)
    found = epsilon(noise_multiplier=z, sampling="cyclic", batches=10, rounds=50, delta=DELTA)
    assert found.upper == pytest.approx(2.0, rel=1e-9)
    assert rounds(epsilon=2.0, delta=DELTA, noise_multiplier=1.0001 * z, sampling="cyclic", batches=10) == 50


def test_replaced_units_pay_two_bounds_and_attributes_nothing_proved() -> None:
    both = epsilon(noise_multiplier=4.0, sampling="cyclic", batches=5, relation="replace-one", rounds=5, delta=DELTA)
    assert both.upper == epsilon(noise_multiplier=2.0, delta=DELTA).upper
    with pytest.raises(UnsupportedCombination, match="change its group"):
        epsilon(
            noise_multiplier=4.0,
            sampling="cyclic",
            batches=5,
            sampling_rate="1/50",
            relation="replace-one",
            rounds=5,
            delta=DELTA,
        )
    with pytest.raises(UnsupportedCombination, match="cyclic"):
        epsilon(noise_multiplier=4.0, sampling="cyclic", batches=5, relation="replace-attribute", rounds=5, delta=DELTA)
    with pytest.raises(InvalidInput, match="revealed"):
        Cyclic(5, batch=Batch.REVEALED)


def test_bands_are_chosen_by_the_predicted_error() -> None:
    assert choose_bands(epsilon=0.1, delta=DELTA, batches=4, rounds=80) == 1
    assert choose_bands(epsilon=8.0, delta=DELTA, batches=4, rounds=4) == 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"sampling": "cyclic"},
        {"sampling": "cyclic", "sampling_rate": 0.1},
        {"sampling": "cyclic", "batches": 5, "sampling_rate": 0.3},
        {"sampling": "poisson", "sampling_rate": 0.1, "bands": 3},
    ],
)
def test_a_question_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=r"batches|sampling_rate|bands"):
        epsilon(noise_multiplier=1.0, delta=DELTA, **wrong)  # type: ignore[arg-type]


def test_the_command_line_prices_banded_noise() -> None:
    flags = "--noise-multiplier 4 --sampling cyclic --batches 20 --bands 20 --rounds 200 --delta 1e-5 --json"
    said = CliRunner().invoke(cli, ["account", *flags.split()])
    assert said.exit_code == 0, said.output
    assert json.loads(said.output)["epsilon"]["upper"] == pytest.approx(3.34141, rel=1e-5)


def test_the_price_so_far_counts_begun_cycles() -> None:
    one = Sampled(Cyclic(4, 1.0, 4), Gaussian(2.0))
    assert event_after(Repeated(one, 5), 6, 20) == Repeated(one, 2)


def test_the_command_line_calibrates_and_explains_banded_noise() -> None:
    flags = "--epsilon 2 --delta 1e-5 --rounds 8 --batches 4"
    said = CliRunner().invoke(
        cli, ["calibrate", "gaussian", *flags.split(), "--noise", "banded", "--explain", "--json"]
    )
    assert said.exit_code == 0, said.output
    found = json.loads(said.output)
    assert found["releases"][0]["bands"] == 4
    assert found["certified"]["upper"] == 2.0
    wrong = CliRunner().invoke(cli, ["calibrate", "gaussian", *flags.split(), "--noise", "bandit"])
    assert wrong.exit_code == 2
    assert "neither a number nor banded" in wrong.output


# The plan and its signed document.


def test_a_plan_says_banded_and_takes_its_batches_in_a_cycle() -> None:
    plan = plan_from_mapping("gaussian", {"noise": "banded", "batches": 10, "rounds": 30})
    assert isinstance(plan, GaussianPlan)
    assert (plan.noise, plan.sampling, plan.bands) == (CorrelatedNoise.BANDED, SamplingName.CYCLIC, 10)
    assert plan.batch_sampling() == Cyclic(10, 1.0, 10)
    assert plan_from_mapping("gaussian", plan.parameters()) == plan
    drawn = plan_from_mapping("gaussian", {"noise": "banded", "batches": 10, "sampling_rate": 0.01, "rounds": 30})
    assert isinstance(drawn, GaussianPlan)
    assert drawn.batch_sampling() == Cyclic(10, 0.1, 10)
    assert any("no one learns" in text for text in drawn.assumptions())


@pytest.mark.parametrize(
    ("given_", "named"),
    [
        ({"noise": "banded"}, "batches"),
        ({"noise": "correlated", "batches": 4}, "noise"),
        ({"noise": "banded", "batches": 4, "bands": 5}, "bands"),
        ({"noise": "banded", "batches": 4, "sampling_rate": 0.5}, "sampling-rate"),
        ({"noise": "banded", "batches": 4, "sampling": "random-allocation"}, "sampling"),
        ({"noise": "banded", "batches": 4, "sampling_rate": 0.1, "relation": "replace-one"}, "relation"),
        ({"batches": 4, "sampling": "cyclic", "bands": 2}, "bands"),
        ({"sampling": "cyclic"}, "batches"),
    ],
)
def test_what_is_not_proved_is_refused_by_name(given_: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        plan_from_mapping("gaussian", {"rounds": 20, "sampling_rate": 0.25, **given_})


def _document(**changes: object) -> object:
    plan = GaussianPlan(0.25, 8, noise=CorrelatedNoise.BANDED, batches=4)
    budget = calibrate_plan(plan, EpsilonDelta(2.0, DELTA))
    data = DataBinding.of("0" * 64, [("north", 100)])
    return draft_document(budget, BudgetSubject(data), Issuer()).document.model_copy(update=changes)


def test_the_document_signs_the_coefficients() -> None:
    document = _document()
    signed = document.releases[0]  # type: ignore[attr-defined]
    assert signed.strategy == banded_strategy(4, 8)
    assert signed.sigma == signed.noise_multiplier * signed.sensitivity
    interval = document.accounting.interval  # type: ignore[attr-defined]
    assert 0.999999 * interval.upper < interval.lower <= interval.upper <= 2.0


def test_tampered_coefficients_are_refused() -> None:
    """Longer columns, other heads, more bands than were priced, and no cycle at all."""
    text = _document().model_dump(mode="json", by_alias=True)  # type: ignore[attr-defined]
    kind = type(_document())
    own = text["releases"][0]["strategy"]
    for strategy in ([1.1 * c for c in own], [-own[0], *own[1:]], [0.5 * c for c in own]):
        wrong = json.loads(json.dumps(text))
        wrong["releases"][0]["strategy"] = strategy
        with pytest.raises(ValueError, match="strategy"):
            kind.model_validate_json(json.dumps(wrong))  # type: ignore[attr-defined]
    wrong = json.loads(json.dumps(text))
    wrong["releases"][0]["strategy"] = list(banded_strategy(5, 8))
    with pytest.raises(ValueError, match="mixes 5 rounds"):
        kind.model_validate_json(json.dumps(wrong))  # type: ignore[attr-defined]
    wrong = json.loads(json.dumps(text).replace('"bands": 4, "batch"', '"bands": 1, "batch"'))
    with pytest.raises(ValueError, match="mixes 4 rounds"):
        kind.model_validate_json(json.dumps(wrong))  # type: ignore[attr-defined]
