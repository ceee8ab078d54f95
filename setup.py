"""What pyproject.toml cannot say: the README without relative links, which lead nowhere on a package page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import setup

_HERE = Path(__file__).parent
_PROJECT = tomllib.loads((_HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_RELATIVE = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)]+)\)")


def page_of(readme: str, source: str | None) -> str:
    """The README for a package page: links into `source`, a web address, or file names where there is none."""
    if source is None:
        return _RELATIVE.sub(lambda link: f"{link[1]} (`{link[2]}`)", readme)
    return _RELATIVE.sub(lambda link: f"[{link[1]}]({source.rstrip('/')}/{link[2]})", readme)


setup(
    long_description=page_of((_HERE / "README.md").read_text(encoding="utf-8"), _PROJECT.get("urls", {}).get("Source")),
    long_description_content_type="text/markdown",
)
