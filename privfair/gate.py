"""The only way out: a value computed from private data is published here or not at all.

For each value: is it declared in the manifest, is its bound the signed one, is this round charged on disk and the
value not yet published? No record decides these answers. Only then is the contribution itself looked at, noise drawn,
the transcript written and the value passed on. Nothing else in the engine imports `privfair.noise` (an import
contract).
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, assert_never, final

import numpy as np
from numpy.typing import ArrayLike

from calibrate.arrays import Floats
from calibrate.discrete_noise import MOST_NUMBERS
from calibrate.errors import GateRefused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import (
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    NoiseSource,
    RandomizedCategory,
)
from calibrate.manifest.verify import VerifiedManifest
from calibrate.privacy_unit import Norm
from privfair.contribution import BoundedContribution, Published, RecentRounds
from privfair.ledger import DEFAULT_BLOCK, Claim, Release
from privfair.noise import ExactNoise, Grid, NoiseScale, UnsafeSeededResearchNoise
from privfair.noise import NoiseAdder as NoiseGenerator
from privfair.transcript import NotedState, Transcript, TranscriptHeader, TranscriptWriter, ValueSpec

if TYPE_CHECKING:
    from privfair.run.rehearsal import RehearsalKey

_ROUNDING = 1e-9
"""Relative slack for the floating-point computation of a norm; covered by the rounding-up of the noise below."""
LOG = logging.getLogger("privfair.gate")
"""Where a gate notes what it had to change, unless a guard gives its own log."""


@final
class Gate:
    """Publishes under one verified manifest and one claim.

    Guarantee: every published Gaussian (Laplace) value carries exact discrete noise whose scale is at least
    the signed multiplier times the contribution bound *after* rounding to the grid and with the slack for
    measuring norms in floating point; every round used was charged durably before its noise was drawn; no
    declared value is published more often than signed. A value with a signed strategy is the mixture of the party's
    last contributions by that strategy (docs/theorems/banded.md). So if the algorithm clips as signed, the transcript
    costs at most what the manifest's accounting says, for its unit and under its assumptions, up to
    `calibrate.discrete_noise`.

    `noise` is the source of each party; `block` is how many rounds are charged ahead; `already` is what an earlier
    session of the run published.

    No correct clipping produces numbers that are not finite, a unit beyond its bound, or a category outside its range.
    If `strict`, the gate refuses them, and that refusal can depend on records. Otherwise such numbers and categories
    become 0, a sum is scaled by bound / measured and cut where its grid ends, and the value is published with its
    signed noise; `log`, which stays with the silo, gets a warning without any number. So no refusal depends on a
    record. A wrong sensitivity is not repaired: the guarantee rests on the algorithm's clipping either way.
    """

    def __init__(
        self,
        manifest: VerifiedManifest,
        claim: Claim,
        transcript: TranscriptWriter,
        noise: Mapping[str, NoiseGenerator],
        block: int = DEFAULT_BLOCK,
        already: Iterable[Release] = (),
        strict: bool = False,
        log: logging.Logger = LOG,
    ) -> None:
        self._strict = strict
        self._log = log
        self._document = manifest.document
        self._claim = claim
        self._transcript = transcript
        self._noise = noise
        self._block = block
        self._parties = frozenset(silo.name for silo in manifest.document.data.silos)
        self._valid_until = manifest.document.validity.not_after
        self._round: int | None = None
        self._earlier = tuple(already)
        self._published = Counter((release.party, release.name) for release in self._earlier)
        self._keep = True
        self._scales: dict[tuple[str, int], float] = {}
        self._mixed: dict[tuple[str, str], RecentRounds] = {}

    @property
    def first_round(self) -> int:
        """The first round that may be used: where sums are mixed, a gap shows that another session began."""
        mixing = any(isinstance(one, GaussianNoise) and one.bands > 1 for one in self._document.releases)
        last = max((release.round for release in self._earlier), default=None)
        return 0 if last is None or not mixing else last + 2

    @property
    def round(self) -> int | None:
        """The open round; None before the first."""
        return self._round

    @property
    def earlier(self) -> tuple[Release, ...]:
        """What earlier sessions of the run published."""
        return self._earlier

    def next_round(self, at_least: int = 0) -> int:
        """Open the next round, charging a block of rounds first where none is left that is charged.

        Rounds before `at_least` are left out; they are charged like any others.
        """
        if datetime.now(UTC) >= self._valid_until:
            raise GateRefused(f"the manifest expired at {self._valid_until:%Y-%m-%d %H:%M} UTC; ask for a new budget")
        following = self._claim.held.start if self._round is None else self._round + 1
        following = max(at_least, self.first_round, following)
        if following not in self._claim.held:
            if following >= self._claim.rounds:
                raise GateRefused(
                    f"round {following} is beyond the {self._claim.rounds} signed rounds; the budget is spent: "
                    "stop here, or ask for a new budget"
                )
            self._transcript.sync()
            self._claim.charge_ahead(max(self._block, following + 1 - self._claim.charged))
        self._round = following
        return following

    def note_state(self, step: int, digest: str, arrays: Mapping[str, Floats] | None) -> None:
        """Where values are kept by their digests: what the open round's values are computed from.

        With the state's `arrays` the state and the values of this round are kept in full.
        """
        assert self._round is not None
        self._keep = arrays is not None
        self._transcript.note_state(NotedState(self._round, step, digest), arrays)

    def forget(self, until: int) -> None:
        """Let go of values up to this round that are kept by their digests; their effect is in a durable checkpoint."""
        self._transcript.forget(until)

    def publish(self, party: str, contribution: BoundedContribution) -> Published:
        """Check a contribution against the manifest, add its signed noise, and publish it."""
        declared = self._declared(contribution.name)
        if isinstance(declared, InTheClear | RandomizedCategory):
            raise GateRefused(
                f"{contribution.name!r} is declared as {declared.mechanism}, not as a noisy value; "
                "publish it by that way"
            )
        self._check_bound(declared, contribution)
        self._check_shape(declared.shape, contribution.name, np.asarray(contribution.values))
        round_number = self._check_turn(party, contribution.name, declared.publications)
        values = self._publishable(contribution)
        if isinstance(declared, GaussianNoise):
            values = self._mix(party, declared, round_number, values)
        return self._let_out(round_number, party, contribution.name, self._with_noise(party, declared, values))

    def noise_alone(self, party: str, zeros: BoundedContribution) -> Floats:
        """What noise a message of nothing but zeros would get; for audits. It opens no round and publishes nothing.

        Guarantee: what is returned does not depend on any record, and the noise of values that are published is drawn
        afterwards and independently; so nothing is charged.
        """
        declared = self._declared(zeros.name)
        if isinstance(declared, InTheClear | RandomizedCategory) or np.any(zeros.values):
            raise GateRefused(f"{zeros.name!r} is not a noisy value of zeros; publish it")
        return self._with_noise(party, declared, zeros.values)

    def answers_alone(self, party: str, name: str, number: int) -> tuple[Floats, Floats]:
        """Randomised response to categories 0, 1, .. one after another, and these; for audits. It publishes nothing.

        Guarantee: what is returned does not depend on any record, and answers that are published are drawn afterwards
        and independently; so nothing is charged.
        """
        declared = self._declared(name)
        if not isinstance(declared, RandomizedCategory):
            raise GateRefused(f"{name!r} is declared as {declared.mechanism}, not as randomised response")
        truth = np.arange(number) % declared.categories
        answers = self._noise[party].randomized_response(truth, declared.categories, declared.epsilon)
        return answers.astype(np.float64), truth.astype(np.float64)

    def _with_noise(self, party: str, declared: GaussianNoise | LaplaceNoise, values: Floats) -> Floats:
        scale, noise = self._scale(declared, values.size), self._noise[party]
        on_grid = declared.sampler is NoiseSampler.DISCRETE_GRID
        most = NoiseScale.at_least(scale).grid.largest if on_grid else sys.float_info.max
        values = self._finite(declared.name, values, most)
        return noise.gaussian(values, scale) if isinstance(declared, GaussianNoise) else noise.laplace(values, scale)

    def publish_randomized(self, party: str, name: str, categories: ArrayLike) -> Published:
        """Publish one category per unit through k-ary randomised response."""
        declared = self._declared(name)
        if not isinstance(declared, RandomizedCategory):
            raise GateRefused(f"{name!r} is declared as {declared.mechanism}, not as randomised response")
        codes = np.asarray(categories)
        self._check_shape(declared.shape, name, codes)
        round_number = self._check_turn(party, name, declared.publications)
        known = (codes >= 0) & (codes < declared.categories)
        if not known.all():
            outside = f"holds categories outside 0 .. {declared.categories - 1}"
            self._refuse_or_note(name, outside, f"{outside}; number the categories from 0")
            codes = np.where(known, codes, 0)
        reported = self._noise[party].randomized_response(codes, declared.categories, declared.epsilon)
        return self._let_out(round_number, party, name, reported.astype(np.float64))

    def publish_in_the_clear(self, party: str, name: str, values: ArrayLike) -> Published:
        """Publish a value without noise; only what the manifest lists in the clear."""
        declared = self._declared(name)
        if not isinstance(declared, InTheClear):
            raise GateRefused(f"{name!r} is declared with {declared.mechanism} noise and can't be sent in the clear")
        self._check_shape(declared.shape, name, np.asarray(values))
        round_number = self._check_turn(party, name, declared.publications)
        clear = self._finite(name, values)
        return self._let_out(round_number, party, name, clear.copy())

    def flush(self) -> None:
        """Make transcript and ledger records durable, for example before a checkpoint is written."""
        self._transcript.sync()
        self._claim.flush()

    def sync(self) -> None:
        """Make what was published so far survive a power cut, before it is handed to another machine."""
        self._transcript.sync()

    def close(self) -> None:
        """Let go of the transcript without ending the run, so that it can be resumed."""
        self._transcript.close()

    def finish(self) -> str:
        """End the run: close the transcript and the claim; unspent rounds lapse. The transcript's digest."""
        digest = self._transcript.finish()
        self._claim.close(digest)
        return digest

    def _declared(self, name: str) -> GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear:
        for declared in self._document.releases:
            if declared.name == name:
                return declared
        known = ", ".join(declared.name for declared in self._document.releases)
        raise GateRefused(f"{name!r} is not declared in the manifest; it allows only {known}")

    def _scale(self, declared: GaussianNoise | LaplaceNoise, size: int) -> float:
        """Exact arithmetic, so worth remembering: it is the same in every round."""
        key = (declared.name, size)
        if key not in self._scales:
            self._scales[key] = _scale_of(declared, size)
        return self._scales[key]

    def _mix(self, party: str, declared: GaussianNoise, round_number: int, values: Floats) -> Floats:
        """The value, or its mixture with the party's last ones; it is remembered before its noise is drawn."""
        if declared.strategy is None:
            return values
        recent = self._mixed.setdefault((party, declared.name), RecentRounds(declared.strategy))
        mixed = recent.mix(round_number, values)
        recent.add(round_number, values.copy())
        return mixed

    def _check_bound(self, declared: GaussianNoise | LaplaceNoise, given: BoundedContribution) -> None:
        if given.bound > declared.sensitivity * (1 + _ROUNDING):
            raise GateRefused(
                f"{given.name!r} claims the bound {given.bound:.9g}, the manifest signed {declared.sensitivity:.9g}; "
                "clip harder, or have a larger bound signed"
            )

    def _publishable(self, given: BoundedContribution) -> Floats:
        """The contribution's values, changed or refused (see the class) where no correct clipping produces them."""
        values = self._finite(given.name, given.values)
        if 0 <= given.measured <= given.bound * (1 + _ROUNDING):
            return values
        why = f"measures {given.measured:.9g}, above its bound {given.bound:.9g}; the clipping is wrong: fix it"
        self._refuse_or_note(given.name, "has a unit's part beyond its bound", f"has a unit's part that {why}")
        return values * (given.bound / given.measured if given.measured > 0 else 0.0)

    def _finite(self, name: str, values: ArrayLike, most: float = sys.float_info.max) -> Floats:
        array = np.asarray(values, dtype=np.float64)
        if not array.size or (-most <= array.min() and array.max() <= most):  # false for NaN
            return array
        beyond = f"holds values that are not finite, or beyond {most:g}"
        self._refuse_or_note(name, beyond, f"{beyond}; find the overflow, or publish smaller numbers (a mean)")
        return np.clip(np.where(np.isfinite(array), array, 0.0), -most, most)

    def _refuse_or_note(self, name: str, what: str, refusal: str) -> None:
        if self._strict:
            raise GateRefused(f"{name!r} {refusal}; nothing is published")
        self._log.warning("round %s: %r %s. It is changed and published; fix the algorithm.", self._round, name, what)

    def _check_shape(self, shape: tuple[int, ...] | None, name: str, values: np.ndarray) -> None:
        if shape is None and values.size > MOST_NUMBERS:
            raise GateRefused(
                f"{name!r} has {values.size} values, but the manifest signed no shape and so priced the discreteness "
                f"of its noise for at most {MOST_NUMBERS}; have the shape signed"
            )
        if shape is not None and values.shape != shape:
            raise GateRefused(f"{name!r} has shape {values.shape}, the manifest signed {shape}")

    def _check_turn(self, party: str, name: str, publications: int) -> int:
        if party not in self._parties:
            raise GateRefused(f"{party!r} is not a silo of the manifest; it names {', '.join(sorted(self._parties))}")
        if self._round is None:
            raise GateRefused("no round is open; call next_round() first")
        self._claim.require_unreleased(self._round, party, name)
        if self._published[party, name] >= publications:
            raise GateRefused(f"{name!r} of {party!r} was published {publications} times, as often as signed")
        return self._round

    def _let_out(self, round_number: int, party: str, name: str, values: Floats) -> Published:
        digest = self._transcript.append(round_number, party, name, values, keep=self._keep)
        self._claim.record_release(round_number, party, name, digest)
        self._published[party, name] += 1
        return Published(round_number, party, name, values)


def open_gate(
    manifest: VerifiedManifest,
    claim: Claim,
    transcript: Path,
    values: tuple[ValueSpec, ...],
    research_seed: int | None = None,
    block: int = DEFAULT_BLOCK,
    parties: tuple[str, ...] | None = None,
    strict: bool = False,
    log: logging.Logger = LOG,
    key: RehearsalKey | None = None,
) -> Gate:
    """The gate of a run with the noise source the manifest names; of `parties` alone where not all are here.

    `strict` and `log` are those of `Gate`; `key` is an auditor's, in a rehearsal.

    A transcript that exists is resumed: what it shows as published is treated as published, and records that a
    crash kept out of the ledger are added to it.
    """
    parties = tuple(silo.name for silo in manifest.document.data.silos) if parties is None else parties
    noise = _noise_of_parties(manifest.document, parties, research_seed, claim.session, key)
    already: tuple[Release, ...] = ()
    if transcript.exists():
        writer = TranscriptWriter.resume(transcript)
        already = Transcript.read(transcript).releases()
        claim.reconcile(already)
    else:
        known = tuple(_on_its_grid(spec, manifest.document) for spec in values)
        header = TranscriptHeader.of(claim, noise[parties[0]].label, parties, known, manifest.document.retention)
        writer = TranscriptWriter.create(transcript, header)
    return Gate(manifest, claim, writer, noise, block, already, strict=strict, log=log)


def _noise_of_parties(
    document: BudgetDocument,
    parties: tuple[str, ...],
    research_seed: int | None,
    session: int,
    key: RehearsalKey | None,
) -> dict[str, NoiseGenerator]:
    match document.noise_source:
        case NoiseSource.OPERATING_SYSTEM:
            if research_seed is not None:
                raise GateRefused("a seed was given but the manifest signed noise from the operating system; drop it")
            entropy = None if key is None else key.source(f"noise of session {session}")
            return dict.fromkeys(parties, ExactNoise(entropy))
        case NoiseSource.SEEDED_RESEARCH_ONLY:
            if research_seed is None:
                raise GateRefused("the manifest signed seeded research noise; give its seed")
            return {party: UnsafeSeededResearchNoise(research_seed, party, session) for party in parties}
        case _:
            assert_never(document.noise_source)


def _on_its_grid(spec: ValueSpec, document: BudgetDocument) -> ValueSpec:
    """The spec with the grid that its numbers will lie on, where noise is drawn on one."""
    declared = {release.name: release for release in document.releases}.get(spec.name)
    if not isinstance(declared, GaussianNoise | LaplaceNoise) or declared.sampler is not NoiseSampler.DISCRETE_GRID:
        return spec
    return replace(spec, grid=NoiseScale.at_least(_scale_of(declared, prod(spec.shape))).grid.fraction_bits)


def _scale_of(declared: GaussianNoise | LaplaceNoise, size: int) -> float:
    """The scale of the noise on a value of `size` numbers."""
    match declared:
        case GaussianNoise():
            # One unit's part is rounded once for each round that it is mixed into.
            return _scale_after_rounding(declared, size * declared.bands, declared.sigma, Norm.L2)
        case LaplaceNoise():
            return _scale_after_rounding(declared, size, declared.scale, Norm.L1)
        case _:
            assert_never(declared)


def _scale_after_rounding(declared: GaussianNoise | LaplaceNoise, dimension: int, scale: float, norm: Norm) -> float:
    """The noise that keeps the signed multiplier although rounding to the grid moves the value a little.

    The grid of twice the scale is at least as coarse as the one used, so its rounding covers it.
    """
    bound = declared.sensitivity * (1 + _ROUNDING)
    rounded = Grid.for_scale(2 * scale).rounded_sensitivity(bound, dimension, norm)
    return float(np.nextafter(scale * float(rounded) / declared.sensitivity, np.inf))
