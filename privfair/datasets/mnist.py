"""MNIST, or any ten classes in its format (KMNIST, EMNIST's digits): a folder with the four idx files, by path."""

from __future__ import annotations

from pathlib import Path

from calibrate.errors import InvalidInput
from privfair.datasets.dataset import Dataset
from privfair.datasets.idx_images import load_idx_folder

CLASSES = tuple(str(digit) for digit in range(10))


def load_mnist(folder: Path | None = None) -> tuple[Dataset, Dataset]:
    """Training and test images as float32 in [0, 1], shape (records, 1, height, width): one grey channel."""
    if folder is None or not Path(folder).is_dir():
        raise InvalidInput(
            "dataset",
            "mnist",
            "comes with no package" if folder is None else f"its folder {folder} does not exist",
            "give the folder of the four idx files as path",
        )
    return load_idx_folder(Path(folder), "mnist", CLASSES)
