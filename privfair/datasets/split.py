"""Train and test: each silo is split on its own, the same way for the same seed."""

from __future__ import annotations

from calibrate.errors import InvalidInput
from calibrate.validation import open_unit
from privfair.datasets.dataset import Dataset
from privfair.datasets.random_streams import permutation, stream
from privfair.silos import Silo, Silos, TrainTest

PAPERS_TEST_FRACTION = 0.25
"""Train to test 3:1, as in the experiments of SteFFLe and of MMD-fair FedAvg."""


def split_dataset(
    dataset: Dataset, seed: int, test_fraction: float = PAPERS_TEST_FRACTION, purpose: str = "split"
) -> tuple[Dataset, Dataset]:
    """Training and test records: a uniformly random subset of round(n * fraction) records is the test part."""
    open_unit("test_fraction", test_fraction)
    size = len(dataset)
    if size < 2:
        raise InvalidInput("records", size, "must be at least 2 to be split", "give more records")
    tests = min(max(int(size * test_fraction + 0.5), 1), size - 1)
    order = permutation(stream(seed, purpose), size)
    return dataset.rows(order[tests:]), dataset.rows(order[:tests])


def split_silos(silos: Silos, seed: int, test_fraction: float = PAPERS_TEST_FRACTION) -> TrainTest:
    """Split every silo on its own; a silo's split depends on its name, not on its place among the others."""
    parts = [split_dataset(silo.data, seed, test_fraction, f"split {silo.name}") for silo in silos]
    return TrainTest(
        train=Silos(tuple(Silo(s.name, train) for s, (train, _) in zip(silos, parts, strict=True))),
        test=Silos(tuple(Silo(s.name, test) for s, (_, test) in zip(silos, parts, strict=True))),
    )
