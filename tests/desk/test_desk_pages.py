"""The desk without a browser: who gets in, what the pages say, what a form may do."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import markupsafe
import pytest
from starlette.testclient import TestClient

from calibrate.choose import QUESTIONS, Fair, Need, Observer, choose
from calibrate.errors import UnsupportedCombination
from calibrate.manifest.issue import issue, read_declined, read_request
from calibrate.manifest.keys import generate
from calibrate.manifest.strict_json import canonical
from calibrate.manifest.verify import authenticate, read_unverified
from calibrate.privacy_unit import Protected
from privfair.integrations.desk import planner
from privfair.integrations.desk.access import POLICY
from privfair.integrations.desk.books import open_books
from tests.desk.desk_world import ATTACK, PORT, World, copy_world, make_world
from tests.privfair.small_runs import trusting

HERE = f"http://127.0.0.1:{PORT}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("desk"))


def _client(world: World) -> TestClient:
    return TestClient(world.desk().application(), base_url=HERE, follow_redirects=False)


@pytest.fixture(scope="module")
def inside(world: World) -> Iterator[TestClient]:
    with _client(world) as client:
        assert client.get(f"/enter?token={world.access.token}").status_code == 303
        yield client


def test_the_token_opens_the_desk_once_and_in_one_browser(world: World, tmp_path: Path) -> None:
    world = copy_world(world, tmp_path)
    first, second = _client(world), _client(world)
    assert first.get("/ledger").status_code == 403
    assert first.get("/enter?token=wrong").status_code == 403
    assert first.get("/enter").status_code == 403
    entered = first.get(f"/enter?token={world.access.token}")
    assert entered.status_code == 303
    assert world.access.token in world.access.address
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert first.get("/").status_code == 200
    again = second.get(f"/enter?token={world.access.token}")
    assert again.status_code == 403
    assert "used already" in again.text
    assert second.get("/").status_code == 403
    assert world.access.session not in repr(world.access)


@pytest.mark.parametrize("host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1", f"127.0.0.1:{PORT + 1}", ""])
def test_a_name_pointed_at_this_machine_is_refused(world: World, inside: TestClient, host: str) -> None:
    assert inside.get("/ledger", headers={"host": host}).status_code == 403
    assert inside.get("/ledger", headers={"host": f"localhost:{PORT}"}).status_code == 200


def test_every_answer_carries_the_strict_policy(inside: TestClient) -> None:
    pages = ("/", "/chooser", "/planner", "/requests", "/ledger", "/runs", "/static/desk.css", "/nothing-here")
    for page in pages:
        headers = inside.get(page).headers
        assert headers["content-security-policy"] == POLICY
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin")
        assert headers["cache-control"] == "no-store"
    assert "unsafe-inline" not in POLICY
    report = inside.get("/runs/run-1/report")
    assert "sandbox" in report.headers["content-security-policy"]
    assert "script-src" not in report.headers["content-security-policy"]


def test_no_page_shows_a_strangers_markup(inside: TestClient) -> None:
    pages = (
        "/",
        "/requests",
        "/requests/second.json",
        "/ledger",
        "/runs",
        "/runs/run-1/report",
        "/compare?a=run-1&b=run-2",
        "/requests/" + ATTACK.replace("/", "").replace("?", ""),
        f"/compare?a={ATTACK}&b=run-1",
        *(f"/planner?{name}={ATTACK}" for name in ("algorithm", *planner.COMMON, "clip")),
        *(f"/chooser?{name}={ATTACK}" for name in ("protect", "from", "fair", "sites")),
        f"/planner/answer?epsilon={ATTACK}",
        f"/planner/curves?sites={ATTACK}",
    )
    for page in pages:
        text = inside.get(page).text
        assert "<img" not in text, page
        assert "<script>alert" not in text, page
        seen = _Tags()
        seen.feed(text)
        assert not {name for name in seen.attributes if name.startswith("on") or name == "style"}, page
        assert seen.scripts == (0 if page.startswith(("/runs/run-1", "/planner/")) else 1), page
    assert escape("<img src=x") in inside.get("/requests/second.json").text
    assert "{{ 7*7 }}" in inside.get("/requests/second.json").text


class _Tags(HTMLParser):
    """Which attributes a page has, and how many scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.attributes: set[str] = set()
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes |= {name for name, _ in attrs}
        self.scripts += tag == "script"


def test_a_request_is_read_signed_and_returned(world: World, tmp_path: Path) -> None:
    world = copy_world(world, tmp_path)
    client = _client(world)
    client.get(f"/enter?token={world.access.token}")
    page = client.get("/requests/second.json").text
    assert "correctly at most 92.5% of the time" in page
    assert "2 -&gt; 2.5" not in page
    assert "protects less" in page
    digest = read_request((world.papers.inbox / "second.json").read_bytes()).digest
    form = {"csrf": world.access.csrf, "digest": digest}
    assert client.get("/requests/second.json/answer").status_code == 400
    assert client.post("/requests/second.json/sign", data={"digest": digest}).status_code == 403
    assert client.post("/requests/second.json/sign", data=form | {"digest": "0" * 64}).status_code == 400
    foreign = client.post("/requests/second.json/sign", data=form, headers={"origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert not (world.papers.inbox / "second-signed.json").exists()
    signed = client.post("/requests/second.json/sign", data=form, headers={"origin": HERE})
    assert (signed.status_code, signed.headers["location"]) == (303, "/requests/second.json")
    answer = client.get("/requests/second.json/answer").content
    assert authenticate(answer, trusting(world.key)).document == read_unverified(answer).document
    assert "signed" in client.get("/requests/second.json").text
    assert client.post("/requests/second.json/decline", data=form | {"reason": "late"}).status_code == 400


def test_a_request_is_declined_with_a_reason(world: World, tmp_path: Path) -> None:
    world = copy_world(world, tmp_path)
    client = _client(world)
    client.get(f"/enter?token={world.access.token}")
    digest = read_request((world.papers.inbox / "first.json").read_bytes()).digest
    assert "waiting" in client.get("/requests/first.json").text  # the manifest beside it grants something else
    form = {"csrf": world.access.csrf, "digest": digest}
    assert client.post("/requests/first.json/decline", data=form).status_code == 400
    assert client.post("/requests/first.json/decline", data=form | {"reason": "x" * 70_000}).status_code == 413
    assert client.post("/requests/first.json/decline", data=form | {"reason": "too much"}).status_code == 303
    refusal = read_declined((world.papers.inbox / "first-declined.json").read_bytes(), world.key.public)
    assert refusal.reason == "too much"
    assert "too much" in client.get("/requests/first.json").text


def test_a_desk_without_a_key_changes_nothing(world: World, tmp_path: Path) -> None:
    world = copy_world(world, tmp_path, signs=False)
    client = _client(world)
    client.get(f"/enter?token={world.access.token}")
    before = sorted(world.papers.inbox.iterdir())
    digest = read_request((world.papers.inbox / "second.json").read_bytes()).digest
    form = {"csrf": world.access.csrf, "digest": digest}
    assert "privfair budget sign second.json" in client.get("/requests/second.json").text
    for what in ("sign", "decline"):
        refused = client.post(f"/requests/second.json/{what}", data=form | {"reason": "no"})
        assert refused.status_code == 400
        assert "read-only" in refused.text
    asked = client.post("/planner/request", data={"csrf": world.access.csrf, "why": "a plan", "rounds": "10"})
    assert asked.headers["content-disposition"].startswith("attachment")
    assert read_request(asked.content).document.justification == "a plan"
    assert sorted(world.papers.inbox.iterdir()) == before


def test_the_planner_makes_a_request_that_waits_in_the_inbox(world: World, inside: TestClient) -> None:
    form = {"csrf": world.access.csrf, "epsilon": "2", "rounds": "10", "why": "a model of readmission", "sites": "2"}
    asked = inside.post("/planner/request", data=form)
    assert asked.status_code == 303
    name = asked.headers["location"].removeprefix("/requests/")
    document = read_request((world.papers.inbox / name).read_bytes()).document
    assert (len(document.data.silos), document.rounds, document.ledgers[0].silo) == (2, 10, None)
    assert inside.post("/planner/request", data=form | {"why": " "}).status_code == 400
    assert "waits" in inside.get("/").text or "wait" in inside.get("/").text


@pytest.mark.parametrize(
    "algorithm",
    [
        "gaussian",
        "steffle",
        "pay-once",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedfdp", "fpfl", "mmd-fedavg")),
    ],
)
def test_the_planner_says_what_calibrate_says(algorithm: str) -> None:
    small = {"algorithm": algorithm, "rounds": "20", "people": "4000", "sites": "2", "batch": "200"}
    setting = planner.PlannerSetting.from_query(small)
    shown = planner.answer(setting)
    assert setting.command().startswith(f"privfair calibrate {algorithm} --epsilon 1 --delta 1e-05")
    assert planner.PlannerSetting.from_query(dict(_pairs(setting.query))) == setting
    assert float(shown.upper) >= shown.budget.certified.upper
    assert shown.expected
    assert {row.method for row in shown.expected} == {planner._METHOD[setting.algorithm]}
    drawn = planner.curves(setting)
    assert len(drawn) == (0 if algorithm == "pay-once" else 2)
    assert all("<polyline" in one.chart for one in drawn)
    if algorithm != "pay-once":
        assert planner.assumptions(setting.plan(), setting.target())[0].ratio == 1


def _pairs(query: str) -> list[tuple[str, str]]:
    from urllib.parse import parse_qsl

    return parse_qsl(query, keep_blank_values=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epsilon": "much"}, "must be a number"),
        ({"rounds": "1.5"}, "whole number"),
        ({"sites": "30000"}, "fewer sites"),
        ({"epsilon": "-1"}, "greater than 0"),
        ({"algorithm": "fpfl", "sampling": "guess"}, "not one of the choices"),
    ],
)
def test_a_wrong_field_is_said_on_the_page(inside: TestClient, given: dict[str, str], said: str) -> None:
    answer = inside.get("/planner/answer", params=given)
    assert answer.status_code == 200
    assert said in answer.text
    assert 'role="alert"' in answer.text
    assert inside.get("/planner/curves", params=given).status_code == 200


@pytest.mark.parametrize(
    ("protect", "observer", "sites", "fair"), list(product(Protected, Observer, (1, 3), Fair)), ids=str
)
def test_the_chooser_page_says_what_the_command_says(
    inside: TestClient, protect: Protected, observer: Observer, sites: int, fair: Fair
) -> None:
    given = {"protect": protect.value, "from": observer.value, "sites": str(sites), "fair": fair.value}
    page = inside.get("/chooser", params=given).text
    for name, value in given.items():
        assert name == "sites" or f'id="{name}-{value}" name="{name}" value="{value}" checked' in page
    choice, refused = None, ""
    try:
        choice = choose(Need(protect, observer, sites, fair))
    except UnsupportedCombination as error:
        refused = str(error)
    if choice is None:
        assert f'role="alert">{markupsafe.escape(refused)}' in page
        return
    said = (*choice.protection().lines(), *choice.why, *choice.instead, choice.next_command)
    assert all(f">{markupsafe.escape(line)}<" in page for line in said)
    assert f"<h2>{choice.algorithm}, protecting one {protect.value}</h2>" in page


def test_the_chooser_asks_first_and_says_what_is_wrong(inside: TestClient) -> None:
    asked = inside.get("/chooser").text
    assert all(question.text in asked for question in QUESTIONS)
    assert "How many sites hold the records?" in asked
    assert "The answer comes here" in asked
    assert "whole number" in inside.get("/chooser", params={"sites": "none"}).text
    assert "is not one of the answers" in inside.get("/chooser", params={"protect": "all"}).text


def test_the_planner_page_works_without_script(inside: TestClient) -> None:
    page = inside.get("/planner", params={"epsilon": "1", "rounds": "50"}).text
    assert "73.2%" in page
    assert "<polyline" in page
    assert "always the majority" in page
    assert 'href="/planner?algorithm=gaussian&amp;epsilon=1' in page


def test_every_algorithm_of_the_planner_has_measured_rows() -> None:
    """That they are those of the experiments is checked beside the experiments."""
    rows = planner._table()
    assert {row.method for row in rows} == set(planner._METHOD.values())
    assert all(row.runs >= 5 and row.accuracy > row.majority for row in rows)


def test_the_ledger_page_says_what_is_spent_and_what_needs_a_look(world: World, inside: TestClient) -> None:
    page = inside.get("/ledger").text
    (account,) = open_books(world.papers.ledger).accounts
    assert "epsilon 4.5 at delta" in page
    assert "one record, being in the data or not" in page
    assert "by add-remove" not in page
    assert [total for _, total in account.spent] == [2.0, 4.5]
    assert f"{account.budget.left:g} is left" in page
    assert "A Rényi filter keeps this total" in page
    assert "charged rounds were never released" in page
    assert "Epsilon promised over time" in page
    assert "The anchor beside the ledger is current" in page


def test_runs_are_listed_reported_and_compared(inside: TestClient) -> None:
    runs = inside.get("/runs").text
    assert "consistent" in runs
    assert "Show two side by side" in runs
    assert "not audited" in runs
    report = inside.get("/runs/run-1/report").text
    assert "The budget is signed by" in report
    both = inside.get("/compare?a=run-1&b=run-2").text
    assert "epsilon 2 at delta" in both
    assert "epsilon 2.5 at delta" in both
    assert "(differs)" in both
    assert inside.get("/runs/none/report").status_code == 400
    assert inside.get("/static/none").status_code == 404


def test_a_damaged_ledger_is_said_and_not_shown(world: World, tmp_path: Path) -> None:
    world = copy_world(world, tmp_path)
    client = _client(world)
    client.get(f"/enter?token={world.access.token}")
    (tmp_path / "ledger.db").write_bytes(b"nothing")
    refused = client.get("/ledger")
    assert refused.status_code in (400, 409)
    assert "This is not possible" in refused.text


def test_what_no_known_key_signed_is_marked_where_it_is_shown(world: World, tmp_path: Path) -> None:
    """A file with random bytes as its signature is no answer, and no earlier budget either."""
    world = copy_world(world, tmp_path)
    inbox, client = world.papers.inbox, _client(world)
    client.get(f"/enter?token={world.access.token}")
    last = json.loads((inbox / "last-signed.json").read_bytes())
    asked = read_request((inbox / "second.json").read_bytes())
    forged = json.loads(issue(asked.document, generate()))
    forged["signatures"][0] |= {"keyid": world.key.key_id, "sig": b64encode(bytes(64)).decode()}
    (inbox / "second-signed.json").write_text(json.dumps(forged))
    page = client.get("/requests/second.json").text
    assert "protects less" in page, "the earlier budget is the signed one"
    assert "UNVERIFIED: no key that you trust signed <code>second-signed.json</code>" in page
    assert "Sign this budget" in page
    (inbox / "last-signed.json").write_text(json.dumps(last | {"signatures": forged["signatures"]}))
    page = client.get("/requests/second.json").text
    assert "protects less" not in page
    assert "UNVERIFIED: no key that you trust signed the earlier budget" in page
    run = json.loads((world.papers.runs[0] / "run-1" / "budget.json").read_bytes())
    assert "UNVERIFIED" not in client.get("/runs").text
    (world.papers.runs[0] / "run-1" / "budget.json").write_text(json.dumps(run | {"signatures": forged["signatures"]}))
    assert "UNVERIFIED: epsilon 2" in client.get("/runs").text
    assert "(not signed)" in client.get("/runs").text


def test_a_request_that_does_not_follow_from_its_plan_is_not_signed_on_the_desk(world: World, tmp_path: Path) -> None:
    world = copy_world(world, tmp_path)
    client = _client(world)
    client.get(f"/enter?token={world.access.token}")
    path = world.papers.inbox / "second.json"
    fields = json.loads(path.read_bytes())
    fields["document"]["guarantee"]["notProtected"] = ["Nothing."]
    path.write_bytes(canonical(fields))
    form = {"csrf": world.access.csrf, "digest": read_request(path.read_bytes()).digest}
    refused = client.post("/requests/second.json/sign", data=form)
    assert (refused.status_code, "follows from the plan" in refused.text) == (409, True)
    assert not (world.papers.inbox / "second-signed.json").exists()
