"""Laws of partitions: nobody is lost or doubled, sizes are as said, h = 0 is plain chance, seeds repeat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrate.errors import InvalidInput
from privfair.data.dataset import Dataset
from privfair.data.partition import LEFT_OUT, UserRecords, assign, cut_into_silos, poisson_users, users_by_column
from privfair.data.stability import digest
from privfair.plan.data import ByColumn, DirichletByLabel, EqualAtRandom, Heterogeneous, Partition


def _dataset(records: int, seed: int = 0, classes: int = 3) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(
        features=rng.normal(size=(records, 1)),
        label=rng.integers(classes, size=records),
        group=rng.integers(2, size=records),
        feature_names=("x",),
        class_names=tuple(f"c{i}" for i in range(classes)),
        group_names=("f", "m"),
        schema_digest=digest({"test": "partition"}),
        side_columns={
            "id": np.arange(records),
            "age": rng.integers(20, 60, size=records),
            "town": rng.choice(["u", "v", "w"], size=records),
        },
    )


silo_counts = st.integers(1, 7)
partitions: st.SearchStrategy[Partition] = st.one_of(
    st.builds(EqualAtRandom, silo_counts),
    st.builds(Heterogeneous, silo_counts, st.just("age"), st.floats(0, 1)),
    st.builds(DirichletByLabel, silo_counts, st.floats(0.05, 50), st.just(0)),
    st.just(ByColumn("town")),
)


@given(st.integers(7, 200), partitions, st.integers(0, 2**32))
def test_every_record_is_in_exactly_one_silo(records: int, partition: Partition, seed: int) -> None:
    data = _dataset(records)
    silos = cut_into_silos(data, partition, seed)
    ids = np.concatenate([silo.data.side_column("id") for silo in silos])
    assert sorted(ids.tolist()) == list(range(records))
    for silo in silos:
        own = silo.data.side_column("id")
        np.testing.assert_array_equal(silo.data.features, data.features[own])
        np.testing.assert_array_equal(silo.data.group, data.group[own])
        assert silo.data.group_names == data.group_names


@given(st.integers(7, 200), partitions, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_silos(records: int, partition: Partition, seed: int) -> None:
    data = _dataset(records)
    np.testing.assert_array_equal(assign(data, partition, seed)[0], assign(data, partition, seed)[0])


@given(st.integers(7, 300), silo_counts, st.floats(0, 1), st.integers(0, 2**32))
def test_algorithm_3_keeps_sizes_and_its_own_slice(records: int, silos: int, h: float, seed: int) -> None:
    """SteFFLe, Algorithm 3: silo k has n/K records, at least floor(h n/K) of them from slice k of the sorted data."""
    data = _dataset(records, seed % 10)
    assignment, _ = assign(data, Heterogeneous(silos, "age", h), seed)
    sizes = np.bincount(assignment, minlength=silos)
    assert sizes.max() - sizes.min() <= 1
    age = data.side_column("age")
    sorted_age = np.sort(age)
    ends = np.cumsum(sizes)
    for k in range(silos):
        low, high = sorted_age[ends[k] - sizes[k]], sorted_age[ends[k] - 1]
        within = ((age[assignment == k] >= low) & (age[assignment == k] <= high)).sum()
        assert within >= np.floor(records / silos * h)


def test_full_heterogeneity_sorts() -> None:
    data = _dataset(300)
    silos = cut_into_silos(data, Heterogeneous(3, "age", 1.0), seed=4)
    ages = [silo.data.side_column("age") for silo in silos]
    assert ages[0].max() <= ages[1].min()
    assert ages[1].max() <= ages[2].min()


@given(st.integers(7, 200), silo_counts, st.integers(0, 2**32))
def test_without_heterogeneity_algorithm_3_is_plain_chance(records: int, silos: int, seed: int) -> None:
    data = _dataset(records)
    expected, _ = assign(data, EqualAtRandom(silos), seed)
    found, _ = assign(data, Heterogeneous(silos, "age", 0.0), seed)
    np.testing.assert_array_equal(found, expected)


def test_plain_chance_is_uniform_and_blind_to_the_attribute() -> None:
    """Every record is equally likely in every silo, young or old (seeds fixed: the test cannot flicker)."""
    data = _dataset(30)
    draws = np.stack([assign(data, Heterogeneous(3, "age", 0.0), seed)[0] for seed in range(1500)])
    counts = np.stack([(draws == k).sum(axis=0) for k in range(3)], axis=1)
    statistics = ((counts - 500) ** 2 / 500).sum(axis=1)
    assert stats.chi2.sf(statistics.max(), df=2) * 30 > 1e-3
    # The mean age of silo 0 does not drift from the mean of all.
    age = data.side_column("age")
    means = np.array([age[row == 0].mean() for row in draws])
    assert abs(means.mean() - age.mean()) < 4 * means.std() / np.sqrt(len(means))


def test_heterogeneity_rises_with_h() -> None:
    data = _dataset(3000)

    def spread(h: float) -> float:
        silos = cut_into_silos(data, Heterogeneous(3, "age", h), seed=2)
        return float(np.std([silo.data.side_column("age").mean() for silo in silos]))

    spreads = [spread(h) for h in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert spreads == sorted(spreads)
    # Mixing a fraction h of an own slice with chance moves each silo's mean by h times the full distance.
    assert spreads[3] == pytest.approx(0.75 * spreads[4], rel=0.1)


def test_dirichlet_shares_have_the_dirichlet_moments() -> None:
    """The share of a class in a silo has mean 1/K and variance (1/K)(1 - 1/K)/(K beta + 1)."""
    data = _dataset(3000)
    first_class = data.label == 0
    silos, beta = 5, 0.5
    shares = np.array(
        [
            np.bincount(assign(data, DirichletByLabel(silos, beta, 0), seed)[0][first_class], minlength=silos)
            / first_class.sum()
            for seed in range(600)
        ]
    )
    assert shares.mean(axis=0) == pytest.approx(np.full(silos, 1 / silos), abs=0.04)
    expected = (1 / silos) * (1 - 1 / silos) / (silos * beta + 1)
    assert shares.var(axis=0).mean() == pytest.approx(expected, rel=0.1)


def test_dirichlet_limits() -> None:
    data = _dataset(3000)
    even = cut_into_silos(data, DirichletByLabel(3, 1e6), seed=0)
    for silo in even:
        np.testing.assert_allclose(silo.data.class_counts() * 3, data.class_counts(), rtol=0.02)
    uneven = cut_into_silos(data, DirichletByLabel(10, 1e-4, least=0), seed=0)
    largest = np.max([silo.data.class_counts() for silo in uneven], axis=0)
    assert (largest > 0.95 * data.class_counts()).all()


def test_dirichlet_honours_the_least_size() -> None:
    data = _dataset(400)
    silos = cut_into_silos(data, DirichletByLabel(8, 0.3, least=10), seed=0)
    assert min(silos.sizes) >= 10
    with pytest.raises(InvalidInput, match="exceeds the 400 records"):
        assign(data, DirichletByLabel(8, 0.3, least=51), seed=0)
    with pytest.raises(InvalidInput, match="raise beta"):
        assign(data, DirichletByLabel(8, 0.001, least=50), seed=0)


def test_by_column_leaves_small_values_out() -> None:
    data = _dataset(60)
    town = data.side_column("town")
    sizes = {value: int((town == value).sum()) for value in "uvw"}
    least = sorted(sizes.values())[1]
    assignment, names = assign(data, ByColumn("town", least), seed=0)
    assert names == tuple(v for v in "uvw" if sizes[v] >= least)
    assert (assignment == LEFT_OUT).sum() == sum(size for size in sizes.values() if size < least)
    silos = cut_into_silos(data, ByColumn("town", least), seed=0)
    for silo in silos:
        assert set(silo.data.side_column("town").tolist()) == {silo.name}
    with pytest.raises(InvalidInput, match="no value of 'town'"):
        assign(data, ByColumn("town", 61), seed=0)


@given(st.integers(8, 300), st.floats(0.5, 4), st.integers(0, 2**32))
def test_users_share_out_every_record(records: int, mean: float, seed: int) -> None:
    data = _dataset(records)
    users = poisson_users(data, seed, mean)
    assert len(users) == int(records / mean)
    assert users.records_per_user.sum() == records
    assert sorted(users.data.side_column("id").tolist()) == list(range(records))


def test_records_per_user_are_poisson_2() -> None:
    """FPFL, section 4.1: two records a user on average, Poisson; K = 16,280 users on Adult's 32,561 records."""
    users = poisson_users(_dataset(32_561), seed=0)
    assert len(users) == 16_280
    sizes = users.records_per_user
    observed = np.bincount(np.minimum(sizes, 8), minlength=9)
    law = stats.poisson(2)
    expected = len(users) * np.append(law.pmf(np.arange(8)), law.sf(7))
    assert stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), df=8) > 1e-3
    assert (sizes == 0).mean() == pytest.approx(np.exp(-2), abs=0.01)


def test_users_by_column() -> None:
    data = _dataset(50)
    users = users_by_column(data, "town")
    assert len(users) == 3
    for user, name in enumerate("uvw"):
        assert set(users.data.side_column("town")[users.of(user)].tolist()) == {name}
    with pytest.raises(InvalidInput, match="offsets"):
        UserRecords(data, np.array([0, 49]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EqualAtRandom(0),
        lambda: Heterogeneous(3, "age", 1.5),
        lambda: Heterogeneous(3, "age", -0.1),
        lambda: DirichletByLabel(3, 0),
        lambda: ByColumn("town", 0),
        lambda: assign(_dataset(3), EqualAtRandom(4), 0),
        lambda: assign(_dataset(9), Heterogeneous(3, "height", 0.5), 0),
        lambda: assign(_dataset(9), EqualAtRandom(3), -1),
        lambda: poisson_users(_dataset(3), 0, mean=4),
    ],
)
def test_nonsense_is_refused(make) -> None:
    with pytest.raises(InvalidInput):
        make()
