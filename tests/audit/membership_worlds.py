"""A small world in which a net overfits: some classes, linear at heart, with noisy labels."""

from __future__ import annotations

import numpy as np

from audit.models.records import AuditedRecords
from audit.models.shadow_models import ShadowRecords
from audit.models.stacked import StackedPerceptron

FEATURES, CLASSES = 20, 4
OVERFIT = StackedPerceptron((32,), epochs=40, batch=32)
"""Fits 400 records nearly perfectly."""


def noisy_records(number: int, seed: int) -> ShadowRecords:
    random = np.random.default_rng(seed)
    features = random.normal(size=(number, FEATURES))
    rule = np.random.default_rng(5).normal(size=(FEATURES, CLASSES)) / np.sqrt(FEATURES)
    labels = (features @ rule + 0.3 * random.gumbel(size=(number, CLASSES))).argmax(axis=1)
    return ShadowRecords(features, labels.astype(np.int64), CLASSES)


def audited(records: ShadowRecords, members: int, nonmembers: int) -> AuditedRecords:
    return AuditedRecords.of(records.features, records.labels, records.classes, members, nonmembers)
