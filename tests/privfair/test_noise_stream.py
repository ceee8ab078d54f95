"""The random stream: uniform, never repeated, never the same in two processes or threads."""

from __future__ import annotations

import copy
import ctypes
import os
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import chisquare

from calibrate.errors import InvalidInput
from privfair.noise import lattice_sampler
from privfair.noise.lattice_sampler import SecureStream, uniform_below

pytestmark = pytest.mark.true_noise
FALSE_ALARM = 1e-12
"""A p-value below this fails a test, which chance does with about this probability. Two equal 64-bit words among the
300,000 of one test: 3e5^2 / 2^65 = 2.4e-9, so repetitions are looked for among 64,000 (1.1e-10)."""


def test_bytes_are_uniform_and_words_never_repeat() -> None:
    words = SecureStream().words(300_000)  # more than one key's worth
    assert chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > FALSE_ALARM
    assert np.unique(words[:32_000]).size == np.unique(words[-32_000:]).size == 32_000
    assert not np.intersect1d(words[:32_000], words[-32_000:]).size


def test_every_request_replaces_the_key_and_hands_out_other_words() -> None:
    stream = SecureStream()
    before = bytes(stream._key)
    first = stream.words(4)
    assert bytes(stream._key) != before
    assert not np.intersect1d(first, stream.words(4)).size
    assert bytes(first.view(np.uint8)) != bytes(stream._key)


def test_the_key_is_not_among_the_words_handed_out() -> None:
    stream = SecureStream()
    handed_out = bytes(stream.words(1000).view(np.uint8))
    assert bytes(stream._key) not in handed_out


def test_the_words_are_the_keystream_after_its_first_32_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known answer: a second AES implementation call on the key gives next key and words."""
    stream = SecureStream()
    monkeypatch.setattr(lattice_sampler, "_system_entropy", lambda: bytes(32))
    key = bytes(stream._key)
    keystream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(32 + 80))
    assert bytes(stream.words(10).view(np.uint8)) == keystream[32:]
    assert bytes(stream._key) == keystream[:32]


def test_fresh_bytes_of_the_system_change_what_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, draws = SecureStream(), []
    key = bytes(stream._key)
    for fresh in (bytes(32), bytes(31) + b"\x01"):
        stream._key[:] = key
        monkeypatch.setattr(lattice_sampler, "_system_entropy", lambda fresh=fresh: fresh)
        draws.append(bytes(stream.words(4).view(np.uint8)))
    assert draws[0] != draws[1]


def test_a_request_for_nothing_gives_nothing() -> None:
    assert SecureStream().words(0).size == 0


def test_two_streams_differ() -> None:
    assert not np.intersect1d(SecureStream().words(64), SecureStream().words(64)).size


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_duplicated(duplicate) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match="copied or pickled"):
        duplicate(SecureStream())


def test_threads_that_share_a_stream_never_see_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh bytes are switched off, so that only the lock keeps two threads from using one key."""
    stream = SecureStream()
    monkeypatch.setattr(lattice_sampler, "_system_entropy", lambda: bytes(32))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            parts = list(pool.map(lambda _: stream.words(50), range(4000)))
    finally:
        sys.setswitchinterval(before)
    everything = np.concatenate(parts)
    assert np.unique(everything).size == everything.size


def _words_in_child(stream: SecureStream, fork) -> bytes:  # type: ignore[no-untyped-def]
    """What a forked child draws from `stream`, sent back through a pipe."""
    reader, writer = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.write(writer, bytes(stream.words(8).view(np.uint8)))
        finally:
            os._exit(0)
    os.close(writer)
    drawn = os.read(reader, 64)
    os.close(reader)
    os.waitpid(child, 0)
    return drawn


def _draws_of_parent_and_children(stream: SecureStream, fork) -> list[bytes]:  # type: ignore[no-untyped-def]
    children = [_words_in_child(stream, fork) for _ in range(3)]
    return [*children, bytes(stream.words(8).view(np.uint8))]


def test_a_forked_child_draws_other_words_than_its_parent_and_siblings() -> None:
    draws = _draws_of_parent_and_children(SecureStream(), os.fork)
    assert all(len(draw) == 64 for draw in draws)
    assert len(set(draws)) == 4


def test_the_fork_hook_alone_keeps_processes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh bytes of the system are switched off per request; only the re-keying at the fork is left."""
    stream = SecureStream()
    fresh = lattice_sampler._system_entropy
    monkeypatch.setattr(SecureStream, "_restart_in_child", _restart_with(fresh))
    monkeypatch.setattr(lattice_sampler, "_system_entropy", lambda: bytes(32))
    assert len(set(_draws_of_parent_and_children(stream, os.fork))) == 4


def _restart_with(entropy):  # type: ignore[no-untyped-def]
    original = SecureStream._restart_in_child

    def restart(self: SecureStream) -> None:
        original(self)  # if the hook stopped replacing the key, this would leave the parent's
        if bytes(self._key) == bytes(32):
            self._key = bytearray(entropy())

    return restart


def test_fresh_entropy_alone_keeps_processes_apart_when_python_does_not_see_the_fork() -> None:
    """A fork in foreign code runs no hook: the bytes mixed in at each request must do."""
    raw_fork = ctypes.PyDLL(None).fork
    assert len(set(_draws_of_parent_and_children(SecureStream(), raw_fork))) == 4


def test_without_either_protection_the_children_would_repeat_the_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two tests above can fail: with hook and fresh bytes both off, the words are the same."""
    stream = SecureStream()
    monkeypatch.setattr(lattice_sampler, "_system_entropy", lambda: bytes(32))
    raw_fork = ctypes.PyDLL(None).fork
    assert len(set(_draws_of_parent_and_children(stream, raw_fork))) == 1


def test_a_lock_held_at_the_fork_does_not_block_the_child() -> None:
    stream = SecureStream()
    with stream._lock:
        assert len(_words_in_child(stream, os.fork)) == 64


@pytest.mark.parametrize("bound", [1, 2, 3, 5, 7, 16, 100, 257])
def test_uniform_below_is_uniform(bound: int) -> None:
    drawn = uniform_below(bound, 40_000, SecureStream())
    counts = np.bincount(drawn, minlength=bound)
    assert counts.size == bound
    assert bound == 1 or chisquare(counts).pvalue > FALSE_ALARM


def test_uniform_below_refuses_a_bound_it_cannot_serve() -> None:
    for bound in (0, (1 << 62) + 1):
        with pytest.raises(InvalidInput, match="bound"):
            uniform_below(bound, 1, SecureStream())
