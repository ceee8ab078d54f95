"""What the README shows is what the commands print, and its first screen is enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.end_to_end.command_line import privfair
from tests.end_to_end.test_three_commands import fill_in, run_honestly, write_sites

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def _console() -> list[tuple[str, list[str]]]:
    """Each command at a prompt, with the lines that are shown below it."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", README, re.M | re.S):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line.removeprefix("$ privfair ").split("#")[0].strip(), []))
            else:
                found[-1][1].append(line)
    return found


def _shows(shown: list[str], printed: list[str]) -> bool:
    """Whether the lines are the printed ones, where a line of three dots stands for any number of them."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(_shows(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and shown[0].rstrip() == printed[0].rstrip() and _shows(shown[1:], printed[1:])


def test_the_readme_is_short_and_readable() -> None:
    assert len(README.splitlines()) <= 130
    blocks = re.findall(r"^```(?:text|console)\n(.*?)^```", README, re.M | re.S)
    shown = [line for block in blocks for line in block.splitlines() if not line.startswith("$ ")]
    assert max(map(len, shown)) <= 80


@pytest.mark.parametrize(("command", "shown"), _console(), ids=lambda value: str(value)[:20])
def test_a_command_prints_what_the_readme_shows(
    command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = privfair(*command.split())
    assert outcome.code == 0, outcome.err
    assert _shows(shown, outcome.out.splitlines()), outcome.out
    assert "\u2026" not in outcome.out, "a column is cut off at 80 columns"
    assert max(map(len, outcome.out.splitlines())) <= 80


@pytest.mark.slow
def test_the_first_screen_leads_to_an_audited_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three commands and one edited file; numbers of the model differ from run to run, everything else is the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_sites(tmp_path)
    screen = re.search(r"^```sh\n(.*?)^```", README, re.M | re.S)
    assert screen is not None
    commands = [line.split("#")[0].split()[1:] for line in screen[1].splitlines() if line.startswith("privfair ")]
    assert len(commands) == 3
    outputs = []
    for words in commands:
        done = run_honestly(tmp_path / "plan-run", *words) if words[0] == "run" else privfair(*words)
        assert done.code == 0, done.out + done.err
        outputs.append(done.out)
        if words[0] == "init":
            fill_in(tmp_path / "schema.toml")
    block = re.search(r"<!-- output of: privfair run plan.toml -->\n```text\n(.*?)^```", README, re.M | re.S)
    assert block is not None

    def masked(text: str) -> list[str]:
        return [re.sub(r"\d+\.\d{3}", "#", line) for line in text.splitlines()]

    assert masked(outputs[-1]) == masked(block[1])
