"""An officer signs what follows from the plan: every edit of an honest request is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from calibrate.errors import InvalidInput, LedgerRefused, ManifestRefused, PrivfairError
from calibrate.manifest.document import BudgetDocument, DataIdentity, seen_as
from calibrate.manifest.issue import issue, read_request, require_same
from calibrate.manifest.keys import load_private
from calibrate.manifest.strict_json import canonical
from privfair.api import draft as drafting
from privfair.api.draft import compare
from privfair.ledger import Ledger
from privfair.plan.plan import Plan
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import GAUSSIAN, Desk

IDENTITY = '[data.identity]\nname = "ward7"\ncustodian = "clinic"\nversion = "1"\n'
PLAN = GAUSSIAN.format(rate=0.2, rounds=60, more="").replace("[training]", f"{IDENTITY}[training]")
FREE = ("nonce", "validity", "justification")


class Office:
    """An officer's desk with one honest request, made and read next to the data."""

    def __init__(self, folder: Path) -> None:
        self.desk = Desk.at(folder, PLAN)
        self.request = folder / "request.json"
        asked = privfair("request", self.desk.plan, "--out", self.request, "--why", "x", "--ledger", self.desk.ledger)
        assert asked.code == 0, asked.err
        self.fields = json.loads(self.request.read_bytes())
        with Ledger.open(self.desk.ledger) as ledger:
            self.status = ledger.status()

    def sign(self, fields: dict[str, Any], *more: object) -> Any:
        (self.desk.folder / "edited.json").write_bytes(canonical(fields))
        words = ("budget", "sign", self.desk.folder / "edited.json", "--key", self.desk.key, "--yes")
        return privfair(*words, "--ledger", self.desk.ledger, *more)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    return Office(tmp_path_factory.mktemp("office"))


def edits(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every place of a JSON value with another value for it; lists also lose their items."""
    match value:
        case dict():
            for name, one in value.items():
                yield from edits(one, (*path, name))
        case list():
            yield path, []
            yield path, ["None."] if not value or isinstance(value[0], str) else [*value, value[-1]]
            for number, one in enumerate(value):
                yield from edits(one, (*path, number))
        case bool():
            yield path, not value
        case int() | float():
            yield from ((path, value * 2), (path, value * (1 + 1e-6)), (path, 0))
        case str():
            yield from ((path, "Nothing."), (path, value[::-1]), (path, "0" * 64))
        case None:
            yield from ((path, 7), (path, "x"), (path, {"name": "a", "custodian": "b", "version": "c"}))


def edited(document: Any, path: tuple[str | int, ...], value: Any) -> Any:
    found = deepcopy(document)
    place = found
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return found


def test_no_edit_of_an_honest_request_is_signed(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    document, kept = office.fields["document"], drafting.draft
    drafts: dict[str, Any] = {}

    def once(file: Plan, issuer: Any, promise: Any, target: Any, asked: Any) -> Any:
        key = repr((file.digest, issuer, promise, target))  # the data are here, so that `asked` decides nothing
        if key not in drafts:
            drafts[key] = kept(file, issuer, promise, target, asked)
        return drafts[key]

    monkeypatch.setattr(drafting, "draft", once)
    monkeypatch.setattr(drafting, "recompute", lambda asked: None)  # the price alone would stop some edits: not here
    tried, signed = 0, []
    for path, value in edits({name: one for name, one in document.items() if name not in FREE}):
        found = edited(document, path, value)
        if found == document:
            continue
        tried += 1
        try:
            asked = BudgetDocument.from_json(found)
            compare(asked, office.fields["plan"], office.desk.folder, office.status)
        except (PrivfairError, ValueError):
            continue
        signed.append((path, value))
    assert tried > 400
    assert not signed
    assert len(drafts) <= 12, "edits of the terms alone ask for another draft"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("guarantee", "notProtected"), ["Nothing."]),
        (("accounting", "assumptions"), ["None."]),
        (("accounting", "assumptions", 0), "None."),
        (("rounds",), 120),
        (("ledgers",), []),
        (("ledgers", 0, "ledger"), "0" * 64),
        (("dataset", "name"), "ward8"),
        (("dataset",), None),
        (("data", "silos", 0, "size"), 101),
        (("data", "schemaDigest"), "0" * 64),
        (("code",), [{"name": "x.py", "sha256": "0" * 64}]),
        (("sampling", 0, "enforcedBy"), "nobody"),
    ],
)
def test_the_officers_command_refuses_an_edited_request(
    office: Office, path: tuple[str | int, ...], value: Any
) -> None:
    refused = office.sign({**office.fields, "document": edited(office.fields["document"], path, value)})
    assert refused.code == 3, refused.out
    assert not (office.desk.folder / "edited-signed.json").exists()


def test_dates_nonce_and_purpose_are_free_and_the_data_set_is_shown(office: Office) -> None:
    free = {"nonce": "ab" * 32, "justification": "another purpose"}
    signed = office.sign({**office.fields, "document": office.fields["document"] | free}, "--json").json()
    assert signed["answer"] == "signed"
    assert signed["compared"] == [
        "NEW DATA SET for your ledger, with a separate total: clinic/ward7/1 (it knows none)."
    ]


def test_what_is_not_on_this_machine_is_named_and_the_rest_still_compared(office: Office, tmp_path: Path) -> None:
    document = BudgetDocument.from_json(office.fields["document"])
    found = compare(document, office.fields["plan"], tmp_path, None)
    assert any("The data are not on this machine" in line for line in found.lines)
    assert any("You named no ledger: this budget is bound to" in line for line in found.lines)
    for path, value in (
        (("guarantee", "notProtected"), ["Nothing."]),
        (("accounting", "assumptions"), ["None."]),
        (("dataset", "name"), "ward8"),
        (("ledgers",), []),
    ):
        asked = BudgetDocument.from_json(edited(office.fields["document"], path, value))
        with pytest.raises(ManifestRefused, match="follows from the plan"):
            compare(asked, office.fields["plan"], tmp_path, None)


def test_a_second_signature_needs_the_plan_next_to_the_budget(office: Office, tmp_path: Path) -> None:
    asked = read_request(office.request.read_bytes())
    forged = edited(office.fields["document"], ("guarantee", "notProtected"), ["Nothing."])
    budget = tmp_path / "budget.json"
    budget.write_bytes(issue(BudgetDocument.from_json(forged), load_private(office.desk.key)))
    second = tmp_path / "second.pem"
    assert privfair("keys", "generate", "--role", "data-owner", "--out", second).code == 0
    words = ("budget", "sign", budget, "--key", second, "--yes")
    alone = privfair(*words)
    assert (alone.code, "is not next to it" in alone.err) == (2, True), alone.err
    for name in ("plan.toml", "schema.toml", "north.csv", "south.csv", "west.csv"):
        shutil.copy(office.desk.folder / name, tmp_path)
    assert privfair(*words).code == 3
    budget.write_bytes(issue(asked.document, load_private(office.desk.key)))
    assert privfair(*words).code == 0


@pytest.mark.parametrize(
    "name", ["w\u0430rd7", "\u200bward7", "ward7 ", "\uff57ard7", "wa  rd7", "ward\u0667", "<b>ward7", "ward7\u0301"]
)
def test_a_data_set_name_that_can_look_like_another_is_refused(office: Office, name: str) -> None:
    with pytest.raises((InvalidInput, ValueError)):
        DataIdentity(name=name, custodian="clinic", version="1").require_safe()
    plan = office.desk.folder / "other.toml"
    plan.write_text(PLAN.replace('"ward7"', json.dumps(name, ensure_ascii=False)), encoding="utf-8")
    assert privfair("request", plan, "--why", "x", "--out", office.desk.folder / "other.json").code == 2


@pytest.mark.parametrize(
    "name", ["Krankenhaus Süd", "больница 7", "東京のデータ", "서울病院", "अस्पताल", "St. Mary's (7)"]
)
def test_names_in_one_script_are_taken(name: str) -> None:
    DataIdentity(name=name, custodian="clinic", version="2026.1").require_safe()


def test_one_total_is_not_split_by_a_name_that_looks_the_same(office: Office, tmp_path: Path) -> None:
    """The data set is known as clinic/ward7/1; Cyrillic letters, capitals, separators and l for 1 are seen through."""
    with Ledger.create(tmp_path / "ledger.db") as ledger:
        unit = read_request(office.request.read_bytes()).document.guarantee.privacy_unit()
        ledger.set_budget("clinic/ward7/1", unit, 2.0, 1e-4)
        status = ledger.status()
        document = edited(office.fields["document"], ("ledgers", 0, "ledger"), status.ledger)
        for name in ("Ward7", "ward7", "ward8"):
            asked = BudgetDocument.from_json(edited(document, ("dataset", "name"), name))
            if name == "Ward7":
                with pytest.raises(LedgerRefused, match="looks like 'clinic/ward7/1'"):
                    status.compare(asked)
            else:
                shown = {"ward7": "The ledger knows", "ward8": "clinic/ward7/1 is the nearest"}
                assert shown[name] in status.compare(asked)[0]
        with pytest.raises(LedgerRefused, match="looks like"):
            ledger.set_budget("clinic/WARD7/1", unit, 2.0, 1e-4)
    assert seen_as("с\u043eру") == seen_as("copy")
    assert seen_as("1.1") != seen_as("11")


def test_train_compares_manifest_plan_and_ledger_once_more(office: Office, tmp_path: Path) -> None:
    """A budget that was signed by other means, for another data set than the plan's or for more rounds than priced."""
    desk, key = office.desk, load_private(office.desk.key)
    refusals = {("dataset", "name"): ("ward8", "data set"), ("rounds",): (120, "60 rounds")}
    for number, (path, (value, why)) in enumerate(refusals.items()):
        document = BudgetDocument.from_json(edited(office.fields["document"], path, value))
        manifest = tmp_path / f"{number}.json"
        manifest.write_bytes(issue(document, key))
        words = ("train", desk.plan, "--budget", manifest, "--trust", desk.trust, "--ledger", desk.ledger)
        refused = privfair(*words, "--out", tmp_path / f"run-{number}")
        assert (refused.code, why in refused.err) == (3, True), refused.err
    with Ledger.open(desk.ledger) as ledger:
        assert not ledger.status().manifests


def test_what_two_machines_compute_may_differ_in_the_last_digits_only(office: Office) -> None:
    document = office.fields["document"]
    same = BudgetDocument.from_json(document)
    path = ("accounting", "interval", "upper")
    upper = document["accounting"]["interval"]["upper"]
    require_same(BudgetDocument.from_json(edited(document, path, upper * (1 - 1e-12))), same)
    with pytest.raises(ManifestRefused, match=r"accounting\.interval\.upper"):
        require_same(BudgetDocument.from_json(edited(document, path, upper * (1 - 1e-6))), same)
