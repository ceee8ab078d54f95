"""Plans, algorithms, theorems, data sets, models and attacks of other packages, found by their entry points.

A package is asked only for what a user names. Its files are read once and hashed, and it is imported from exactly those
bytes, without any `.pyc` there; a budget signs that digest, and training under it refuses any other. In a process
that imported the package before privfair was asked, Python's own import ran it, and the digest is of its files.

A name that is built in is never looked up among plug-ins, so that none can be taken for what is known and proved.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from calibrate.errors import InvalidInput, PrivfairError

T = TypeVar("T")
_NAME = re.compile(r"[a-z][a-z0-9]*([-.][a-z0-9]+)*")
_OURS = ("calibrate", "privfair", "audit")


class PluginGroup(StrEnum):
    """What a package can bring, by the group of its entry point."""

    PLANS = "privfair.plans"
    ALGORITHMS = "privfair.algorithms"
    THEOREMS = "privfair.theorems"
    DATASETS = "privfair.datasets"
    MODELS = "privfair.models"
    ATTACKS = "privfair.attacks"


class _HashedSource(SourceLoader):
    """Runs a module from bytes that were read and hashed; bytecode on the disk is never asked for."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path, self._source = path, source

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: str | bytes) -> bytes:
        return self._source


class _Package(MetaPathFinder):
    """One top-level package (or module) as it lay on the disk when it was first asked for."""

    def __init__(self, name: str, files: dict[str, Path]) -> None:
        content = {place: path.read_bytes() for place, path in sorted(files.items())}
        hashes = {place: hashlib.sha256(data).hexdigest() for place, data in content.items()}
        self.sha256 = hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
        self._modules = {
            _module_name(name, place): (files[place], content[place]) for place in files if place.endswith(".py")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._modules:
            return None
        file, source = self._modules[fullname]
        inside = [str(file.parent)] if file.name == "__init__.py" else None
        loader = _HashedSource(str(file), source)
        return spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=inside)


def _module_name(top: str, place: str) -> str:
    parts = place.removesuffix(".py").split("/")
    return ".".join((top, *(part for part in parts if part not in ("__init__", "")))) if place != f"{top}.py" else top


@cache
def _package(name: str) -> _Package:
    """Read a package's files and, if it is not imported yet, let it be imported from these bytes alone."""
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ImportError(f"no package {name} with an __init__.py is installed")
    origin = Path(spec.origin)
    files = {origin.name: origin}
    if spec.submodule_search_locations is not None:
        found = (path for path in origin.parent.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        files = {path.relative_to(origin.parent).as_posix(): path for path in found}
    package = _Package(name, files)
    if name not in sys.modules:
        sys.meta_path.insert(0, package)
    return package


@dataclass(frozen=True)
class Plugin:
    """One entry point of an installed package."""

    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def source(self) -> str:
        """The package it comes from, with its version."""
        dist = self.entry.dist
        return "an unknown package" if dist is None else f"{dist.name} {dist.version}"

    @property
    def code(self) -> dict[str, str]:
        """The SHA-256 over all files of its package, by the name it is signed under."""
        top = self.entry.module.partition(".")[0]
        try:
            return {f"package {top}": _package(top).sha256}
        except (ImportError, ValueError, OSError) as error:
            raise self.broken(error) from error

    def load(self) -> object:
        """Import it, from the bytes that `code` is the digest of."""
        if self.entry.module.partition(".")[0] in _OURS:
            raise self.broken(ImportError("it points into privfair itself"))
        _ = self.code
        try:
            found: object = self.entry.load()
        except PrivfairError:
            raise
        except (Exception, SystemExit) as error:
            raise self.broken(error) from error
        return found

    def broken(self, error: BaseException) -> InvalidInput:
        """The message about a plug-in that cannot be used."""
        said = str(error).strip().splitlines()
        rule = f"of {self.source} cannot be loaded ({type(error).__name__}{': ' + said[0] if said else ''})"
        return InvalidInput(f"plug-in {self.name}", self.entry.value, rule, "fix that package, or uninstall it")


@cache
def installed_plugins(group: PluginGroup) -> tuple[Plugin, ...]:
    """The entry points of a group by their names; nothing is imported."""
    found = sorted(entry_points(group=group.value), key=lambda entry: entry.name)
    return tuple(Plugin(entry) for entry in found if _NAME.fullmatch(entry.name))


@dataclass(frozen=True)
class Plugins(Generic[T]):
    """The plug-ins of one group: what they must be, and the built-in names that they cannot take."""

    group: PluginGroup
    what: str
    """What an entry point must refer to, for messages."""
    read: Callable[[str, object], T | None]
    """The loaded object under its name as what it must be; None if it is something else."""
    built_in: Callable[[], Collection[str]]

    def names(self) -> tuple[str, ...]:
        """The names that can be asked for."""
        built_in = self.built_in()
        return tuple(dict.fromkeys(one.name for one in installed_plugins(self.group) if one.name not in built_in))

    def find(self, name: str) -> Plugin | None:
        """The plug-in of that name; None if it is built in or not installed. Refused where two packages have it."""
        found = [one for one in installed_plugins(self.group) if one.name == name]
        if not found or name in self.built_in():
            return None
        if len(found) > 1:
            both = " and ".join(one.source for one in found)
            raise InvalidInput(f"plug-in {name}", name, f"is brought by {both}", "uninstall all but one")
        return found[0]

    def get(self, name: str) -> T | None:
        """What the plug-in of that name brings; None where there is none."""
        plugin = self.find(name)
        if plugin is None:
            return None
        found = self.read(name, plugin.load())
        if found is None:
            raise plugin.broken(TypeError(f"it is not {self.what}"))
        return found

    def code(self, name: str) -> dict[str, str]:
        """The digest of the code behind a name, to be signed; empty for what is built in."""
        plugin = self.find(name)
        return {} if plugin is None else plugin.code


@cache
def installed_code() -> str:
    """SHA-256 over all sorted .py and compiled files of calibrate, privfair and audit as installed: names, contents."""
    whole = hashlib.sha256()
    for name in _OURS:
        spec = find_spec(name)
        for place in () if spec is None else spec.submodule_search_locations or ():
            code = (path for path in Path(place).rglob("*") if path.suffix in (".py", ".so"))
            for path in sorted(code, key=lambda one: one.relative_to(place).as_posix()):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                whole.update(f"{name}/{path.relative_to(place).as_posix()} {content}\n".encode())
    return whole.hexdigest()
