"""MMD-fair FedAvg: noisy predictions of both groups every round, and clipped noisy client updates.

The paper puts noise on the shared predictions only. This plan prices those, and the updates too if a clip is
given; without one it says plainly that the updates are unprotected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import InvalidInput, count, positive
from calibrate.plans.clipped_sums import check_cohort
from calibrate.plans.plan import (
    HISTOGRAM_FLAG,
    ROUNDS_FLAG,
    AlgorithmName,
    Flag,
    NoisyValue,
    Plan,
    attribute_histogram,
    with_once,
)
from calibrate.privacy_unit import NoiseKind, PrivacyUnit, Protected, Relation
from calibrate.releases import InSequence, Release, Repeated, Sampled, scale_noise
from calibrate.sampling import Batch, FixedSize


def prediction_names(groups: int) -> tuple[str, ...]:
    """The name of each group's published predictions."""
    return tuple(f"predictions_group_{number}" for number in range(groups))


PREDICTIONS = prediction_names(2)
"""The names where there are two groups, and as many sets as a replaced record touches where there are more."""
PREDICTED = "predictions"
"""The family of more than two groups' sets."""
UPDATES = "client_updates"
HALF_RANGE = 0.5
"""Predictions are in [0, 1]: within 1/2 of the centre, and replaced by one at most twice that away."""


@dataclass(frozen=True)
class MmdFedavgPlan(Plan):
    """MMD-fair FedAvg; `group_size` is the size of the smallest group, or any bound below it.

    Guarantee: replacing one record, its group included, takes one value out of one group's predictions and puts
    one into the same or another's. Each group's set is dominated by a fixed-size sample under replace-one
    whose values lie within 1/2 of a centre; a round is charged for two sets, because no record touches more,
    however many groups there are. A record belongs to one client, whose clipped update moves by at most twice the clip
    (docs/theorems/fpfl-and-mmd.md#mmd-fair-fedavg). Unit: one record, replaced.
    """

    algorithm = AlgorithmName.MMD_FEDAVG
    summary: ClassVar[str] = (
        "MMD-fair FedAvg: noisy predictions, and noisy updates if clipped. Protects one record, replaced."
    )
    example: ClassVar[str] = (
        "--epsilon 4 --delta 1e-5 --group-size 10000 --samples-per-group 100 --rounds 50 \\\n"
        "      --mechanism gaussian --users 1000 --cohort 50 --update-clip 1"
    )
    group_size: Annotated[int, Flag("N", "Records in the smallest group.")]
    samples_per_group: Annotated[int, Flag("M", "Noisy predictions published per group and round.")]
    rounds: Annotated[int, ROUNDS_FLAG]
    mechanism: Annotated[NoiseKind, Flag("", "Noise on the predictions.")] = NoiseKind.GAUSSIAN
    users: Annotated[int | None, Flag("K", "Clients, where updates are private too.")] = None
    cohort: Annotated[int | None, Flag("M", "Clients in a round, where updates are private too.")] = None
    update_clip: Annotated[
        float | None, Flag("C", "L2 clip of a client's update; without it updates are unprotected.")
    ] = None
    update_noise_ratio: Annotated[float, Flag("R", "Noise multiplier of the updates relative to the predictions'.")] = (
        1.0
    )
    histogram_noise_ratio: Annotated[float | None, HISTOGRAM_FLAG] = None
    groups: Annotated[int, Flag("G", "Number of sensitive groups.")] = 2

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        self._check_each(count, "group_size", "samples_per_group", "rounds")
        self._check_each(positive, "update_noise_ratio", "histogram_noise_ratio")
        if self.samples_per_group > self.group_size:
            raise InvalidInput(
                "samples-per-group",
                self.samples_per_group,
                f"exceeds the group of {self.group_size} records",
                "draw no more predictions than the smallest group has records",
            )
        self._check_updates()

    def _check_updates(self) -> None:
        given = {"users": self.users, "cohort": self.cohort, "update-clip": self.update_clip}
        missing = [name for name, value in given.items() if value is None]
        if len(missing) == len(given):
            return
        if missing:
            raise InvalidInput(
                missing[0],
                None,
                "is needed to protect the updates, because the other flags of updates are given",
                "give users, cohort and update-clip together, or none of them",
            )
        assert self.users is not None
        assert self.cohort is not None
        assert self.update_clip is not None
        check_cohort(self.users, self.cohort)
        positive("update-clip", self.update_clip)

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)

    def values(self) -> tuple[NoisyValue, ...]:
        names = prediction_names(self.groups)
        family = PREDICTED if self.groups > len(PREDICTIONS) else None
        predictions = tuple(NoisyValue(name, HALF_RANGE, kind=self.mechanism, family=family) for name in names)
        if self.update_clip is None:
            return predictions
        return (*predictions, NoisyValue(UPDATES, self.update_clip, self.update_noise_ratio))

    def once(self) -> tuple[NoisyValue, ...]:
        return attribute_histogram(self.unit.relation, self.histogram_noise_ratio)

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        touched = [value for value in values if value.family is None or value.name in PREDICTIONS]
        one_round = InSequence(tuple(self._release_of(value) for value in touched))
        return with_once(Repeated(one_round, self.rounds), once)

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release | None:
        """A record replaced within its group moves one set of predictions and its client's update, no count.

        The set is in random order, so an observer does not know which entry moved; the sum of its m entries shows
        the move under sqrt(m) times the noise (docs/theorems/fpfl-and-mmd.md#mmd-fair-fedavg, "How tight").
        """
        spread = math.sqrt(self.samples_per_group)
        reached: tuple[Release, ...] = ()
        for value in values:
            if value.name == UPDATES:
                reached = (*reached, self._release_of(value))
            elif value.name == PREDICTIONS[0] and value.kind is NoiseKind.GAUSSIAN:
                reached = (*reached, scale_noise(self._release_of(value), spread))
        return Repeated(InSequence(reached), self.rounds) if reached else None

    def _release_of(self, value: NoisyValue) -> Release:
        """One value of one round. Laplace noise is priced on the full group: no amplification is proved for it."""
        if value.name == UPDATES:
            assert self.users is not None
            assert self.cohort is not None
            return Sampled(FixedSize(self.users, self.cohort, Batch.SECRET), value.release())
        if value.kind is NoiseKind.LAPLACE:
            return value.release()
        return Sampled(FixedSize(self.group_size, self.samples_per_group, Batch.SECRET), value.release())

    def joint_noise_ratio(self) -> None:
        """The two groups and the updates are drawn separately: there is no joint release of one batch."""
        return

    def assumptions(self) -> tuple[str, ...]:
        drawn = (
            f"In every round {self.samples_per_group} predictions of each group are a fresh uniform draw without"
            f" replacement from at least {self.group_size} records, independent for the groups."
        )
        secret = (
            "Nobody learns which records, or how many of a client's, are in the draw; the collector that draws and"
            " adds noise is trusted."
            if self.mechanism is NoiseKind.GAUSSIAN
            else "No amplification by sampling is claimed for Laplace noise, so the draw may be known."
        )
        return (
            "The protected unit is one record, replaced by any other, its group included.",
            *self._family_assumption(),
            "Predictions are clipped to [0, 1] before independent noise is added to each of them.",
            drawn,
            "Each group's predictions are published in a uniformly random order that does not depend on the records.",
            secret,
            *self._update_assumptions(),
        )

    def _family_assumption(self) -> tuple[str, ...]:
        if self.groups <= len(PREDICTIONS):
            return ()
        return (f"A record is in one group: replacing it touches two of the {self.groups} sets, the price of a round.",)

    def _update_assumptions(self) -> tuple[str, ...]:
        if self.update_clip is None:
            return ()
        return (
            (
                f"Each client's update is clipped to {self.update_clip:g} in L2, and a trusted aggregator adds"
                " the noise to the sum over the cohort."
            ),
            (
                f"Each round's cohort is a fresh uniform subset of exactly {self.cohort} of {self.users}"
                " clients, known to the aggregator alone."
            ),
            "Every record belongs to exactly one client.",
        )

    def unprotected(self) -> tuple[str, ...]:
        updates = (
            "The client updates are sent without noise and depend on the data: the guarantee covers the"
            " predictions alone and NOT the trained model; give users, cohort and update-clip to protect them."
        )
        counts = (
            "The group counts behind the weights alpha_k^a must be public; otherwise pay for them with a noisy"
            " histogram (histogram-noise-ratio)."
        )
        return (
            *((updates,) if self.update_clip is None else ()),
            *((counts,) if self.histogram_noise_ratio is None else ()),
            "The number of records of each client is public.",
        )
