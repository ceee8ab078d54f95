"""The benchmark data sets by name, as a plan or the command line asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import assert_never

from calibrate.errors import InvalidInput, PrivfairError
from privfair.data.adult import load_adult
from privfair.data.communities_crime import load_communities_crime
from privfair.data.compas import load_compas
from privfair.data.credit_card import load_credit_card
from privfair.data.dataset import Dataset, pool
from privfair.data.images import load_cifar_10, load_fashion_mnist, load_mnist
from privfair.plan.data_choices import DATASET_PLUGINS, Benchmark, BenchmarkScaling


def load_plugin_dataset(name: str, path: Path | None) -> Dataset:
    """All records of another package's data set in one table."""
    load, plugin = DATASET_PLUGINS.get(name), DATASET_PLUGINS.find(name)
    if load is None or plugin is None:
        raise InvalidInput("[data] dataset", name, "is not installed", "install the package that brings it")
    try:
        found = load(path)
    except PrivfairError:
        raise
    except Exception as error:  # its text may quote a record, and is not shown
        raise plugin.broken(type(error)("its loader failed")) from error
    if not isinstance(found, Dataset):
        raise plugin.broken(TypeError(f"its loader returned a {type(found).__name__}"))
    return found


def load_benchmark(
    name: Benchmark, path: Path | None = None, scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC
) -> Dataset:
    """All records of a benchmark in one table; a given path wins over the installed data package.

    Communities and Crime and images are published on the scale [0, 1] and know no other scaling.
    """
    match name:
        case Benchmark.ADULT:
            return load_adult(path, scaling)
        case Benchmark.CREDIT_CARD:
            return load_credit_card(path, scaling)
        case Benchmark.COMPAS:
            return load_compas(path, scaling)
        case Benchmark.COMMUNITIES_CRIME:
            _require_public(name, scaling)
            return load_communities_crime(path)
        case Benchmark.FASHION_MNIST:
            _require_public(name, scaling)
            return pool(load_fashion_mnist(path))
        case Benchmark.MNIST:
            _require_public(name, scaling)
            return pool(load_mnist(path))
        case Benchmark.CIFAR_10:
            _require_public(name, scaling)
            return load_cifar_10(path)
        case _:
            assert_never(name)


def _require_public(name: Benchmark, scaling: BenchmarkScaling) -> None:
    if scaling is not BenchmarkScaling.PUBLIC:
        raise InvalidInput("scaling", scaling.value, f"is not offered for {name.value}", "use the public scaling")
