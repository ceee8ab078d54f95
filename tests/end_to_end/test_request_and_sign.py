"""The hand-over with files alone: an engineer asks, an officer reads, signs or declines, the engineer trains."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput, ManifestRefused
from calibrate.manifest.issue import (
    BudgetRequest,
    decline_request,
    grants,
    issue,
    read_declined,
    read_request,
    sign_request,
)
from calibrate.manifest.keys import generate, load_private
from calibrate.manifest.show import changes, last_before, plain_words
from calibrate.manifest.strict_json import canonical
from calibrate.manifest.verify import read_unverified
from privfair.api.draft import compare
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk

PLAN = GAUSSIAN.format(rate=0.2, rounds=3, more="")
BARE = """algorithm = "gaussian"
[target]
epsilon = {epsilon}
delta = 1e-5
[privacy]
sampling-rate = 0.2
rounds = {rounds}
"""


def _bare(folder: Path, name: str, epsilon: float = 2.0, rounds: int = 3, *more: str) -> Path:
    plan, out = folder / f"{name}.toml", folder / f"{name}.json"
    plan.write_text(BARE.format(epsilon=epsilon, rounds=rounds))
    asked = privfair(
        "request", plan, "--out", out, "--why", f"ward {name}", "--silo", "north=500", "--by", "Eng", *more
    )
    assert asked.code == 0, asked.err
    return out


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk.at(tmp_path_factory.mktemp("desk"), PLAN)


def test_a_signed_request_trains_a_model(desk: Desk) -> None:
    request, budget = desk.folder / "request.json", desk.folder / "granted.json"
    asked = privfair("request", desk.plan, "--out", request, "--why", "a test", "--ledger", desk.ledger)
    assert asked.code == 0, asked.err
    assert "correctly at most" in " ".join(asked.out.split())
    assert max(map(len, asked.out.splitlines())) <= 80 or str(request) in asked.out
    signed = privfair("sign", request, "--key", desk.key, "--out", budget, "--yes", "--json").json()
    assert signed["answer"] == "signed"
    assert grants(budget.read_bytes(), read_request(request.read_bytes()))
    assert desk.train(budget).run.is_dir()


def test_the_plan_is_read_only_if_it_is_the_one_that_is_signed(desk: Desk) -> None:
    request = desk.folder / "with-plan.json"
    assert privfair("request", desk.plan, "--out", request, "--why", "a test").code == 0
    fields = json.loads(request.read_bytes())
    assert fields["plan"] == desk.plan.read_text()
    fields["plan"] = fields["plan"].replace("epsilon = 8.0", "epsilon = 0.1")
    with pytest.raises(InvalidInput, match="not the plan"):
        read_request(canonical(fields))


def test_nothing_is_signed_without_a_terminal_or_yes(tmp_path: Path, desk: Desk) -> None:
    request = _bare(tmp_path, "one")
    refused = privfair("sign", request, "--key", desk.key)
    assert refused.code == 2
    assert "--yes" in refused.err
    assert privfair("sign", request, "--key", desk.key, "--json").code == 2
    assert not (tmp_path / "one-signed.json").exists()


def test_what_changed_is_said_and_which_way(tmp_path: Path, desk: Desk) -> None:
    before = _bare(tmp_path, "before")
    signed = privfair("sign", before, "--key", desk.key, "--yes")
    assert signed.code == 0
    assert "give --since" in signed.out
    after = _bare(tmp_path, "after", 4.0, 6, "--since", str(before))
    said = privfair(
        "sign", after, "--key", desk.key, "--yes", "--since", tmp_path / "before-signed.json", "--json"
    ).json()
    assert "epsilon: 2 -> 4 (protects less)" in said["changes"]
    assert "rounds: 3 -> 6" in said["changes"]
    assert "purpose: ward before -> ward after" in said["changes"]
    assert any(line.startswith("noise on value_1: ") for line in said["changes"])
    first, second = (read_request(path.read_bytes()).document for path in (before, after))
    assert "epsilon: 4 -> 2 (protects more)" in [one.sentence for one in changes(second, first)]
    assert last_before(second, [first, second]) == first
    same = privfair("sign", after, "--key", desk.key, "--yes", "--since", after)
    assert "Nothing changed" in same.out


def test_a_refusal_carries_its_reason_and_a_signature(tmp_path: Path, desk: Desk) -> None:
    request = _bare(tmp_path, "much", 50.0)
    declined = privfair("sign", request, "--key", desk.key, "--decline", "epsilon 50 protects nobody")
    assert declined.code == 0, declined.err
    answer = (tmp_path / "much-declined.json").read_bytes()
    key = load_private(desk.key)
    found = read_declined(answer, key.public)
    shown = privfair("budget", "show", tmp_path / "much-declined.json")
    assert shown.code == 0
    assert "epsilon 50 protects nobody" in shown.out
    assert "SIGNATURE NOT CHECKED" in shown.out
    assert (found.reason, found.request) == ("epsilon 50 protects nobody", read_request(request.read_bytes()).digest)
    with pytest.raises(InvalidInput, match="no signature by"):
        read_declined(answer, generate().public)
    assert not grants(answer, read_request(request.read_bytes()))
    assert privfair("sign", request, "--key", desk.key, "--decline", "   x\u202e").code == 2


def test_a_price_that_two_accountants_do_not_confirm_is_not_signed(tmp_path: Path, desk: Desk) -> None:
    fields = json.loads(_bare(tmp_path, "honest").read_bytes())
    document = fields["document"]
    document["guarantee"]["epsilon"] = 0.5
    for opinion in (document["accounting"], document["accounting"]["secondOpinion"]):
        opinion["interval"] = {"lower": 0.48, "upper": 0.49}
    (tmp_path / "forged.json").write_bytes(canonical(fields))
    refused = privfair("sign", tmp_path / "forged.json", "--key", desk.key, "--yes")
    assert refused.code == 3
    assert "step 12" in refused.err


def test_an_expired_request_is_not_signed(tmp_path: Path, desk: Desk) -> None:
    request = read_request(_bare(tmp_path, "old").read_bytes())
    past = datetime.now(UTC) - timedelta(days=2)
    window = request.document.validity.model_copy(
        update={"issued_at": past, "not_before": past, "not_after": past + timedelta(days=1)}
    )
    old = request.model_copy(update={"document": request.document.model_copy(update={"validity": window})})
    drafted = compare(old.document, old.plan, tmp_path, None).drafted
    with pytest.raises(ManifestRefused, match="expired"):
        sign_request(old, load_private(desk.key), drafted)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"format":"urn:privfair:request:v1"}', b"\xff", b'{"a":1,"a":2}']
)
def test_what_is_not_a_request_is_refused_in_one_sentence(tmp_path: Path, desk: Desk, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    refused = privfair("sign", tmp_path / "x.json", "--key", desk.key, "--yes")
    assert refused.code == 2
    assert "privfair budget request" in refused.err


def test_a_request_without_privacy_says_that_nobody_is_protected(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=2, more=""))
    out = tmp_path / "request.json"
    asked = privfair("request", desk.plan, "--out", out, "--why", "public data", "--no-privacy", "a baseline")
    assert asked.code == 0, asked.err
    assert "NOBODY IS PROTECTED" in asked.out
    document = read_request(out.read_bytes()).document
    assert any("no finite promise" in line for line in plain_words(document))
    private = read_request(_bare(tmp_path, "private").read_bytes()).document
    words = [one.sentence for one in changes(private, document)]
    assert "epsilon: 2 -> none (protects less)" in words
    assert "kind of promise: private -> no-privacy-promised" in words


def test_a_plan_is_signed_in_one_go_with_the_guarantee_that_it_names(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, 'guarantee = {none = "a baseline"}\n' + FEDSGD.format(rounds=2, more=""))
    out = tmp_path / "signed.json"
    words = ("budget", "sign", desk.plan, "--key", desk.key, "--out", out, "--json")
    assert privfair(*words).code == 2, "nothing is signed unread"
    signed = privfair(*words, "--yes")
    assert signed.code == 0, signed.err
    assert (signed.json()["kind"], signed.json()["answer"]) == ("plan", "signed")
    verified = privfair("verify", out, "--trust", desk.trust, "--json").json()
    assert (verified["kind"], verified["guarantee"]) == ("budget", "no-privacy-promised")
    second = tmp_path / "second.pem"
    assert privfair("keys", "generate", "--role", "data-owner", "--out", second).code == 0
    shown = privfair("budget", "sign", out, "--key", second, "--yes")
    assert "NOBODY IS PROTECTED" in shown.out
    assert "2 signatures now" in " ".join(shown.out.split())
    assert privfair("budget", "sign", out, "--key", second, "--decline", "too late").code == 2


def test_a_papers_own_noise_is_asked_for_with_its_claim(tmp_path: Path) -> None:
    plan = Path(__file__).parents[2] / "docs/examples/steffle.toml"
    text = plan.read_text()
    (tmp_path / "p.toml").write_text(text[: text.index("[data]")])
    words = ("request", tmp_path / "p.toml", "--out", tmp_path / "r.json", "--why", "to compare")
    asked = privfair(*words, "--as-printed")
    assert asked.code == 0, asked.err
    assert "A paper's own noise, which claims epsilon" in asked.out
    assert privfair(*words, "--as-printed", "--no-privacy", "x").code == 2


def test_an_answer_to_another_request_grants_nothing(tmp_path: Path, desk: Desk) -> None:
    first, second = (read_request(_bare(tmp_path, name).read_bytes()) for name in ("first", "second"))
    key = load_private(desk.key)
    envelope = issue(first.document, key)
    assert grants(envelope, first)
    assert not grants(envelope, second)
    assert read_unverified(envelope).document == first.document
    assert isinstance(second, BudgetRequest)
    assert read_declined(decline_request(second, "no", key)).request == second.digest
