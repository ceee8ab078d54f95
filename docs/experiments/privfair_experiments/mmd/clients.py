"""The synthetic clients of the MMD paper, where fairness at each client and fairness overall disagree.

Client k draws a group a by a fair coin and x from N(mu, I) in ten dimensions, mu = (1, ..., 1) if k + a is
even and (-1, ..., -1) if odd; the class is whether the entries of x sum to more than 0. With probability 1 - `own`
the mean of the other group is used instead (the heterogeneity ablation); own = 1/2 makes all clients alike.
"""

from __future__ import annotations

import numpy as np

from calibrate.errors import InvalidInput, count
from privfair.batches.randomness import stream
from privfair.data.dataset import Dataset, Silo, Silos
from privfair.data.stability import digest

DIMENSIONS = 10
CLASSES = ("0", "1")
GROUPS = ("0", "1")


def synthetic_mmd_clients(seed: int, clients: int = 10, records: int = 200, own: float = 1.0) -> Silos:
    """Clients 1 .. `clients` with `records` records each; all of it is made up, so nothing in it is private."""
    count("clients", clients)
    count("records", records)
    if not 0 <= own <= 1:
        raise InvalidInput("own", own, "must lie in [0, 1]", "1 is the paper's setting, 0.5 makes clients alike")
    return Silos(tuple(Silo(f"client-{k}", _client(k, seed, records, own)) for k in range(1, clients + 1)))


def _client(k: int, seed: int, records: int, own: float) -> Dataset:
    generator = stream(seed, f"synthetic mmd {k}")
    group = generator.integers(2, size=records)
    shown = np.where(generator.random(records) < own, group, 1 - group)
    mean = np.where((k + shown) % 2 == 0, 1.0, -1.0)
    features = generator.standard_normal((records, DIMENSIONS)) + mean[:, np.newaxis]
    return Dataset(
        features=features,
        label=(features.sum(axis=1) > 0).astype(np.int64),
        group=group,
        feature_names=tuple(f"x{i}" for i in range(DIMENSIONS)),
        class_names=CLASSES,
        group_names=GROUPS,
        schema_digest=digest({"dataset": "synthetic-mmd", "dimensions": DIMENSIONS}),
    )
