"""The folders on the desk: an inbox of requests with their answers, and runs with their audits.

Both may come from anybody. Nothing of them is shown as markup and no code of them runs; pages are made from their
numbers for every request. What carries no verified signature is marked as unverified where it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType

from audit.report.page import ReportContent, read_audit, report_content
from audit.report.results import AuditReport
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.issue import (
    BudgetRequest,
    Declined,
    answer_path,
    decline_request,
    grants,
    read_declined,
    read_request,
    sign_request,
)
from calibrate.manifest.keys import BadSignature, BrokenEnvelope, PublicKey, SigningKey, check_signature, open_envelope
from calibrate.manifest.show import BudgetChange, changes, last_before, protected_text
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import read_unverified
from privfair.durable import write_named
from privfair.ledger import LedgerStatus
from privfair.run.record import ClaimEntry, Receipts, RunRecord

_LARGEST = 2 << 20


class State(Enum):
    WAITING = "waiting"
    SIGNED = "signed"
    DECLINED = "declined"


@dataclass(frozen=True)
class Known:
    """Whose signatures count on the desk: its own key's, and those of the trust file."""

    key: SigningKey | None = None
    trust: TrustFile | None = None

    def signed(self, content: bytes) -> bool:
        """Whether a known officer or owner signed this envelope with a key that is not revoked."""
        trusted = () if self.trust is None else self.trust.keys
        keys = [one.key() for one in trusted if one.role.signs_budgets and one.revoked is None]
        return any(_has_signed(content, key) for key in (*keys, *(() if self.key is None else (self.key.public,))))


def _has_signed(content: bytes, key: PublicKey) -> bool:
    try:
        check_signature(open_envelope(content), key)
    except (BadSignature, BrokenEnvelope):
        return False
    return True


@dataclass(frozen=True)
class Letter:
    """One request in the inbox, with its answer if there is one and the budget that it is compared with."""

    path: Path
    request: BudgetRequest
    state: State
    declined: Declined | None
    earlier: BudgetDocument | None
    """The last budget for the same data: a verified one where there is any."""
    earlier_verified: bool
    unverified: str | None
    """The file next to the request that looks like its answer and that no known key signed."""

    @property
    def name(self) -> str:
        """The file's name, by which the pages speak of it."""
        return self.path.name

    @property
    def answer(self) -> Path:
        return answer_path(self.path, signed=self.state is not State.DECLINED)

    def changes(self) -> tuple[BudgetChange, ...] | None:
        """What is different from the last budget for the same data; None if there is no such budget here."""
        return None if self.earlier is None else changes(self.earlier, self.request.document)


@dataclass(frozen=True)
class Inbox:
    """The letters of a folder, newest first, and the files in it that could not be read as requests or answers."""

    letters: tuple[Letter, ...]
    unreadable: tuple[tuple[str, str], ...]

    def letter(self, name: str) -> Letter:
        for one in self.letters:
            if one.name == name:
                return one
        raise InvalidInput("request", name[:80], "is not in the inbox", "open the list of requests again")


def open_inbox(folder: Path, known: Known) -> Inbox:
    """Read a folder again; other files than requests and answers are named, never guessed at."""
    requests: dict[Path, BudgetRequest] = {}
    budgets: dict[bool, list[BudgetDocument]] = {True: [], False: []}
    unreadable: list[tuple[str, str]] = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = _read(path)
            if path.stem.endswith("-declined"):
                read_declined(content)
            elif b'"payloadType"' in content[:4096] or path.stem.endswith("-signed"):
                budgets[known.signed(content)].append(read_unverified(content).document)
            else:
                requests[path] = read_request(content)
        except PrivfairError as broken:
            unreadable.append((path.name, str(broken)))
    letters = (_letter(path, request, budgets, known) for path, request in requests.items())
    newest = sorted(letters, key=lambda one: (one.state is State.WAITING, one.request.asked_at), reverse=True)
    return Inbox(tuple(newest), tuple(unreadable))


def _read(path: Path) -> bytes:
    try:
        if path.is_symlink() or not path.is_file():
            raise InvalidInput("inbox", path.name, "is not a regular file", "put the file itself there")
        with path.open("rb") as file:
            return file.read(_LARGEST)
    except OSError as error:
        raise InvalidInput("inbox", path.name, f"cannot be read ({error.strerror})", "check its permissions") from error


def _letter(path: Path, request: BudgetRequest, budgets: dict[bool, list[BudgetDocument]], known: Known) -> Letter:
    state, refusal, unverified = State.WAITING, None, None
    for signed in (True, False):
        answer = answer_path(path, signed=signed)
        try:
            content = _read(answer) if state is State.WAITING and answer.exists() else b""
            found = read_declined(content) if content and not signed else None
            if not (grants(content, request) if signed else found is not None and found.request == request.digest):
                continue
        except PrivfairError:  # named among the files that could not be read
            continue
        if known.signed(content):
            state, refusal = State.SIGNED if signed else State.DECLINED, found
        else:
            unverified = answer.name
    verified, claimed = (last_before(request.document, budgets[one]) for one in (True, False))
    return Letter(path, request, state, refusal, verified or claimed, verified is not None, unverified)


def drafting() -> ModuleType:
    """The module that writes budgets; it loads the engine, which reading does without."""
    from privfair.api import draft

    return draft


def sign_letter(letter: Letter, key: SigningKey, ledger: LedgerStatus) -> Path:
    """Sign a waiting request that follows from its plan, and write the manifest next to it."""
    request = _waiting(letter)
    compared = drafting().compare(request.document, request.plan, letter.path.parent, ledger)
    return _answered(letter, sign_request(request, key, compared.drafted), signed=True)


def decline_letter(letter: Letter, reason: str, key: SigningKey) -> Path:
    """Decline a waiting request with a reason and write the refusal next to it."""
    return _answered(letter, decline_request(_waiting(letter), reason, key), signed=False)


def _waiting(letter: Letter) -> BudgetRequest:
    if letter.state is not State.WAITING:
        raise InvalidInput("request", letter.name, f"is {letter.state.value} already", "ask for a new request")
    return letter.request


def _answered(letter: Letter, content: bytes, *, signed: bool) -> Path:
    path = answer_path(letter.path, signed=signed)
    write_named(path, content)
    return path


def drop_letter(folder: Path, stem: str, content: bytes) -> Path:
    """Put a new request into the inbox under a name that is not taken."""
    number = 1
    while (path := folder / f"{stem}-{number}.json").exists():
        number += 1
    write_named(path, content)
    return path


_MOST_AUDITS = 50


@dataclass(frozen=True)
class RunOnDesk:
    """One run folder: its budget, how far it got, and the audit that speaks of it."""

    path: Path
    digest: str
    document: BudgetDocument
    record: RunRecord
    claim: ClaimEntry | None
    """Its ledger's, of a run in one process."""
    audit: AuditReport | None
    verified: bool
    """Whether a known key signed the budget."""

    @property
    def name(self) -> str:
        return self.path.name

    def facts(self) -> dict[str, str]:
        """What two runs are compared by, in reading order."""
        guarantee, claim = self.document.guarantee, self.claim
        epsilon, delta = getattr(guarantee, "epsilon", None), getattr(guarantee, "delta", None)
        mark = "" if self.verified else "UNVERIFIED: "
        facts = {
            "algorithm": self.document.algorithm,
            "protected": protected_text(guarantee),
            "promise": mark + ("none" if epsilon is None else f"epsilon {epsilon:g} at delta {delta:g}"),
            "purpose": self.document.justification,
            "status": self.record.status.value,
            "rounds charged": f"{self.record.rounds.charged} of {self.document.rounds}",
            "audit": "not audited"
            if self.audit is None
            else f"{self.audit.verdict.value} (not signed): {self.audit.why}",
            "claimed": "no receipt" if claim is None else f"{claim.at} by {claim.by}",
            "budget": self.digest,
        }
        for key, value in self.record.overall.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                facts[f"{key.replace('_', ' ')} (test records, not private)"] = f"{value:.4f}"
        return facts

    def content(self, trust: TrustFile | None) -> ReportContent:
        """What its report shows."""
        return report_content(self.path, self.audit, trust)


@dataclass(frozen=True)
class Runs:
    found: tuple[RunOnDesk, ...]
    unreadable: tuple[tuple[str, str], ...]

    def run(self, name: str) -> RunOnDesk:
        for one in self.found:
            if one.name == name:
                return one
        raise InvalidInput("run", name[:80], "is not among the runs", "open the list of runs again")


def open_runs(folders: Iterable[Path], known: Known) -> Runs:
    """The runs directly inside these folders, in the order of their names."""
    found: dict[str, RunOnDesk] = {}
    unreadable: list[tuple[str, str]] = []
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_symlink() or not (path / "budget.json").is_file() or not (path / "run.json").is_file():
                continue
            try:
                found.setdefault(path.name, _run(path, known))
            except PrivfairError as broken:
                unreadable.append((path.name, str(broken)))
    return Runs(tuple(found.values()), tuple(unreadable))


def _run(path: Path, known: Known) -> RunOnDesk:
    envelope = _read(path / "budget.json")
    manifest, verified = read_unverified(envelope), known.signed(envelope)
    record, receipts = RunRecord.read(path / "run.json"), path / "receipts.json"
    claim = Receipts.read(receipts).claim if receipts.exists() and not record.engine else None
    return RunOnDesk(
        path, manifest.digest, manifest.document, record, claim, _audit_of(path, manifest.digest), verified
    )


def _audit_of(path: Path, digest: str) -> AuditReport | None:
    """The newest audit, in the run folder or next to it, that says it is about this budget."""
    places = [*path.glob("*audit*.json"), *path.parent.glob("*audit*.json")]
    for place in sorted(places, key=lambda one: one.stat().st_mtime, reverse=True)[:_MOST_AUDITS]:
        try:
            audit = read_audit(place)
        except PrivfairError:
            continue
        if audit.subjects.get("manifest") == digest:
            return audit
    return None
