"""What the README shows is what the commands print, and its first screen is enough."""

from __future__ import annotations

import csv
import math
import random
import re
from pathlib import Path

import pytest

from tests.end_to_end.command_line import privfair
from tests.end_to_end.test_three_commands import run_honestly

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


def _write_hospitals(folder: Path) -> None:
    """Three files in which age, earlier admissions and two laboratory values say something about the outcome."""
    generator = random.Random(11)
    for site, size in (("north", 2200), ("south", 1800), ("west", 1500)):
        with (folder / f"{site}.csv").open("w", encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(("patient_id", "age", "sex", "ward", "prior_admissions", "hba1c", "readmitted"))
            for number in range(size):
                age = min(99, max(18, int(generator.gauss(62, 17))))
                sex, ward = generator.choice("FM"), generator.choice(("Cardiology", "Geriatrics", "Oncology"))
                prior, hba1c = min(12, int(generator.expovariate(0.7))), generator.gauss(6.2, 1.1)
                score = 0.03 * (age - 50) + 0.6 * prior + 0.4 * (hba1c - 6) + 0.5 * (ward == "Geriatrics") - 2.2
                answer = "yes" if generator.random() < 1 / (1 + math.exp(-score)) else "no"
                measured = "" if generator.random() < 0.1 else f"{hba1c:.1f}"
                writer.writerow((f"{site[0]}{number}", age, sex, ward, prior, measured, answer))


def _fill_in(folder: Path) -> None:
    """What a person does in an editor: a public number of records, public ranges, lists compared with a codebook."""
    schema, plan = folder / "schema.toml", folder / "plan.toml"
    text = schema.read_text("utf-8").replace("lists-from-codebook = false", "lists-from-codebook = true")
    for column, bounds in (("age = []", "18, 100"), ("prior_admissions = []", "0, 12"), ("{range = []", "3, 15")):
        assert column in text
        text = text.replace(column, column.replace("[]", f"[{bounds}]"))
    schema.write_text(text, encoding="utf-8")
    plan.write_text(plan.read_text("utf-8").replace("at-least = 0", "at-least = 1000"), encoding="utf-8")


@pytest.mark.slow
def test_the_first_screen_leads_to_an_audited_model_that_beats_the_constant_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three commands and two edited files; numbers differ from run to run, everything else is the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    _write_hospitals(tmp_path)
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
            _fill_in(tmp_path)
    block = re.search(r"<!-- output of: privfair run plan.toml -->\n```text\n(.*?)\n\.\.\.\n```", README, re.S)
    assert block is not None
    model, constant = (re.search(rf"{name} +(0\.\d+)", outputs[-1]) for name in ("this model", "always 'no'"))
    assert model is not None
    assert constant is not None
    assert float(model[1]) > float(constant[1])

    def masked(text: str) -> str:
        return re.sub(r"\d+(\.\d+)?", "#", " ".join(text.split()))

    assert masked(outputs[-1]).startswith(masked(block[1]))
