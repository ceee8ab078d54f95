"""Images of ten classes: MNIST's idx files, CIFAR-10's batches, FPFL's unfair images; pixels or gradient histograms."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import AnyFloats, Integers
from calibrate.errors import InvalidInput
from calibrate.manifest.strict_json import Json
from privfair.batches.randomness import stream
from privfair.data.dataset import EVERYONE, Dataset
from privfair.data.read import BadData
from privfair.data.stability import EVERY_UNIT, WRITERS_BY_POSITION, WRITERS_BY_RECORD, RecordHash, Stability, digest
from privfair.plan.data import UnfairImages

# Grey images with labels in MNIST's idx format: four files in a folder, plain or gzipped.

_UNSIGNED_BYTES = 0x08
_Number = TypeVar("_Number", bound=np.generic)
_LARGEST_PIXEL = 255


def load_idx_folder(folder: Path, dataset: str, classes: tuple[str, ...]) -> tuple[Dataset, Dataset]:
    """Training and test images as float32 in [0, 1], shape (records, 1, height, width): one grey channel.

    `classes` name the labels 0, 1, ...; there is no sensitive attribute, so everybody is in one group.
    """
    return _part(folder, "train", dataset, classes), _part(folder, "t10k", dataset, classes)


def _part(folder: Path, prefix: str, dataset: str, classes: tuple[str, ...]) -> Dataset:
    pixels = read_idx(_existing_file(folder, f"{prefix}-images-idx3-ubyte"), dimensions=3)
    label = read_idx(_existing_file(folder, f"{prefix}-labels-idx1-ubyte"), dimensions=1)
    if len(pixels) != len(label):
        raise BadData(str(folder), f"has {len(pixels)} images but {len(label)} labels", "take matching files")
    if len(label) and label.max() >= len(classes):
        rule = f"has a label outside the classes 0 to {len(classes) - 1} of {dataset}"
        raise BadData(str(folder), rule, "take the files of this data set")
    meaning: Json = {"dataset": dataset, "shape": [1, *pixels.shape[1:]], "divisor": _LARGEST_PIXEL, "classes": classes}
    return _of_everybody(pixels[:, np.newaxis], label, classes, meaning)


def _of_everybody(
    pixels: NDArray[np.uint8], label: NDArray[np.uint8], classes: tuple[str, ...], meaning: Json
) -> Dataset:
    """Images on [0, 1] without a sensitive attribute; `meaning` is what the digest of their schema is taken of."""
    return Dataset(
        features=pixels.astype(np.float32) / _LARGEST_PIXEL,
        label=label.astype(np.int64),
        group=np.zeros(len(label), dtype=np.int64),
        feature_names=(),
        class_names=classes,
        group_names=EVERYONE,
        schema_digest=digest(meaning),
    )


def _existing_file(folder: Path, name: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.is_file():
            return path
    raise InvalidInput("folder", str(folder), f"holds no {name}", "give the folder of the four idx files")


def read_idx(path: Path, dimensions: int) -> NDArray[Any]:
    """One idx file of unsigned bytes, plain or gzipped, its declared shape checked against its length."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise BadData(str(path), f"is not a readable gzip file ({error})", "fetch it again") from None
    header = 4 + 4 * dimensions
    if len(content) < header or content[:4] != bytes((0, 0, _UNSIGNED_BYTES, dimensions)):
        raise BadData(str(path), f"is not an idx file of bytes with {dimensions} dimensions", "fetch it again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise BadData(str(path), f"declares shape {shape} but is cut or too long", "fetch it again")
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


# Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28 grey pixels in 10 classes.
#
# The four idx files come from Debian's package `dataset-fashion-mnist`, or from a folder given by path. There is no
# sensitive attribute: fairness here is between clients, so everybody is in one group.
#
# Source: Xiao, Rasul, Vollgraf 2017, MIT licence.

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle-boot"
)  # fmt: skip


def load_fashion_mnist(folder: Path | None = None) -> tuple[Dataset, Dataset]:
    """Training and test images as float32 in [0, 1], shape (records, 1, 28, 28): one grey channel."""
    remedy = "apt install dataset-fashion-mnist, or give the folder of the four idx files"
    return load_idx_folder(_folder("fashion-mnist", folder or DEBIAN_FOLDER, remedy), "fashion-mnist", FASHION_CLASSES)


DIGIT_CLASSES = tuple(str(digit) for digit in range(10))


def load_mnist(folder: Path | None = None) -> tuple[Dataset, Dataset]:
    """Training and test images as float32 in [0, 1], shape (records, 1, height, width): one grey channel."""
    where = _folder("mnist", folder, "give the folder of the four idx files as path")
    return load_idx_folder(where, "mnist", DIGIT_CLASSES)


def _folder(dataset: str, folder: Path | None, remedy: str) -> Path:
    if folder is None or not Path(folder).is_dir():
        rule = "comes with no package" if folder is None else f"its folder {folder} does not exist"
        raise InvalidInput("dataset", dataset, rule, remedy)
    return Path(folder)


# CIFAR-10: 50,000 training and 10,000 test images of 3 x 32 x 32 colour pixels in 10 classes, in its binary format:
# each image is a byte of label, then the planes of red, green and blue. Source: Krizhevsky 2009.

CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"
)  # fmt: skip
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_FILES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")


def load_cifar_10(folder: Path | None = None) -> Dataset:
    """All images as float32 in [0, 1], shape (records, 3, 32, 32), the test batch last."""
    where = _folder("cifar-10", folder, f"give the folder of {_CIFAR_FILES[0]} .. as path")
    parts = [_cifar_batch(where / name) for name in _CIFAR_FILES]
    pixels, label = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    meaning: Json = {"dataset": "cifar-10", "shape": _CIFAR_SHAPE, "classes": CIFAR_CLASSES}
    return _of_everybody(pixels, label, CIFAR_CLASSES, meaning)


def _cifar_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    width = 1 + math.prod(_CIFAR_SHAPE)
    if not path.is_file() or not path.stat().st_size or path.stat().st_size % width:
        raise BadData(str(path), f"is not a file of {width} bytes per image", "take CIFAR-10's binary version")
    rows = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, width)
    if rows[:, 0].max() >= len(CIFAR_CLASSES):
        raise BadData(str(path), "has a label above 9", "take CIFAR-10's binary version")
    return rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), rows[:, 0]


ORIENTED = Stability.one_to_one("histograms of oriented gradients, image by image", EVERY_UNIT, "Lemma 10")
_ANGLES, _CELL = 8, 4
_AT_ONCE = 2000
_LENGTH = np.float32(3.0)
"""Of every record's features: with the intercept's 1, which is then a small part of a gradient."""


def oriented_gradients(images: Dataset) -> Dataset:
    """Histograms of gradients in cells of 4 x 4 pixels, normalised in blocks of 2 x 2 cells, and the cells' colours.

    A fixed map of one image with no statistic of the data; every record's features have length 3 (or 0). Bit for bit
    they depend on this image alone (docs/theorems/stability.md, Lemma 10): pixels are whole numbers, angles come from a
    table, and what follows consists of sums, products, quotients and roots, record by record in one order.
    """
    if images.features.ndim != 4 or any(side % _CELL or side < 2 * _CELL for side in images.feature_shape[1:]):
        rule = "must be images whose sides are multiples of 4, at least 8"
        raise InvalidInput("[data] features", images.feature_shape, rule, 'write features = "pixels", or leave it out')
    parts = [_described(images.features[at : at + _AT_ONCE]) for at in range(0, len(images), _AT_ONCE)]
    features = np.concatenate(parts) if parts else np.zeros((0, 1), dtype=np.float32)
    return replace(
        images,
        features=features,
        feature_names=tuple(f"gradients-{number}" for number in range(features.shape[1])),
        schema_digest=digest({"oriented-gradients": images.schema_digest, "angles": _ANGLES, "cell": _CELL}),
        steps=(*images.steps, ORIENTED),
    )


def _described(pixels: AnyFloats) -> AnyFloats:
    """The features of some images, one row per image. Inside, records are the last axis, which nothing sums over."""
    whole = np.ascontiguousarray(np.moveaxis(np.rint(pixels * _LARGEST_PIXEL).astype(np.int64), 0, -1))
    channels = len(whole)
    grey = _added(list(whole)) // channels
    wide = np.pad(grey, ((1, 1), (1, 1), (0, 0)), mode="edge")
    across, down = wide[1:-1, 2:] - wide[1:-1, :-2], wide[2:, 1:-1] - wide[:-2, 1:-1]
    entry = (across + _LARGEST_PIXEL) * _SIDE + (down + _LARGEST_PIXEL)
    cells = [_of_cells(angle[entry]) for angle in _shares()]
    blocks: list[AnyFloats] = []
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        blocks += [cell[i : len(cell) - 1 + i, j : cell.shape[1] - 1 + j] for cell in cells]
    root = np.sqrt(_added([block * block for block in blocks]) + np.float32(0.1))
    brightness = np.float32(_LARGEST_PIXEL * _CELL * _CELL)
    colours = [_of_cells(one.astype(np.float32)) / brightness - np.float32(0.3) for one in whole]
    parts = [*(block / root for block in blocks), *(np.float32(2) * colour for colour in colours)]
    flat = np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts])
    length = np.maximum(np.sqrt(_added([row * row for row in flat])), np.float32(1e-6))  # zero for one even grey
    return np.ascontiguousarray((flat * (_LENGTH / length)).T)


def _of_cells(values: AnyFloats) -> AnyFloats:
    """Sums over cells of 4 x 4 pixels."""
    return _added([values[i::_CELL, j::_CELL] for i in range(_CELL) for j in range(_CELL)])


def _added(parts: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Their sum, one after the other: an order that numpy is not free to change with the number of records."""
    total = parts[0].copy()
    for part in parts[1:]:
        np.add(total, part, out=total)
    return total


_SIDE = 2 * _LARGEST_PIXEL + 1


@lru_cache(maxsize=1)
def _shares() -> AnyFloats:
    """By angle, and by gradient across and down: its strength, shared between the two nearest of eight angles."""
    steps = np.arange(-_LARGEST_PIXEL, _LARGEST_PIXEL + 1) / _LARGEST_PIXEL
    across, down = (part.ravel() for part in np.meshgrid(steps, steps, indexing="ij"))
    angle = np.arctan2(down, across) % np.pi / np.pi * _ANGLES
    low = np.floor(angle).astype(np.int64)
    share, strength = angle - low, np.hypot(across, down)
    table = np.zeros((_ANGLES, _SIDE * _SIDE), dtype=np.float32)
    places = np.arange(_SIDE * _SIDE)
    np.add.at(table, (low % _ANGLES, places), (strength * (1 - share)).astype(np.float32))
    np.add.at(table, ((low + 1) % _ANGLES, places), (strength * share).astype(np.float32))
    return table


# FPFL's "unfair" images: two pens on white paper, and few writers with chalk on a blackboard.
#
# Rodriguez-Galvez et al. 2021 make groups that a classifier serves unequally out of digits without any. The first 45%
# of the writers use a black pen, the next 45% a blue one, the rest chalk: white strokes on black, blurred with noise
# (their Equation 19) and turned by 90 degrees.

UNFAIR_GROUPS = ("black-pen", "blue-pen", "chalk")
WRITER = "writer"
"""The side column that says who wrote a record; every writer keeps to one group."""
_NOISE_BLUR, _CHALK_BLUR = 2.0, 1.0
_BLUE = 2
"""Of red, green, blue."""

Images = NDArray[np.float32]


def unfair_images(data: Dataset, how: UnfairImages, seed: int, by: RecordHash | None = None) -> Dataset:
    """Grey images of light strokes on a dark ground as colour images of three groups; pixels stay in [0, 1].

    Equation 19 can leave [0, 1]; here its result is cut back. All randomness depends on `seed` and a record's
    position; with `by` it depends on the seed and the record alone.
    """
    shape = data.feature_shape
    if len(shape) != 3 or shape[0] != 1 or shape[1] != shape[2]:
        raise InvalidInput(
            "[data.unfair]",
            "(a table)",
            f"needs square grey images, and a record here has the shape {shape}",
            "use fashion-mnist or mnist",
        )
    generator = stream(seed, "unfair images")
    writer = generator.integers(how.writers, size=len(data))
    keys = None
    if by is not None:
        writer, keys = by.one_of(data, seed, "writer", how.writers), by.words(data, seed, "chalk")
    group = np.repeat(np.arange(3), how.of_each_group)[writer]
    return replace(
        data,
        features=_draw_images(data.features[:, 0].astype(np.float32), group, generator, keys),
        group=group.astype(np.int64),
        group_names=UNFAIR_GROUPS,
        schema_digest=digest({"unfair": data.schema_digest, "groups": [*UNFAIR_GROUPS]}),
        side_columns={**data.side_columns, WRITER: writer},
        steps=(*data.steps, WRITERS_BY_POSITION if by is None else WRITERS_BY_RECORD),
    )


def _draw_images(
    strokes: Images, group: Integers, generator: np.random.Generator, keys: NDArray[np.uint64] | None
) -> Images:
    """Colour channels first: (records, 3, height, width)."""
    paper = np.repeat(1 - strokes[:, np.newaxis], 3, axis=1)
    blue, chalk = group == UNFAIR_GROUPS.index("blue-pen"), group == UNFAIR_GROUPS.index("chalk")
    paper[blue, _BLUE] = 1.0
    dust = generator if keys is None else [np.random.Generator(np.random.PCG64(int(key))) for key in keys[chalk]]
    paper[chalk] = _on_blackboard(strokes[chalk], dust)[:, np.newaxis]
    return paper


def _on_blackboard(strokes: Images, generator: np.random.Generator | list[np.random.Generator]) -> Images:
    """(x + noise * kappa_2) * kappa_1 with Gaussian kernels of deviations 2 and 1, turned by 90 degrees."""
    from scipy.ndimage import gaussian_filter  # here, so that reading a plan stays quick

    if isinstance(generator, list):  # one for each image
        drawn = [one.standard_normal(strokes.shape[1:]) for one in generator]
        noise = np.array(drawn, dtype=np.float32).reshape(strokes.shape)
    else:
        noise = generator.standard_normal(strokes.shape).astype(np.float32)
    dust = gaussian_filter(noise, (0, _NOISE_BLUR, _NOISE_BLUR))
    blurred = gaussian_filter(strokes + dust, (0, _CHALK_BLUR, _CHALK_BLUR))
    return np.rot90(np.clip(blurred, 0.0, 1.0), axes=(1, 2)).astype(np.float32)
