"""What a round over Flower costs, and what of it is privfair's: an empty relay against ours, on the same SuperNodes.

    .venv-flower/bin/python -m tests.benchmarks.flower_speed

The empty relay has messages of as many bytes, and neither guard nor coordinator. All runs write down when each exchange
began and ended. What is ours: the coordinator's processor time between two exchanges, and the guards'. Flower's floor
is the processor time of its own processes per exchange, from two empty runs of different length; so a busy machine
changes neither side of the comparison.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import warnings
from itertools import pairwise
from pathlib import Path

from privfair.cli.demo import SITES
from privfair.federation.trial import start_flower, submit_app, write_app
from tests.benchmarks.guard_speed import processor_seconds, sites_of
from tests.sections import write_section

_STAMPED = """
class Stamped:
    def __init__(self, grid, path):
        self._grid, self._path, self._stamps = grid, Path(path), []

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, **given):
        messages, begun, worked = list(messages), time.monotonic(), time.process_time()
        found = list(self._grid.send_and_receive(messages, **given))
        self._stamps.append([begun, time.monotonic(), worked, time.process_time()])
        self._path.write_text(json.dumps(self._stamps))
        return found
"""
_OURS = f"""import json, time
from pathlib import Path
from flwr.serverapp import ServerApp
from privfair_relay.server_app import coordinate
{_STAMPED}
app = ServerApp()
app.main()(lambda grid, context: coordinate(Stamped(grid, context.run_config["out"] + ".stamps"), context))
"""
_EMPTY_SERVER = f"""import json, time
from pathlib import Path
import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
{_STAMPED}
app = ServerApp()

@app.main()
def main(grid, context):
    exchanges, size = json.loads(context.run_config["plan"])
    grid = Stamped(grid, context.run_config["out"] + ".stamps")
    while len(list(grid.get_node_ids())) < {len(SITES)}:
        time.sleep(0.2)
    for _ in range(exchanges):
        frame = RecordDict({{"frames": ArrayRecord({{"frame": Array(np.zeros(size, dtype=np.uint8))}})}})
        grid.send_and_receive([Message(frame, dst_node_id=node, message_type="train") for node in grid.get_node_ids()])
"""
_EMPTY_CLIENT = """from flwr.app import Message
from flwr.clientapp import ClientApp
app = ClientApp()
app.train()(lambda message, context: Message(message.content, reply_to=message))
"""


def _app(folder: Path, server: str, client: str | None = None) -> Path:
    write_app(folder)
    (folder / "privfair_relay" / "measured.py").write_text(server)
    if client is not None:
        (folder / "privfair_relay" / "client_app.py").write_text(client)
    project = folder / "pyproject.toml"
    project.write_text(project.read_text().replace("server_app:app", "measured:app"))
    return folder


def _read(path: Path) -> tuple[float, float]:
    """Seconds of an exchange, and processor seconds between two; medians without the first and the last."""
    stamps = json.loads(path.read_text())
    exchanges = [end - begun for begun, end, _, _ in stamps[1:-1]]
    between = [after[2] - before[3] for before, after in pairwise(stamps[1:])]
    return statistics.median(exchanges), statistics.median(between)


def _flower_seconds(guards: list[int]) -> float:
    """Processor seconds so far of all processes that this one started, ended ones included, without the guards."""
    found, left = 0.0, [os.getpid()]
    parents = {int(one.name): _fields(one) for one in Path("/proc").iterdir() if one.name.isdigit()}
    while left:
        parent = left.pop()
        for process, fields in parents.items():
            if fields and int(fields[1]) == parent and process not in guards:
                found += sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
                left.append(process)
    return found


def _fields(process: Path) -> list[str]:
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended meanwhile
        return []


def main(rounds: int = 5) -> int:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="pf") as place:
        root = Path(place)
        sites = sites_of(root / "s", "steffle", rounds)
        paths = {"plan": sites.desk.plan, "manifest": sites.manifest, "trust": sites.desk.trust, "out": root / "run"}
        settings = {name: str(path) for name, path in paths.items()}
        ours, empty = _app(root / "ours", _OURS), _app(root / "empty", _EMPTY_SERVER, _EMPTY_CLIENT)
        with sites.guards(), start_flower({name: sites.socket(name) for name in SITES}, root / "logs") as address:
            before = [processor_seconds(child) for child in sites.children]
            submit_app(address, ours, settings, {}, root / "logs")
            working = sum(processor_seconds(child) for child in sites.children) - sum(before)
            size = (root / "run" / "checkpoint.npz").stat().st_size
            spent = [_flower_seconds(sites.children)]
            for exchanges in (2, rounds + 2):
                asked = {"plan": json.dumps([exchanges, size]), "out": str(root / "empty-run")}
                submit_app(address, empty, asked, {}, root / "logs")
                spent.append(_flower_seconds(sites.children))
        floor = ((spent[2] - spent[1]) - (spent[1] - spent[0])) / rounds
        (carried, between), (waited, _) = _read(root / "run.stamps"), _read(root / "empty-run.stamps")
    text = _page(rounds, size, (waited, carried), (floor, between, working / rounds))
    write_section("flower", text)
    print(text)
    return int(between + working / rounds > 0.05 * floor)


def _page(rounds: int, size: int, wall: tuple[float, float], processor: tuple[float, float, float]) -> str:
    (waited, carried), (floor, between, working) = wall, processor
    load, cores, ours = os.getloadavg()[0], os.cpu_count() or 1, between + working
    return f"""# Rounds over Flower

`.venv-flower/bin/python -m tests.benchmarks.flower_speed`: SteFFLe on Credit Card, three sites of 7,500 records, full
batches, {rounds} rounds; a SuperLink and three SuperNodes on one machine at a load of {load:.0f} on {cores} cores. The
empty relay carries messages of {size:,} bytes on the same SuperNodes, without guards, coordinator or privfair.
Processor time is compared, because a busy machine stretches wall time.

| processor time per exchange with three sites | seconds |
|---|---:|
| Flower's own processes, empty relay: its floor | {floor:.2f} |
| our coordinator between two exchanges | {between:.3f} |
| our three guards together | {working:.3f} |

What is ours per round, coordinator and guards, is {ours:.3f} s: **{ours / floor:.1%} of Flower's floor**
(promised: less than 5%). Wall time of an exchange on this machine, medians: {waited:.1f} s with the empty relay,
{carried:.1f} s with ours; they differ by what Flower's process starts differ from one time to the next.
"""


if __name__ == "__main__":
    sys.exit(main())
