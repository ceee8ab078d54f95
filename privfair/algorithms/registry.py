"""The algorithms that can be trained, by the name a plan uses; each stands on a page of its own."""

from __future__ import annotations

from typing import Any

from calibrate.errors import InvalidInput
from calibrate.plugins import PluginGroup, Plugins
from privfair.algorithms import dp_fedsgd, fair_plugin, fedfdp, fpfl, mmd_fedavg, pay_once, steffle
from privfair.algorithms.baselines import averaging, central_erm, client_losses, drift, fedfair, tran
from privfair.algorithms.recipe import Recipe
from privfair.plan.sections import nearest

_PRIVATE = (steffle, pay_once, fair_plugin, fedfdp, fpfl, mmd_fedavg, dp_fedsgd)
_BASELINES: tuple[Recipe[Any], ...] = (
    *(*averaging.RECIPES, *drift.RECIPES, *client_losses.RECIPES),
    *(fedfair.RECIPE, tran.RECIPE, central_erm.RECIPE),
)
_RECIPES: dict[str, Recipe[Any]] = {
    recipe.name: recipe for recipe in (*(page.RECIPE for page in _PRIVATE), *_BASELINES)
}


def _read_recipe(name: str, found: object) -> Recipe[Any] | None:
    return found if isinstance(found, Recipe) and found.name == name else None


ALGORITHM_PLUGINS: Plugins[Recipe[Any]] = Plugins(
    PluginGroup.ALGORITHMS,
    "a privfair.algorithms.recipe.Recipe with the entry point's name",
    _read_recipe,
    lambda: _RECIPES,
)
"""The algorithms of other packages; one that is private has a plan of the same name."""


def recipe_named(name: str) -> Recipe[Any]:
    """The algorithm of that name, or a refusal that lists what can be trained."""
    found = _RECIPES.get(name) or ALGORITHM_PLUGINS.get(name)
    if found is None:
        known = (*_RECIPES, *ALGORITHM_PLUGINS.names())
        raise InvalidInput("algorithm", name, "cannot be trained here", nearest(name, known))
    return found
