"""Who is trusted is configured once, by the user, and never by the folder of a plan or run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrate.manifest.keys import generate, save
from tests.end_to_end.command_line import config_file, privfair
from tests.privfair.small_runs import FEDSGD, Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A trained run; the trust file is signed by a root key."""
    made = Desk.at(tmp_path_factory.mktemp("config"), FEDSGD.format(rounds=2, more=""))
    made.train(made.budget())
    save(generate(), None, made.folder / "root.pem")
    assert privfair("keys", "trust", "--out", made.trust, "--root", made.folder / "root.pem").code == 0
    return made


def configure(desk: Desk, folder: Path, **more: object) -> Path:
    root = desk.folder / "root.pem.pub"
    return config_file(folder, trust=desk.trust, root=root, ledger=desk.ledger, key=desk.key, **more)


def test_trust_root_ledger_and_key_come_from_the_named_configuration(desk: Desk, tmp_path: Path) -> None:
    configured = ("--config", configure(desk, tmp_path))
    budget = desk.folder / "budget.json"
    assert privfair("verify", budget).code == 2
    verified = privfair("verify", budget, *configured, "--json")
    assert verified.code == 0, verified.err
    found = verified.json()
    assert (found["kind"], found["verified"], found["algorithm"]) == ("budget", True, "fedsgd")
    former = privfair("manifest", "verify", budget, *configured, "--json").json()
    assert former == {key: value for key, value in found.items() if key != "guarantee"} | {"kind": found["guarantee"]}
    assert privfair("ledger", "status", *configured, "--json").json()["ledger"] == str(desk.ledger)
    assert privfair("ledger", "status").code == 2
    signed = privfair("budget", "sign", budget, "--yes", "--out", tmp_path / "again.json", *configured, "--json")
    assert signed.code == 3, "the officer has signed already, so the key was found"
    verdict = privfair("audit", desk.folder / "run", "--plan", desk.plan, "--reruns", 0, *configured, "--json").json()
    signatures = [one for one in verdict["checks"] if "signature" in one["name"]]
    assert all(one["outcome"] == "passed" for one in signatures)


def test_the_configuration_is_in_the_users_folder_and_nowhere_else(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hostile folder brings a configuration of its own: it must not be read, also not by a relative variable."""
    home = tmp_path / "home" / "privfair"
    home.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent))
    hostile = tmp_path / "hostile"
    for folder in (hostile, hostile / "privfair", hostile / ".config" / "privfair", desk.folder / "run"):
        folder.mkdir(parents=True, exist_ok=True)
        configure(desk, folder)
    monkeypatch.chdir(hostile)
    assert privfair("verify", desk.folder / "budget.json").code == 2
    monkeypatch.setenv("XDG_CONFIG_HOME", ".")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert privfair("verify", desk.folder / "budget.json").code == 2
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home.parent))
    configure(desk, home)
    assert privfair("verify", desk.folder / "budget.json").code == 0


def test_a_signed_trust_file_needs_the_configured_root_also_where_it_is_named(desk: Desk, tmp_path: Path) -> None:
    configured = ("--config", configure(desk, tmp_path))
    copy = tmp_path / "copy.json"
    copy.write_bytes(desk.trust.read_bytes())
    budget = desk.folder / "budget.json"
    assert privfair("verify", budget, "--trust", copy, *configured).code == 0
    assert privfair("verify", budget, "--trust", copy).code == 3, "no root key"
    envelope = json.loads(copy.read_text("utf-8"))
    save(generate(), None, tmp_path / "other.pem")
    stranger = config_file(tmp_path, trust=copy, root=tmp_path / "other.pem.pub")
    assert privfair("verify", budget, "--config", stranger).code == 3
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    plain = tmp_path / "plain.json"
    entry = ("keys", "trust", "--key", desk.key, "--role", "privacy-officer", "--out", plain)
    assert privfair(*entry).code == 0
    replaced = config_file(tmp_path, trust=plain, root=desk.folder / "root.pem.pub")
    assert privfair("verify", budget, "--config", replaced).code == 3, "the configured file must be signed"


@pytest.mark.parametrize("text", ["trus = 1", "trust = 1", "[trust]", "a = " + "[" * 5000, "\udcff"])
def test_a_broken_configuration_is_refused_in_one_sentence(text: str, desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    refused = privfair("verify", desk.folder / "budget.json", "--config", path)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1), refused.err
    assert privfair("verify", desk.folder / "budget.json", "--config", tmp_path / "none.toml").code == 2


def test_rare_settings_of_an_audit_come_from_a_file(desk: Desk, tmp_path: Path) -> None:
    settings, report = tmp_path / "audit.toml", tmp_path / "audit.json"
    settings.write_text('reruns = 0\nattribute-inference = false\nseed = 7\nsite-key = "north=no.pub"\n', "utf-8")
    words = ("audit", "run", desk.folder / "run", "--plan", desk.plan, "--settings", settings, "--out", report)
    assert "no.pub" in privfair(*words).err, "one value of an option that may be given several times"
    settings.write_text("reruns = 0\nattribute-inference = false\nseed = 7\n", "utf-8")
    outcome = privfair(*words, "--sign", desk.key)
    assert outcome.code == 0, outcome.err
    found = json.loads(report.read_text("utf-8"))
    assert found["attribute_inference_not_possible"] == "it was not asked for"
    assert (tmp_path / "audit.signed.json").exists()
    for wrong, part in (("rerun = 0", "did you mean reruns?"), ("reruns = [1, 2]", "one value"), ("a", "is not TOML")):
        settings.write_text(wrong, "utf-8")
        refused = privfair(*words)
        assert (refused.code, part in refused.err) == (2, True), refused.err


def test_the_report_of_an_audit_has_a_name_only_where_it_is_asked_for_by_its_new_name(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = (desk.folder / "run", "--plan", desk.plan, "--reruns", 0)
    assert privfair("audit", *words).code == 0
    assert not (tmp_path / "audit.json").exists()
    assert privfair("audit", "run", *words).code == 0
    assert privfair("audit", "run", *words, "--out", "audit.xml").code == 0
    assert (tmp_path / "audit.json").read_bytes()[:1] == b"{"
    assert (tmp_path / "audit.xml").read_bytes()[:1] == b"<"


def test_a_folder_called_like_a_subcommand_is_spelled_with_a_slash(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "name a RUN folder" in privfair("audit", "run").err
    for name in ("run", "model"):
        (tmp_path / name).mkdir()
        assert "holds no run" in privfair("audit", f"{name}/").err
    assert "holds no run" in privfair("audit", "run", "--reruns", 0).err, "the former spelling of its audit"
