"""The state of a run on disk, as plain arrays (npz without pickle), put in place at one stroke.

A checkpoint only saves time: whatever it holds follows from the transcript, and it never says what is spent.
That is the ledger's to know, so an old checkpoint put back gives an old model and no new rounds.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import TypeVar

import numpy as np

from calibrate.errors import Refused
from privfair.algorithms.algorithm import Algorithm
from privfair.ledger.durable import replace_file
from privfair.rounds import Position

State = TypeVar("State")

_STATE = "state."


def save_checkpoint(
    path: Path, manifest_digest: str, algorithm: Algorithm[State], position: Position[State]
) -> None:
    """Write a position between two steps; the transcript must be durable up to its round before."""
    arrays = {f"{_STATE}{name}": values for name, values in algorithm.checkpoint(position.state).items()}
    content = io.BytesIO()
    np.savez(
        content,
        manifest=np.array(manifest_digest),
        step=np.array(position.step),
        round=np.array(-1 if position.round is None else position.round),
        **arrays,
    )
    replace_file(path, content.getvalue())


def load_checkpoint(path: Path, manifest_digest: str, algorithm: Algorithm[State]) -> Position[State] | None:
    """The position saved there; None if there is none. Damage and other runs' checkpoints are refused."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            if str(found["manifest"]) != manifest_digest:
                raise Refused(
                    f"checkpoint {path} belongs to another manifest; delete it, the run is rebuilt without it"
                )
            arrays = {
                name.removeprefix(_STATE): found[name] for name in found.files if name.startswith(_STATE)
            }
            step, round = int(found["step"]), int(found["round"])
            state = algorithm.restore(arrays)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as broken:
        raise Refused(
            f"checkpoint {path} cannot be read ({broken}); delete it, the run is rebuilt without it"
        ) from broken
    return Position(state, step, None if round < 0 else round, {})
