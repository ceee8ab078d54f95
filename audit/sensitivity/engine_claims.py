"""The engine's own algorithms: their real `contribution()` against the bound that their plan puts into the manifest.

The records, the state an honest or dishonest server could have published (theta, W, the mean loss) and the batch (all
records) are the search's to choose; the algorithm is the one that trains.
"""

from __future__ import annotations

from collections.abc import Callable

from audit.sensitivity import engine_attribute_claims, engine_gradient_claims, engine_mmd_claims, engine_user_claims
from audit.sensitivity.falsify import Entry

UNMOVED = engine_attribute_claims.UNMOVED
BUILDERS: dict[str, Callable[[str], Entry]] = {
    **engine_attribute_claims.BUILDERS,
    **engine_gradient_claims.BUILDERS,
    **engine_user_claims.BUILDERS,
    **engine_mmd_claims.BUILDERS,
}
