"""The options of `privfair audit --model`, and what they show to be wrong before anything heavy is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from audit.named import refuse_pickle, refuse_unknown_kind
from audit.settings import BY_CLASS, BY_CORRECTNESS, require_attack, require_models
from calibrate.errors import open_unit
from calibrate.manifest.verify import read_unverified
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.options import FILE, options, scheduler_option
from privfair.data.infer import read_header, recognise
from privfair.durable import read_named

_COUNT = click.IntRange(min=1)

_MODEL_OPTIONS = (
    click.option(
        "--model",
        "model_path",
        type=click.Path(path_type=Path),
        help="Audit a model instead of a run: a run folder, .onnx, or a trusted .pkl, .joblib or .pt file.",
    ),
    click.option("--members", type=FILE, help="Records that were in the model's training data."),
    click.option("--nonmembers", type=FILE, help="Records from the same source that were not."),
    click.option("--population", type=FILE, help="Other records: shadow models are trained on these alone (offline)."),
    click.option("--label", help="Column with the class, needed if the model does not tell it."),
    click.option("--unit", help="Column that tells people apart; all records of one person share one coin."),
    click.option("--drop", multiple=True, help="Column that is not a feature; may be given several times."),
    click.option("--classes", help="Classes in the order of the model's outputs, as A,B,..."),
    click.option(
        "--outputs",
        type=click.Choice(["by-look", "probabilities", "logits"]),
        default="by-look",
        show_default=True,
        help="Kind of the model's outputs; by-look decides from their values.",
    ),
    click.option(
        "--architecture",
        metavar="module:Class",
        help="Class or function of your own that makes the torch module whose state dict --model holds.",
    ),
    click.option("--trust-pickle", is_flag=True, help="Open a pickle although it can run code when it is opened."),
    click.option("--score", help="Column with membership scores of your own, instead of --model."),
    click.option("--smaller-is-member", is_flag=True, help="Small values of --score mean member, as for a loss."),
    click.option("--manifest", "manifest_path", type=FILE, help="Manifest whose promise is on trial."),
    click.option("--epsilon", type=float, help="Claimed epsilon that is on trial, instead of --manifest."),
    click.option(
        "--delta",
        type=float,
        default=1e-5,
        show_default=True,
        help="Delta of the claim; without a claim, the delta at which epsilon is bounded.",
    ),
    click.option(
        "--relation",
        type=click.Choice(["add-remove", "replace-one"]),
        default="add-remove",
        show_default=True,
        help="How neighbouring data sets of the claimed --epsilon differ.",
    ),
    click.option(
        "--assignment",
        type=click.Choice(["exchangeable", "coins"]),
        default="exchangeable",
        show_default=True,
        help="How members were chosen: a random part of all records, or a fair coin for each record.",
    ),
    click.option(
        "--family",
        type=click.Choice(["epsilon-delta", "gaussian"]),
        help="Reading of the bound: any release, or one known to be Gaussian, of which more can be proved; by default "
        "what the manifest signs, and without one any release.",
    ),
    click.option(
        "--by",
        multiple=True,
        metavar="class|correctness|COLUMN",
        help="Compare the leakage of these groups, with intervals that hold together; may be given several times.",
    ),
    click.option(
        "--exposed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Number of the most exposed records to list, with intervals that hold together.",
    ),
    click.option(
        "--shadow-models",
        type=click.IntRange(min=0),
        default=64,
        show_default=True,
        help="Number of shadow models to compare with; 0 uses the loss threshold only.",
    ),
    click.option(
        "--shadow",
        type=click.Choice(["same", "logistic", "perceptron"]),
        default="same",
        show_default=True,
        help="Kind of the shadow models; same means as much like the model as possible.",
    ),
    click.option(
        "--hidden", type=_COUNT, default=64, show_default=True, help="Width of the hidden layer of --shadow perceptron."
    ),
    click.option("--epochs", type=_COUNT, help="Training epochs of --shadow logistic or perceptron."),
    click.option(
        "--attack",
        "attacks",
        multiple=True,
        metavar="NAME",
        help="Membership attack of another package to run beside the built-in ones; may be given several times.",
    ),
    click.option(
        "--jobs", type=_COUNT, default=1, show_default=True, help="Number of threads that train shadow models."
    ),
    scheduler_option,
)
model_options = options(*_MODEL_OPTIONS)


@dataclass(frozen=True)
class ModelFlags:
    """The flags of a model's audit, as they were typed."""

    model_path: Path | None
    members: Path | None
    nonmembers: Path | None
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
    manifest_path: Path | None
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

    @property
    def asked_for(self) -> bool:
        """Whether a model is to be audited and not a run."""
        return any((self.model_path, self.members, self.nonmembers, self.score))

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

    def require_complete(self, run: Path | None, sensitive: str | None, confidence: float) -> None:
        """Refuse what flags, paths and the files' first lines show to be wrong, before anything heavy is loaded."""
        if run is not None:
            raise click.UsageError(f"give either the run {run} or --model, --members and --nonmembers, not both")
        if self.members is None or self.nonmembers is None:
            raise click.UsageError("an audit of a model needs --members FILE and --nonmembers FILE")
        if (self.model_path is None) == (self.score is None):
            raise click.UsageError("give --model PATH, or --score COLUMN for scores of your own; one of the two")
        if self.epsilon is not None and self.manifest_path is not None:
            raise click.UsageError("give --manifest or --epsilon, not both: one promise is on trial")
        self._require_numbers(confidence)
        if self.epochs is not None and self.own_shadows:
            raise click.UsageError("--epochs is for --shadow logistic or --shadow perceptron")
        if sensitive is not None and self.model_path is None:
            raise click.UsageError("--sensitive needs --model: scores of members say nothing about an attribute")
        self._require_files()

    def _require_numbers(self, confidence: float) -> None:

        open_unit("confidence", confidence)
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

        named = {"--model": self.model_path, "--members": self.members, "--nonmembers": self.nonmembers}
        for option, path in {**named, "--population": self.population, "--manifest": self.manifest_path}.items():
            if path is not None and not path.exists():
                raise click.UsageError(f"{option} {path} does not exist; check the path")
        if self.model_path is not None and self.run_folder is None and self.architecture is None:
            refuse_unknown_kind(self.model_path)
        if self.model_path is not None and not self.trust_pickle and self.architecture is None:
            refuse_pickle(self.model_path)
        self._require_columns()
        if self.manifest_path is not None:
            read_unverified(read_named(self.manifest_path, "--manifest"))


attribute_options = options(
    click.option("--sensitive", help="Column whose values attribute inference tries to guess, with --model."),
    click.option(
        "--attribute-inference/--no-attribute-inference",
        "infer",
        default=True,
        show_default=True,
        help="Whether to guess the sensitive attribute of a run's records from its model.",
    ),
)


@dataclass(frozen=True)
class AttributeFlags:
    sensitive: str | None
    infer: bool
