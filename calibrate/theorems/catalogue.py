"""All claims of the four papers, by id."""

from __future__ import annotations

from difflib import get_close_matches

from calibrate.errors import InvalidInput
from calibrate.theorems import fedfdp, fpfl, mmd_fedavg, steffle
from calibrate.theorems.theorem import Theorem
from calibrate.theorems.verdict import Verdict

CATALOGUE: tuple[Theorem, ...] = (*steffle.THEOREMS, *fedfdp.THEOREMS, *fpfl.THEOREMS, *mmd_fedavg.THEOREMS)


def theorem_named(id: str) -> Theorem:
    """The claim with this id, or a refusal that names the nearest one."""
    for theorem in CATALOGUE:
        if theorem.id == id:
            return theorem
    ids = [theorem.id for theorem in CATALOGUE]
    close = get_close_matches(id, ids, n=1, cutoff=0.5)
    raise InvalidInput(
        "id",
        id,
        "is not in the theorem catalogue",
        f"did you mean {close[0]}?" if close else f"use one of {', '.join(ids)}",
    )


def judge_all() -> tuple[tuple[Theorem, Verdict], ...]:
    """Every claim with its verdict at its paper's own setting."""
    return tuple((theorem, theorem.judge()) for theorem in CATALOGUE)
