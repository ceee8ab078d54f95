"""What a relay does at a site: one frame to the guard's socket, and what comes back. It needs nothing but Python.

A copy of this file goes into the apps of Flower and NVFlare, so that their nodes need no privfair. A relay holds no
record, manifest, ledger or noise, and looks into no message.
"""

from __future__ import annotations

import hashlib
import socket
import struct

_LENGTH = struct.Struct("<I")
_DEADLINE = 600.0


def carry(path: str, question: bytes) -> bytes:
    """One question to the guard at `path`: the digest of the question, then the guard's answer.

    The digest tells the coordinator which question is answered, however late the answer comes; `OSError` where the
    guard is away.
    """
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_DEADLINE)
        connection.connect(path)
        connection.sendall(_LENGTH.pack(len(question)) + question)
        (length,) = _LENGTH.unpack(_read(connection, _LENGTH.size))
        return relayed(question, _read(connection, length))


def relayed(question: bytes, answer: bytes) -> bytes:
    """What a relay sends back."""
    return hashlib.sha256(question).digest() + answer


def _read(connection: socket.socket, number: int) -> bytes:
    found = bytearray()
    while len(found) < number:
        part = connection.recv(min(number - len(found), 1 << 20))
        if not part:
            raise ConnectionError("the guard hung up")
        found += part
    return bytes(found)
