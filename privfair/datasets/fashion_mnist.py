"""Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28 grey pixels in 10 classes.

The four idx files come from Debian's package `dataset-fashion-mnist`, or from a folder given by path. There is no
sensitive attribute: fairness here is between clients, so everybody is in one group.

Source: Xiao, Rasul, Vollgraf 2017, MIT licence.
"""

from __future__ import annotations

from pathlib import Path

from calibrate.errors import InvalidInput
from privfair.datasets.dataset import Dataset
from privfair.datasets.idx_images import load_idx_folder

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
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
    return load_idx_folder(where, "fashion-mnist", CLASSES)
