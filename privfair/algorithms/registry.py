"""The algorithms that can be trained and their methods, by the names a plan uses; each stands on a page of its own."""

from __future__ import annotations

from typing import Any

from calibrate.errors import InvalidInput, nearest
from calibrate.plugins import PluginGroup, Plugins
from privfair.algorithms import dp_fedsgd, fair_plugin, fedfdp, fpfl, mmd_fedavg, pay_once, steffle
from privfair.algorithms.baselines import averaging, central_erm, client_losses, drift, fedfair, tran
from privfair.algorithms.recipe import Recipe

_PRIVATE: tuple[Recipe[Any], ...] = (
    *(steffle.RECIPE, pay_once.RECIPE, fair_plugin.RECIPE, mmd_fedavg.RECIPE),
    *(*fedfdp.RECIPES, *fpfl.RECIPES, *dp_fedsgd.RECIPES),
)
_BASELINES: tuple[Recipe[Any], ...] = (
    *(*averaging.RECIPES, *drift.RECIPES, *client_losses.RECIPES),
    *(fedfair.RECIPE, tran.RECIPE, central_erm.RECIPE),
)
_RECIPES = {recipe.key: recipe for recipe in (*_PRIVATE, *_BASELINES)}
_DEFAULTS = {recipe.name: recipe for recipe in reversed(_RECIPES.values())}
"""By the algorithm's name, its first method."""


def _read_recipe(name: str, found: object) -> Recipe[Any] | None:
    return found if isinstance(found, Recipe) and found.key == name else None


ALGORITHM_PLUGINS: Plugins[Recipe[Any]] = Plugins(
    PluginGroup.ALGORITHMS,
    "a privfair.algorithms.recipe.Recipe with the entry point's name, or with name and method joined by a dot",
    _read_recipe,
    lambda: {*_RECIPES, *_DEFAULTS},
)
"""The algorithms of other packages, and methods that they add to an algorithm; a private one has a plan of its name."""


def methods_of(name: str) -> tuple[str, ...]:
    """The methods of an algorithm, its default first; none where there is nothing to choose."""
    keys = (*_RECIPES, *ALGORITHM_PLUGINS.names())
    return tuple(key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}."))


def recipe_named(name: str, method: str | None = None) -> Recipe[Any]:
    """The algorithm of that name with this method or its first one; a refusal lists what can be trained."""
    key = name if method is None else f"{name}.{method}"
    found = _RECIPES.get(key) or _DEFAULTS.get(key) or ALGORITHM_PLUGINS.get(key)
    if found is None:
        known = (*_DEFAULTS, *ALGORITHM_PLUGINS.names())
        raise InvalidInput("algorithm", key, "cannot be trained here", nearest(name, known))
    return found
