"""Histograms of gradients: a function of each image alone, bit for bit, and CIFAR-10's files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.images import CIFAR_CLASSES, DIGIT_CLASSES, ORIENTED, oriented_gradients
from privfair.data.read import BadData
from privfair.data.stability import EVERY_UNIT
from privfair.data.training_data import load_training_data
from privfair.plan.data import Benchmark, read_data_plan
from tests.privfair.small_runs import Desk


def _images(records: int, shape: tuple[int, ...] = (1, 28, 28), seed: int = 0) -> Dataset:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, size=(records, *shape), dtype=np.uint8)
    return Dataset(
        features=pixels.astype(np.float32) / 255,
        label=random.integers(0, 10, size=records),
        group=np.zeros(records, dtype=np.int64),
        feature_names=(),
        class_names=DIGIT_CLASSES,
        group_names=("everyone",),
        schema_digest="digits",
    )


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_features_of_an_image_depend_on_no_other_image(shape: tuple[int, ...]) -> None:
    data = _images(2003, shape)
    together = oriented_gradients(data).features
    random = np.random.default_rng(1)
    for size in (1, 2, 3, 17, 500):
        chosen = random.choice(len(data), size=size, replace=False)
        alone = oriented_gradients(data.rows(chosen)).features
        np.testing.assert_array_equal(alone.view(np.uint32), together[chosen].view(np.uint32))


def test_every_record_has_the_same_length_and_a_claim_for_every_unit() -> None:
    found = oriented_gradients(_images(20))
    assert found.features.shape == (20, 1201)
    assert found.features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found.features, axis=1), 3.0, rtol=1e-5)
    assert found.steps == (ORIENTED,)
    assert set(ORIENTED.changes) == set(EVERY_UNIT)
    assert oriented_gradients(_images(2, (3, 32, 32))).features.shape[1] == 49 * 32 + 64 * 3


def test_an_even_grey_image_is_no_division_by_zero() -> None:
    even = _images(2)
    flat = Dataset(
        **{
            name: getattr(even, name)
            for name in ("label", "group", "feature_names", "class_names", "group_names", "schema_digest")
        },
        features=np.tile(np.array([[76, 77], [77, 76]], dtype=np.float32) / 255, (2, 1, 14, 14)),
    )
    assert np.isfinite(oriented_gradients(flat).features).all()


def test_an_edge_across_is_told_from_an_edge_down() -> None:
    data = _images(2)
    pixels = np.zeros((2, 1, 28, 28), dtype=np.float32)
    pixels[0, 0, :, 14:], pixels[1, 0, 14:, :] = 1.0, 1.0
    edges = Dataset(pixels, data.label, data.group, (), data.class_names, data.group_names, "digits")
    across, down = oriented_gradients(edges).features[:, :1152].reshape(2, 4, 8, 36).sum(axis=(1, 3))
    assert across.argmax() == 0
    assert down.argmax() == 4


def test_tables_and_odd_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="multiples of 4"):
        oriented_gradients(_images(3, (1, 27, 28)))
    table = Dataset(np.zeros((2, 3)), np.zeros(2, int), np.zeros(2, int), ("a", "b", "c"), ("no",), ("all",), "table")
    with pytest.raises(InvalidInput, match="must be images"):
        oriented_gradients(table)


def _cifar(folder: Path, records: int = 30) -> Path:
    random = np.random.default_rng(2)
    for name in (*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"):
        rows = random.integers(0, 256, size=(records, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        (folder / name).write_bytes(rows.tobytes())
    return folder


def test_cifar_from_its_binary_batches_through_a_plan(tmp_path: Path) -> None:
    whole = load_benchmark(Benchmark.CIFAR_10, _cifar(tmp_path))
    assert whole.features.shape == (180, 3, 32, 32)
    assert whole.class_names == CIFAR_CLASSES
    plan = {"dataset": "cifar-10", "path": str(tmp_path), "features": "oriented-gradients", "split": "record"}
    loaded = load_training_data(read_data_plan(plan, tmp_path))
    assert ORIENTED in loaded.steps
    assert loaded.parties[0].data.features.shape[1] == 1760
    with pytest.raises(InvalidInput, match="path"):
        load_benchmark(Benchmark.CIFAR_10)
    (tmp_path / "test_batch.bin").write_bytes(b"cut")
    with pytest.raises(BadData, match="3073 bytes"):
        load_benchmark(Benchmark.CIFAR_10, tmp_path)


def _bars(folder: Path, records: int = 300) -> Path:
    """Images in MNIST's format, each class a bar of its own."""
    folder.mkdir()
    for prefix, size in (("train", records - 60), ("t10k", 60)):
        label = (np.arange(size) % 10).astype(np.uint8)
        pixels = np.random.default_rng(size).integers(0, 60, size=(size, 28, 28), dtype=np.uint8)
        for record, place in enumerate(label):
            pixels[record, 2 + 2 * place : 5 + 2 * place, 4:24] = 250
        for name, array in ((f"{prefix}-images-idx3-ubyte", pixels), (f"{prefix}-labels-idx1-ubyte", label)):
            head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
            (folder / name).write_bytes(head + array.tobytes())
    return folder


PLAN = """algorithm = "gaussian"
[target]
epsilon = 40.0
delta = 1e-3
[privacy]
sampling-rate = 1.0
rounds = 12
clip = 1.5
[data]
dataset = "mnist"
path = "bars"
features = "oriented-gradients"
at-least = 60
[data.partition]
kind = "equal"
silos = 2
[training]
learning-rate = 20.0
momentum = 0.5
cosine = true
iterate = "tail-average"
measure-every = 12
"""


def test_a_linear_model_learns_from_them_under_a_signed_budget(tmp_path: Path) -> None:
    """Through calibration, gate and ledger; the manifest's chain of steps accepts the features for records."""
    _bars(tmp_path / "bars")
    desk = Desk.at(tmp_path, PLAN)
    result = desk.train(desk.budget(research_noise=True))
    assert result.to_json()["rounds_charged"] == 12
    assert result.accuracy is not None
    assert result.accuracy > 0.5  # a tenth by guessing; the research noise is seeded
