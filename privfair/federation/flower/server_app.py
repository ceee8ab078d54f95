"""The ServerApp: the coordinator over Flower. It sees published values and holds no record, ledger or noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from privfair.training import train_over_engine


def coordinate(grid: Grid, context: Context) -> None:
    """Train the signed plan that the run's configuration names; the run folder is `out`."""
    deadline = float(str(context.run_config["deadline"]))

    def exchange(messages: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """One frame per node; nodes whose guard is away, or that are too late, are left out."""
        sent = [
            Message(
                RecordDict({"frames": ArrayRecord({"frame": Array(np.frombuffer(frame, dtype=np.uint8))})}),
                dst_node_id=node,
                message_type="train",
            )
            for node, frame in messages.items()
        ]
        for reply in grid.send_and_receive(sent, timeout=deadline):
            if not reply.has_error():
                yield reply.metadata.src_node_id, reply.content["frames"]["frame"].numpy().tobytes()

    result = train_over_engine("flower", exchange, grid.get_node_ids, context.run_config)
    print(json.dumps(result.to_json()), flush=True)


app = ServerApp()
app.main()(coordinate)
