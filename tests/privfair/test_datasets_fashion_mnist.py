"""Fashion-MNIST: the idx reader on made-up files always, the real data where it is installed."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from privfair.data.benchmarks import load_benchmark
from privfair.data.images import DEBIAN_FOLDER, load_fashion_mnist, read_idx
from privfair.data.partition import cut_into_silos
from privfair.data.read import BadData
from privfair.plan.data import Benchmark, DirichletByLabel

REAL = Path(os.environ.get("PRIVFAIR_FASHION_MNIST", DEBIAN_FOLDER))


def _idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for prefix, records in (("train", 30), ("t10k", 10)):
        pixels = rng.integers(256, size=(records, 28, 28), dtype=np.uint8)
        label = (np.arange(records) % 10).astype(np.uint8)
        (tmp_path / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(pixels)))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(_idx(label))
    return tmp_path


def test_made_up_files(folder: Path) -> None:
    train, test = load_fashion_mnist(folder)
    assert train.features.shape == (30, 1, 28, 28)
    assert test.features.shape == (10, 1, 28, 28)
    assert train.features.dtype == np.float32
    assert (train.features.min(), train.features.max()) == (0.0, 1.0)
    pixels = read_idx(folder / "train-images-idx3-ubyte.gz", 3)
    np.testing.assert_array_equal(np.rint(train.features[:, 0] * 255), pixels)
    assert train.label.tolist() == [i % 10 for i in range(30)]
    assert train.group_names == ("everyone",)
    assert train.schema_digest == test.schema_digest
    assert len(load_benchmark(Benchmark.FASHION_MNIST, folder)) == 40


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda b: b[:-1], "declares shape"),
        (lambda b: b + b"\0", "declares shape"),
        (lambda b: b"\0\0\x0d" + b[3:], "not an idx file"),
        (lambda b: b[:6], "not an idx file"),
    ],
)
def test_damaged_labels(folder: Path, damage, complaint: str) -> None:
    path = folder / "train-labels-idx1-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadData, match=complaint):
        load_fashion_mnist(folder)


def test_other_damage(folder: Path) -> None:
    (folder / "train-labels-idx1-ubyte").write_bytes(_idx(np.zeros(29, dtype=np.uint8)))
    with pytest.raises(BadData, match="30 images but 29 labels"):
        load_fashion_mnist(folder)
    images = folder / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:100])
    with pytest.raises(BadData, match="readable gzip"):
        load_fashion_mnist(folder)
    images.unlink()
    with pytest.raises(InvalidInput, match="holds no train-images"):
        load_fashion_mnist(folder)
    with pytest.raises(InvalidInput, match="apt install dataset-fashion-mnist"):
        load_fashion_mnist(folder / "absent")


@pytest.mark.slow
@pytest.mark.skipif(not REAL.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed")
def test_the_real_data() -> None:
    train, test = load_fashion_mnist(REAL)
    assert train.features.shape == (60_000, 1, 28, 28)
    assert test.features.shape == (10_000, 1, 28, 28)
    assert train.class_counts().tolist() == [6_000] * 10
    assert test.class_counts().tolist() == [1_000] * 10
    # The published normalisation constants of the data set are mean 0.2860 and deviation 0.3530.
    assert train.features.mean(dtype=np.float64) == pytest.approx(0.2860, abs=5e-5)
    assert train.features.std(dtype=np.float64) == pytest.approx(0.3530, abs=5e-5)
    silos = cut_into_silos(train, DirichletByLabel(10, 0.1), seed=0)  # FedFDP's ten clients
    assert sum(silos.sizes) == 60_000
