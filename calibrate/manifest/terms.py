"""What the people behind a budget decide, beside the noise: for which data, until when, and why."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument, DataBinding, LedgerHead, SamplingDeclaration, Validity
from calibrate.manifest.mechanism import InTheClear, NoiseSampler, NoiseSource
from calibrate.manifest.steps import in_our_words
from calibrate.releases import InSequence, NonPrivate, Release, Sampled, multiplicities

ALWAYS_UNPROTECTED = "Timing, message sizes and the number of rounds."
DEFAULT_LIFETIME = timedelta(days=90)


@dataclass(frozen=True)
class Enforcement:
    """Whether somebody makes sure that batches are drawn as priced, and who; else, whose word it rests on."""

    enforced: bool
    by: str


BY_THE_ENGINE = Enforcement(True, "privfair's own batch sampler")
BY_THE_TRAINER = Enforcement(False, "whoever trains")


@dataclass(frozen=True)
class Terms:
    """Everything a manifest says that no calculation can know.

    `scope` says who may look at what; None takes the algorithm's own threat model. `clear` names what is
    published without noise; it is added to the priced event, where it is free only if it cannot depend on the
    protected unit. `config_digest` is the plan's own digest unless more than the plan is to be bound.
    """

    data: DataBinding
    validity: Validity
    justification: str
    enforcement: Enforcement = BY_THE_ENGINE
    noise_source: NoiseSource = NoiseSource.OPERATING_SYSTEM
    scope: str | None = None
    clear: tuple[InTheClear, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    clips: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    config_digest: str | None = None
    ledger: LedgerHead | None = None


def valid_for(lifetime: timedelta = DEFAULT_LIFETIME, start: datetime | None = None) -> Validity:
    """In force from now (or `start`) for the given time."""
    now = datetime.now(UTC)
    begin = now if start is None else start
    with in_our_words("validity"):
        return Validity(issued_at=now, not_before=begin, not_after=begin + lifetime)


def fresh_nonce() -> str:
    """A single-use value of 256 random bits; the ledger accepts one claim for each."""
    return secrets.token_hex(32)


def with_clear(event: Release, clear: tuple[InTheClear, ...]) -> Release:
    """The event with what is published in the clear beside it, so that the price knows of it."""
    return InSequence((event, *_in_the_clear(clear))) if clear else event


def only_clear(clear: tuple[InTheClear, ...]) -> Release:
    """The event of a run that publishes nothing with noise."""
    if not clear:
        raise InvalidInput("clear", clear, "must name what is published", "list the releases of the run")
    return InSequence(_in_the_clear(clear))


def _in_the_clear(clear: tuple[InTheClear, ...]) -> tuple[NonPrivate, ...]:
    return tuple(NonPrivate(release.why, release.depends_on_unit) for release in clear)


def declarations(event: Release, enforcement: Enforcement) -> tuple[SamplingDeclaration, ...]:
    """One declaration for each sampling the event is priced with."""
    samplings = dict.fromkeys(leaf.sampling for leaf in multiplicities(event) if isinstance(leaf, Sampled))
    return tuple(
        SamplingDeclaration(
            scheme=sampling, assumption_enforced=enforcement.enforced, enforced_by=enforcement.by
        )
        for sampling in samplings
    )


def sampler_for(source: NoiseSource, exact: NoiseSampler) -> NoiseSampler:
    """The sampler a release names under a noise source: the exact one, unless everything is research."""
    return NoiseSampler.SEEDED_RESEARCH_ONLY if source is NoiseSource.SEEDED_RESEARCH_ONLY else exact


def checked_document(terms: Terms, **fields: object) -> BudgetDocument:
    """The document with these fields and the terms' own; refused in our words instead of pydantic's."""
    with in_our_words("document"):
        return BudgetDocument(
            **fields,  # type: ignore[arg-type]
            data=terms.data,
            noise_source=terms.noise_source,
            nonce=fresh_nonce(),
            validity=terms.validity,
            ledger=terms.ledger,
            justification=terms.justification,
        )
