"""Every plan over NVFlare's simulator with a client per site, in the environment that has NVFlare.

    .venv-nvflare/bin/python -m tests.federation.over_nvflare FOLDER

One job for all plans, as over Flower (`over_flower`): its controller trains one plan after the other.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from privfair.federation.nvflare.coordinator import Coordinate
from privfair.federation.trial import simulate, write_job
from tests.federation.over_flower import start_turns


class EveryPlan(Coordinate):
    """The product's controller, plan by plan; before each turn the clients' names are pointed at its guards."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        for turn in json.loads(Path(self.settings["turns"]).read_text()):
            for node, guard in turn["guards"].items():
                os.symlink(guard, node + ".new")
                os.replace(node + ".new", node)
            self.train({**self.settings, **turn["settings"]}, abort_signal, fl_ctx)


def main(folder: Path) -> None:
    """All plans over NVFlare."""
    settings = {"turns": str(folder / "turns.json"), "root": "", "test-files": "[]", "deadline": 900.0}
    with ExitStack() as stack:
        nodes = start_turns(stack, folder)
        coordinator = f"{__spec__.name}.{EveryPlan.__name__}" if __spec__ else ""
        write_job(folder / "job", {**settings, "steps-per-message": 1, "resume": False}, len(nodes), coordinator)
        simulate(folder / "job", tuple(nodes), f"{folder}/{{site}}", folder / "logs")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
