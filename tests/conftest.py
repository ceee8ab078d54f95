"""Every run of the suite tries the same examples and draws the same noise, but for tests marked `true_noise`."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: many short computations are faster so

import pytest
from hypothesis import settings

from calibrate import plugins
from calibrate.accountants import registry
from calibrate.questions import most_rounds
from calibrate.solve import solve_noise
from privfair.batches import randomness
from privfair.noise import lattice_sampler
from tests.installed_packages import install as install  # a fixture for all

os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="privfair-tests-")  # no test reads this user's configuration
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile("repeatable")


def _one_thread_in_a_fork() -> None:
    """In the fork of a process in which torch has threads, its next parallel computation never ends."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_one_thread_in_a_fork)


class _Entropy:
    """Stands in for the operating system's generator: bytes that follow from a test's name and how often it asked.

    A forked child gets true randomness, or it would repeat what its parent draws.
    """

    def __init__(self, name: str) -> None:
        self._name, self._asked, self._process = name.encode(), 0, os.getpid()

    def __call__(self, size: int) -> bytes:
        if os.getpid() != self._process:
            return os.urandom(size)
        self._asked += 1
        return hashlib.shake_256(b"%s\0%d" % (self._name, self._asked)).digest(size)


_CALIBRATE = Path(__file__).with_name("calibrate")
"""The tests that run without torch."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Audits in tests ask the gate alone a tenth as often, because there are many."""
    if any(not item.path.is_relative_to(_CALIBRATE) for item in session.items):
        from audit.runs import rerun  # imports torch

        rerun.MESSAGES = 1000


_PRICES = (registry.best_epsilon, solve_noise, most_rounds)
"""The cached functions themselves, which a test may replace."""
_ENTROPY = [os.urandom]
"""The generator in use is the last one; without a test the operating system's."""


_SYSTEM = SimpleNamespace(urandom=lambda size: _ENTROPY[-1](size))
lattice_sampler.os = randomness.os = _SYSTEM  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """One generator per test; the operating system's where the test is marked `true_noise`. No price is remembered."""
    for cached in _PRICES:
        cached.cache_clear()
    yield from _drawing_from(item, item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Iterator[None]:
    """One generator per shared fixture, whichever test happens to ask for it first."""
    if fixturedef.scope == "function":
        return (yield)
    return (yield from _drawing_from(request.node, f"{fixturedef.baseid} {fixturedef.argname} {request.param_index}"))


def _drawing_from(node: pytest.Item | pytest.Collector, name: str) -> Iterator[None]:
    _ENTROPY.append(os.urandom if node.get_closest_marker("true_noise") else _Entropy(name))
    try:
        return (yield)
    finally:
        _ENTROPY.pop()


@pytest.fixture
def installed_experiments(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The entry points of docs/experiments on the path, as `pip install -e docs/experiments` leaves them."""
    folder, site = Path(__file__).parents[1] / "docs" / "experiments", tmp_path_factory.mktemp("site")
    project = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    metadata = site / "privfair_experiments-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n", "utf-8")
    lines = [
        line
        for group, named in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in named.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    for path in (folder, site):
        monkeypatch.syspath_prepend(str(path))
    plugins.installed_plugins.cache_clear()
    yield
    plugins.installed_plugins.cache_clear()
