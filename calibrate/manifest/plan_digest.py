"""The digest that ties a manifest to the plan it was signed for.

The engine computes it from what it is about to run, the issuer from what was priced; no plan class is needed
for it, because the engine must not import plans.
"""

from __future__ import annotations

from collections.abc import Mapping

from calibrate.errors import InvalidInput
from calibrate.manifest.strict_json import Json, NotStrictJson, digest


def plan_digest(algorithm: str, parameters: Mapping[str, Json]) -> str:
    """SHA-256 of the algorithm's name and all of its parameters, in canonical JSON."""
    try:
        return digest({"algorithm": algorithm, "parameters": dict(parameters)})
    except NotStrictJson as broken:
        raise InvalidInput("parameters", parameters, str(broken), "use plain finite values") from broken
