"""All claims of the four articles, by id, and those that other packages bring."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches

from calibrate.errors import InvalidInput
from calibrate.plugins import PluginGroup, Plugins
from calibrate.theorems import convergence, fedfdp, fpfl, mmd_fedavg, steffle
from calibrate.theorems.theorem import Theorem, Verdict

CATALOGUE: tuple[Theorem, ...] = (
    *steffle.THEOREMS,
    *fedfdp.THEOREMS,
    *fpfl.THEOREMS,
    *mmd_fedavg.THEOREMS,
    *convergence.THEOREMS,
)


def read_theorems(name: str | None, found: object) -> tuple[Theorem, ...] | None:
    """A theorem, or several, as a tuple; None for anything else, or if an id does not begin with `name` and a dot."""
    several = found if isinstance(found, tuple | list) else (found,)
    theorems = tuple(one for one in several if isinstance(one, Theorem))
    if not theorems or len(theorems) < len(several):
        return None
    return theorems if name is None or all(one.id.startswith(f"{name}.") for one in theorems) else None


THEOREM_PLUGINS: Plugins[tuple[Theorem, ...]] = Plugins(
    PluginGroup.THEOREMS,
    "a Theorem, or a tuple of them, whose ids begin with the entry point's name and a dot",
    read_theorems,
    lambda: {theorem.id.partition(".")[0] for theorem in CATALOGUE},
)
"""The claims of other articles, in other packages; the entry point's name is the paper's."""


def theorem_named(id: str) -> Theorem:
    """The claim with this id, or a refusal that names the nearest one."""
    known = (*CATALOGUE, *(THEOREM_PLUGINS.get(id.partition(".")[0]) or ()))
    for theorem in known:
        if theorem.id == id:
            return theorem
    ids = [theorem.id for theorem in known]
    close = get_close_matches(id, ids, n=1, cutoff=0.5)
    raise InvalidInput(
        "id",
        id,
        "is not in the theorem catalogue",
        f"did you mean {close[0]}?" if close else f"use one of {', '.join(ids)}",
    )


def judge_all() -> tuple[tuple[Theorem, Verdict], ...]:
    """Every claim with its verdict at its paper's own setting; those of packages that cannot be loaded are left out."""
    outside: list[Theorem] = []
    for name in THEOREM_PLUGINS.names():
        with suppress(InvalidInput):  # `privfair --version -v` says what is wrong with it
            outside += THEOREM_PLUGINS.get(name) or ()
    return tuple((theorem, theorem.judge()) for theorem in (*CATALOGUE, *outside))
