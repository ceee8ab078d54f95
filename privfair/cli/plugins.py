"""`privfair --version -v`: the version, and what other packages bring."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from rich.table import Table

from audit.models.membership_attacks import ATTACK_PLUGINS
from calibrate.errors import InvalidInput
from calibrate.plans import PLAN_PLUGINS
from calibrate.plugins import Plugin, Plugins, installed_plugins
from calibrate.theorems.catalogue import THEOREM_PLUGINS
from privfair.algorithms.registry import ALGORITHM_PLUGINS
from privfair.cli.options import asked
from privfair.cli.output import print_json, print_rich
from privfair.plan.data import DATASET_PLUGINS
from privfair.plan.model import MODEL_PLUGINS

_REGISTRIES: Sequence[Plugins[Any]] = (
    *(PLAN_PLUGINS, ALGORITHM_PLUGINS, THEOREM_PLUGINS, DATASET_PLUGINS, MODEL_PLUGINS, ATTACK_PLUGINS),
)


def print_plugins() -> None:
    """The plans, algorithms, theorems, data sets, models and attacks of other packages.

    Each is imported, from the bytes whose SHA-256 is shown: the digest that a budget signs. A name that is built in
    cannot be taken. How to write one is in docs/plugins.md.
    """
    rows = [_row(plugins, one) for plugins in _REGISTRIES for one in installed_plugins(plugins.group)]
    if asked().as_json:
        print_json({"version": version("privfair"), "plugins": rows})
        return
    if not rows:
        print_rich("no package brings a plug-in; docs/plugins.md says how to write one")
        return

    table = Table("group", "name", "package", "SHA-256", "state")
    for row in rows:
        table.add_row(row["group"], row["name"], row["package"], row["sha256"][:12], row["state"])
    print_rich(table)


def _row(plugins: Plugins[Any], one: Plugin) -> dict[str, str]:

    row = {"group": plugins.group.value, "name": one.name, "package": one.source, "sha256": ""}
    if one.name in plugins.built_in():
        return row | {"state": "not used: this name is built in"}
    try:
        plugins.get(one.name)
        (row["sha256"],) = one.code.values()
    except InvalidInput as broken:
        return row | {"state": str(broken)}
    return row | {"state": "ok"}
