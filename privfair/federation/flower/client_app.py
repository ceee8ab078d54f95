"""The ClientApp: bytes from Flower to the guard's socket, and back. It holds no record, manifest, ledger or noise.

It imports nothing of privfair: a SuperNode needs Flower alone. Where the guard answers is the node's own configuration
(`flower-supernode --node-config 'guard-socket="/run/privfair-north/guard.sock"'`), never the server's word.
"""

from __future__ import annotations

import hashlib
import socket
import struct

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

_LENGTH = struct.Struct("<I")
_DEADLINE = 600.0


def ask_guard(path: str, question: bytes) -> bytes:
    """One question to the guard at `path`, and its answer."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_DEADLINE)
        connection.connect(path)
        connection.sendall(_LENGTH.pack(len(question)) + question)
        (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
        return _read(connection, length)


def _read(connection: socket.socket, number: int) -> bytes:
    found = bytearray()
    while len(found) < number:
        part = connection.recv(min(number - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the guard hung up")
        found += part
    return bytes(found)


def relay(message: Message, context: Context) -> Message:
    """Carry one frame to the guard of this node; a guard that is away is an error without words."""
    try:
        question = message.content["frames"]["frame"].numpy().tobytes()
        answer = ask_guard(str(context.node_config["guard-socket"]), question)
    except (OSError, KeyError) as broken:
        return Message(Error(100, type(broken).__name__), reply_to=message)
    carried = np.frombuffer(hashlib.sha256(question).digest() + answer, dtype=np.uint8)
    return Message(RecordDict({"frames": ArrayRecord({"frame": Array(carried)})}), reply_to=message)


app = ClientApp()
app.train()(relay)
