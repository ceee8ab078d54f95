"""Between a signed budget and a published value: the one place that claims, opens the gate and ends a run.

::

    with OpenRun(budget, ledger, folder, trust=trust).begin(files) as spending:   # or .resume()
        parties = spending.parties(run, position)
        position = train_until(run.algorithm, parties, position, run.updates, observers)
        spending.finish(position)

`budget` is *verified*: `calibrate.manifest.verify` has checked its signatures, dates, plan, code and data, and nothing
else makes a `VerifiedManifest`. A *step* is one update of the model. It uses up one *round* of the budget, and the
ledger charges rounds in *blocks* ahead of their use. The *transcript* is the file of every published value, the *claim*
the ledger's entry that this run, which holds a secret token, spends the budget. The *trust file* names the keys whose
signatures are accepted. A *session* is what one process does of a run; `sessions.jsonl` has a line for each. Rounds of
a step that was interrupted are *carried*: their values are published, and the next session finishes the step with them.

1. `begin` asks the trust file, writes the run's files and a secret token, and claims the budget in the ledger with it;
   `resume` takes the claim of a folder's token up again, with fresh rounds only. A claim charges nothing yet.
2. `parties` opens gate, transcript and batches for an algorithm of privfair, whose silos are asked step by step. A
   caller's own loop opens the gate with `open_gate` and gets a `StepGate` from `rounds`.
3. Before each round the rules are asked, and whenever a block is about to be charged also the trust file; then the
   ledger charges the block on disk, and only then a round is open.
4. What a silo computes in the round passes the gate (`privfair.gate`), which checks it against the budget, draws the
   noise and writes the transcript. Asked for the same step with the same state again, a silo sends the same value.
5. `checkpoint` saves the state at the end of a block. `finish` closes transcript and claim. Leaving the `with` block
   without it keeps the claim open for `resume`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar, final

from calibrate.errors import GateRefused, InvalidInput, PrivfairError, Refused
from calibrate.manifest.keys import load_public
from calibrate.manifest.mechanism import NoiseSource, NoPrivacyPromised
from calibrate.manifest.trust import TrustFile, TrustSeen, read_trust
from calibrate.manifest.verify import AuthenticManifest, VerifiedManifest, require_still_signed
from privfair.algorithms.algorithm import Algorithm
from privfair.batches.participation import BatchWriter, PartyBatches
from privfair.durable import read_named, replace_file
from privfair.federation.coordinator import Position, RunObserver
from privfair.federation.local_party import LocalParties, PartySetup, StepGate, first_usable_round
from privfair.gate import LOG, Gate, open_gate
from privfair.ledger import (
    DEFAULT_BLOCK,
    Claim,
    ClaimEnded,
    ClaimToken,
    Ledger,
    ManifestTerms,
    RolledBack,
    Unavailable,
    UnknownClaim,
)
from privfair.ledger.claim import Charges
from privfair.ledger.journal import note_event
from privfair.run.folder import RunFolder, save_checkpoint
from privfair.run.prepare import claim_terms
from privfair.run.record import (
    ChainHead,
    ChargedRounds,
    ClaimEntry,
    Receipts,
    RunRecord,
    Session,
    Status,
    append_session,
)
from privfair.transcript import Ending, Transcript, ValueSpec

if TYPE_CHECKING:
    from privfair.run.rehearsal import RehearsalKey

State = TypeVar("State")
_CLAIM_UNCERTAIN = (Unavailable, RolledBack)
"""A ledger or its anchor could not be read or written; the claim may have been noted by then."""
OnRound = Callable[[int, int], None]
"""Told of each step and the round opened for it, before anything is published in it."""


@final
class OpenRun:
    """A claimed budget with its gate, batches, transcript and folder, for as long as one process has them.

    Guarantee: a value leaves only through the gate, in a round that was charged on disk before, under the verified
    budget and the one claim made for it. The tries of a search have a temporary ledger each, after the whole budget was
    charged in this one. If `begin` is refused, its files and token are deleted. If the ledger could not be reached,
    they stay, because it may hold the claim: call `resume`. A resumed run opens fresh rounds only: what was charged
    stays spent.
    """

    def __init__(
        self,
        budget: VerifiedManifest,
        ledger: Ledger,
        folder: RunFolder,
        *,
        party: str | None = None,
        trust: TrustInForce | None = None,
        rules: Sequence[Callable[[], None]] = (),
    ) -> None:
        """`party` is the silo's name where each silo has its own ledger; `rules` raise where no round may be opened."""
        self.budget = budget
        self.ledger = ledger
        self.folder = folder
        self._party = party
        self._trust = trust
        self._rules = rules
        self._claim: Claim | None = None
        self._all_charged = False
        self._apart = False
        self._gate: StepGate | None = None
        self._batches: BatchWriter | None = None
        self._noted = False
        self._open_files = ExitStack()

    def begin(self, files: Mapping[str, bytes] = MappingProxyType({})) -> Self:
        """Ask the trust file, write what the folder keeps for auditors (`files`), then claim; for a new folder."""
        if self.folder.claimed:
            raise Refused(f"{self.folder.path} holds the claim of a run; resume it, or begin in another folder")
        token, written = None, [name for name in files if not (self.folder.path / name).exists()]
        try:
            self._require_trust()
            for name, content in files.items():
                replace_file(self.folder.path / name, content)
            witness = self._witness()
            if witness is not None:
                witness(())  # what is refused here has claimed nothing
            token = ClaimToken.at(self.folder.token)
            claim = self._claimed(self.terms, token)
            if witness is not None:
                claim.countersigned(witness)
            self._claim = claim
        except PrivfairError as refused:
            if token is None or not isinstance(refused, _CLAIM_UNCERTAIN):
                self.folder.discard(written)
            raise
        return self

    def resume(self) -> Self:
        """Take up the claim of this folder's token; `ended` if the run was over, and only files are left to write."""
        self._require_trust()
        place = self.folder.transcript
        past = Transcript.read(place) if place.exists() else None
        closed = past is not None and past.ending is Ending.CLOSED
        if past is not None:
            past.verify_against(self.ledger)
            if not self.folder.token.exists():
                raise Refused(f"{self.folder.token} is missing, which resumes this run; put the untouched file back")
        token = ClaimToken.at(self.folder.token)
        claim: Claim | None = None
        try:
            claim = self.ledger.resume(token)
            self.folder.require_begun_with("manifest", claim.manifest, self.budget.digest)
        except UnknownClaim:  # stopped between token and claim
            if past is not None:
                raise
            claim = self._claimed(self.terms, token)
        except ClaimEnded:
            if not closed:
                raise Refused(
                    f"the ledger closed this run, but {place} is missing or has no end; put the untouched file back, "
                    "nothing can be published any more"
                ) from None
        if claim is not None and past is not None and closed:  # stopped between the ends of transcript and claim
            claim.reconcile(past.releases())
            claim.close(past.digest)
            claim = None
        witness = None if claim is None else self._witness()
        if claim is not None and witness is not None:
            claim.countersigned(witness)
        self._claim = claim
        return self

    def _witness(self) -> Callable[[Charges], None] | None:
        """How the witness that the budget names is asked; None where it names none."""
        key_id = self.budget.document.witness
        if key_id is None:
            return None
        if self.ledger.witness is None:
            raise Refused(
                f"the budget needs its witness {key_id[:16]} before noise is drawn; name its socket as `witness` in "
                "config.toml or site.toml, and use `privfair train` or `privfair serve`"
            )
        return partial(self.ledger.witness.countersign, key_id, self.budget.digest, self._party or "")

    @classmethod
    @contextmanager
    def apart(cls, budget: VerifiedManifest, place: Path) -> Iterator[OpenRun]:
        """A run that touches no one's ledger: an auditor's or an experiment's, with a new ledger in a new folder."""
        with Ledger.create(place / "ledger.db") as ledger, cls(budget, ledger, RunFolder(place)).begin() as spending:
            spending._apart = True
            yield spending

    def interrupted(self) -> OpenRun:
        """The next session of a run apart, as after a crash: files are closed, and the claim is taken up again."""
        self.gate.flush()
        self.close()
        following = OpenRun(self.budget, self.ledger, self.folder).resume()
        following._apart = self._apart
        return following

    @property
    def terms(self) -> ManifestTerms:
        """What the ledger enforces of the budget."""
        return claim_terms(self.budget, self._party)

    @property
    def ended(self) -> bool:
        """Whether the claim is closed: nothing can be published any more."""
        return self._claim is None

    @property
    def claim(self) -> Claim:
        """The rounds that this process may use; refused once the run has ended."""
        if self._claim is None:
            raise Refused(f"the run in {self.folder.path} has ended; begin another one, with another budget")
        return self._claim

    def open_gate(
        self,
        values: tuple[ValueSpec, ...],
        parties: tuple[str, ...] | None = None,
        seed: int = 0,
        block: int = DEFAULT_BLOCK,
        strict: bool = False,
        log: logging.Logger = LOG,
        key: RehearsalKey | None = None,
    ) -> Gate:
        """`privfair.gate.open_gate` for this claim: it creates the transcript or resumes it, and asks no rules.

        `seed` is for research noise. With `strict`, a value that breaks its bound raises instead of being changed.
        """
        if key is not None and not self._apart:
            raise GateRefused("an auditor's key outside of a rehearsal would make noise that the auditor can subtract")
        if self._all_charged:
            raise GateRefused("a search publishes in its tries alone; call attempt")
        document = self.budget.document
        research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
        gate = open_gate(
            manifest=self.budget,
            claim=self.claim,
            transcript=self.folder.transcript,
            values=values,
            research_seed=seed if research else None,
            block=block,
            parties=parties,
            strict=strict or isinstance(document.guarantee, NoPrivacyPromised),
            log=log,
            key=key,
        )
        self._open_files.callback(gate.close)
        return gate

    def parties(
        self,
        setup: PartySetup,
        position: Position[Any] | None = None,
        observer: RunObserver | None = None,
        on_round: OnRound | None = None,
    ) -> LocalParties:
        """The silos' side of an algorithm, asked by step; `position` is where the run stands.

        `on_round` takes the place of the note in sessions.jsonl, for a party that keeps its own log.
        """
        start = Position(setup.algorithm.start()) if position is None else position
        gate = self.open_gate(setup.values, setup.names, setup.seed, setup.block, setup.strict, setup.log, setup.key)
        noting = self._noting_session(start) if on_round is None else on_round
        local = LocalParties.behind(
            gate, setup, self.claim, self.folder.batches, start, noting, observer, allow_round=self._require_round
        )
        self._keep(local.gate, local.record)
        return local

    def rounds(self, gate: Gate, drawn: Mapping[str, PartyBatches], record: BatchWriter | None, step: int) -> StepGate:
        """The gate of the caller's loop, asked by step; `step` is the next one."""
        first = first_usable_round(self.claim, gate, drawn)
        noting = self._noting_session(Position(None, step))
        self._keep(
            StepGate(gate, self.claim, self.budget.document, first, noting, allow_round=self._require_round), record
        )
        return self.gate

    @property
    def gate(self) -> StepGate:
        """The gate in use."""
        assert self._gate is not None
        return self._gate

    def charge_all(self) -> None:
        """Pay for every signed round now; from here on no gate can be opened under this claim."""
        self.claim.charge(self.budget.document.rounds)
        self._all_charged = True

    def attempt(self, ledger: Ledger, folder: RunFolder) -> OpenRun:
        """One whole run inside a budget that `charge_all` has paid, in a temporary ledger and folder."""
        if not self._all_charged:
            raise GateRefused("a try before the whole budget was charged; call charge_all first")
        inside = OpenRun(self.budget, ledger, folder)
        inside._claim = inside._claimed(replace(self.terms, ledgers=()), ClaimToken.at(folder.token))
        return inside

    def checkpoint(self, algorithm: Algorithm[State], position: Position[State]) -> None:
        """Save the state; call it once the transcript is flushed up to this position, so that it is never ahead."""
        if self._batches is not None:
            self._batches.sync()
        if not position.carried:
            save_checkpoint(self.folder.checkpoint, self.budget.digest, algorithm, position)
            self.gate.forget(-1 if position.round is None else position.round)

    def finish(self, position: Position[Any] | None = None) -> None:
        """End transcript and claim; rounds that were not used lapse. Nothing is done where the run has ended."""
        if self._claim is None:
            return
        if position is not None and position.carried:
            # No round is left: what the last step published stays without an update.
            self._note_session(position, position.step)
        if self._gate is None:
            self._claim.close()
        else:
            self._gate.finish()
        self._claim = None

    def note(self, begun: RunRecord, status: Status, steps: int = 0, **more: object) -> RunRecord:
        """Write run.json as of now, and at the end of a run receipts.json; `more` are fields that changed."""
        found = self.ledger.manifest_status(self.budget.digest)
        finished = status is Status.FINISHED
        if finished:
            self.folder.write_json(self.folder.receipts, self.receipts().as_json())
        more |= {"transcript": found.transcript_digest, "digests": self.folder.digests() if finished else {}}
        rounds = {"steps": steps, "charged": found.charged, "sessions": found.session}
        return begun.reached(status, rounds, **more).write(self.folder)

    def receipts(self, **party: str) -> Receipts:
        """What the ledger holds about this run, and where its chain ended when it was asked."""
        found, anchor = self.ledger.manifest_status(self.budget.digest), self.ledger.anchor()
        return Receipts(
            **party,
            ledger=anchor.ledger,
            head=ChainHead(seq=anchor.head.seq, hash=anchor.head.hash),
            manifest=found.claim.manifest,
            claim=ClaimEntry(entry=found.claim_hash, at=found.claim.at, by=found.claim.claimant),
            state=found.state.value,
            rounds=ChargedRounds(signed=found.claim.rounds, charged=found.charged, released=found.released_rounds),
            releases=found.releases,
            sessions=found.session,
            epsilon=found.claim.epsilon,
            delta=found.claim.delta,
            unit=found.claim.unit,
            data=found.claim.data,
            transcript=found.transcript_digest,
        )

    def close(self) -> None:
        """Let go of all files without ending the run, so that it can be resumed."""
        self._open_files.close()

    def __enter__(self) -> OpenRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, gate: StepGate, record: BatchWriter | None) -> None:
        self._gate, self._batches = gate, record
        if record is not None:
            self._open_files.callback(record.close)

    def _claimed(self, terms: ManifestTerms, token: ClaimToken) -> Claim:
        """The one call in the three packages that claims a budget; a test counts."""
        return self.ledger.claim(terms, token)

    def _require_trust(self) -> None:
        """The budget's signers are still trusted, by a file that is not older than one the ledger has seen.

        Raises `Refused`. Blocks that were charged stay spent, published values stay published, and nothing further is
        drawn; the run continues with --resume once the same manifest is signed by a key that is live.
        """
        if self._trust is not None:
            self._trust.require_signed(self.budget.authentic)
            note_event("verified", manifest=self.budget.digest)
            self.ledger.remember_trust(self._trust.seen)

    def _require_round(self) -> None:
        """`StepGate` calls it before each round: the rules, and if a block is due to be charged also the trust file."""
        for rule in self._rules:
            rule()
        if self.gate.at_end_of_block:
            self._require_trust()
            if self._batches is not None:
                self._batches.sync()

    def _noting_session(self, start: Position[Any]) -> OnRound:
        """Write the line of this process in sessions.jsonl when its first round is opened."""

        def on_round(step: int, round_number: int) -> None:
            if not self._noted:
                self._note_session(start, step)
                self._noted = True

        return on_round

    def _note_session(self, start: Position[Any], step: int) -> None:
        carried = {value.round for values in start.carried.values() for value in values.values()}
        before = tuple(sorted(carried)) if step == start.step else ()
        append_session(self.folder.sessions, Session(self.claim.session, self.claim.held.start, step, before))


@final
class TrustInForce:
    """The trust file of a run, read again while the run continues, so that a revocation takes effect.

    The file may be replaced by a later one of the same sequence; an earlier one is refused, here and by the ledger.
    A trust file that exists in memory alone (for a budget that signs itself) stays as it is.
    """

    def __init__(self, trust: str | Path | TrustFile, root: str | Path | None = None) -> None:
        self._root = None if root is None else load_public(Path(root), _no_password)
        self._path = None if isinstance(trust, TrustFile) else Path(trust)
        self._stamp = None if self._path is None else _stamp(self._path)
        self.file = (
            trust if isinstance(trust, TrustFile) else read_trust(read_named(Path(trust), "--trust"), self._root)
        )

    @property
    def seen(self) -> TrustSeen:
        """What the ledger is to remember of the file that was read last."""
        return self.file.seen(self._root)

    def current(self) -> TrustFile:
        """The file as it is now, read again if it has changed on disk."""
        if self._path is not None and (changed := _stamp(self._path)) != self._stamp:
            self.file = self._read(None)
            self._stamp = changed
        return self.file

    def require_signed(self, manifest: AuthenticManifest, at: datetime | None = None) -> None:
        """Refuse to continue unless the manifest is still signed by every role, with keys that are live at `at`."""
        if self._path is not None:
            self.file = self._read(at)
        require_still_signed(manifest, self.file, at)

    def _read(self, at: datetime | None) -> TrustFile:
        assert self._path is not None
        return read_trust(read_named(self._path, "--trust"), self._root, at, least_sequence=self.file.sequence)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What a file that was replaced does not share with the one before."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _no_password() -> bytes:
    raise InvalidInput("--root", "(a private key)", "must be a public key", "give the .pub file")
