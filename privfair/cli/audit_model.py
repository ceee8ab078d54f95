"""`privfair audit model` and `privfair audit training`: what anyone's model or training function reveals of records."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from audit.executors import executor_of
from audit.named import load_named, refuse_pickle, refuse_unknown_kind
from audit.settings import BY_CLASS, BY_CORRECTNESS, CONFIDENCE, TRAINING_RUNS, require_attack, require_models
from calibrate.errors import InvalidInput, PrivfairError, open_unit
from calibrate.manifest.trust import FolderTrust
from calibrate.manifest.verify import read_unverified
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.audit import rare_option, seed_option, settings_option, trust_code_option
from privfair.cli.audit_result import ResultFlags, finish, result_options, subjects_of
from privfair.cli.config import configured_trust, read_trust_file
from privfair.cli.options import FILE, FOLDER, Renamed, options
from privfair.cli.output import progress_bar
from privfair.data.infer import FileLayout, read_header, recognise
from privfair.data.read import read_table
from privfair.durable import read_named

_COUNT = click.IntRange(min=1)

_MODEL_OPTIONS = (
    click.option("--members", type=FILE, required=True, help="Records that were in the model's training data."),
    click.option("--nonmembers", type=FILE, required=True, help="Records from the same source that were not."),
    click.option("--label", help="Column with the class, needed if the model does not tell it."),
    click.option("--score", help="Column with your membership scores, instead of a model."),
    click.option("--sensitive", help="Column whose values attribute inference tries to guess."),
    click.option(
        *("--budget", "--manifest", "budget_path"),
        cls=Renamed,
        type=FILE,
        help="Budget whose guarantee is tested [default: the run's].",
    ),
    click.option("--epsilon", type=float, help="Claimed epsilon that is tested, instead of --budget."),
    click.option(
        "--delta",
        type=float,
        default=1e-5,
        show_default=True,
        help="Delta of the claim; without a claim, the delta at which epsilon is bounded.",
    ),
    click.option(
        "--shadow-models",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        help="Number of shadow models to compare with; 0 uses the loss threshold only.",
    ),
    click.option(
        "--by",
        multiple=True,
        metavar="class|correctness|COLUMN",
        help="Compare the leakage of these groups, with intervals that hold together; may be given several times.",
    ),
)
"""What `--help` shows; the other settings are for --settings."""
_RARE_OPTIONS = (
    rare_option("--model", "former_path", type=click.Path(path_type=Path), help="The model."),
    rare_option("--population", type=FILE, help="Other records: shadow models are trained on these alone (offline)."),
    rare_option("--unit", help="Column that tells people apart; all records of one person share one coin."),
    rare_option("--drop", multiple=True, help="Column that is not a feature; may be given several times."),
    rare_option("--classes", help="Classes in the order of the model's outputs, as A,B,..."),
    rare_option(
        "--outputs",
        type=click.Choice(["by-look", "probabilities", "logits"]),
        default="by-look",
        help="Kind of the model's outputs; by-look decides from their values.",
    ),
    rare_option(
        "--architecture", help="Your class or function that makes the torch module whose state dict FILE holds."
    ),
    rare_option("--trust-pickle", is_flag=True, help="Open a pickle although it can run code when it is opened."),
    rare_option("--smaller-is-member", is_flag=True, help="Small values of --score mean member, as for a loss."),
    rare_option(
        "--relation",
        type=click.Choice(["add-remove", "replace-one"]),
        default="add-remove",
        help="How neighbouring data sets of the claimed --epsilon differ.",
    ),
    rare_option(
        "--assignment",
        type=click.Choice(["exchangeable", "coins"]),
        default="exchangeable",
        help="How members were chosen: a random part of all records, or a fair coin for each record.",
    ),
    rare_option(
        "--family",
        type=click.Choice(["epsilon-delta", "gaussian"]),
        help="Reading of the bound: any release, or one known to be Gaussian, of which more can be proved; by default "
        "what the manifest signs, and without one any release.",
    ),
    rare_option(
        "--exposed",
        type=click.IntRange(min=0),
        default=0,
        help="Number of the most exposed records to list, with intervals that hold together.",
    ),
    rare_option(
        "--shadow",
        type=click.Choice(["same", "logistic", "perceptron"]),
        default="same",
        help="Kind of the shadow models; same means as much like the model as possible.",
    ),
    rare_option("--hidden", type=_COUNT, default=64, help="Width of the hidden layer of --shadow perceptron."),
    rare_option("--epochs", type=_COUNT, help="Training epochs of --shadow logistic or perceptron."),
    rare_option(
        "--attack",
        "attacks",
        multiple=True,
        help="Membership attack of another package to run as well as the built-in ones; may be given several times.",
    ),
    rare_option("--jobs", type=_COUNT, default=1, help="Number of threads that train shadow models."),
    rare_option("--scheduler", help="Address of a Dask scheduler, for example tcp://127.0.0.1:8786."),
)


@dataclass(frozen=True)
class ModelFlags:
    """The options of a model's audit, as they were typed."""

    model_path: Path | None
    members: Path
    nonmembers: Path
    population: Path | None
    label: str | None
    unit: str | None
    drop: tuple[str, ...]
    classes: str | None
    outputs: str
    architecture: str | None
    trust_pickle: bool
    score: str | None
    smaller_is_member: bool
    budget_path: Path | None
    epsilon: float | None
    delta: float
    relation: str
    assignment: str
    family: str | None
    by: tuple[str, ...]
    exposed: int
    shadow_models: int
    shadow: str
    hidden: int
    epochs: int | None
    attacks: tuple[str, ...]
    jobs: int
    scheduler: str | None
    sensitive: str | None
    seed: int
    confidence: float

    @property
    def run_folder(self) -> Path | None:
        """The run whose model is audited, if the model is one."""
        return self.model_path if self.model_path is not None and self.model_path.is_dir() else None

    @property
    def own_shadows(self) -> bool:
        """Whether the target itself says what resembles it."""
        return self.shadow == "same" or not self.shadow_models

    @property
    def grouping_columns(self) -> tuple[str, ...]:
        """The columns among the groups to compare; scores alone know neither class nor correctness."""
        own = {BY_CLASS, BY_CORRECTNESS} if self.score is None else set()
        return tuple(name for name in self.by if name not in own)

    def __post_init__(self) -> None:
        """Refuse what options, paths and the files' first lines show to be wrong, before a model is opened."""
        if (self.model_path is None) == (self.score is None):
            raise click.UsageError("give a model FILE, or --score COLUMN for your scores; one of the two")
        if self.epsilon is not None and self.budget_path is not None:
            raise click.UsageError("give --budget or --epsilon, not both: one claim is tested")
        self._require_numbers()
        if self.epochs is not None and self.own_shadows:
            raise click.UsageError("--epochs is for --shadow logistic or --shadow perceptron")
        if self.sensitive is not None and self.model_path is None:
            raise click.UsageError("--sensitive needs a model FILE: scores of members say nothing about an attribute")
        self._require_files()

    def _require_numbers(self) -> None:
        open_unit("confidence", self.confidence)
        EpsilonDelta(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.model_path is not None:
            require_models(self.shadow_models, self.exposed)
        for name in self.attacks:
            require_attack(name)

    def _require_columns(self) -> None:
        """By the first line of each file; a run's files are written as the run says, and wait until it is opened."""
        own = [name for name in (self.score or self.label, self.unit) if name is not None]
        for path in (self.members, self.nonmembers, self.population):
            header = None if path is None or self.run_folder is not None else read_header(path, recognise(path))
            if header is not None:
                for name in (*own, *self.drop, *self.grouping_columns):
                    header.require(name)

    def _require_files(self) -> None:
        named = {"FILE": self.model_path, "--members": self.members, "--nonmembers": self.nonmembers}
        for option, path in {**named, "--population": self.population, "--budget": self.budget_path}.items():
            if path is not None and not path.exists():
                raise click.UsageError(f"{option} {path} does not exist; check the path")
        if self.model_path is not None and self.run_folder is None and self.architecture is None:
            refuse_unknown_kind(self.model_path)
        if self.model_path is not None and not self.trust_pickle and self.architecture is None:
            refuse_pickle(self.model_path)
        self._require_columns()
        if self.budget_path is not None:
            read_unverified(read_named(self.budget_path, "--budget"))


@click.command("model")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@options(*_MODEL_OPTIONS)
@configured_trust
@click.option("--confidence", type=float, default=CONFIDENCE, show_default=True, help="Confidence of all intervals.")
@result_options
@settings_option
@options(*_RARE_OPTIONS)
@trust_code_option
@seed_option
def model_command(
    file: Path | None,
    former_path: Path | None,
    trust_path: Path | None,
    trust_code: bool,
    result: ResultFlags,
    **given: Any,
) -> None:
    """Test what a model reveals about its training records.

    FILE is a run folder, .onnx, or a trusted .pkl, .joblib or .pt file. Without a claim (--budget, --epsilon) the
    verdict is leaks or no-leak-found, with the largest epsilon that is refuted. Exit code 1 if a claim is refuted.

    \b
    Example:
      privfair audit model model.onnx --members in.csv --nonmembers out.csv --label diagnosis
    """
    if file is not None and former_path is not None:
        raise click.UsageError(f"give either {file} or --model {former_path}, not both")
    flags = ModelFlags(model_path=file or former_path, **given)
    trusted = FolderTrust(None if trust_path is None else read_trust_file(trust_path), trust_code)
    from privfair.cli.audit_judge import attribute_of_model, judge_model  # loads the attacks

    report = judge_model(flags, trusted)
    finish(result, report, subjects=subjects_of(flags.model_path), **attribute_of_model(flags, trusted))


# A training function: it is called again and again.


@click.command("training")
@click.argument("function", metavar="MODULE:FUNCTION")
@click.option("--data", "data_path", type=FILE, required=True, help="Records to train on, as CSV or Parquet.")
@click.option("--label", required=True, help="Column with the class, or the quantity.")
@click.option("--epsilon", type=float, help="Claimed epsilon that is tested [default: none; leaks or not].")
@click.option("--delta", type=float, default=1e-5, show_default=True, help="Delta of the claim and of the bound.")
@click.option(
    "--access",
    type=click.Choice(["final-model", "iterates", "gradients"]),
    default="final-model",
    show_default=True,
    help="What the attacker sees; beyond the final model the function must call watch (docs/audit-training.md).",
)
@click.option("--unit", help="Column that tells people apart; all records of one person share one coin.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=TRAINING_RUNS, show_default=True, help="How often to train."
)
@click.option(
    *("--seconds", "--budget-seconds", "budget_seconds"),
    cls=Renamed,
    type=float,
    help="Train as often as fits into this time, by the first run's time.",
)
@click.option("--confidence", type=float, default=CONFIDENCE, show_default=True, help="Confidence of the bound.")
@click.option("--folder", type=FOLDER, help="Keep finished runs here, and resume from them.")
@result_options
@settings_option
@rare_option("--arrays", is_flag=True, help="Give the function arrays (features, labels) instead of a pandas table.")
@rare_option("--canaries", type=click.IntRange(min=2), help="Number of units with a coin in each run.")
@rare_option("--score", help="score(model, records), as MODULE:FUNCTION: a number per record, larger for member.")
@rare_option("--control", help="The same training without noise, as MODULE:FUNCTION, to measure the power with.")
@rare_option("--mechanism", help="Release that the function declares, as MODULE:NAME; its noise is measured.")
@rare_option("--workers", type=click.IntRange(min=1), default=1, help="Number of processes that call the function.")
@rare_option("--scheduler", help="Address of a Dask scheduler, for example tcp://127.0.0.1:8786.")
@seed_option
def training_command(
    function: str,
    data_path: Path,
    label: str,
    unit: str | None,
    arrays: bool,
    score: str | None,
    control: str | None,
    mechanism: str | None,
    folder: Path | None,
    workers: int,
    scheduler: str | None,
    result: ResultFlags,
    **effort: Any,
) -> None:
    """Train again and again, with canaries that coins put in or leave out, and bound epsilon by what shows.

    \b
    The function is anyone's: train(data) -> model, with data a pandas table.
    What it is asked for depends on --access:
      final-model   the model's confidence on the canaries, or the setting score
      iterates      train(data, watch) that shows watch its parameters after each step
      gradients     train(data, watch) that shows watch its noisy gradient at each step
    Canaries: records as they are, mislabelled ones, and rare ones; see docs/audit-training.md.
    Exit code 1 if the claim is refuted; 0 otherwise. Ctrl-C with --folder keeps what is done.
    """
    open_unit("--confidence", effort["confidence"])
    EpsilonDelta(1.0 if effort["epsilon"] is None else effort["epsilon"], effort["delta"])
    _require_columns(data_path, label, unit, arrays)
    with redirect_stdout(sys.stderr):  # the user's module may print
        for named in (function, control, score, mechanism):
            if named is not None:
                load_named(named)

    from audit.coins.training_audit import audit_training

    data, column = _read(data_path, label, unit, arrays)
    with executor_of(workers, scheduler) as executor, _progress(folder) as progress, _own_mistakes(function):
        report = audit_training(
            function,
            data,
            label=column,
            unit=unit,
            score=score,
            control=control,
            mechanism=mechanism,
            executor=executor,
            folder=folder,
            progress=progress,
            **effort,
        )
    finish(result, report)


def _require_columns(path: Path, label: str, unit: str | None, arrays: bool) -> None:
    """Refuse a file that is not there, or whose first line does not name the columns."""
    if not path.is_file():
        raise InvalidInput("--data", str(path), "does not exist", "check the path")
    if arrays and unit is not None:
        raise click.UsageError("--unit needs a table: leave --arrays out")
    header = read_header(path, FileLayout())
    if header is None:
        return
    for option, name in (("--label", label), ("--unit", unit)):
        if name is not None and name not in header.columns:
            raise InvalidInput(option, name, "is not in the data", f"name one of its {len(header.columns)} columns")


def _read(path: Path, label: str, unit: str | None, arrays: bool) -> tuple[Any, str | None]:
    """A pandas table with the name of its label, or a pair of arrays."""
    import pandas as pd

    frame = pd.DataFrame({name: _numbers_or_text(values) for name, values in read_table(path, ",").columns.items()})
    if not arrays:
        return frame, label
    if label not in frame.columns:
        raise InvalidInput("--label", label, "is not in the data", f"name one of its {len(frame.columns)} columns")
    try:
        features = frame.drop(columns=[label]).to_numpy("float64")
    except ValueError:
        raise click.UsageError("--arrays takes numbers only: leave it out, or encode the texts") from None
    return (features, frame[label].to_numpy()), None


def _numbers_or_text(values: NDArray[Any]) -> NDArray[Any]:
    """A column as pandas would read it: numbers where every cell is one or is empty."""
    import pandas as pd

    try:
        return np.asarray(pd.to_numeric(values))
    except (ValueError, TypeError):
        return values


@contextmanager
def _own_mistakes(function: str) -> Iterator[None]:
    """What the user's function raises is a mistake in it, said with file and line; its words may quote records."""
    try:
        yield
    except Exception as error:
        module = sys.modules.get(function.partition(":")[0])
        file = None if module is None else getattr(module, "__file__", None)
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file]
        if isinstance(error, PrivfairError) or not lines:
            raise
        why = f"raises {type(error).__name__} in line {lines[-1]} of {file}"
        raise InvalidInput("function", function, why, "call it on the data yourself to see more") from error


@contextmanager
def _progress(folder: Path | None) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error; an interrupt says where finished runs are kept."""
    try:
        with progress_bar("training runs") as show:
            yield show
    except KeyboardInterrupt:
        if folder is not None:
            click.echo(f"  stopped; finished runs are kept in {folder}, the same command resumes from them", err=True)
        raise
