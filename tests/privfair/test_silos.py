"""Silos: one numbering for all, sizes bound to a manifest, splits that repeat, arrays nobody writes to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from calibrate.manifest.document import DataBinding
from privfair.data.dataset import Dataset, Silo, Silos, TrainTest, pool
from privfair.data.partition import split_dataset, split_silos
from privfair.data.stability import digest
from privfair_experiments.mmd.clients import synthetic_mmd_clients


def _dataset(records: int = 12, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    return Dataset(
        features=rng.normal(size=(records, 3)),
        label=rng.integers(2, size=records),
        group=rng.integers(2, size=records),
        feature_names=("a", "b", "c"),
        class_names=("no", "yes"),
        group_names=("f", "m"),
        schema_digest=digest({"test": True}),
        side_columns={"id": np.arange(records)},
    )


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"features": np.zeros((12, 2))}, "feature_names"),
        ({"features": np.zeros(12)}, "one row per record"),
        ({"features": np.zeros((12, 3), dtype=np.int64)}, "floating-point"),
        ({"features": np.full((12, 3), np.nan)}, "must be finite"),
        ({"label": np.full(12, 2)}, "label = .*between 0 and 1"),
        ({"label": np.full(12, -1)}, "label"),
        ({"label": np.zeros(11, dtype=np.int64)}, "12 whole numbers"),
        ({"group": np.zeros(12)}, "whole numbers"),
        ({"group_names": ("f", "f")}, "distinct"),
        ({"class_names": ()}, "not empty"),
        ({"side_columns": {"id": np.arange(3)}}, "12 values"),
    ],
)
def test_a_dataset_checks_itself(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        replace(_dataset(), **change)  # type: ignore[arg-type]


def test_arrays_are_read_only() -> None:
    data = _dataset()
    for array in (data.features, data.label, data.group, data.side_column("id")):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(InvalidInput, match=r"choose one of \['id'\]"):
        data.side_column("age")


def test_a_printed_dataset_shows_no_record() -> None:
    data = replace(_dataset(), features=np.full((12, 3), 0.123456))
    silos = Silos((Silo("a", data),))
    for shown in (repr(data), str(silos), repr(silos[0])):
        assert "0.1234" not in shown
        assert "array" not in shown
        assert "12 records" in shown


def test_silos_must_number_alike() -> None:
    data = _dataset()
    swapped = replace(data, group_names=("m", "f"))
    with pytest.raises(InvalidInput, match="numbered differently"):
        Silos((Silo("a", data), Silo("b", swapped)))
    with pytest.raises(InvalidInput, match="schema_digest"):
        Silos((Silo("a", data), Silo("b", replace(data, schema_digest=digest({"test": False})))))
    with pytest.raises(InvalidInput, match="distinct names"):
        Silos((Silo("a", data), Silo("a", data)))
    with pytest.raises(InvalidInput, match="must not be empty"):
        Silos(())


def test_pooling_keeps_every_record() -> None:
    parts = (_dataset(5, 1), _dataset(7, 2))
    whole = pool(parts)
    np.testing.assert_array_equal(whole.features, np.concatenate([p.features for p in parts]))
    np.testing.assert_array_equal(whole.group, np.concatenate([p.group for p in parts]))


def test_binding_holds_names_sizes_and_schema_only() -> None:
    silos = Silos((Silo("north", _dataset(5, 1)), Silo("south", _dataset(7, 2))))
    binding = silos.binding()
    assert [(silo.name, silo.size) for silo in binding.silos] == [("north", 5), ("south", 7)]
    assert "sha256:" + binding.schema_digest == silos[0].data.schema_digest
    same_sizes = Silos((Silo("north", _dataset(5, 3)), Silo("south", _dataset(7, 4))))
    assert same_sizes.binding().digest() == binding.digest()  # the contents are not in it, on purpose
    other = Silos((Silo("north", _dataset(6, 1)), Silo("south", _dataset(7, 2))))
    assert other.binding().digest() != binding.digest()
    with pytest.raises(InvalidInput, match="schema"):
        DataBinding.of("md5:abc", (("a", 1),))
    with pytest.raises(InvalidInput, match="same name"):
        DataBinding.of(silos[0].data.schema_digest, (("a", 1), ("a", 2)))


def test_split_repeats_and_loses_nothing() -> None:
    data = _dataset(1000)
    train, test = split_dataset(data, seed=7)
    assert (len(train), len(test)) == (750, 250)
    again, _ = split_dataset(data, seed=7)
    np.testing.assert_array_equal(train.side_column("id"), again.side_column("id"))
    other, _ = split_dataset(data, seed=8)
    assert not np.array_equal(train.side_column("id"), other.side_column("id"))
    ids = np.concatenate([train.side_column("id"), test.side_column("id")])
    assert sorted(ids) == list(range(1000))
    np.testing.assert_array_equal(train.features, data.features[train.side_column("id")])


def test_a_split_is_the_same_on_every_machine() -> None:
    """Golden: permutations come from raw 64-bit draws, so a new numpy does not reshuffle published experiments."""
    _, test = split_dataset(_dataset(12), seed=0)
    assert test.side_column("id").tolist() == [11, 8, 7]


def test_a_silos_split_does_not_depend_on_the_others() -> None:
    north, south = Silo("north", _dataset(40, 1)), Silo("south", _dataset(40, 2))
    both = split_silos(Silos((north, south)), seed=5)
    alone = split_silos(Silos((south,)), seed=5)
    np.testing.assert_array_equal(both.test[1].data.features, alone.test[0].data.features)
    assert not np.array_equal(both.test[0].data.side_column("id"), both.test[1].data.side_column("id"))
    with pytest.raises(InvalidInput, match="training silos"):
        TrainTest(both.train, alone.test)


@pytest.mark.parametrize(("records", "fraction", "tests"), [(2, 0.01, 1), (2, 0.99, 1), (10, 0.25, 3), (9, 0.25, 2)])
def test_split_sizes(records: int, fraction: float, tests: int) -> None:
    train, test = split_dataset(_dataset(records), 0, fraction)
    assert (len(train), len(test)) == (records - tests, tests)


def test_split_refuses_nonsense() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        split_dataset(_dataset(1), 0)
    with pytest.raises(InvalidInput, match="strictly between"):
        split_dataset(_dataset(9), 0, 1.0)
    with pytest.raises(InvalidInput, match="seed"):
        split_dataset(_dataset(9), -1)


def test_synthetic_clients_disagree_locally_and_agree_overall() -> None:
    """MMD paper, section 6: the Bayes rule satisfies parity on all data and fails at each client."""
    silos = synthetic_mmd_clients(seed=1, records=2000)
    assert len(silos) == 10
    assert silos.names[0] == "client-1"
    pooled = silos.pooled()
    assert pooled.features.shape == (20_000, 10)
    rates = [pooled.label[pooled.group == g].mean() for g in (0, 1)]
    assert abs(rates[0] - rates[1]) < 0.03
    for k, silo in enumerate(silos, start=1):
        local = [silo.data.label[silo.data.group == g].mean() for g in (0, 1)]
        assert local[k % 2] > 0.99  # k + a even: the mean is +1 in each of ten entries
        assert local[1 - k % 2] < 0.01
    alike = synthetic_mmd_clients(seed=1, records=2000, own=0.5)
    for silo in alike:
        local = [silo.data.label[silo.data.group == g].mean() for g in (0, 1)]
        assert abs(local[0] - local[1]) < 0.1
    again = synthetic_mmd_clients(seed=1, records=2000)
    np.testing.assert_array_equal(again[3].data.features, silos[3].data.features)
