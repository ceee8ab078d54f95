"""FPFL's pens and chalk on MNIST-format files, from the folder to a plan."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.ndimage import correlate1d

from calibrate.errors import InvalidInput
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.images import UNFAIR_GROUPS, WRITER, unfair_images
from privfair.data.read import BadData
from privfair.data.stability import RecordHash
from privfair.data.training_data import load_training_data
from privfair.plan.data import Benchmark, UnfairImages, read_data_plan
from tests.privfair.small_runs import Desk

RECORDS = 600


def _idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def _write(folder: Path, classes: int = 10) -> Path:
    """Digits of a sort: one bright bar a class, so that turning them shows."""
    folder.mkdir(exist_ok=True)
    for prefix, records in (("train", RECORDS - 100), ("t10k", 100)):
        label = (np.arange(records) % classes).astype(np.uint8)
        pixels = np.zeros((records, 28, 28), dtype=np.uint8)
        for record, place in enumerate(label):
            pixels[record, 2 + 2 * (place % 12) : 4 + 2 * (place % 12), 3:20] = 255
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(pixels)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(_idx(label))
    return folder


@pytest.fixture
def grey(tmp_path: Path) -> Dataset:
    return load_benchmark(Benchmark.MNIST, _write(tmp_path / "digits"))


def _group(data: Dataset, name: str) -> np.ndarray:
    return data.group == UNFAIR_GROUPS.index(name)


def test_idx_files_by_path_are_mnist(grey: Dataset, tmp_path: Path) -> None:
    assert grey.features.shape == (RECORDS, 1, 28, 28)
    assert grey.class_names == tuple("0123456789")
    with pytest.raises(InvalidInput, match="give the folder"):
        load_benchmark(Benchmark.MNIST)
    with pytest.raises(InvalidInput, match="does not exist"):
        load_benchmark(Benchmark.MNIST, tmp_path / "nowhere")
    with pytest.raises(BadData, match="label outside the classes 0 to 9"):
        load_benchmark(Benchmark.MNIST, _write(tmp_path / "letters", classes=12))


def test_black_pens_write_black_on_white_and_blue_pens_blue_on_white(grey: Dataset) -> None:
    data = unfair_images(grey, UnfairImages(100), seed=0)
    assert data.features.shape == (RECORDS, 3, 28, 28)
    black, blue = _group(data, "black-pen"), _group(data, "blue-pen")
    np.testing.assert_array_equal(data.features[black], np.repeat(1 - grey.features[black], 3, axis=1))
    for colour in (0, 1):
        np.testing.assert_array_equal(data.features[blue][:, colour], 1 - grey.features[blue][:, 0])
    assert (data.features[blue][:, 2] == 1).all()


def test_chalk_is_equation_19_turned(grey: Dataset) -> None:
    """Without the noise: the blurred strokes, white on black, turned by 90 degrees; averaged, the noise vanishes."""
    many = grey.rows(np.zeros(4_000, dtype=np.int64))
    data = unfair_images(many, UnfairImages(10), seed=0)
    chalk = data.features[_group(data, "chalk")]
    assert (chalk[:, 0] == chalk[:, 1]).all()
    assert (chalk[:, 0] == chalk[:, 2]).all()
    steps = np.arange(-4, 5)
    kernel = np.exp(-(steps**2) / 2)
    kernel /= kernel.sum()
    blurred = correlate1d(correlate1d(grey.features[0, 0], kernel, axis=0), kernel, axis=1)
    strokes = blurred > 0.3
    turned = np.rot90(chalk[:, 0], k=-1, axes=(1, 2))
    # Inside the strokes and far from 0 and 1, where cutting back does not act, the mean is the blurred stroke.
    inside = strokes & (blurred < 0.7)
    assert inside.any()
    np.testing.assert_allclose(turned.mean(axis=0)[inside], blurred[inside], atol=0.03)
    assert turned.mean(axis=0)[strokes].min() > turned.mean(axis=0)[~strokes].mean() + 0.2
    assert turned.std(axis=0)[inside].min() > 0.05, "every record has noise of its own"
    assert chalk.min() >= 0
    assert chalk.max() <= 1


def test_writers_keep_to_one_group_and_groups_have_the_papers_shares(grey: Dataset) -> None:
    assert UnfairImages().of_each_group == (1_522, 1_522, 339)
    data = unfair_images(grey, UnfairImages(100), seed=3)
    writers = data.side_column(WRITER)
    for writer in np.unique(writers):
        assert len(np.unique(data.group[writers == writer])) == 1
    assert (data.group == np.repeat([0, 1, 2], [45, 45, 10])[writers]).all()
    assert data.group_names == UNFAIR_GROUPS
    np.testing.assert_array_equal(data.label, grey.label)


def test_the_seed_decides_everything(grey: Dataset) -> None:
    one, again, other = (unfair_images(grey, UnfairImages(50), seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.group, again.group)
    assert (one.group != other.group).any()
    assert one.schema_digest != grey.schema_digest


def test_from_a_plan_with_writers_as_users(tmp_path: Path) -> None:
    folder = _write(tmp_path / "digits")
    section = {
        "dataset": "mnist",
        "path": str(folder),
        "seed": 1,
        "unfair": {"writers": 60},
        "users": {"kind": "column", "column": WRITER},
    }
    data = load_training_data(read_data_plan(section, tmp_path))
    assert data.feature_shape == (3, 28, 28)
    assert data.users is not None
    assert data.test.group_names == UNFAIR_GROUPS
    for user in range(len(data.users)):
        assert len(set(data.users.data.group[data.users.of(user)].tolist())) == 1


def test_one_image_fewer_changes_no_other_one_where_each_is_drawn_on_its_own(tmp_path: Path) -> None:
    grey = load_benchmark(Benchmark.MNIST, _write(tmp_path / "digits"))
    whole = unfair_images(grey, UnfairImages(30), 3, RecordHash())
    fewer = unfair_images(grey.rows(np.arange(1, len(grey))), UnfairImages(30), 3, RecordHash())
    np.testing.assert_array_equal(whole.features[1:], fewer.features)
    np.testing.assert_array_equal(whole.side_column(WRITER)[1:], fewer.side_column(WRITER))
    by_position = unfair_images(grey.rows(np.arange(1, len(grey))), UnfairImages(30), 3)
    assert (unfair_images(grey, UnfairImages(30), 3).side_column(WRITER)[1:] != by_position.side_column(WRITER)).any()


def test_where_it_makes_no_sense_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="writers"):
        UnfairImages(2)
    with pytest.raises(InvalidInput, match="did you mean writers"):
        read_data_plan({"dataset": "mnist", "path": "x", "unfair": {"writer": 9}}, tmp_path)
    files = {"files": ["a.csv"], "schema": "s.toml", "unfair": {}}
    with pytest.raises(InvalidInput, match="images"):
        read_data_plan(files, tmp_path)
    colour = load_benchmark(Benchmark.MNIST, _write(tmp_path / "digits"))
    colour = unfair_images(colour, UnfairImages(10), 0)
    with pytest.raises(InvalidInput, match="grey images"):
        unfair_images(colour, UnfairImages(10), 0)


@pytest.mark.slow
def test_fpfl_trains_on_it(tmp_path: Path) -> None:
    """Three groups, users that write, a convolutional net: through calibration, gate and ledger."""
    _write(tmp_path / "digits")
    plan = """algorithm = "fpfl"
[target]
epsilon = 8.0
delta = 1e-3
[privacy]
users = 6
cohort = 4
rounds = 2
clip = 1.0
sampling = "poisson"
[data]
dataset = "mnist"
path = "digits"
at-least = 6
[data.unfair]
writers = 60
[data.users]
kind = "column"
column = "writer"
[training]
notion = "accuracy"
measure-every = 2
[training.model]
kind = "cnn"
architecture = "compact"
"""
    desk = Desk.at(tmp_path, plan)
    result = desk.train(desk.budget(research_noise=True))
    assert result.accuracy is not None
    assert result.to_json()["rounds_charged"] == 2
