"""The [training.min-max] table: a min-max loss of one's own under a `gaussian` plan with two noise ratios.

::

    [training.min-max]
    file = "game.py"                     # beside the plan; defines loss(theta, w, x, y, s) of one record, in torch
    w-size = 4                           # length of w, which starts at zero
    theta-clip = 1.0                     # of each record's gradient in theta, and in w
    w-clip = 1.0
    w-step = 0.1
    w-radius = 1.0                       # w stays in this ball around zero
    momentum = 0.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput
from calibrate.validation import count, positive
from privfair.plan_section import read_section
from privfair.user_function import UserFunction

_PLACE = "training.min-max"


@dataclass(frozen=True)
class _Table:
    file: str
    w_size: int
    theta_clip: float
    w_clip: float
    function: str = "loss"
    sha256: str | None = None
    w_step: float = 0.1
    w_radius: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        count(f"[{_PLACE}] w-size", self.w_size)
        for name in ("theta_clip", "w_clip", "w_step", "w_radius"):
            positive(f"[{_PLACE}] {name.replace('_', '-')}", getattr(self, name))
        if not 0 <= self.momentum < 1:
            raise InvalidInput(
                f"[{_PLACE}] momentum", self.momentum, "must lie in [0, 1)", "0 is plain descent"
            )


@dataclass(frozen=True)
class MinMaxPlan:
    """The typed table, and where its code lies."""

    code: UserFunction
    table: _Table = field(repr=False)


def read_min_max_plan(value: Any, folder: Path = Path()) -> MinMaxPlan:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"[{_PLACE}]", value, "must be a table", f"write [{_PLACE}] with its keys")
    table = read_section(_Table, _PLACE, value)
    code = UserFunction(_PLACE, folder, table.file, table.function, table.sha256)
    code.require_beside("game.py")
    return MinMaxPlan(code, table)
