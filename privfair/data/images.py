"""MNIST, or any ten classes in its format (KMNIST, EMNIST's digits): a folder with the four idx files, by path."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import InvalidInput
from privfair.data.dataset import EVERYONE, Dataset
from privfair.data.facts import digest
from privfair.data.read import BadData

# Grey images with labels in MNIST's idx format: four files in a folder, plain or gzipped.

_UNSIGNED_BYTES = 0x08
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
    return Dataset(
        features=(pixels.astype(np.float32) / _LARGEST_PIXEL)[:, np.newaxis],
        label=label.astype(np.int64),
        group=np.zeros(len(label), dtype=np.int64),
        feature_names=(),
        class_names=classes,
        group_names=EVERYONE,
        schema_digest=digest(
            {"dataset": dataset, "shape": [1, *pixels.shape[1:]], "divisor": _LARGEST_PIXEL, "classes": [*classes]}
        ),
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
    where = DEBIAN_FOLDER if folder is None else Path(folder)
    if not where.is_dir():
        raise InvalidInput(
            "dataset",
            "fashion-mnist",
            f"its folder {where} does not exist",
            "apt install dataset-fashion-mnist, or give the folder of the four idx files",
        )
    return load_idx_folder(where, "fashion-mnist", FASHION_CLASSES)


DIGIT_CLASSES = tuple(str(digit) for digit in range(10))


def load_mnist(folder: Path | None = None) -> tuple[Dataset, Dataset]:
    """Training and test images as float32 in [0, 1], shape (records, 1, height, width): one grey channel."""
    if folder is None or not Path(folder).is_dir():
        raise InvalidInput(
            "dataset",
            "mnist",
            "comes with no package" if folder is None else f"its folder {folder} does not exist",
            "give the folder of the four idx files as path",
        )
    return load_idx_folder(Path(folder), "mnist", DIGIT_CLASSES)
