"""Every plan over one SuperLink and one SuperNode per site, in the environment that has Flower.

    .venv-flower/bin/python -m tests.federation.over_flower FOLDER

Flower starts a process per message, so the plans have two or three rounds and share one run of Flower: its ServerApp
trains one plan after the other, each by the coordinator of the product. Each plan has guards of its own; a node finds
them under one name, which is pointed at the guard of the plan whose turn it is.
"""

from __future__ import annotations

import json
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path

from privfair.federation.trial import start_flower, submit_app, write_app
from tests.federation.sites import PLANS, SIZES, Sites

_LONGER = {"fair-plugin": 3, "gaussian, scaled": 3, "fair-plugin, scaled": 14, "fair-plugin, distilled": 7}
ROUNDS = dict.fromkeys(PLANS, 2) | _LONGER
"""The fewest of each plan, and two at least."""
_EVERY_PLAN = """import json
import os
from pathlib import Path

from flwr.serverapp import ServerApp

from privfair_relay.server_app import coordinate

app = ServerApp()


@app.main()
def coordinate_all(grid, context):
    defaults = dict(context.run_config)
    for turn in json.loads(Path(defaults["plan"]).read_text()):
        for node, guard in turn["guards"].items():
            os.symlink(guard, node + ".new")
            os.replace(node + ".new", node)
        context.run_config = {**defaults, **turn["settings"]}
        coordinate(grid, context)
"""


def start_turns(stack: ExitStack, folder: Path) -> dict[str, Path]:
    """Guards of all plans; turns.json says which a node finds under its name when, and where each one's run goes.

    Plan number n gets the sites `folder`/n and the run `folder`/n/run. The names of the nodes, by party, are returned.
    """
    warnings.simplefilter("ignore")
    nodes, turns = {name: folder / name for name in SIZES}, []
    for number, plan in enumerate(PLANS):
        sites = Sites.at(folder / str(number), plan, ROUNDS[plan])
        sites.desk.budget(research_noise=True)
        stack.enter_context(sites.guards())
        settings = {"plan": sites.desk.plan, "manifest": sites.manifest, "trust": sites.desk.trust}
        settings["out"] = sites.folder / "run"
        asked = zip(nodes.values(), sites.parties, strict=False)  # one party, where an aggregator holds all records
        guards = {str(node): str(sites.socket(party)) for node, party in asked}
        turns.append({"guards": guards, "settings": {name: str(path) for name, path in settings.items()}})
    (folder / "turns.json").write_text(json.dumps(turns))
    return nodes


def main(folder: Path) -> None:
    """All plans over Flower."""
    with ExitStack() as stack:
        nodes = start_turns(stack, folder)
        write_app(folder / "app")
        (folder / "app" / "privfair_relay" / "every_plan.py").write_text(_EVERY_PLAN)
        project = folder / "app" / "pyproject.toml"
        project.write_text(project.read_text().replace("server_app:app", "every_plan:app"))
        with start_flower(nodes, folder / "logs") as address:
            submit_app(address, folder / "app", {"plan": str(folder / "turns.json")}, {}, folder / "logs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
