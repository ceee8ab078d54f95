"""What a manifest promises: privacy, a paper's own noise with its true price, or nothing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from calibrate.manifest.fields import OpenUnit, Positive, StrictModel, Text
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation


class _Scope(StrictModel):
    """Whom and what a guarantee speaks of; NIST SP 800-226 asks for each of these in words."""

    unit: Protected
    adjacency: Relation
    scope: Text
    """Who may look at what: for example the server, at everything a silo sends."""
    covered: tuple[Text, ...]
    not_protected: Annotated[tuple[Text, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _unit_fits_adjacency(self) -> _Scope:
        self.privacy_unit()
        return self

    def privacy_unit(self) -> PrivacyUnit:
        return PrivacyUnit(self.unit, self.adjacency)


class PrivateGuarantee(_Scope):
    """(epsilon, delta) differential privacy for the unit, certified by the embedded accounting.

    Guarantee: for every two neighbouring data sets, each event in what the scope's observer sees is at most
    exp(epsilon) times likelier under one than under the other, up to delta, provided the stated assumptions
    hold.
    """

    kind: Literal["private"] = "private"
    variant: Literal["approximate-dp"] = "approximate-dp"
    epsilon: Positive
    delta: OpenUnit


class AsPrintedGuarantee(_Scope):
    """A paper's own noise: what it claims, beside what was computed to be true. Nothing more is promised.

    `epsilon` is the certified true cost; None when no finite epsilon holds.
    """

    kind: Literal["as-printed"] = "as-printed"
    variant: Literal["approximate-dp"] = "approximate-dp"
    epsilon: Positive | None
    delta: OpenUnit
    claimed_epsilon: Positive
    claim: Text
    """Which theorem of which paper claims it."""


class NoPrivacyPromised(_Scope):
    """A run without protection, such as a baseline; signed so that it cannot be mistaken for a private one."""

    kind: Literal["no-privacy-promised"] = "no-privacy-promised"
    why: Text


Guarantee = Annotated[PrivateGuarantee | AsPrintedGuarantee | NoPrivacyPromised, Field(discriminator="kind")]
