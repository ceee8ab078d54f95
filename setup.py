"""What pyproject.toml cannot say: the README without relative links, which lead nowhere on a package page, and the
compiled part, which is built where a compiler is, unless PRIVFAIR_PURE is set."""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup

_HERE = Path(__file__).parent
_PROJECT = tomllib.loads((_HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_RELATIVE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)]+)\)")


def page_of(readme: str, source: str | None) -> str:
    """The README for a package page: links into `source`, a web address, or file names where there is none."""
    if source is None:
        return _RELATIVE.sub(lambda link: f"{link[1]} (`{link[2]}`)", readme)
    return _RELATIVE.sub(lambda link: f"[{link[1]}]({source.rstrip('/')}/{link[2]})", readme)


def compiled() -> list[Extension]:
    """Loops over integers that numpy can do as well; one that does not compile is left out with a warning."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    if os.environ.get("PRIVFAIR_PURE") or shutil.which(compiler.split()[0]) is None:
        return []
    source, flags = "privfair/noise/passes.c", ["-O3"]
    return [Extension("privfair.noise.passes", [source], py_limited_api=True, optional=True, extra_compile_args=flags)]


_COMPILED = compiled()

setup(
    ext_modules=_COMPILED,
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if _COMPILED else {},
    long_description=page_of((_HERE / "README.md").read_text(encoding="utf-8"), _PROJECT.get("urls", {}).get("Source")),
    long_description_content_type="text/markdown",
)
