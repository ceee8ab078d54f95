"""The algorithms that can be trained, by the name a plan uses; each stands on a page of its own."""

from __future__ import annotations

from typing import Any

from calibrate.errors import InvalidInput
from privfair.algorithms import dp_fedsgd, fedfdp, fpfl, mmd_fedavg, pay_once, steffle
from privfair.algorithms.baselines import (
    agnostic_fl,
    central_erm,
    fairfed,
    fedavg,
    feddyn,
    fedfb,
    fedprox,
    fedsgd,
    local_mmd,
    q_ffl,
    scaffold,
    tran,
)
from privfair.algorithms.recipe import Recipe
from privfair.plan.file import nearest

_PRIVATE = (steffle, pay_once, fedfdp, fpfl, mmd_fedavg, dp_fedsgd)
_BASELINES = (
    *(fedsgd, fedavg, fedprox, scaffold, feddyn, q_ffl),
    *(agnostic_fl, local_mmd, fairfed, fedfb, tran, central_erm),
)
_RECIPES: dict[str, Recipe[Any]] = {page.RECIPE.name: page.RECIPE for page in (*_PRIVATE, *_BASELINES)}


def recipe_named(name: str) -> Recipe[Any]:
    """The algorithm of that name, or a refusal that lists what can be trained."""
    if name not in _RECIPES:
        raise InvalidInput("algorithm", name, "cannot be trained here", nearest(name, tuple(_RECIPES)))
    return _RECIPES[name]
