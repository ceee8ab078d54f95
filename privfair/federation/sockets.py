"""Frames on unix sockets: the coordinator's transport, and the loop behind which a guard answers.

Everything happens in one thread: a guard reads from all its connections and answers one message at a time, so a
connection that sends half a frame, or reads no answer, costs its deadline and keeps no one waiting.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from calibrate.errors import InvalidInput, PrivfairError, Refused
from privfair.federation.wire import MOST_BYTES, Code, refusal

_LENGTH = struct.Struct("<I")
_CREDENTIALS = struct.Struct("3i")
_CHUNK = 1 << 20
_RETRY_SECONDS = 0.05
_MOST_CONNECTIONS = 64
_MOST_HELD = MOST_BYTES + (1 << 24)
"""Bytes of unfinished frames and unread answers of all connections together: one longest message, and room."""


class GuardUnreachable(PrivfairError):
    """A guard did not answer in time; what it published stays published, and the run can be resumed."""

    exit_code = 70


def unix_socket() -> socket.socket:
    """A new unix socket; refused where the system has none."""
    if not hasattr(socket, "AF_UNIX"):
        rule = "needs unix sockets, which this system does not have"
        raise InvalidInput("a guard", sys.platform, rule, "run guards on Linux or macOS, or train in one process")
    return socket.socket(socket.AF_UNIX)


def frame(message: bytes) -> bytes:
    """A message with its length in front."""
    return _LENGTH.pack(len(message)) + message


@final
class SocketTransport:
    """Asks all guards at once: every question is sent before the first answer is awaited.

    A guard that hangs up is asked again, over a new connection, until the deadline: it is free to be restarted, and
    answers a repeated question with the same bytes. `deadline` is in seconds, for one question to all of them.
    """

    def __init__(self, sockets: Mapping[str, Path], deadline: float = 600.0) -> None:
        self._paths = dict(sockets)
        self._deadline = deadline
        self._open: dict[str, socket.socket] = {}

    def __call__(self, messages: Mapping[str, bytes]) -> dict[str, bytes]:
        until = time.monotonic() + self._deadline
        sent = {name: self._sent(name, message, until) for name, message in messages.items()}
        return {name: self._answer(name, message, sent[name], until) for name, message in messages.items()}

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()

    def _sent(self, name: str, message: bytes, until: float) -> bool:
        try:
            self._connection(name, until).sendall(frame(message))
        except OSError:
            self._drop(name)
            return False
        return True

    def _answer(self, name: str, message: bytes, sent: bool, until: float) -> bytes:
        while True:
            try:
                if sent:
                    return _receive(self._connection(name, until), until)
            except OSError:
                self._drop(name)
            if time.monotonic() >= until:
                raise GuardUnreachable(
                    f"the guard of {name!r} is not ready: no answer at {self._paths[name]} within "
                    f"{self._deadline:g} seconds. Ask its operator why, then repeat the command with --resume."
                )
            if not (sent := self._sent(name, message, until)):
                time.sleep(_RETRY_SECONDS)

    def _connection(self, name: str, until: float) -> socket.socket:
        found = self._open.get(name)
        if found is None:
            found = unix_socket()
            found.settimeout(_left(until))
            try:
                found.connect(str(self._paths[name]))
            except OSError:
                found.close()
                raise
            self._open[name] = found
        found.settimeout(_left(until))
        return found

    def _drop(self, name: str) -> None:
        lost = self._open.pop(name, None)
        if lost is not None:
            lost.close()


def _receive(connection: socket.socket, until: float) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, until))
    if length > MOST_BYTES:
        raise ConnectionError("a longer frame than any that a guard sends")
    return _exactly(connection, length, until)


def _exactly(connection: socket.socket, number: int, until: float) -> bytes:
    found = bytearray()
    while len(found) < number:
        connection.settimeout(_left(until))
        part = connection.recv(min(number - len(found), _CHUNK))
        if not part:
            raise ConnectionError("the guard hung up")
        found += part
    return bytes(found)


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@dataclass(eq=False)
class _Connection:
    """One connection to a guard: what it sent so far, what is still to be written to it, and since when it is late."""

    socket: socket.socket
    who: str
    read: bytearray = field(default_factory=bytearray)
    unwritten: bytearray = field(default_factory=bytearray)
    since: float = field(default_factory=time.monotonic)
    last: bool = False
    """Whether it is closed once its answer is written."""
    known: bool = False
    """Whether it has asked as a coordinator of this run; then no newcomer takes its place."""

    @property
    def waiting(self) -> bool:
        """Whether it owes us something: the rest of a frame, or reading its answer."""
        return self.held > 0

    @property
    def held(self) -> int:
        """Bytes that are kept for it."""
        return len(self.read) + len(self.unwritten)

    @property
    def asks(self) -> bool:
        """Whether its turn has come: a length that is too long or a whole frame is there, and no answer is unread."""
        if self.unwritten or self.last or len(self.read) < _LENGTH.size:
            return False
        length: int = _LENGTH.unpack_from(self.read)[0]
        return length > MOST_BYTES or len(self.read) >= _LENGTH.size + length


@final
class SocketServer:
    """Answers frames at one path until it is told to stop.

    `answer` must not raise. `deadline` is how many seconds a frame may take to arrive, or an answer to be read. `known`
    tells after an answer whether its question came from a coordinator of this run: newcomers never take the place of
    such a connection. A `shared` socket is open to its group, others to their owner alone.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[bytes], bytes],
        log: logging.Logger,
        deadline: float = 60.0,
        *,
        known: Callable[[], bool] = lambda: False,
        shared: bool = False,
    ) -> None:
        self._path = path
        self._answer = answer
        self._known = known
        self._log = log
        self._deadline = deadline
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._wake, waker = os.pipe()
        self._waker = waker
        self._listener = _listen(path, shared)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._connections: dict[int, _Connection] = {}

    def stop(self) -> None:
        """End the loop after the answer in hand; safe to call from a signal handler."""
        self._stopped = True
        os.write(self._waker, b"x")

    def serve(self) -> None:
        """Answer until `stop`."""
        try:
            while not self._stopped:
                for key, events in self._selector.select(self._patience()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.data, _Connection):
                        self._turn(key.data, events)
                # One question of each: a caller that sends thousands at once waits like all others.
                for connection in [one for one in self._connections.values() if one.asks]:
                    self._answer_one(connection)
                self._drop_late()
        finally:
            self.close()

    def close(self) -> None:
        """Close every connection and remove the socket."""
        for connection in tuple(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        for descriptor in (self._wake, self._waker):
            os.close(descriptor)
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            found, _ = self._listener.accept()
        except OSError:
            return
        found.setblocking(False)
        connection = _Connection(found, _peer(found))
        self._log.info("connection of %s", connection.who)
        if len(self._connections) >= _MOST_CONNECTIONS:
            strangers = [one for one in self._connections.values() if not one.known]
            self._drop(min(strangers, key=lambda one: one.since, default=connection))
            if not strangers:
                return
        self._connections[found.fileno()] = connection
        self._selector.register(found, selectors.EVENT_READ, connection)

    def _patience(self) -> float | None:
        """Seconds until a connection may be late; none where a question is there already."""
        if any(connection.asks for connection in self._connections.values()):
            return 0.0
        return self._deadline if self._connections else None

    def _turn(self, connection: _Connection, events: int) -> None:
        if connection.socket.fileno() < 0:
            return
        try:
            if events & selectors.EVENT_READ:
                part = connection.socket.recv(_CHUNK)
                if not part:
                    self._drop(connection)
                    return
                if not connection.waiting:
                    connection.since = time.monotonic()
                connection.read += part
                self._make_room()
            if connection.socket.fileno() >= 0:
                self._write(connection)
        except BlockingIOError:
            return
        except OSError:
            self._drop(connection)

    def _make_room(self) -> None:
        """Where too much is held for all of them together, those that hold most are cut off."""
        while sum(one.held for one in self._connections.values()) > _MOST_HELD:
            strangers = [one for one in self._connections.values() if one.held and not one.known]
            largest = max(strangers or self._connections.values(), key=lambda one: one.held)
            self._log.warning("%s is cut off: too many bytes are held for all connections", largest.who)
            self._drop(largest)

    def _answer_one(self, connection: _Connection) -> None:
        if self._stopped or connection.socket.fileno() < 0:
            return
        (length,) = _LENGTH.unpack_from(connection.read)
        if length > MOST_BYTES:
            self._log.warning("%s announced a frame of %d bytes; refused unread", connection.who, length)
            connection.unwritten += frame(refusal("WireRefused", Code.TOO_LONG))
            connection.last = True
        else:
            end = _LENGTH.size + length
            message = bytes(memoryview(connection.read)[_LENGTH.size : end])
            del connection.read[:end]
            began = time.monotonic()
            connection.unwritten += frame(self._answer(message))
            connection.known |= self._known()
            for one in self._connections.values():  # no one is late because this guard was busy
                one.since += time.monotonic() - began
            connection.since = time.monotonic()
        try:
            self._write(connection)
        except OSError:
            self._drop(connection)

    def _write(self, connection: _Connection) -> None:
        if connection.unwritten:
            try:
                written = connection.socket.send(connection.unwritten)
            except BlockingIOError:
                written = 0
            del connection.unwritten[:written]
        if connection.last and not connection.unwritten:
            self._drop(connection)
            return
        # While an answer is unread nothing more is taken in: a client can't pile answers up.
        wanted = selectors.EVENT_WRITE if connection.unwritten else selectors.EVENT_READ
        if self._selector.get_key(connection.socket).events != wanted:
            self._selector.modify(connection.socket, wanted, connection)

    def _drop_late(self) -> None:
        now = time.monotonic()
        for connection in tuple(self._connections.values()):
            if connection.waiting and now - connection.since > self._deadline:
                self._log.warning("%s was too slow and is cut off", connection.who)
                self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        if self._connections.pop(connection.socket.fileno(), None) is not None:
            self._selector.unregister(connection.socket)
        connection.socket.close()


def _listen(path: Path, shared: bool) -> socket.socket:
    """A socket at `path`; what a killed guard left there is removed, a live one is refused."""
    found = unix_socket()
    try:
        if path.is_socket():
            with unix_socket() as asked:
                try:
                    asked.connect(str(path))
                except OSError:
                    path.unlink()
                else:
                    raise Refused(f"another guard answers at {path}; stop it first, or name another --socket")
        before = os.umask(0o117 if shared else 0o177)
        try:
            found.bind(str(path))
        finally:
            os.umask(before)
        found.listen(_MOST_CONNECTIONS)
    except OSError as error:
        found.close()
        raise InvalidInput(
            "--socket", str(path), f"cannot be made ({error})", "name a new file of at most 100 characters"
        ) from error
    except BaseException:
        found.close()
        raise
    return found


def _peer(connection: socket.socket) -> str:
    """Who is at the other end, as the operating system knows it."""
    if not hasattr(socket, "SO_PEERCRED"):  # macOS
        return "another process"
    process, user, _ = _CREDENTIALS.unpack(
        connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return f"uid {user}, process {process}"
