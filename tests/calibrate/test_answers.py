"""Releases as arguments: the answers of flat calls, at any point of the curve, and solved for any parameter."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privfair as pf
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination
from calibrate.releases import decode_release, encode_release, over_rounds

ROOT = Path(__file__).parents[2]
some = settings(max_examples=60, deadline=None, derandomize=True)
numbers = st.floats(0.1, 50.0)
few = st.integers(1, 9)
samplings = st.one_of(
    st.floats(0.001, 1.0).map(pf.Poisson),
    st.builds(pf.FixedSize, st.integers(20, 90), few, st.sampled_from(pf.Batch)),
    st.builds(pf.ShuffledEpochs, st.integers(20, 90), few),
    st.builds(pf.WithReplacement, st.integers(20, 90), few),
    st.builds(pf.RandomAllocation, st.integers(9, 30), few),
    st.builds(pf.TruncatedPoisson, st.floats(0.001, 0.5), st.integers(20, 90), few),
    st.builds(pf.Cyclic, st.integers(9, 30), st.floats(0.1, 1.0), few),
)
values = st.one_of(numbers.map(pf.Gaussian), numbers.map(pf.Laplace))
on_batches = st.one_of(values, st.lists(values, min_size=1, max_size=3).map(lambda parts: pf.Together(tuple(parts))))
releases: st.SearchStrategy[pf.Release] = st.recursive(
    st.one_of(
        on_batches,
        st.builds(pf.Sampled, samplings, on_batches),
        st.builds(pf.Rounds, st.none() | samplings, on_batches, few),
        st.builds(pf.RandomizedResponse, numbers, st.integers(2, 9)),
        st.builds(pf.NonPrivate, st.sampled_from(["It's public.", 'A "name".']), st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(pf.Repeated, inner, few),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: pf.InSequence(tuple(parts))),
    ),
    max_leaves=6,
)


@some
@given(releases)
def test_a_release_can_be_pasted_back(release: pf.Release) -> None:
    assert eval(repr(release), {"pf": pf}) == release


@some
@given(releases)
def test_rounds_are_signed_as_what_they_stand_for(release: pf.Release) -> None:
    signed = encode_release(release)
    assert encode_release(decode_release(signed)) == signed
    assert '"rounds"' not in str(signed)


def test_operators_compose() -> None:
    a, b, c = pf.Gaussian(1.0), pf.Laplace(2.0), pf.Gaussian(3.0)
    assert a * 3 == 3 * a == pf.Repeated(a, 3)
    assert a + b + c == a + (b + c) == pf.InSequence((a, b, c))
    assert a.sampled(pf.Poisson(0.5)) == pf.Sampled(pf.Poisson(0.5), a)
    with pytest.raises(InvalidInput, match="times"):
        a * 0
    with pytest.raises(TypeError):
        a + 1  # type: ignore[operator]


STEP = pf.Gaussian(1.0).sampled(pf.Poisson(0.01))


def test_flat_calls_are_shorthand_with_the_same_answers() -> None:
    flat = pf.epsilon(noise_multiplier=1.0, sampling_rate=0.01, rounds=1000, delta=1e-5)
    assert (STEP * 1000).epsilon(delta=1e-5) == flat
    noise = pf.sigma(epsilon=1, delta=1e-5, sampling_rate=0.01, rounds=1000)
    made = pf.calibrate(lambda z: pf.Gaussian(z).sampled(pf.Poisson(0.01)) * 1000, epsilon=1, delta=1e-5)
    assert made.value == noise
    assert made.release == pf.Gaussian(noise).sampled(pf.Poisson(0.01)) * 1000
    rounds = pf.rounds(epsilon=2, delta=1e-5, noise_multiplier=1.5, sampling_rate=0.01)
    assert pf.most(lambda n: pf.Gaussian(1.5).sampled(pf.Poisson(0.01)) * n, epsilon=2, delta=1e-5) == rounds


def test_an_epoch_that_is_begun_has_a_lower_end_of_its_own() -> None:
    epochs = pf.ShuffledEpochs(7500, 256)
    begun = pf.Rounds(epochs, pf.Gaussian(4.0), 45)
    drawn = {"sampling": "shuffled", "sampling_rate": "256/7500", "rounds": 45, "relation": "replace-one"}
    found = begun.epsilon(delta=1e-5, relation="replace-one")
    assert found == pf.epsilon(noise_multiplier=4.0, delta=1e-5, **drawn)  # type: ignore[arg-type]
    whole = over_rounds(epochs, pf.Gaussian(4.0), 45).epsilon(delta=1e-5, relation="replace-one")
    assert found.upper == whole.upper
    assert found.lower < whole.lower
    assert (begun * 2).epsilon(delta=1e-5, relation="replace-one").lower < 2 * found.upper


@pytest.mark.parametrize(
    ("release", "relation"),
    [
        (STEP * 1000, "add-remove"),
        (pf.Gaussian(3.0) * 7, "replace-one"),
        (STEP * 300 + pf.Laplace(9.0), "add-remove"),
        (pf.Gaussian(2.0).sampled(pf.WithReplacement(500, 5)) * 40, "replace-attribute"),
        (pf.Rounds(pf.ShuffledEpochs(750, 256), pf.Gaussian(9.0), 4), "replace-one"),
    ],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_delta_is_epsilon_read_the_other_way(release: pf.Release, relation: str, epsilon: float) -> None:
    found = release.delta(epsilon=epsilon, relation=relation)
    assert release.epsilon(delta=found.upper, relation=relation).upper <= epsilon
    assert found.lower == 0 or release.epsilon(delta=found.lower, relation=relation).lower > epsilon
    if not isinstance(release, pf.Rounds):
        assert found.upper <= found.lower * (1 + 1e-3)


def test_delta_where_it_is_known_exactly() -> None:
    advantage = pf.Gaussian(1.0).delta(epsilon=0)
    assert advantage.lower <= math.erf(0.5 / math.sqrt(2)) <= advantage.upper
    assert pf.Laplace(2.0).delta(epsilon=0.51) == pf.CertifiedInterval(0, 0)
    assert pf.NonPrivate("The names.", True).delta(epsilon=3) == pf.CertifiedInterval(1, 1)
    assert pf.NonPrivate("Nothing.", False).delta(epsilon=0) == pf.CertifiedInterval(0, 0)
    with pytest.raises(InvalidInput, match="epsilon"):
        pf.Gaussian(1.0).delta(epsilon=-1)


def test_any_parameter_is_calibrated() -> None:
    rate = pf.calibrate(lambda q: pf.Gaussian(1.0).sampled(pf.Poisson(q)) * 1000, epsilon=1, delta=1e-5)
    assert 0.9999 < rate.certificate.lower <= rate.certificate.upper <= 1
    same = pf.calibrate(
        lambda q: pf.Gaussian(1.0).sampled(pf.Poisson(q)) * 1000, epsilon=1, delta=1e-5, between=(1e-4, 0.5)
    )
    assert same.value == pytest.approx(rate.value, rel=1e-5)
    scale = pf.calibrate(lambda b: pf.Laplace(b) + pf.Gaussian(5.0), epsilon=2, delta=1e-5)
    assert 1.9999 < scale.certificate.lower <= scale.certificate.upper <= 2
    full = pf.calibrate(lambda q: pf.Gaussian(1.0).sampled(pf.Poisson(q)), epsilon=9, delta=1e-5)
    assert full.value == 1.0
    with pytest.raises(NotCertified, match="between"):
        pf.calibrate(lambda b: pf.Laplace(b) + pf.Gaussian(5.0), epsilon=0.01, delta=1e-5)


def test_an_unknown_relation_or_an_incomplete_target_is_refused() -> None:
    with pytest.raises(InvalidInput, match="add-remove"):
        STEP.epsilon(delta=1e-5, relation="remove")
    with pytest.raises(InvalidInput, match="epsilon and delta"):
        pf.calibrate(pf.Gaussian, epsilon=1)


@pytest.mark.parametrize(
    "release",
    [
        STEP * 1000 + pf.Laplace(5.0),
        pf.Together((pf.Gaussian(1.0), pf.Laplace(2.0))).sampled(pf.Poisson(0.1)),
        pf.Gaussian(2.0).sampled(pf.FixedSize(100, 5)) * 3,
        pf.Gaussian(2.0).sampled(pf.WithReplacement(100, 5, batch=pf.Batch.SECRET)) * 3,
        pf.Gaussian(2.0).sampled(pf.TruncatedPoisson(0.1, 100, 20)) * 3,
        pf.NonPrivate("Declared as not private.", True) + pf.NonPrivate("Nothing is published.", False),
    ],
    ids=repr,
)
def test_events_of_dp_accounting_convert_both_ways(release: pf.Release) -> None:
    assert pf.from_dp_event(release.to_dp_event()) == release


def test_randomised_response_converts_and_the_rest_is_refused() -> None:
    back = pf.from_dp_event(pf.RandomizedResponse(1.5, 4).to_dp_event())
    assert isinstance(back, pf.RandomizedResponse)
    assert back.local_epsilon == pytest.approx(1.5, rel=1e-12)
    with pytest.raises(UnsupportedCombination, match="shuffled-epochs"):
        pf.Gaussian(1.0).sampled(pf.ShuffledEpochs(100, 10)).to_dp_event()


def test_a_type_checker_finds_a_misspelt_name(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    snippet = tmp_path / "snippet.py"
    snippet.write_text("import privfair as pf\npf.Gaussian\npf.nonsense\n", encoding="utf-8")
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--follow-imports=skip", f"--cache-dir={os.devnull}", "--config-file="),
            *(str(ROOT / "privfair/__init__.py"), str(snippet)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert [line.split(":")[1] for line in checked.stdout.splitlines() if "snippet.py" in line] == ["3"]
