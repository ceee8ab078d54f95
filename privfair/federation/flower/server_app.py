"""The ServerApp: the coordinator over Flower. It sees published values and holds no record, ledger or noise."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from calibrate.errors import Refused
from privfair.federation.remote import ResendingTransport
from privfair.federation.wire import Kind, ask_hello, decode, read_greeting
from privfair.run.public import read_signed_plan
from privfair.training import TrustInForce, train_over_transport

_FIRST_LOOK = 0.2


class _Nodes:
    """Flower's nodes as parties; `names` is filled in as guards say who they are."""

    def __init__(self, grid: Grid, deadline: float) -> None:
        self._grid = grid
        self._deadline = deadline
        self.ids: dict[str, int] = {}
        self._greetings: dict[str, tuple[bytes, bytes]] = {}

    def send(self, messages: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        """What came back, by party; the greeting that a node was found by answers the first hello: a message less."""
        asked = {}
        for name, message in messages.items():
            question, greeting = self._greetings.pop(name, (b"", b""))
            if question == message:
                yield name, greeting
            else:
                asked[self.ids[name]] = (name, message)
        for node, content in self.exchange({node: message for node, (_, message) in asked.items()}) if asked else ():
            yield asked[node][0], content

    def exchange(self, messages: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """One frame per node; nodes whose guard is away, or that are too late, are left out."""
        sent = [
            Message(
                RecordDict({"frames": ArrayRecord({"frame": Array(np.frombuffer(frame, dtype=np.uint8))})}),
                dst_node_id=node,
                message_type="train",
            )
            for node, frame in messages.items()
        ]
        for reply in self._grid.send_and_receive(sent, timeout=self._deadline):
            if not reply.has_error():
                yield reply.metadata.src_node_id, reply.content["frames"]["frame"].numpy().tobytes()

    def find(self, run: str, parties: Iterable[str]) -> None:
        """Ask every node who its guard is until all parties are found."""
        wanted, pause, until = set(parties), _FIRST_LOOK, time.monotonic() + self._deadline
        while not wanted <= self.ids.keys():
            unknown = [node for node in self._grid.get_node_ids() if node not in self.ids.values()]
            question = ask_hello(run)
            for node, content in self.exchange(dict.fromkeys(unknown, question)) if unknown else ():
                message = decode(content[32:])
                if message.kind is Kind.GREETING:
                    party = read_greeting(message).party
                    self.ids.setdefault(party, node)
                    self._greetings.setdefault(party, (question, content))
            if not wanted <= self.ids.keys():
                if time.monotonic() > until:
                    missing = ", ".join(sorted(wanted - self.ids.keys()))
                    raise Refused(f"no node of Flower stands for {missing}; start their guards and SuperNodes")
                time.sleep(pause)
                pause = min(2 * pause, 5.0)


def coordinate(grid: Grid, context: Context) -> None:
    """Train the signed plan that the run's configuration names; the run folder is `out`."""
    config = context.run_config
    trust = TrustInForce(Path(str(config["trust"])), Path(str(config["root"])) if config["root"] else None)
    signed = read_signed_plan(Path(str(config["plan"])), Path(str(config["manifest"])).read_bytes(), trust.file)
    nodes = _Nodes(grid, float(str(config["deadline"])))
    nodes.find(signed.manifest.digest, (silo.name for silo in signed.document.data.silos))
    result = train_over_transport(
        ResendingTransport(nodes.send),
        signed,
        Path(str(config["out"])),
        tuple(Path(name) for name in json.loads(str(config["test-files"]))),
        resume=bool(config["resume"]),
        engine="flower",
        steps_per_message=int(str(config["steps-per-message"])),
    )
    print(json.dumps(result.to_json()), flush=True)


app = ServerApp()
app.main()(coordinate)
