"""`privfair demo`: the whole pipeline on real data, by the commands a user would type."""

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
from privfair.cli.output import json_option, print_json

# The plans `privfair demo` runs: real data, sized so that training and the audit take about a minute.

_DATA = """
[data]
dataset = "credit-card"
seed = 0
at-least = 7000                 # training records that each silo has for sure, where records can be added

[data.partition]
kind = "equal"
silos = 3
"""

CALIBRATIONS = (
    """steffle --epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172 --minority-fraction 0.396
    --lipschitz 1 --w-radius 1 --explain""",
    """fedfdp --epsilon 2 --delta 1e-5 --sampling-rate 0.05 --rounds 268 --clip 1 --loss-clip 1
    --loss-noise-ratio 2.5""",
    "fpfl --epsilon 2 --delta 6e-5 --users 16280 --cohort 200 --rounds 1000 --clip 1 --sampling poisson",
    """mmd-fedavg --epsilon 4 --delta 1e-5 --group-size 10000 --samples-per-group 100 --rounds 50
    --mechanism gaussian --users 1000 --cohort 50 --update-clip 1""",
    "pay-once --epsilon 1 --delta 1e-5 --groups 2",
)
"""One calibration an algorithm, shown before the run."""

_STEFFLE = """algorithm = "steffle"

[target]
epsilon = 1.0
delta = 1e-5

[privacy]
silo-size = 7500
{privacy}minority-fraction = 0.39
{data}
[training]
group-frequencies = [0.396, 0.604]      # public: men and women in the data's own documentation
{training}"""

PLANS = {
    "steffle": "# SteFFLe on few full batches: what a silo sends protects one record's sensitive attribute.\n"
    + _STEFFLE.format(
        privacy='sampling = "full"\nrounds = 60\nlipschitz = 0.5\nw-radius = 0.5\n',
        data=_DATA,
        training="measure-every = 10\n",
    ),
    "pay-once": f"""# Pay once: randomised response on the attribute, then training for free.
algorithm = "pay-once"

[target]
epsilon = 1.0
delta = 1e-5

[privacy]
groups = 2
rounds = 100
{_DATA}
[training]
fairness = 20.0
measure-every = 10
""",
    "gaussian": f"""# DP-SGD in every silo: one record is protected.
algorithm = "gaussian"

[target]
epsilon = 2.0
delta = 1e-5

[privacy]
sampling-rate = 0.05
rounds = 300
clip = 1.0
{_DATA}
[training]
learning-rate = 0.5
measure-every = 10
""",
    "fedfdp": f"""# FedFDP: clients with a larger loss count more; gradient and loss of every record are protected.
algorithm = "fedfdp"

[target]
epsilon = 2.0
delta = 1e-5

[privacy]
sampling-rate = 0.05
rounds = 200
clip = 1.0
loss-clip = 2.0
loss-noise-ratio = 2.5
{_DATA}
[training]
learning-rate = 0.5
fairness = 0.5
measure-every = 10
""",
    "fpfl": """# FPFL on Adult handed to users, two records each: all data of one user are protected.
algorithm = "fpfl"

[target]
epsilon = 2.0
delta = 6e-5

[privacy]
users = 16958
cohort = 1000
rounds = 100
clip = 2.0
sampling = "poisson"

[data]
dataset = "adult"
seed = 0

[data.users]
kind = "poisson"
users = 16958

[training]
learning-rate = 0.8
notion = "false-negative-rate"
damping = 1.0
choice = "smoothed"
smoothing = 0.03
measure-every = 10
""",
    "mmd-fedavg": """# MMD-fair FedAvg on Adult with 200 clients: noisy predictions of both groups, noisy updates.
algorithm = "mmd-fedavg"

[target]
epsilon = 3.0
delta = 1e-5

[privacy]
group-size = 10000              # both groups have more records
samples-per-group = 100
rounds = 15
users = 200
cohort = 20
update-clip = 0.3
update-noise-ratio = 2.0
histogram-noise-ratio = 20.0    # the groups' sizes are paid for once

[data]
dataset = "adult"
seed = 0

[data.partition]
kind = "equal"
silos = 200

[training]
criterion = "statistical-parity"
fairness = 5.0
kernel = "gaussian"
kernel-width = 1.0
local-rate = 2.0
measure-every = 5
""",
}

AS_PRINTED = "# SteFFLe with the settings and the noise of its paper.\n" + _STEFFLE.format(
    privacy='batch-size = 256\nrounds = 1172\nlipschitz = 1.0\nw-radius = 1.0\nsampling = "shuffled"\n',
    data=_DATA,
    training='learning-rate = 0.25\nmomentum = 0.0\nw-step = 1e-5\nw-center = "origin"\nmeasure-every = 100\n',
)

RERUNS = {name: 1 if name == "steffle" else 2 for name in PLANS}
"""Effort of each demo's audit: a rerun of SteFFLe has 22,500 coins already and takes the longest."""

CONFIDENCE = {name: 0.999 if name == "pay-once" else 0.95 for name in PLANS}
"""Pay-once costs exactly what it promises, and its coins are read by the best decoder there is: at 95% one honest run
in twenty would be called violated."""


# The steps of `privfair demo`, each a command of the real command line.


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
        officer, trust, budget = (self._path("officer.pem"), self._path("trust.json"), self._path("budget.json"))
        self._show("keys", "generate", "--role", "privacy-officer", "--out", officer)
        self._show("keys", "trust", "--key", officer, "--role", "privacy-officer", "--out", trust)
        ledger = self._path("ledger.db")
        self._show("ledger", "init", ledger)
        printed = ("--as-printed",) if as_printed else ()
        self._answer(
            "calibrate",
            plan,
            *printed,
            "--why",
            "demonstration",
            *("--out", budget, "--key", officer, "--ledger", ledger),
        )
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
        words = ("audit", self._path("run"), "--trust", self._path("trust.json"), "--ledger", self._path("ledger.db"))
        out = self._path("audit.json")
        try:
            self._show(*words, "--reruns", reruns, "--confidence", confidence, "--out", out)
        except SystemExit as stop:  # exit code 1 is the verdict "violated", which is an answer, not a failure
            if stop.code != 1:
                raise
        report = self._path("report.html")
        trust = ("--trust", self._path("trust.json"))
        self._show("report", self._path("run"), "--audit", out, *trust, "--out", report)
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
        self._must_refuse("a tampered budget", "manifest", "verify", tampered, "--trust", self._path("trust.json"))

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


@click.command("demo", short_help="the whole pipeline on real data, in about a minute")
@click.option(
    "--algorithm", type=click.Choice(sorted(PLANS)), default="steffle", show_default=True, help="What to train."
)
@click.option("--as-printed", is_flag=True, help="SteFFLe with the paper's own sigma, claimed to be epsilon = 1.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    help="Folder for everything the demo writes; a new subfolder each time.",
)
@json_option
def command(algorithm: str, as_printed: bool, out: Path, as_json: bool) -> None:
    """Calibrate, sign, train, and look at what came of it, on real data.

    Each step is a privfair command, printed before it runs, so that it can be repeated by hand. Afterwards a used
    and a tampered budget are shown to be refused.
    """

    if as_printed and algorithm != "steffle":
        raise click.UsageError("--as-printed goes with --algorithm steffle: only its paper prints a sigma to use")
    result = Demo(out, quiet=as_json).run(algorithm, as_printed)
    if as_json:
        print_json(result)
