"""Registries behind guards of their own: sealed batches, one process's values, and a count that nobody can exceed."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from audit.report.results import CheckOutcome
from audit.runs.papers import SitesInHand, _asked_records, _asked_too_often, read_site_papers
from audit.runs.run_audit import audit_run
from audit.settings import AuditOptions
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.trust import FolderTrust
from calibrate.sampling import Poisson, ShuffledEpochs
from privfair.batches.participation import BatchRecord, BatchWriter
from privfair.federation import wire
from privfair.federation.gather import gather_run
from privfair.federation.guard import Guard, GuardOptions
from privfair.federation.registries import SitesKey, most_participations
from privfair.federation.wire import MessageKind, WireMessage, decode
from privfair.ledger import Ledger, LedgerAccess
from privfair.run.federated import train_over
from privfair.run.folder import RunFolder
from privfair.run.open_run import TrustInForce
from privfair.run.prepare import PreparedRun, prepare_site
from privfair.transcript import Transcript
from tests.end_to_end.command_line import privfair
from tests.fault_injection.faults import Fault, Shim
from tests.federation.sites import Sites
from tests.federation.test_guard_killed import mortal_guard
from tests.privfair.small_runs import Desk, write_silos

pytestmark = pytest.mark.filterwarnings("ignore")
HOLDERS = ("north", "south", "west")
SIZE, ROUNDS = 60, 6
PARTIES = (*HOLDERS, "census", "clinic")
KEY = SitesKey(bytes(range(32)))
_PLAN = """algorithm = "steffle"
[target]
epsilon = 4.0
delta = 1e-5
[privacy]
silo-size = 60
batch-size = {batch}
rounds = 6
minority-fraction = 0.4
lipschitz = 0.5
w-radius = 0.5
sampling = "{sampling}"
[data]
{data}
[training]
group-frequencies = [0.5, 0.5]
block = 2
measure-every = 9
"""
_FILES = """files = ["north.csv", "south.csv", "west.csv"]
test-files = ["test/north.csv", "test/south.csv", "test/west.csv"]
schema = "schema.toml"
[data.attributes]
files = ["census.csv", "clinic.csv"]
record = "person"
"""
_SITES = """schema = "schema.toml"
[data.silos]
north = 60
south = 60
west = 60
[data.attributes]
record = "person"
[data.attributes.registries]
census = 120
clinic = 60
"""


def _write_files(folder: Path, *, whole: bool, prefix: str = "") -> None:
    """Holders without the attribute; registries with the attribute alone, or with whole records in the same order."""
    held: dict[str, list[str]] = {"census": [], "clinic": []}
    for bank in HOLDERS:
        with (folder / f"{bank}.csv").open(encoding="utf-8", newline="") as file:
            people = list(csv.DictReader(file))
        kept = ["person,age,income,job,default"]
        for number, person in enumerate(people):
            name, of = f"{prefix}{bank}-{number}", [person[key] for key in ("age", "income", "job", "default")]
            kept.append(",".join((name, *of)))
            held["census" if number % 3 else "clinic"].append(",".join((name, *(of if whole else ()), person["sex"])))
        (folder / f"{bank}.csv").write_text("\n".join(kept) + "\n", encoding="utf-8")
    head = "person,age,income,job,default,sex" if whole else "person,sex"
    for registry, rows in held.items():
        (folder / f"{registry}.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")


def _plan(sampling: str, data: str) -> str:
    return _PLAN.format(sampling=sampling, batch=SIZE if sampling == "full" else 20, data=data)


def _sites(folder: Path, sampling: str = "shuffled") -> RegistrySites:
    desk = Desk.at(folder, _plan(sampling, _SITES))
    write_silos(folder, (SIZE,) * 3)
    _write_files(folder, whole=True)
    return RegistrySites(desk, "steffle, registries")


class RegistrySites(Sites):
    """Three holders and two registries, each with a ledger of its own."""

    @property
    def parties(self) -> tuple[str, ...]:
        return PARTIES

    def prepare(self, party: str) -> PreparedRun:
        trust, file = TrustInForce(self.desk.trust).file, self.folder / f"{party}.csv"
        return prepare_site(self.desk.plan, self.manifest.read_bytes(), trust, party, {party: file})


def _in_one_process(folder: Path, sampling: str) -> RunFolder:
    desk = Desk.at(folder, _plan(sampling, _FILES))
    write_silos(folder, (SIZE,) * 3)
    _write_files(folder, whole=False)
    (folder / "test").mkdir()
    write_silos(folder / "test", (30, 30, 30), seed=9)
    # Test records have attributes as well, in the same registries, under numbers of their own.
    _write_files(folder / "test", whole=False, prefix="t-")
    for registry in ("census", "clinic"):
        tested = (folder / "test" / f"{registry}.csv").read_text().splitlines()[1:]
        with (folder / f"{registry}.csv").open("a", encoding="utf-8") as file:
            file.write("\n".join(tested) + "\n")
    return RunFolder(desk.train(desk.budget(research_noise=True)).run)


@dataclass(frozen=True)
class Finished:
    """A run over five guards, and the same run in one process."""

    sites: RegistrySites
    run: Path
    one: RunFolder


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return _finish(tmp_path_factory.mktemp("r"), "shuffled")


def _finish(folder: Path, sampling: str) -> Finished:
    sites = _sites(folder / "s", sampling)
    sites.desk.budget(research_noise=True)
    with sites.guards(GuardOptions(sites_key=KEY)) as transport:
        train_over(transport, sites.signed(), folder / "run")
    return Finished(sites, folder / "run", _in_one_process(folder / "one", sampling))


def _require_equal(finished: Finished) -> None:
    whole = Transcript.read(finished.one.transcript)
    with np.load(finished.one.checkpoint) as expected, np.load(finished.run / "checkpoint.npz") as found:
        for name in (name for name in expected.files if name.startswith("state.")):
            np.testing.assert_array_equal(found[name], expected[name])
    for party in PARTIES:
        own = Transcript.read(finished.sites.folder / party / "transcript.bin")
        names = ("h_theta", "h_W") if party in ("census", "clinic") else ("g",)
        for name in names:
            assert own.values(party, name).shape[0] == ROUNDS
            np.testing.assert_array_equal(own.values(party, name), whole.values(party, name))


def test_registries_behind_guards_publish_what_they_publish_in_one_process(finished: Finished) -> None:
    _require_equal(finished)


@pytest.mark.slow
def test_so_they_do_with_full_batches_which_need_no_message(tmp_path_factory: pytest.TempPathFactory) -> None:
    _require_equal(_finish(tmp_path_factory.mktemp("f"), "full"))


def test_a_registry_sums_over_what_the_holders_drew(finished: Finished) -> None:
    drawn = {p: BatchRecord.read(finished.sites.folder / p / "batches.bin") for p in PARTIES}
    names = {p: finished.sites.prepare(p).record_numbers for p in PARTIES}
    for step in range(ROUNDS):
        of = {p: {names[p][row] for row in drawn[p].batch(step, p).tolist()} for p in PARTIES}
        assert set().union(*(of[p] for p in HOLDERS)) == of["census"] | of["clinic"]


def test_a_gathered_run_with_registries_is_audited(finished: Finished) -> None:
    gather_run(finished.run, {party: finished.sites.folder / party for party in PARTIES})
    ledgers = {party: Ledger.open(finished.sites.ledger(party), access=LedgerAccess.READ) for party in PARTIES}
    files = {party: finished.sites.folder / f"{party}.csv" for party in PARTIES}
    trust = FolderTrust(TrustInForce(finished.sites.desk.trust).file)
    in_hand = SitesInHand(ledgers=ledgers, files=files)
    report = audit_run(finished.run, AuditOptions(reruns=0), trust, sites=in_hand)
    papers = read_site_papers(finished.run, trust)
    for ledger in ledgers.values():
        ledger.close()
    assert papers is not None
    assert [check.outcome for check in _asked_records(papers, in_hand)] == [CheckOutcome.PASSED, CheckOutcome.PASSED]
    record = finished.run / "parties" / "census" / "batches.bin"
    header, right = (
        BatchRecord.read(record).header,
        [BatchRecord.read(record).batch(n, "census") for n in range(ROUNDS)],
    )
    record.unlink()
    writer = BatchWriter.create(record, header)
    for number, rows in enumerate(right):
        writer.write_round(number, "census", rows[number == 2 :])
    writer.close()
    spoilt = read_site_papers(finished.run, trust)
    assert spoilt is not None
    assert [check.finding for check in _asked_records(spoilt, in_hand)] == [
        "step 2 is not what the holders drew",
        f"{ROUNDS} steps",
    ]
    assert not [check.name for check in report.checks if check.outcome is CheckOutcome.FAILED]
    assert "batches of census" in [check.name for check in report.checks]
    assert _asked_too_often({0: np.arange(3), 1: np.array([2])}, 5, 2) is None
    assert "2 times, and 1" in str(_asked_too_often({0: np.arange(3), 1: np.array([2])}, 5, 1))


@dataclass
class Alone:
    """A guard of one party in this process."""

    sites: RegistrySites
    run: PreparedRun
    folder: Path
    ledger: Ledger
    guard: Guard

    def ask(self, step: int, batches: dict[str, str] | None = None, shift: float = 0.0) -> WireMessage:
        state = self.run.algorithm.checkpoint(self.run.algorithm.start())
        moved = {name: values + (shift if name == "theta" else 0.0) for name, values in state.items()}
        question = wire.ask_contribution(self.run.manifest.digest, step, moved, batches=batches)
        return decode(self.guard.answer(question))

    def again(self) -> None:
        self.guard.close()
        self.guard = _guard(self.run, self.folder, self.ledger)

    def sealed(self, step: int, records: list[str], key: SitesKey = KEY, run: str | None = None) -> dict[str, str]:
        """The records as the batch of the first holder, and nothing of the others."""
        digest, tags = run or self.run.manifest.digest, key.tags(records)
        return {holder: key.seal(digest, step, holder, tags if holder == "north" else []) for holder in HOLDERS}


def _guard(run: PreparedRun, folder: Path, ledger: Ledger) -> Guard:
    return Guard(run, RunFolder(folder), ledger, logging.getLogger("test"), sites_key=KEY)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> RegistrySites:
    sites = _sites(tmp_path_factory.mktemp("a"))
    sites.desk.budget()
    return sites


def _alone(signed: RegistrySites, folder: Path, party: str) -> Iterator[Alone]:
    (folder / party).mkdir()
    run = signed.prepare(party)
    with Ledger.create(folder / "ledger.db") as ledger:
        found = Alone(signed, run, folder / party, ledger, _guard(run, folder / party, ledger))
        yield found
        found.guard.close()


@pytest.fixture
def census(signed: RegistrySites, tmp_path: Path) -> Iterator[Alone]:
    yield from _alone(signed, tmp_path, "census")


@pytest.fixture
def north(signed: RegistrySites, tmp_path: Path) -> Iterator[Alone]:
    yield from _alone(signed, tmp_path, "north")


def test_no_record_takes_part_more_often_than_was_priced(census: Alone) -> None:
    """Two epochs were priced; a holder that asks for its victim in every step gets it twice, over restarts too."""
    assert most_participations(ShuffledEpochs(60, 20), ROUNDS) == 2
    victim = ["north-1"]
    assert census.ask(0, census.sealed(0, victim)).kind is MessageKind.PUBLISHED
    assert census.ask(0, census.sealed(0, victim)).kind is MessageKind.PUBLISHED, "asked again it is the same step"
    census.again()
    assert census.ask(1, census.sealed(1, ["north-2", "north-1"])).kind is MessageKind.PUBLISHED
    census.again()
    for _ in range(2):
        refused = census.ask(2, census.sealed(2, victim))
        assert refused.fields == {"error": "BatchRefused", "code": "batch"}
        census.again()
    assert census.ask(2, census.sealed(2, ["north-2"])).kind is MessageKind.PUBLISHED, "others have a time left"
    assert census.ask(3, census.sealed(3, ["north-2"])).fields["code"] == "batch"
    assert census.ask(1, census.sealed(1, ["north-2", "north-1"])).kind is MessageKind.PUBLISHED, (
        "old steps are sent again"
    )


def test_a_lost_record_of_batches_counts_for_everybody(census: Alone) -> None:
    for step in range(2):
        assert census.ask(step, census.sealed(step, ["north-1"])).kind is MessageKind.PUBLISHED
    (census.folder / "batches.bin").unlink()
    census.again()
    assert census.ask(2, census.sealed(2, ["north-5"])).fields["code"] == "batch"
    assert census.ask(2, census.sealed(2, [])).kind is MessageKind.PUBLISHED


def test_only_what_the_holders_sealed_for_this_step_of_this_run_is_used(census: Alone) -> None:
    good = census.sealed(0, ["north-1"])
    bad = [
        {},
        {name: good[name] for name in HOLDERS[:2]},
        {**good, "census": good["north"]},
        {**good, "south": good["north"]},
        {**good, "north": good["north"][:-4] + "AAA="},
        {**good, "north": "not base64"},
        census.sealed(1, ["north-1"]),
        census.sealed(0, ["north-1"], run="ab" * 32),
        census.sealed(0, ["north-1"], key=SitesKey(bytes(32))),
        census.sealed(0, ["north-1", "north-1"]),
    ]
    for batches in bad:
        assert census.ask(0, batches).fields == {"error": "BatchRefused", "code": "batch"}
    question = wire.ask_contribution(census.run.manifest.digest, 0, {}, batches={"north": 3})  # type: ignore[dict-item]
    assert decode(census.guard.answer(question)).fields["code"] == "malformed"
    first = census.ask(0, good)
    assert first.kind is MessageKind.PUBLISHED
    assert "batch" not in first.fields, "a registry tells nobody"
    assert census.ask(0, census.sealed(0, ["north-2"])).fields == {"error": "StepRefused", "code": "step"}


def test_a_holder_seals_the_same_bytes_however_often_it_is_asked(north: Alone) -> None:
    first = [north.ask(step).text("batch") for step in range(4)]
    digest, own = north.run.manifest.digest, dict(zip(KEY.tags(north.run.record_numbers), range(SIZE), strict=True))
    rows = [[own[tag] for tag in KEY.unseal(digest, step, "north", first[step])] for step in range(4)]
    assert sorted(row for batch in rows[:3] for row in batch) == list(range(SIZE)), "an epoch is every record once"
    assert len(rows[3]) == 20
    for _ in range(2):
        assert [north.ask(step).text("batch") for step in range(4)] == first
        north.again()
    north.guard.answer(wire.ask_finish(digest))
    assert [north.ask(step).text("batch") for step in range(4)] == first


def _killed(run: PreparedRun, folder: Path, shim: Shim) -> tuple[int, list[str]]:
    """Three steps that ask for one record each time, and again: how often it was killed, and what it answered."""
    guard = mortal_guard(run, folder, shim, KEY)
    state, digest = run.algorithm.checkpoint(run.algorithm.start()), run.manifest.digest
    found: list[tuple[bytes, bytes]] = []
    for step in range(3):
        tags = KEY.tags(["north-1"])
        sealed = {name: KEY.seal(digest, step, name, tags if name == "north" else []) for name in HOLDERS}
        question = wire.ask_contribution(digest, step, state, batches=sealed)
        found.append((question, guard({"census": question})["census"]))
    assert [guard({"census": question})["census"] for question, _ in found] == [answer for _, answer in found]
    guard.stop()
    return guard.deaths, [str(decode(answer).fields.get("code", "answered")) for _, answer in found]


@pytest.mark.slow
def test_a_killed_registry_forgets_nobody(signed: RegistrySites, tmp_path: Path) -> None:
    """Priced are two times, whatever it is killed at; a death may cost a record a time, and never gives it one."""
    run, folder = signed.prepare("census"), tmp_path / "k"
    deaths, answers = _killed(run, folder, Shim())
    assert (deaths, answers) == (0, ["answered", "answered", "batch"])
    operations = (folder / "kinds").read_text().split("\n")
    died = 0
    for at in range(1, len(operations) + 1, 2):
        for fault in (Fault.KILL, Fault.TORN):
            if fault.differs_at(operations[at - 1]):
                deaths, answers = _killed(run, folder, Shim(fault, at))
                assert answers == ["answered", "answered", "batch"]
                died += deaths
    assert died > len(operations) // 2, "but for those at its end, which nobody waits for"


def test_what_cannot_be_counted_or_kept_apart_is_refused_by_name(signed: RegistrySites, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCombination, match="chance"):
        most_participations(Poisson(0.1), 5)
    plan = tmp_path / "plan.toml"
    (tmp_path / "schema.toml").write_text((signed.folder / "schema.toml").read_text())

    def refused(old: str, new: str) -> str:
        plan.write_text(signed.desk.plan.read_text().replace(old, new))
        done = privfair("calibrate", plan, "--out", tmp_path / "b.json", "--key", signed.desk.key)
        assert done.code == 2, done.err
        return done.err

    assert "chance" in refused('"shuffled"', '"poisson"')
    assert "are separate sites" in refused("[data.silos]\nnorth = 60\nsouth = 60\nwest = 60", 'files = ["a.csv"]')
    run = signed.prepare("north")
    with Ledger.create(tmp_path / "ledger.db") as ledger, pytest.raises(InvalidInput, match="--sites-key"):
        Guard(run, RunFolder(tmp_path), ledger, logging.getLogger("test"))


@pytest.mark.parametrize(
    ("party", "change", "why"),
    [
        ("north", lambda text: text.replace("job,default", "job,default,sex").replace(",no\n", ",no,male\n"), "sex"),
        ("census", lambda text: text.replace("north-2,", "north-1,"), "more than once"),
    ],
)
def test_a_sites_file_that_could_not_be_kept_apart_is_refused(
    signed: RegistrySites, tmp_path: Path, party: str, change: object, why: str
) -> None:
    assert callable(change)
    changed = tmp_path / f"{party}.csv"
    changed.write_text(change((signed.folder / f"{party}.csv").read_text()).replace(",yes\n", ",yes,male\n"))
    if party == "census":
        changed.write_text(change((signed.folder / f"{party}.csv").read_text()))
    trust = TrustInForce(signed.desk.trust).file
    with pytest.raises(InvalidInput, match=why):
        prepare_site(signed.desk.plan, signed.manifest.read_bytes(), trust, party, {party: changed})


def test_a_key_file_is_64_hexadecimal_digits(tmp_path: Path) -> None:
    path = tmp_path / "sites.key"
    path.write_text("0f" * 32 + "\n")
    assert SitesKey.read(path).secret == b"\x0f" * 32
    assert "0f0f" not in repr(SitesKey.read(path))
    for text in ("", "0f" * 31, "xy" * 32):
        path.write_text(text)
        with pytest.raises(InvalidInput, match="openssl rand"):
            SitesKey.read(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        SitesKey.read(tmp_path / "missing")


def test_the_coordinators_folder_names_nobody(finished: Finished) -> None:
    """Neither a record's number nor its tag is in what the coordinator keeps."""
    tags = {tag.hex() for tag in KEY.tags(finished.sites.prepare("north").record_numbers)}
    for path in (path for path in finished.run.glob("*.json") if path.is_file()):
        text = path.read_text()
        assert "north-1" not in text
        assert not [tag for tag in tags if tag in text]
    known = finished.sites.signed().document.guarantee.not_protected
    assert any("which their holders hand to it" in sentence for sentence in known)
    assert json.loads((finished.run / "run.json").read_text())["rounds"]["steps"] == ROUNDS
