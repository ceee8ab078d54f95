"""`BudgetedRun`: any training loop, in any framework, under a signed budget.

::

    with pf.BudgetedRun(budget, trust="trust.json", ledger="ledger.db", units=len(data), out="run") as run:
        for round_ in run:                                  # charged on disk before the body runs
            part = clip(gradients(model, data[round_.batch]))   # the batch is drawn as signed
            noisy = round_.publish("gradient", part.sum(axis=0), bound=1.0, measured=largest_norm)
            model = step(model, noisy)

Manifest, ledger, gate, batches and transcript are those of `privfair train`; only the computation is the caller's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from calibrate.arrays import Floats
from calibrate.errors import GateRefused, InvalidInput, Refused, count
from calibrate.manifest.document import BudgetDocument, plan_digest
from calibrate.manifest.strict_json import Step, digest, digest_of_bytes
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import IntendedRun, SiloData, VerifiedManifest, authenticate, bind
from calibrate.notebook import as_html
from calibrate.plans.plan import AlgorithmName
from privfair.algorithms.algorithm import Message
from privfair.batches.participation import Participation, declared_sampling, require_population, word_source
from privfair.batches.randomness import Indexes
from privfair.contribution import BoundedContribution, Published
from privfair.durable import read_named
from privfair.federation.local_party import StepGate, open_batches, require_shapes
from privfair.gate import Gate
from privfair.ledger import Ledger
from privfair.plan.training import block_for
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.public import RunPromise, promise_of
from privfair.run.record import RunRecord, Status
from privfair.run.signed_budget import BudgetSource, envelope_of
from privfair.transcript import Transcript, ValueSpec

_FOR_LOOPS = (AlgorithmName.OWN_LOOP.value, AlgorithmName.GAUSSIAN.value)
"""Algorithms whose manifest leaves the computation to the caller; the others are run by privfair's own engine."""


@final
@dataclass(frozen=True, eq=False)
class BudgetedRound:
    """One charged round: the batch to compute on, and the only way to publish what was computed."""

    number: int
    """The round of the ledger; rounds lost in a crash are left out."""
    step: int
    """How many rounds the run made before this one."""
    batch: Indexes
    """Which units take part, as indexes into 0 .. units - 1, drawn as the manifest says; possibly none."""
    _run: BudgetedRun = field(repr=False)
    _sent: dict[str, Published] = field(default_factory=dict, repr=False)

    def publish(self, name: str, values: ArrayLike, *, bound: float, measured: float) -> Floats:
        """Publish a sum over the batch with its signed noise, and return the noisy sum.

        Args:
            name: of the value, as the manifest declares it.
            values: the sum of the units' parts; an array (numpy, torch on the CPU, jax) of the signed shape.
            bound: the L2 bound that each unit's part keeps, at most the signed one.
            measured: the largest norm of a unit's part in this very batch (0 for an empty batch), taken where the
                clipping happens; above `bound`, nothing is published. Such an error depends on records, and so does
                one about numbers that are not finite: show it to no one who may not see the data.

        Guarantee: as `privfair.gate.Gate`; the value carries exact noise of at least the signed scale, it is in the
        transcript, and the round was charged durably before. That `measured` is true is the caller's word.
        """
        self._require_unsent(name)
        array = np.asarray(values, dtype=np.float64)
        self._run._send(self, Message((BoundedContribution(name, array, float(bound), float(measured)),)))
        return np.array(self._sent[name].values)

    def publish_in_the_clear(self, name: str, values: ArrayLike) -> Floats:
        """Publish a value without noise; only one that the manifest lists in the clear.

        Args:
            name: of the value, as the manifest declares it.
            values: numbers that cannot depend on the protected unit.
        """
        self._require_unsent(name)
        self._run._send(self, Message(clear={name: np.asarray(values, dtype=np.float64)}))
        return np.array(self._sent[name].values)

    def _require_unsent(self, name: str) -> None:
        if name in self._sent:
            raise GateRefused(f"{name!r} was published in round {self.number}; a value is published once per round")


@final
class BudgetedRun:
    """A run under a signed budget, to be iterated over round by round; verified when made, claimed when entered.

    Args:
        budget: the signed manifest: a path, its bytes, or what `sign` returned.
        trust: the trust file that says whose signatures count: a path, or a `TrustFile` in memory.
        ledger: the ledger that the budget is spent from (a path or a PostgreSQL URL); made by `privfair ledger init`.
        units: how many protected units (records, or users) this silo has: at least the signed lower bound, and exactly
            the signed number where units are replaced and not added or removed. Batches are drawn from all of them.
        shapes: the shape of each value that the loop publishes, with its name as key; by default the signed ones.
        out: the folder for the run's files, which `privfair audit` reads; None keeps them in a temporary folder that is
            deleted at the end, so that the run can neither be resumed nor audited.
        party: which silo of the manifest this is; needed where it names several.
        resume: continue the run in `out` after an interruption: fresh rounds only, what was charged stays spent.
        plan: the plan file that the manifest was issued from, if there was one.
        code: the caller's own files whose digests were signed with the budget.
        root: the public key that signs the trust file, if one does.
        anchor: the ledger's anchor file; by default next to a ledger file.
        seed: of noise and batches under seeded research noise, which protects no one; else unused.
        block: rounds charged ahead; a crash loses the rest of a block.

    Guarantee: a value leaves only through the gate, in a round that is charged on disk before the loop's body runs,
    with the signed noise, at most as often as signed; batches are drawn as signed. So what was published costs at most
    the promised epsilon for the manifest's unit, if the loop uses the batch it is given, keeps the bounds it reports
    and lets out nothing else (those are the manifest's assumptions; nothing in this process can enforce them).

    Leaving the `with` block ends the run and lets unspent rounds lapse; leaving it by an exception (Ctrl-C too) keeps
    the claim open, so that `resume=True` continues.

    >>> import tempfile
    >>> import numpy as np
    >>> import privfair as pf
    >>> folder = tempfile.TemporaryDirectory()
    >>> ledger = f"{folder.name}/ledger.db"
    >>> pf.Ledger.create(ledger).close()
    >>> priced = pf.budget(1.0, 1e-5, units=100, rounds=2, sampling_rate=0.1, shapes={"gradient": (3,)})
    >>> budget = priced.sign(pf.generate_key())
    >>> with pf.BudgetedRun(budget, trust=budget.own_trust(), ledger=ledger, units=100) as run:
    ...     for round_ in run:
    ...         noisy = round_.publish("gradient", np.zeros(3), bound=1.0, measured=0.0)
    >>> round_.number, noisy.shape, run.rounds_left
    (1, (3,), 0)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        budget: BudgetSource,
        *,
        trust: str | Path | TrustFile,
        ledger: str | Path,
        units: int,
        shapes: Mapping[str, Sequence[int]] | None = None,
        out: str | Path | None = None,
        party: str | None = None,
        resume: bool = False,
        plan: str | Path | None = None,
        code: Iterable[str | Path] = (),
        root: str | Path | None = None,
        anchor: str | Path | None = None,
        seed: int = 0,
        block: int | None = None,
    ) -> None:
        self._envelope = envelope_of(budget)
        self._trust = TrustInForce(trust, root)
        self._plan = None if plan is None else read_named(Path(plan), "plan")
        own = {path.name: digest_of_bytes(read_named(path, "code")) for path in map(Path, code)}
        self._manifest = self._verify(party, units, own)
        self.units = units
        self._shapes = _shapes(self.document, shapes)
        self._sampling = declared_sampling(self.document)
        require_population(self.party, units, self._sampling)  # now, before anything is spent
        self._place, self._out, self._resume = ledger, out, resume
        self._anchor = None if anchor is None else Path(anchor)
        self._seed = count("seed", seed, least=0)
        self._block = block_for(self.document.rounds) if block is None else count("block", block)
        self._open: _Loop | None = None
        self._finished = False

    @property
    def document(self) -> BudgetDocument:
        """The verified manifest."""
        return self._manifest.document

    @property
    def promise(self) -> RunPromise:
        """What is promised, to whom, and what is not protected."""
        return promise_of(self.document)

    @property
    def manifest_digest(self) -> str:
        """The identity of the manifest: the SHA-256 of what was signed."""
        return self._manifest.digest

    @property
    def folder(self) -> Path:
        """Where the run's files are; only while the run is open, if it was given no `out`."""
        return self._opened.spending.folder.path

    @property
    def rounds_left(self) -> int:
        """How many rounds can still be opened; 0 once the run has ended."""
        if self._open is None or self._finished:
            return 0 if self._finished else self.document.rounds
        return self._open.rounds_left

    @property
    def step(self) -> int:
        """How many rounds were opened so far, in all sessions of the run."""
        return self._opened.step

    def history(self) -> Iterator[Published]:
        """What earlier sessions of a resumed run published, in order: enough to redo a state that was not saved."""
        opened = self._opened
        found = None if not opened.gate.earlier else Transcript.read(opened.spending.folder.transcript)
        for release in opened.gate.earlier:
            assert found is not None
            values = np.array(found.value(release.round, release.party, release.name), dtype=np.float64)
            yield Published(release.round, release.party, release.name, values)

    def next_round(self) -> BudgetedRound:
        """Open one round, charged durably before this returns; refused once all signed rounds are spent."""
        return self._opened.next_round(self)

    def __iter__(self) -> Iterator[BudgetedRound]:
        while self.rounds_left:
            yield self.next_round()

    def finish(self) -> str:
        """End the run now: transcript and claim are closed, unspent rounds lapse. The transcript's digest."""
        found = self._opened.finish()
        self._finished = True
        return found

    def __enter__(self) -> BudgetedRun:
        if self._open is not None or self._finished:
            raise Refused("this run was opened before; make another BudgetedRun, with resume=True to continue")
        with ExitStack() as stack:
            self._open = _open(self, stack)
            self._closing = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and not self._finished:
                self.finish()
            elif kind is not None and not self._finished:
                self._opened.interrupt()
        finally:
            self._open = None
            self._finished = True
            self._closing.close()

    def _repr_html_(self) -> str:
        rounds = f"{self.document.rounds} rounds signed, {self.rounds_left} left"
        return as_html(self.promise.text, f": {rounds}; publishes {', '.join(self._shapes)}")

    @property
    def _opened(self) -> _Loop:
        if self._open is None:
            raise Refused("the run is not open; use it inside `with pf.BudgetedRun(...) as run:`")
        return self._open

    def _send(self, of: BudgetedRound, message: Message) -> None:
        self._opened.send(of, message)

    def _verify(self, party: str | None, units: int, code: Mapping[str, str]) -> VerifiedManifest:
        authentic = authenticate(self._envelope, self._trust.file)
        document = authentic.document
        if document.algorithm not in _FOR_LOOPS:
            raise Step.PLAN.refuse(
                f"the budget is for {document.algorithm}, which privfair's own engine runs",
                "train with pf.train, or ask for a budget of own-loop (pf.budget)",
            )
        if document.retention is not None:
            raise Step.PLAN.refuse(
                "the budget keeps digests of most values, and the caller's loop saves no checkpoint to continue from",
                "ask for a budget without retention",
            )
        signed = self._plan
        config = plan_digest(document.algorithm, document.parameters) if signed is None else digest_of_bytes(signed)
        if self._plan is None and config != document.config_digest:
            raise Step.PLAN.refuse("the budget was issued from a plan file, and none was given", "give plan=...")
        self.party = _party(document, party)
        data = SiloData(self.party, count("units", units), digest(None))
        return bind(authentic, IntendedRun(config, data, code))


@dataclass(eq=False)
class _Loop:
    """The rounds of an open run, for the caller's own body."""

    run: BudgetedRun
    spending: OpenRun
    record: RunRecord
    gate: Gate
    steps: StepGate
    batches: Participation
    step: int
    current: BudgetedRound | None = None

    @property
    def rounds_left(self) -> int:
        if self.steps.exhausted:
            return 0
        claim, last = self.spending.claim, self.gate.round
        return claim.rounds - max(claim.held.start if last is None else last + 1, self.steps.first_round)

    def next_round(self, run: BudgetedRun) -> BudgetedRound:
        self.current = None
        number = self.steps.open(self.step)
        self.current = BudgetedRound(number, self.step, self.batches.batch(number), run)
        self.step += 1
        return self.current

    def send(self, of: BudgetedRound, message: Message) -> None:
        if of is not self.current:
            raise GateRefused(f"round {of.number} is over; publish within the body of its round")
        self.steps.send(self.run.party, message, of._sent)

    def interrupt(self) -> None:
        self.steps.flush()
        self.spending.note(self.record, Status.INTERRUPTED, self.step)

    def finish(self) -> str:
        self.current = None
        self.spending.finish()
        self.spending.note(self.record, Status.FINISHED, self.step)
        return self.steps.finish()


def _open(run: BudgetedRun, stack: ExitStack) -> _Loop:
    """Folder, ledger, claim, gate and batches; what is opened is closed by `stack`, in reverse order."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run" if run._out is None else Path(run._out)
    if run._out is None and run._resume:
        raise InvalidInput("resume", True, "needs the folder of the run to continue", "give out=...")
    ledger = stack.enter_context(Ledger.open(run._place, run._anchor))
    folder = RunFolder.create(path, resume=run._resume)
    going_on = folder.begun
    stack.enter_context(folder.locked())
    manifest, party = run._manifest, run.party
    record = RunRecord.begun(manifest.authentic, run.document.rounds, run._sampling, ledger=ledger.identity)
    spending = stack.enter_context(OpenRun(manifest, ledger, folder, trust=run._trust))
    if going_on:
        record.require_same_run(folder)
        spending.resume()
    else:
        plan = {} if run._plan is None else {folder.plan.name: run._plan}
        spending.begin({**plan, folder.manifest.name: run._envelope, **record.file()})
    values = tuple(ValueSpec(name, shape) for name, shape in run._shapes.items())
    gate = spending.open_gate(values, (party,), run._seed, run._block, strict=True)
    source = {party: word_source(run.document, run._seed, party, spending.claim.session)}
    drawn, writer = open_batches(manifest.digest, run._sampling, {party: run.units}, source, folder.batches, (party,))
    begun = len({release.round for release in gate.earlier})
    return _Loop(run, spending, record, gate, spending.rounds(gate, drawn, writer, begun), drawn[party], begun)


def _party(document: BudgetDocument, party: str | None) -> str:
    names = [silo.name for silo in document.data.silos]
    if party is None and len(names) > 1:
        raise InvalidInput("party", None, f"is needed: the budget is for {', '.join(names)}", "say which one this is")
    return names[0] if party is None else party


def _shapes(document: BudgetDocument, given: Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    if given is None:
        signed = {value.name: value.shape for value in document.releases}
        missing = [name for name, shape in signed.items() if shape is None]
        if missing:
            raise InvalidInput("shapes", None, f"is needed: no shape of {missing[0]} was signed", "give shapes={...}")
        return {name: shape for name, shape in signed.items() if shape is not None}
    shapes = {name: tuple(int(side) for side in shape) for name, shape in given.items()}
    require_shapes(shapes, document, "the loop", "publish what was signed, or ask for another budget")
    return shapes
