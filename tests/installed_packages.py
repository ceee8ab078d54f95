"""Packages with entry points on the path, as pip would leave them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from calibrate import plugins
from calibrate.plugins import PluginGroup

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """`install(module, source, {(group, name): value})`: a package on the path, as pip would leave it."""
    made: list[str] = []

    def add(module: str, source: str, entries: dict[tuple[PluginGroup, str], str], version: str = "1.0") -> Path:
        site = tmp_path / module / "site"
        folder, meta = site / module, site / f"{module}-{version}.dist-info"
        folder.mkdir(parents=True)
        meta.mkdir()
        (folder / "__init__.py").write_text(source, encoding="utf-8")
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n", encoding="utf-8")
        lines = [f"[{group.value}]\n{name} = {value}\n" for (group, name), value in entries.items()]
        (meta / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")
        monkeypatch.syspath_prepend(str(site))
        made.append(module)
        forget(*made)
        return folder

    before = list(sys.meta_path)
    yield add
    sys.meta_path[:] = before
    forget(*made)


def forget(*modules: str) -> None:
    """Let the packages be read and imported from their files again."""
    plugins.installed_plugins.cache_clear()
    plugins._package.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
        del sys.modules[name]
