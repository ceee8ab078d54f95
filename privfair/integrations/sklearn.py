"""A scikit-learn classifier that keeps a signed promise: `PrivateFairClassifier` (pip install 'privfair[sklearn]').

    clf = PrivateFairClassifier(epsilon=1.0, protect="attribute", groups=["f", "m"])
    clf.fit(X, y, sensitive_features=sex)
    clf.promise_.text                           # 'epsilon 1 at delta 1e-05 for one attribute'

Each `fit` goes the way of `pf.Plan`: the arrays are a plan, the plan is priced and signed, the engine trains under it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.keys import generate
from calibrate.manifest.trust import TrustFile
from privfair.api.frames import TreatedAsPublic
from privfair.api.plan import EmptyModel, Plan, SelfSigned, TrainedModel
from privfair.models.fair_rule import FairRule
from privfair.models.scaled import ScaledModel
from privfair.plan.model import build_model
from privfair.plan.training import read_training_plan
from privfair.run.folder import RunFolder, load_theta
from privfair.run.public import RunPromise
from privfair.run.signed_budget import BudgetSource

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError:
    raise InvalidInput(
        "privfair.integrations.sklearn", None, "needs scikit-learn", "pip install 'privfair[sklearn]'"
    ) from None

if TYPE_CHECKING:
    from audit.report.results import AuditReport

_SEEDS = 2**31
_LEAST = 1e-300
"""The least probability whose logarithm is taken."""

_POINTS = 1000
"""Made-up records that show whether a fitted model tells anybody apart."""


class PublicScaler(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale features to 0..1 by public bounds; it learns nothing from records, so that no budget is spent on it.

    Args:
        bounds: public (low, high), numbers or one per feature; values beyond them are clipped.
    """

    def __init__(self, bounds: tuple[ArrayLike, ArrayLike]) -> None:
        self.bounds = bounds

    def fit(self, X: ArrayLike, y: object = None) -> PublicScaler:
        """Note the number of features alone."""
        validate_data(self, X, dtype=np.float64)
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """The features between 0 and 1."""
        features: Floats = validate_data(self, X, dtype=np.float64, reset=False)
        low, high = _broadcast(self.bounds, features.shape[1])
        scaled: Floats = (np.clip(features, low, high) - low) / (high - low)
        return scaled


class PrivateFairClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Logistic regression under a signed privacy promise, fair to the groups of a sensitive attribute.

    Args:
        epsilon: the promise.
        delta: the probability with which the promise may fail.
        protect: what one unit is: "record" (with `sensitive_features` and two classes the fair plug-in, else DP-SGD),
            "attribute" (pay-once, fair; needs `sensitive_features`) or "user" (FPFL; needs `user_id`).
        target_gap: the largest gap between two groups' rates that the fair plug-in may leave, as noisy counts tell it.
        fairness: the weight of the fairness penalty, for protect="attribute".
        rounds: of training; None takes the method's own default.
        sampling_rate: the probability that a record joins a batch, for DP-SGD with settings of your own; None takes
            full batches and settings that follow from the promise and the sizes (docs/training.md).
        clip: the L2 clip of one unit's gradient, for DP-SGD and protect="user"; None takes the method's own default.
        learning_rate: of the steps; None takes the method's own default.
        bounds: public bounds (low, high) of the features, numbers or one per feature; None reads them off X.
        classes: the classes, known without looking at y; None reads them off y.
        groups: the groups of the attribute, known without looking; None reads them off `sensitive_features`.
        at_least: a public lower bound of the number of records (of users); None takes their number for public.
        manifest: a signed budget for exactly this plan (`plan`); None lets each `fit` sign its own, with a warning.
        trust: whose signatures count; needed with `manifest`.
        ledger: where budgets are spent; needed with `manifest`, else None throws the ledger away.
        dataset: the data's declared identity (name, custodian, version), by which a ledger keeps its totals.
        random_state: of the first model, and of noise and batches under seeded research noise.
        unsafe_seeded_research_noise: reproducible noise that protects no one, for experiments on public data.

    What is inferred from private data is treated as public with the warning `TreatedAsPublic`. Every `fit` pays again:
    a cross-validation with k folds pays k times, and is refused where one manifest, or one ledger's total for the data
    set, is all there is.

    Attributes after `fit`: `classes_`, `groups_`, `coef_`, `intercept_`, `promise_`, `manifest_`, `model_` (the run).

    Guarantee: as `privfair.Plan.train`, for the unit, epsilon and delta of `promise_`.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        *,
        protect: Literal["attribute", "record", "user"] = "record",
        target_gap: float = 0.05,
        fairness: float = 4.0,
        rounds: int | None = None,
        sampling_rate: float | None = None,
        clip: float | None = None,
        learning_rate: float | None = None,
        bounds: tuple[ArrayLike, ArrayLike] | None = None,
        classes: Sequence[Any] | None = None,
        groups: Sequence[Any] | None = None,
        at_least: int | None = None,
        manifest: BudgetSource | None = None,
        trust: str | Path | TrustFile | None = None,
        ledger: str | Path | None = None,
        dataset: tuple[str, str, str] | None = None,
        random_state: Any = None,
        unsafe_seeded_research_noise: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.protect = protect
        self.target_gap = target_gap
        self.fairness = fairness
        self.rounds = rounds
        self.sampling_rate = sampling_rate
        self.clip = clip
        self.learning_rate = learning_rate
        self.bounds = bounds
        self.classes = classes
        self.groups = groups
        self.at_least = at_least
        self.manifest = manifest
        self.trust = trust
        self.ledger = ledger
        self.dataset = dataset
        self.random_state = random_state
        self.unsafe_seeded_research_noise = unsafe_seeded_research_noise

    def fit(
        self, X: ArrayLike, y: ArrayLike, sensitive_features: ArrayLike | None = None, user_id: ArrayLike | None = None
    ) -> PrivateFairClassifier:
        """Spend a budget on training.

        Args:
            X: the features, one row per record.
            y: the classes.
            sensitive_features: the sensitive attribute of each record; several columns make one attribute.
            user_id: whose record it is, for protect="user".
        """
        plan = self.plan(X, y, sensitive_features, user_id)
        if fitted := _fitted_on_records(self):
            warnings.warn(
                f"steps of the pipeline were fitted on the records and are not private: {', '.join(fitted)}; what they "
                "learned is treated as public. Use PublicScaler(bounds=...), or leave them out",
                TreatedAsPublic,
                stacklevel=2,
            )
        if self.manifest is None:
            warnings.warn(
                "this fit signs its own budget, and every fit pays again (a cross-validation pays once per fold): "
                "no one else is bound by it; give manifest=, trust= and ledger= for a budget that counts",
                SelfSigned,
                stacklevel=2,
            )
            budget: BudgetSource = plan.sign(
                generate(), why="signed by the user of a scikit-learn estimator", **self._research()
            )
        elif self.trust is None or self.ledger is None:
            raise InvalidInput("manifest", "(given)", "needs trust= and ledger= as well", "give all three")
        else:
            budget = self.manifest
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SelfSigned)  # said above, once
            self._keep(plan.train(budget, trust=self.trust, ledger=self.ledger))
        self._warn_if_empty()
        return self

    def plan(
        self, X: ArrayLike, y: ArrayLike, sensitive_features: ArrayLike | None = None, user_id: ArrayLike | None = None
    ) -> Plan:
        """What `fit` would train, as a `privfair.Plan`: to be signed by someone else, with `plan.request(path)`.

        Args: those of `fit`.
        """
        features, target = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(target)
        self.classes_, label = _coded("classes", target, self.classes)
        if len(self.classes_) < 2:
            raise ValueError("y holds one class only; a classifier needs records of at least two classes")
        self._low, self._high = self._bounds(features)
        columns: dict[str, NDArray[Any]] = {f"x{place}": features[:, place] for place in range(features.shape[1])}
        columns["label"] = label
        for role, given in (("sensitive_features", sensitive_features), ("user_id", user_id)):
            if given is not None and len(_rows(given)) != len(features):
                raise ValueError(f"{role} has {len(_rows(given))} rows, X has {len(features)}; give one per record")
        if sensitive_features is not None:
            self.groups_, columns["group"] = _coded("groups", _rows(sensitive_features), self.groups)
        if user_id is not None:
            columns["user"] = np.array([str(one) for one in _rows(user_id)])
        return self._plan_of(columns)

    def predict_proba(self, X: ArrayLike) -> Floats:
        """The probability of each class, in the order of `classes_`.

        Args:
            X: the features, one row per record.
        """
        check_is_fitted(self, "coef_")
        features: Floats = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = (np.clip(features, self._low, self._high) - self._low) / (self._high - self._low)
        with torch.no_grad():
            found = self._model.probabilities(torch.from_numpy(self._theta), torch.from_numpy(scaled))
        return np.asarray(found.numpy(), dtype=np.float64)

    def decision_function(self, X: ArrayLike) -> Floats:
        """Log odds of the second of two classes, else the log probability of each class.

        Args:
            X: the features, one row per record.
        """
        logs: Floats = np.log(np.clip(self.predict_proba(X), _LEAST, 1.0))
        return logs[:, 1] - logs[:, 0] if logs.shape[1] == 2 else logs

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most likely class of each record.

        Args:
            X: the features, one row per record.
        """
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(axis=1)])

    def audit(self, *, reruns: int | None = None, seed: int = 0, confidence: float | None = None) -> AuditReport:
        """Audit the run behind the last `fit`, as `privfair audit`.

        Args:
            reruns: how often the statistical attack runs the training again (4 by default); 0 leaves it out.
            seed: of the auditor's coins.
            confidence: of the lower bound on epsilon; by default what suits the algorithm (0.95; pay-once 0.999).
        """
        check_is_fitted(self, "coef_")
        if self.model_ is None:
            raise InvalidInput(
                "audit",
                "(a copy)",
                "needs the run, which is not pickled",
                "audit before, or save model_ with its save()",
            )
        return self.model_.audit(reruns=reruns, seed=seed, confidence=confidence)

    def _plan_of(self, columns: Mapping[str, NDArray[Any]]) -> Plan:
        """The plan of coded columns; what the user has not declared the plan reads off, and says so."""
        privacy: dict[str, object] = {}
        training: dict[str, object] = {}
        fair = self.protect == "record" and "group" in columns and len(self.classes_) == 2
        if self.learning_rate is not None:
            training["learning-rate"] = float(self.learning_rate)
        match self.protect:
            case "attribute":
                training["fairness"] = float(self.fairness)
            case "record" if fair:
                training["target-gap"] = float(self.target_gap)
            case "record":
                given = {"sampling-rate": self.sampling_rate, "clip": self.clip}
                privacy |= {key: float(value) for key, value in given.items() if value is not None}
            case "user":
                privacy["clip"] = 1.0 if self.clip is None else float(self.clip)
        features = [name for name in columns if name.startswith("x")]
        ends = zip(self._low.tolist(), self._high.tolist(), strict=True)
        return Plan.from_frames(
            {"data": dict(columns)},
            target="label",
            sensitive="group" if "group" in columns else None,
            user="user" if "user" in columns else None,
            classes=None if self.classes is None else _codes(len(self.classes_)),
            groups=None if self.groups is None or "group" not in columns else _codes(len(self.groups_)),
            protect=self.protect,
            algorithm="fair-plugin" if fair else None,
            epsilon=self.epsilon,
            delta=self.delta,
            features=features,
            bounds=None if self.bounds is None else dict(zip(features, ends, strict=True)),
            at_least=self.at_least,
            rounds=self.rounds,
            dataset=self.dataset,
            privacy=privacy,
            training=training,
            seed=_seed(self.random_state),
        )

    def _bounds(self, X: Floats) -> tuple[Floats, Floats]:
        if self.bounds is None:
            low, high = X.min(axis=0), X.max(axis=0)
            return low, np.where(low < high, high, low + 1.0)
        return _broadcast(self.bounds, X.shape[1])

    def _research(self) -> Any:
        return {"unsafe_seeded_research_noise": True} if self.unsafe_seeded_research_noise else {}

    def _keep(self, trained: TrainedModel) -> None:
        self.model_: TrainedModel | None = trained
        self.promise_: RunPromise = trained.promise
        self.manifest_: BudgetDocument = trained.budget.document
        plan = read_training_plan(RunFolder(trained.folder).plan)
        self._model = build_model(plan.model, (self.n_features_in_,), len(self.classes_))
        theta = load_theta(RunFolder(trained.folder), self._model)
        self._theta: Floats = theta.numpy().copy()
        # Of a fair rule these are the coefficients of its score, of scaled features where scales were paid for; the
        # group's, the pulls and the scales stay in the run.
        inside = self._model.inner if isinstance(self._model, ScaledModel) else self._model
        score = inside.score if isinstance(inside, FairRule) else inside
        named = score.named_parameters(theta[: score.size])
        self.coef_, self.intercept_ = (value.detach().numpy().copy() for value in named.values())
        self.n_iter_ = trained.result.record.rounds.steps

    def _warn_if_empty(self) -> None:
        """No record was held out, and none of X may tell, so the model is asked about points within the bounds."""
        points = np.random.default_rng(0).uniform(self._low, self._high, (_POINTS, self.n_features_in_))
        answers = np.unique(self.predict(points))
        if len(answers) == 1:
            warnings.warn(
                f"EMPTY MODEL: it answers {str(answers[0])!r} to every record of {_POINTS} drawn within the bounds of "
                "its features. Its gaps are small because it tells no one apart, not because it is fair",
                EmptyModel,
                stacklevel=3,
            )

    def __getstate__(self) -> dict[str, object]:
        """A copy predicts and knows its promise; the run behind it stays where it is."""
        state = dict(super().__getstate__())
        if "model_" in state:
            state["model_"] = None
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = not self.unsafe_seeded_research_noise
        tags.classifier_tags.poor_score = True  # a promise costs accuracy on a hundred records
        return tags


def _broadcast(bounds: tuple[ArrayLike, ArrayLike], features: int) -> tuple[Floats, Floats]:
    low, high = (np.broadcast_to(np.asarray(end, dtype=np.float64), features).copy() for end in bounds)
    return low, high


def _fitted_on_records(estimator: PrivateFairClassifier) -> list[str]:
    """The steps before this estimator in the pipeline that is fitting it, but for those that learn nothing."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if isinstance(caller, Pipeline) and caller.steps[-1][1] is estimator:
            learning = ((name, step) for name, step in caller.steps[:-1] if step not in (None, "passthrough"))
            return [name for name, step in learning if not isinstance(step, PublicScaler | FunctionTransformer)]
    return []


def _coded(argument: str, values: NDArray[Any], known: Sequence[Any] | None) -> tuple[NDArray[Any], NDArray[np.str_]]:
    """The distinct values, and for each value the code of its place among them."""
    if known is None:
        found, places = np.unique(values, return_inverse=True)
        return found, np.array(_codes(len(found)))[places]
    listed = np.asarray(known)
    order = np.argsort(listed)
    places = order[np.minimum(np.searchsorted(listed, values, sorter=order), len(listed) - 1)]
    if not np.array_equal(listed[places], values):
        raise InvalidInput(argument, list(known), "does not list every value of the data", "list all that can occur")
    return listed, np.array(_codes(len(listed)))[places]


def _codes(number: int) -> list[str]:
    """Names that sort as the numbers do."""
    return [f"{place:06d}" for place in range(number)]


def _rows(values: ArrayLike) -> NDArray[Any]:
    """One value per record; several columns become one text."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] > 1:
        return np.array([", ".join(str(cell) for cell in row) for row in array])
    return np.asarray(column_or_1d(array))


def _seed(state: Any) -> int:
    """A number from scikit-learn's random_state."""
    if state is None:
        return 0
    if isinstance(state, int | np.integer):
        return int(state) % _SEEDS
    return int(state.randint(_SEEDS)) if hasattr(state, "randint") else int(state.integers(_SEEDS))
