"""OpenDP's samplers as an oracle: both draw from the same law, by a two-sample test."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp

from privfair.noise import ExactNoise
from privfair.noise.lattice_sampler import SecureStream, discrete_gaussian, discrete_laplace

opendp = pytest.importorskip("opendp.prelude")

pytestmark = pytest.mark.true_noise  # OpenDP takes no seed
FALSE_ALARM = 1e-12
"""A p-value below this fails a test: it happens by chance with about this probability, whatever is drawn."""
SAMPLES = 30_000


def _opendp_values(kind: str, scale: float) -> np.ndarray:
    opendp.enable_features("contrib")
    vector = opendp.vector_domain(opendp.atom_domain(T="i64"))
    if kind == "gaussian":
        measurement = opendp.m.make_gaussian(vector, opendp.l2_distance(T="i64"), scale)
    else:
        measurement = opendp.m.make_laplace(vector, opendp.l1_distance(T="i64"), scale)
    return np.array(measurement([0] * SAMPLES), dtype=np.int64)


def _pooled(expected: np.ndarray) -> np.ndarray:
    """Neighbouring values in cells of at least 100 each: the number of the cell for every value."""
    cell, total, cells = 0, 0.0, []
    for share in expected:
        cells.append(cell)
        total += share
        if total >= 100:
            cell, total = cell + 1, 0.0
    return np.minimum(cells, max(cell - 1, 0))


def _homogeneity(ours: np.ndarray, theirs: np.ndarray) -> float:
    """p-value of a chi-square test that both samples have one law; cells of at least 50, tails pooled."""
    both = np.concatenate([ours, theirs])
    values, counts = np.unique(both, return_counts=True)
    cell_of_value = _pooled(counts)
    width = cell_of_value.max() + 1
    cells = [np.bincount(cell_of_value[np.searchsorted(values, part)], minlength=width) for part in (ours, theirs)]
    return float(chi2_contingency(np.array(cells)).pvalue)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 11.25])
@pytest.mark.parametrize(("kind", "draw"), [("gaussian", discrete_gaussian), ("laplace", discrete_laplace)])
def test_small_scales_value_by_value(kind: str, draw, scale: float) -> None:  # type: ignore[no-untyped-def]
    ours = draw(SAMPLES, Fraction(scale), SecureStream())
    assert _homogeneity(ours, _opendp_values(kind, scale)) > FALSE_ALARM


@pytest.mark.parametrize(("kind", "draw"), [("gaussian", discrete_gaussian), ("laplace", discrete_laplace)])
def test_the_scale_of_published_noise(kind: str, draw) -> None:  # type: ignore[no-untyped-def]
    ours = draw(SAMPLES, 1 << 30, SecureStream())
    assert ks_2samp(ours, _opendp_values(kind, float(1 << 30))).pvalue > FALSE_ALARM


def test_the_two_sample_test_notices_a_scale_that_is_ten_percent_off() -> None:
    ours = discrete_gaussian(SAMPLES, Fraction(33, 10), SecureStream())
    assert _homogeneity(ours, _opendp_values("gaussian", 3.0)) < FALSE_ALARM


def test_the_two_sample_test_notices_the_wrong_law() -> None:
    gaussian_with_the_variance_of_laplace = discrete_gaussian(SAMPLES, Fraction(424, 100), SecureStream())
    assert _homogeneity(gaussian_with_the_variance_of_laplace, _opendp_values("laplace", 3.0)) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), [("gaussian", "make_gaussian"), ("laplace", "make_laplace")])
def test_published_floats_have_the_oracles_law(kind: str, make: str) -> None:
    """The whole path, from floating-point values to floating-point publications."""
    opendp.enable_features("contrib")
    metric = opendp.l2_distance if kind == "gaussian" else opendp.l1_distance
    domain = opendp.vector_domain(opendp.atom_domain(T=float, nan=False))
    theirs = np.array(getattr(opendp.m, make)(domain, metric(T=float), 0.7)([0.25] * SAMPLES))
    ours = getattr(ExactNoise(), kind)(np.full(SAMPLES, 0.25), 0.7)
    assert ks_2samp(ours, theirs).pvalue > FALSE_ALARM
