"""The ClientApp: bytes from Flower to the guard's socket, and back. It holds no record, manifest, ledger or noise.

A SuperNode needs Flower alone: `write_app` copies this file and `guard_socket` into the app. Where the guard answers is
the node's own configuration (`flower-supernode --node-config 'guard-socket="/run/privfair-north/guard.sock"'`), never
the server's word.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from privfair.federation.guard_socket import carry


def relay(message: Message, context: Context) -> Message:
    """Carry one frame to the guard of this node; a guard that is away is an error without words."""
    try:
        question = message.content["frames"]["frame"].numpy().tobytes()
        answer = carry(str(context.node_config["guard-socket"]), question)
    except (OSError, KeyError) as broken:
        return Message(Error(100, type(broken).__name__), reply_to=message)
    carried = np.frombuffer(answer, dtype=np.uint8)
    return Message(RecordDict({"frames": ArrayRecord({"frame": Array(carried)})}), reply_to=message)


app = ClientApp()
app.train()(relay)
