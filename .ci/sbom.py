"""A CycloneDX bill of materials of an installed package and all it needs: `sbom.py NAME EXTRA..`, on standard output.

Read from the metadata of what is installed; a package of a wanted extra that is not installed is an error, so that no
bill is silently short.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distribution

from packaging.requirements import Requirement


def reference(found: Distribution) -> str:
    """The package URL of an installed package."""
    return f"pkg:pypi/{normalised(found.name)}@{found.version}"


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(found: Distribution, extras: frozenset[str]) -> list[Requirement]:
    """What a package needs here, with these of its extras."""
    wanted = [Requirement(line) for line in found.requires or ()]
    return [
        requirement
        for requirement in wanted
        if requirement.marker is None
        or any(requirement.marker.evaluate({"extra": extra}) for extra in extras or frozenset({""}))
    ]


def component(found: Distribution) -> dict[str, object]:
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    entry: dict[str, object] = {
        "type": "library",
        "bom-ref": reference(found),
        "name": found.name,
        "version": found.version,
        "purl": reference(found),
    }
    if licence and "\n" not in licence.strip():
        entry["licenses"] = [{"license": {"name": licence.strip()}}]
    return entry


def bill(name: str, extras: frozenset[str]) -> dict[str, object]:
    """The bill of `name` with `extras`: itself, every package it needs, and who needs whom."""
    root, seen = distribution(name), dict[str, tuple[Distribution, set[str]]]()
    asked, waiting = set[tuple[str, frozenset[str]]](), [(root, extras)]
    while waiting:
        found, wanted = waiting.pop()
        if (found.name, wanted) in asked:
            continue
        asked.add((found.name, wanted))
        _, below = seen.setdefault(reference(found), (found, set()))
        for requirement in needed(found, wanted | {""}):
            other = distribution(requirement.name)
            if other.name != found.name:
                below.add(reference(other))
            waiting.append((other, frozenset(requirement.extras)))
    seen[reference(root)][1].discard(reference(root))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component(root) | {"type": "application"}},
        "components": [component(found) for key, (found, _) in sorted(seen.items()) if key != reference(root)],
        "dependencies": [{"ref": key, "dependsOn": sorted(below)} for key, (_, below) in sorted(seen.items())],
    }


if __name__ == "__main__":
    json.dump(bill(sys.argv[1], frozenset(sys.argv[2:])), sys.stdout, indent=1)
