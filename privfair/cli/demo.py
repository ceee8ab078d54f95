"""`privfair demo`: the whole pipeline on real data, by the commands a user would type."""

from __future__ import annotations

import json
import re
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import numpy as np

from audit.settings import DEFAULTS, DEMO_SECONDS
from calibrate.errors import PrivfairError
from calibrate.plans import plan_from_mapping
from privfair.cli.options import FOLDER, asked
from privfair.cli.output import checks_text, number_text, print_json, table_lines
from privfair.cli.run import Pipeline, leave_if_refuted
from privfair.data.infer import toml_value
from privfair.data.training_data import load_training_data
from privfair.federation.gather import gather_run
from privfair.plan.data import read_data_plan
from privfair.run.record import RunRecord
from privfair.training import TrainingResult

CALIBRATIONS = (
    """steffle --epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172 --minority-fraction 0.396
    --lipschitz 1 --w-radius 1 --explain""",
    """fedfdp --epsilon 2 --delta 1e-5 --sampling-rate 0.05 --rounds 268 --clip 1 --loss-clip 1
    --loss-noise-ratio 2.5""",
    "fpfl --epsilon 2 --delta 6e-5 --users 16280 --cohort 200 --rounds 1000 --clip 1 --sampling poisson",
    """mmd-fedavg --epsilon 4 --delta 1e-5 --group-size 10000 --samples-per-group 100 --rounds 50
    --mechanism gaussian --users 1000 --cohort 50 --update-clip 1""",
    "pay-once --epsilon 1 --delta 1e-5 --groups 2",
    "fair-plugin --epsilon 1 --delta 1e-5 --protect record --rounds 100 --clip 3 --group-clip 2",
)
"""One calibration per algorithm, shown before the run."""

PLANS = {path.stem: path.read_text("utf-8") for path in sorted(Path(__file__).with_name("plans").glob("*.toml"))}
"""Plans on public data, sized so that training and the audit take about a minute, by algorithm."""
AS_PRINTED = PLANS.pop("steffle-as-printed")
"""SteFFLe with the settings and the noise of its paper."""
_DATA = "\n[data]" + PLANS["gaussian"].partition("\n[data]")[2].partition("\n[training]")[0]
"""The section on data that plans of Credit Card share."""

ONE_PROCESS = "one-process"
SITES = ("north", "south", "west")
FEW_ROUNDS = 20
SLOW_ENGINES = {
    "flower": "Flower starts a process for every message",
    "nvflare": "NVFlare's clients look for work every two seconds",
}


def _write_sites(plan: str, folder: Path) -> dict[str, int]:
    """The silos of a plan on a benchmark as separate files, with test.csv for measuring; the sizes to be signed."""
    parsed = tomllib.loads(plan)
    unit = plan_from_mapping(parsed["algorithm"], parsed["privacy"]).unit
    data = load_training_data(read_data_plan(parsed["data"], folder), unit=unit)
    assert data.test is not None
    first = data.parties[0].data
    head = ",".join(json.dumps(name) for name in (*first.feature_names, "class", "group"))
    names = (np.array(first.class_names), np.array(first.group_names))
    written = {name: silo.data for name, silo in zip(SITES, data.parties, strict=True)} | {"test": data.test.pooled()}
    for name, records in written.items():
        rows = [head]
        for features, label, group in zip(records.features.tolist(), records.label, records.group, strict=True):
            rows.append(",".join([*map(repr, features), str(names[0][label]), str(names[1][group])]))
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    schema = [
        f'version = 1\n[target]\ncolumn = "class"\nclasses = {json.dumps(first.class_names)}',
        f'[sensitive]\ncolumn = "group"\ngroups = {json.dumps(first.group_names)}',
        *(f'[numeric.{json.dumps(name)}]\nscaling = "unscaled"' for name in first.feature_names),
    ]
    (folder / "schema.toml").write_text("\n".join(schema) + "\n", encoding="utf-8")
    return {name: silo.size for name, silo in zip(SITES, data.binding_for(unit).silos, strict=True)}


class Demo:
    """The steps of `privfair demo`; each is a command that a user could type."""

    def __init__(self, out: Path, engine: str = ONE_PROCESS) -> None:
        self._engine = engine
        sites = () if engine == ONE_PROCESS else SITES
        self.pipeline = Pipeline(out / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"), sites)
        self._plan = self.pipeline.path("plan.toml")
        self._verbose = asked().verbose and not asked().as_json

    def run(self, algorithm: str, as_printed: bool) -> dict[str, Any]:
        """The whole pipeline; the result is the JSON of `privfair demo --json`."""
        pipeline = self.pipeline
        if self._verbose:
            pipeline.say("Which published guarantees hold?")
            pipeline.show("theorems")
            pipeline.say("How much noise does each algorithm need?")
            for words in CALIBRATIONS:
                pipeline.show("calibrate", *words.split())
        budget = self._sign(algorithm, as_printed)
        trained = self._train()
        self._refusals()
        verdict, report = self._audit()
        compared = None if as_printed else self._without_privacy()
        self._conclude(trained, compared, verdict, report)
        names = ("accuracy", "balanced_accuracy", "auc", "demographic_parity")
        return {
            "budget": budget,
            "train": {
                **{name: trained[name] for name in names},
                "rounds": trained["rounds"],
                "majority": trained["majority"],
                "warning": trained["warning"],
            },
            "no_privacy": None if compared is None else {name: compared[name] for name in names},
            "audit": {key: verdict[key] for key in ("verdict", "epsilon_lower", "confidence")},
            "protected": trained["protected"],
            "report": str(report),
            "folder": str(pipeline.folder),
        }

    def _sign(self, algorithm: str, as_printed: bool) -> dict[str, Any]:
        pipeline = self.pipeline
        pipeline.say("A privacy officer signs a budget for this plan and this data")
        text = AS_PRINTED if as_printed else PLANS[algorithm]
        self._plan.write_text(self._at_sites(text) if pipeline.sites else text, encoding="utf-8")
        printed = ("--as-printed",) if as_printed else ()
        pipeline.sign(self._plan, *printed, "--why", "demonstration")
        trust = ("--trust", pipeline.path("trust.json"))
        guarantee = pipeline.answer("budget", "show", pipeline.path("budget.json"), *trust)["document"]["guarantee"]
        epsilon, claimed = guarantee["epsilon"], guarantee.get("claimedEpsilon", guarantee["epsilon"])
        cost = f"epsilon {epsilon:.3g} at delta {guarantee['delta']:g}"
        said = f"claimed: epsilon {claimed:g}, truly {cost}" if as_printed else cost
        pipeline.tell(f"calibrated  {algorithm} on real data: {said}")
        ledgers = "the ledgers of three sites" if pipeline.sites else "one ledger"
        pipeline.tell(f"signed      by a privacy officer's key, for this plan, this data and {ledgers}")
        return {"epsilon": epsilon, "delta": guarantee["delta"], "claimed_epsilon": claimed}

    def _train(self) -> dict[str, Any]:
        pipeline = self.pipeline
        pipeline.say("Training: every round is charged before its noise is drawn")
        if pipeline.sites:
            trained = self._over_guards()
        else:
            trained = pipeline.answer(*pipeline.train_words(self._plan, "run"), progress=True)
        for ledger in pipeline.ledgers.values():
            pipeline.show("ledger", "status", ledger)
        pipeline.tell(f"trained     {trained['rounds']} rounds, each charged in the ledger before noise was drawn")
        return trained

    # The same over guards: each site has its file, its ledger and its process.

    def _at_sites(self, plan: str) -> str:
        """The plan with silos in place of the benchmark, whose records are dealt out to the sites' files."""
        if self._engine in SLOW_ENGINES:
            self.pipeline.tell(f"shortened   to {FEW_ROUNDS} rounds: {SLOW_ENGINES[self._engine]}")
            plan = re.sub(r"(?m)^rounds = \d+$", f"rounds = {FEW_ROUNDS}", plan)
        sizes = _write_sites(plan, self.pipeline.folder)
        table = "".join(f"{name} = {size}\n" for name, size in sizes.items())
        return plan.replace(_DATA, f'\n[data]\nschema = "schema.toml"\n\n[data.silos]\n{table}')

    def _over_guards(self) -> dict[str, Any]:

        pipeline, path = self.pipeline, self.pipeline.path
        summary = pipeline.answer(
            *("federation", "run", self._plan, "--engine", self._engine, "--budget", path("budget.json")),
            *("--trust", path("trust.json"), *pipeline.file_words, *pipeline.ledger_words, "--folder", path("sites")),
            *("--test-file", path("test.csv"), "--out", path("run")),
        )
        pipeline.tell(f"guarded     {len(SITES)} sites, each a process with its own records, ledger and noise")
        gather_run(path("run"), {name: path("sites") / name / "guard" for name in SITES})
        return {**TrainingResult(path("run"), RunRecord.model_validate(summary)).to_json()}

    def _guard_again(self) -> tuple[object, ...]:
        """A guard that would claim the budget a second time, in the ledger that knows it."""
        path, name = self.pipeline.path, SITES[0]
        places = {"data": path(f"{name}.csv"), "plan": self._plan, "budget": path("budget.json")}
        places |= {"trust": path("trust.json"), "ledger": self.pipeline.ledgers[name], "folder": path("again")}
        places |= {"socket": path("again.sock")}
        lines = {"party": name} | {key: str(Path(place).resolve()) for key, place in places.items()}
        path("again.toml").write_text("".join(f"{key} = {toml_value(text)}\n" for key, text in lines.items()), "utf-8")
        return ("serve", path("again.toml"))

    def _audit(self) -> tuple[dict[str, Any], Path]:
        pipeline = self.pipeline
        pipeline.say("The audit: does the run keep its promise?")
        verdict, report = pipeline.audit("--seconds", DEMO_SECONDS)
        checks = checks_text([check["outcome"] for check in verdict["checks"]])
        pipeline.tell(f"audited     {checks}; attacked by {DEFAULTS.reruns} reruns")
        return verdict, report

    def _refusals(self) -> None:
        pipeline = self.pipeline
        pipeline.say("A budget is spent once, and a changed one is worth nothing")
        again = self._guard_again() if pipeline.sites else (*pipeline.train_words(self._plan, "again"), "--quiet")
        pipeline.must_refuse("a used budget", *again)
        tampered = pipeline.path("tampered.json")
        content = bytearray(pipeline.path("budget.json").read_bytes())
        middle = len(content) // 2
        content[middle] = ord("A") if content[middle] != ord("A") else ord("B")
        tampered.write_bytes(bytes(content))
        words = ("verify", tampered, "--trust", pipeline.path("trust.json"))
        pipeline.must_refuse("a tampered budget", *words)
        pipeline.tell("refused     to train twice on one budget", "refused     a budget with one changed letter")

    def _without_privacy(self) -> dict[str, Any] | None:
        """The same plan without noise, to compare with; None where the algorithm cannot do without."""
        pipeline, ledger = self.pipeline, self.pipeline.path("unprotected-ledger.db")
        if pipeline.sites:
            return None
        pipeline.say("For comparison: the same without any privacy")
        budget, trust = pipeline.path("unprotected.json"), pipeline.path("trust.json")
        pipeline.show("ledger", "init", ledger)
        signing = ("--out", budget, "--key", pipeline.path("officer.pem"), "--ledger", ledger)
        words = ("--budget", budget, "--trust", trust, "--ledger", ledger, "--out", pipeline.path("unprotected"))
        try:
            pipeline.answer("calibrate", self._plan, "--no-privacy", "comparison", *signing)
            return pipeline.answer("train", self._plan, *words, "--quiet")
        except PrivfairError as refused:
            pipeline.say(f"not possible: {refused}")
            return None

    def _conclude(
        self, trained: dict[str, Any], compared: dict[str, Any] | None, verdict: dict[str, Any], report: Path
    ) -> None:
        lower, confidence = verdict["epsilon_lower"], f"{100 * verdict['confidence']:g}% confidence"
        proved = "" if lower is None else f"; the attack proves epsilon >= {lower:.2f} ({confidence})"
        tell, folder = self.pipeline.tell, self.pipeline.folder
        tell("", f"{verdict['verdict'].upper()}: {verdict['why']}{proved}", "")
        names = ("accuracy", "balanced_accuracy", "auc", "demographic_parity")
        rows: list[tuple[str, ...]] = [("on held-out records", "accuracy", "balanced accuracy", "AUC", "parity gap")]
        rows.append(("this model", *(number_text(trained[name]) for name in names)))
        if compared is not None:
            rows.append(("no privacy", *(number_text(compared[name]) for name in names)))
        majority = trained["majority"]
        constant = (number_text(majority["accuracy"]), "0.500", "0.500", "0.000")
        rows.append((f"always {majority['class']!r}", *constant))
        tell(*(f"  {line}" for line in table_lines(rows)))
        if trained["warning"] is not None:
            tell(f"WARNING  {trained['warning']}")
        tell("", f"Protected: {trained['protected']}.")
        tell(f"NOT protected: {trained['not_protected_in_short']}.", "")
        tell(f"Open  {report}", f"Read  {folder}/log.txt, commands.sh")
        tell("Type  privfair init A.csv B.csv --target COLUMN --sensitive COLUMN")


@click.command("demo", short_help="the whole pipeline on real data, in about a minute")
@click.option(
    "--algorithm", type=click.Choice(sorted(PLANS)), default="steffle", show_default=True, help="What to train."
)
@click.option(
    "--engine",
    type=click.Choice([ONE_PROCESS, "guards", *SLOW_ENGINES]),
    default=ONE_PROCESS,
    show_default=True,
    help="Where the silos live: all in this process, or each behind a guard, asked over sockets or by an engine.",
)
@click.option("--as-printed", is_flag=True, help="SteFFLe with the paper's own sigma, claimed to be epsilon = 1.")
@click.option(
    "--out",
    type=FOLDER,
    default=Path("demo"),
    show_default=True,
    help="Folder for everything the demo writes; a new subfolder each time.",
)
def demo_command(algorithm: str, engine: str, as_printed: bool, out: Path) -> None:
    """Calibrate, sign, train, and look at what came of it, on real data.

    Each step is a privfair command; all of them are in commands.sh, with what they printed in log.txt, so that
    they can be repeated by hand. A used and a tampered budget are shown to be refused. Exit code 1 if the audit refutes
    the promise; with --as-printed that is what the demo is to show, and it ends with 0.
    """
    if as_printed and algorithm != "steffle":
        raise click.UsageError("--as-printed goes with --algorithm steffle: only its paper prints a sigma to use")
    if engine != ONE_PROCESS and _DATA not in PLANS[algorithm]:
        raise click.UsageError(f"--engine {engine} goes with an algorithm of three silos, not with {algorithm}")
    result = Demo(out, engine).run(algorithm, as_printed)
    if asked().as_json:
        print_json(result)
    if not as_printed:
        leave_if_refuted(result["audit"])
