"""Two plans whose fair rule is post-processing of what was paid for: pay once, and the fair plug-in.

Pay once randomises each record's sensitive attribute once, and training may use it without limit. The fair plug-in pays
for two noisy logistic models and one noisy histogram, from which the fair rule follows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, assert_never

from calibrate.errors import InvalidInput, count, open_unit, positive
from calibrate.plans.plan import (
    COUNTED_ONCE,
    ROUNDS_FLAG,
    SCALE_COLUMNS_FLAG,
    SCALE_SHARE_FLAG,
    AlgorithmName,
    Flag,
    NoisyValue,
    Plan,
    RandomizedValue,
    of_one_batch,
    scale_histogram,
    with_once,
)
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import RandomizedResponse, Release, Repeated

ATTRIBUTE = "randomised_attribute"


@dataclass(frozen=True)
class PayOncePlan(Plan):
    """k-ary randomised response on the attribute, once; everything afterwards is post-processing.

    Guarantee: keeping the true group with probability e^eps / (e^eps + k - 1), and otherwise one of the others
    uniformly, changes the likelihood of any answer by at most e^eps (Warner 1965; Kairouz, Oh, Viswanath 2016,
    Section 3). It is pure: delta = 0, and rounds are free. Unit: one record's attribute.
    """

    algorithm = AlgorithmName.PAY_ONCE
    summary: ClassVar[str] = (
        "Pay once: randomised response on the attribute. Protects one record's sensitive attribute, purely, for as "
        "many rounds as you like."
    )
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --groups 2"
    groups: Annotated[int, Flag("K", "Number of sensitive groups.")] = 2
    rounds: Annotated[int, Flag("T", "Rounds of training; they are free.")] = 1

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        count("rounds", self.rounds)

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)

    def values(self) -> tuple[NoisyValue, ...]:
        return ()

    def at(self, epsilon: float) -> RandomizedValue:
        """The randomised attribute at this epsilon; there is no noise to scale, the epsilon is the parameter."""
        return RandomizedValue(ATTRIBUTE, RandomizedResponse(epsilon, self.groups))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return self.at(1.0).response

    def assumptions(self) -> tuple[str, ...]:
        return (
            "The protected unit is one record's sensitive attribute; features and labels are not protected.",
            "The attribute is randomised once per record with fresh randomness, and never randomised again.",
            "Everything that training, tuning and evaluation see is the randomised attribute, never the true one.",
        )

    def unprotected(self) -> tuple[str, ...]:
        return (
            "Features and labels, and whatever they alone tell about the attribute.",
            "Group frequencies are estimated from the randomised attribute; exact ones must not be used.",
        )


SCORES, GROUPS, RATES, FLIPS = "score_gradient", "group_gradient", "rate_counts", "flip_counts"
GAPS = "gap_counts"
SEARCHED = 10
"""How often a plan with `gap_share` counts, each time with the strength that the counts before suggest."""
TREE, PUPIL = "score_tree", "pupil_tree"


@dataclass(frozen=True)
class FairPluginPlan(Plan):
    """Everything a plug-in rule is built from, paid: clipped gradient sums in every round, two histograms once.

    Guarantee: one record (or one user) adds at most `clip` to a silo's sum of score gradients, at most `group_clip` to
    its sum of group gradients and at most `count_clip` to each histogram, in L2; all of it is Gaussian and of the full
    data, so the run is one Gaussian release with the multiplier (sum of multiplier^-2)^(-1/2)
    (docs/theorems/fair-plugin.md, equations 1 to 4). With `protect` = attribute nothing is noisy but the attribute,
    which leaves once by randomised response, as in pay-once: delta = 0 (equation 5). Unit: as `protect` says.

    The shares say which part of the squared budget each value gets; the score gradients get what is left. With
    `scale_share` a histogram of the columns comes first (docs/theorems/fair-plugin.md). With `gap_share` the strength
    is searched with ten small histograms of groups and answers, instead of the two of `rate_share` and
    `flip_share` (equation 7).
    """

    algorithm = AlgorithmName.FAIR_PLUGIN
    summary: ClassVar[str] = (
        "Fair plug-in: noisy models of the outcome and of the group, and a fair rule built from both. Protects whole "
        "records, whole users, or one attribute, as you choose."
    )
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --rounds 100"
    rounds: Annotated[int, ROUNDS_FLAG]
    protect: Annotated[
        Protected, Flag("", "Whom one promise covers: a record, all records of a user, an attribute.")
    ] = Protected.RECORD
    groups: Annotated[int, Flag("K", "Number of sensitive groups.")] = 2
    clip: Annotated[float, Flag("C", "L2 clip of one unit's gradient of the outcome's model.")] = 3.0
    group_clip: Annotated[float, Flag("C", "L2 clip of one unit's gradient of the group's model.")] = 2.0
    count_clip: Annotated[float, Flag("C", "L2 clip of one unit's counts; 1 for records, which count once.")] = 1.0
    group_share: Annotated[float, Flag("S", "Share of the squared budget for the model of the group.")] = 0.3
    rate_share: Annotated[float, Flag("S", "Share of the squared budget for the groups' sizes and rates.")] = 0.03
    flip_share: Annotated[float, Flag("S", "Share of the squared budget for the histogram of the fair rule.")] = 0.07
    scale_columns: Annotated[int | None, SCALE_COLUMNS_FLAG] = None
    scale_share: Annotated[float | None, SCALE_SHARE_FLAG] = None
    gap_share: Annotated[
        float | None, Flag("S", "Share of the squared budget for ten histograms that search the rule, instead of one.")
    ] = None
    newer: ClassVar[tuple[str, ...]] = ("scale_columns", "scale_share", "gap_share")

    def __post_init__(self) -> None:
        count("rounds", self.rounds, least=3 + self.rounds - self.gradient_rounds)
        count("groups", self.groups, least=2)
        self._check_each(positive, "clip", "group_clip", "count_clip")
        self._check_each(open_unit, "group_share", "rate_share", "flip_share", "scale_share", "gap_share")
        if self.scale_columns is not None:
            count("scale-columns", self.scale_columns, least=0)
        if self.score_share <= 0:
            given = tuple(share for share in (self.group_share, *self._histogram_shares, self.scale_share) if share)
            raise InvalidInput("shares", given, "leave nothing for the outcome's model", "let them add up to below 1")
        if self.protect is Protected.RECORD and self.count_clip != 1.0:
            raise InvalidInput("count-clip", self.count_clip, "must be 1 for records: each counts once", "drop it")
        for name, value in (("scale-columns", self.scale_columns), ("gap-share", self.gap_share)):
            if value is not None and self.protect is not Protected.RECORD:
                raise InvalidInput(name, value, "is for records, each of which counts once", "drop it")
        if self.scale_share is not None and self.scale_columns is None:
            raise InvalidInput("scale-columns", None, "is needed with shares", "say how many columns are numeric")

    @property
    def _histogram_shares(self) -> tuple[float, ...]:
        return (self.rate_share, self.flip_share) if self.gap_share is None else (self.gap_share,)

    @property
    def score_share(self) -> float:
        """What the other values leave of the squared budget."""
        return 1.0 - self.group_share - sum(self._histogram_shares) - (self.scale_share or 0.0)

    @property
    def gradient_rounds(self) -> int:
        """In how many rounds gradients are published."""
        return self.rounds - (self.scale_share is not None) - (0 if self.gap_share is None else SEARCHED)

    @property
    def unit(self) -> PrivacyUnit:
        attribute = self.protect is Protected.ATTRIBUTE
        return PrivacyUnit(self.protect, Relation.REPLACE_ATTRIBUTE if attribute else Relation.ADD_REMOVE)

    def values(self) -> tuple[NoisyValue, ...]:
        if self.protect is Protected.ATTRIBUTE:
            return ()
        # A share q of the squared budget over T rounds is a multiplier of sqrt(T / q), up to calibration's factor.
        made = self.gradient_rounds
        times = None if made == self.rounds else made
        return (
            NoisyValue(SCORES, self.clip, math.sqrt(made / self.score_share), times=times),
            NoisyValue(GROUPS, self.group_clip, math.sqrt(made / self.group_share), times=times),
        )

    def once(self) -> tuple[NoisyValue, ...]:
        if self.protect is Protected.ATTRIBUTE:
            return ()
        scales: tuple[NoisyValue, ...] = ()
        if self.scale_share is not None:
            assert self.scale_columns is not None
            scales = (scale_histogram(self.scale_columns, 2, self.unit.relation, math.sqrt(1 / self.scale_share)),)
        if self.gap_share is not None:
            noise = math.sqrt(SEARCHED / self.gap_share)
            return (*scales, NoisyValue(GAPS, self.count_clip, noise, every_round=False, times=SEARCHED))
        return (
            *scales,
            NoisyValue(RATES, self.count_clip, math.sqrt(1 / self.rate_share), every_round=False),
            NoisyValue(FLIPS, self.count_clip, math.sqrt(1 / self.flip_share), every_round=False),
        )

    def at(self, epsilon: float) -> RandomizedValue | None:
        if self.protect is not Protected.ATTRIBUTE:
            return None
        return RandomizedValue(ATTRIBUTE, RandomizedResponse(epsilon, self.groups))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        randomised = self.at(1.0)
        if randomised is not None:
            return randomised.response
        return with_once(Repeated(of_one_batch(values), self.gradient_rounds), once)

    def assumptions(self) -> tuple[str, ...]:
        match self.protect:
            case Protected.ATTRIBUTE:
                return (
                    "The protected unit is one record's sensitive attribute; features and labels are not protected.",
                    "The attribute is randomised once per record with fresh randomness, and never randomised again.",
                    "Models of the group, group sizes and the fair rule are built from the randomised attribute alone.",
                )
            case Protected.RECORD | Protected.USER:
                return (
                    f"The protected unit is one {self.protect.value}, added or removed.",
                    "Every round uses the full data; a unit's part of each sum is clipped as stated.",
                    "Sums are divided only by public constants, never by a realised number of units.",
                    "The fair rule is chosen from the noisy histograms alone, never from exact rates.",
                    *(COUNTED_ONCE if self.scale_share is not None else ()),
                )
            case _:
                assert_never(self.protect)

    def unprotected(self) -> tuple[str, ...]:
        search = "Choosing parameters or a target gap by looking at exact results is not charged."
        if self.protect is Protected.ATTRIBUTE:
            return (
                "Features and labels, and whatever they alone reveal of the attribute: gradients expose them.",
                "Records' features and labels in the splits and leaves of trees, where trees are grown.",
                "The rule guesses the attribute from the features when it predicts, unless it is distilled into trees.",
                search,
            )
        return ("What the model says about everybody alike: the rule guesses the group from the features.", search)
