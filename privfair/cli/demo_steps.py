"""The steps of `privfair demo`, each a command of the real command line."""

from __future__ import annotations

import json
import shlex
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import click

from calibrate.errors import CheckFailed, Refused
from privfair.cli.demo_plans import AS_PRINTED, CALIBRATIONS, CONFIDENCE, PLANS, RERUNS


class Demo:
    """Runs commands, shows them, and keeps what the summary needs."""

    def __init__(self, out: Path, quiet: bool) -> None:
        self.folder = out / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        self.folder.mkdir(parents=True)
        self._quiet = quiet

    def run(self, algorithm: str, as_printed: bool) -> dict[str, Any]:
        """The whole pipeline; the result is the JSON of `privfair demo --json`."""
        if not self._quiet:
            self._say("Which published guarantees hold?")
            self._show("theorems")
            self._say("How much noise does each algorithm need?")
            for words in CALIBRATIONS:
                self._show("calibrate", *words.split())
        budget = self._sign(algorithm, as_printed)
        trained = self._train()
        self._refusals()
        verdict, report = self._audit(RERUNS[algorithm], CONFIDENCE[algorithm])
        result = {
            "budget": budget,
            "train": {
                "accuracy": trained["accuracy"],
                "demographic_parity": trained["demographic_parity"],
                "rounds": trained["rounds"],
            },
            "audit": {key: verdict[key] for key in ("verdict", "epsilon_lower", "confidence")},
            "report": str(report),
            "folder": str(self.folder),
        }
        if not self._quiet:
            self._say(f"Everything is in {self.folder}")
        return result

    def _sign(self, algorithm: str, as_printed: bool) -> dict[str, Any]:
        self._say("A privacy officer signs a budget for this plan and this data")
        plan = self._path("plan.toml")
        plan.write_text(AS_PRINTED if as_printed else PLANS[algorithm], encoding="utf-8")
        officer, trust, budget = (
            self._path("officer.pem"),
            self._path("trust.json"),
            self._path("budget.json"),
        )
        self._show("keys", "generate", "--role", "privacy-officer", "--out", officer)
        self._show("keys", "trust", "--key", officer, "--role", "privacy-officer", "--out", trust)
        printed = ("--as-printed",) if as_printed else ()
        self._answer("calibrate", plan, *printed, "--why", "demonstration", "--out", budget, "--key", officer)
        self._show("manifest", "show", budget, "--trust", trust)
        guarantee = self._answer("manifest", "show", budget, "--trust", trust)["document"]["guarantee"]
        return {
            "epsilon": guarantee["epsilon"],
            "delta": guarantee["delta"],
            "claimed_epsilon": guarantee.get("claimedEpsilon", guarantee["epsilon"]),
        }

    def _train(self) -> dict[str, Any]:
        self._say("Training: every round is charged before its noise is drawn")
        words = self._train_words("run")
        trained = self._answer(*words, *(("--quiet",) if self._quiet else ()))
        self._show("ledger", "status", self._path("ledger.db"))
        if not self._quiet:
            click.echo(
                f"accuracy {trained['accuracy']:.4f}, demographic parity gap {trained['demographic_parity']:.4f}, "
                f"{trained['rounds']} rounds\nnot protected:"
            )
            for text in trained["not_protected"]:
                click.echo(f"  - {text}")
        return trained

    def _audit(self, reruns: int, confidence: float) -> tuple[dict[str, Any], Path]:
        self._say("The audit: does the run keep its promise?")
        words = (
            "audit",
            self._path("run"),
            "--trust",
            self._path("trust.json"),
            "--ledger",
            self._path("ledger.db"),
        )
        out = self._path("audit.json")
        try:
            self._show(*words, "--reruns", reruns, "--confidence", confidence, "--out", out)
        except SystemExit as stop:  # exit code 1 is the verdict "violated", which is an answer, not a failure
            if stop.code != 1:
                raise
        report = self._path("report.html")
        self._show("report", self._path("run"), "--audit", out, "--out", report)
        verdict: dict[str, Any] = json.loads(out.read_text("utf-8"))
        return verdict, report

    def _refusals(self) -> None:
        self._say("A budget is spent once, and a changed one is worth nothing")
        self._must_refuse("a used budget", *self._train_words("again"), "--quiet")
        tampered = self._path("tampered.json")
        content = bytearray(self._path("budget.json").read_bytes())
        middle = len(content) // 2
        content[middle] = ord("A") if content[middle] != ord("A") else ord("B")
        tampered.write_bytes(bytes(content))
        self._must_refuse(
            "a tampered budget", "manifest", "verify", tampered, "--trust", self._path("trust.json")
        )

    def _train_words(self, run: str) -> tuple[object, ...]:
        path = self._path
        return (
            *("train", path("plan.toml"), "--manifest", path("budget.json"), "--trust", path("trust.json")),
            *("--ledger", path("ledger.db"), "--out", path(run)),
        )

    def _must_refuse(self, what: str, *words: object) -> None:
        try:
            self._answer(*words)
        except Refused as refusal:
            if not self._quiet:
                click.echo(f"  refused, as it must be: {refusal}")
            return
        raise CheckFailed(f"{what} was accepted; report this as a bug")

    def _path(self, name: str) -> Path:
        return self.folder / name

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.secho(f"\n== {text}", bold=True)

    def _command(self, words: tuple[object, ...]) -> list[str]:
        spoken = [str(word) for word in words]
        if not self._quiet:
            click.secho(f"$ privfair {shlex.join(spoken)}", fg="cyan")
        return spoken

    def _show(self, *words: object) -> None:
        """Run a command and let its output be seen (not at all when only the summary is wanted)."""
        from privfair.cli import cli

        spoken = self._command(words)
        if self._quiet:
            with redirect_stdout(StringIO()):
                cli.main(spoken, standalone_mode=False)
        else:
            cli.main(spoken, standalone_mode=False)

    def _answer(self, *words: object) -> dict[str, Any]:
        """Run a command and take its JSON."""
        from privfair.cli import cli

        spoken = self._command(words)
        out = StringIO()
        with redirect_stdout(out):
            cli.main([*spoken, "--json"], standalone_mode=False)
        answer: dict[str, Any] = json.loads(out.getvalue())
        return answer
