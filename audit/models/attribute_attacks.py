"""Attribute attacks: the records they are asked about, what each is given, the published ones, and those that learn.

Records name where the sensitive attribute stands among the model's inputs. Attacks that learn are taught by members
whose attribute the attacker knows.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, assert_never, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class SensitiveInput:
    """The model's input columns that spell the attribute, and what stands there for each value.

    One column with a number per value, or one column per value (one-hot): both are a table of values x columns.
    """

    columns: tuple[int, ...]
    spelling: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.columns or any(len(row) != len(self.columns) for row in self.spelling):
            raise InvalidInput(
                "spelling",
                self.spelling,
                f"must give {len(self.columns)} numbers for every value",
                "give one number for each column of the attribute",
            )
        if len(set(self.spelling)) != len(self.spelling):
            raise InvalidInput("spelling", self.spelling, "must tell the values apart", "spell each value differently")

    def write(self, features: Floats, value: int) -> Floats:
        """The same records, each with this value of the attribute."""
        changed = np.array(features, dtype=np.float64)
        changed[:, list(self.columns)] = self.spelling[value]
        return changed


@dataclass(frozen=True)
class Attribute:
    """The attribute in question: its values, and how the model sees it (None: it is not an input of the model)."""

    name: str
    values: tuple[str, ...]
    input: SensitiveInput | None = None

    def __post_init__(self) -> None:
        if len(self.values) < 2:
            raise InvalidInput(
                "values", self.values, "must be at least two", "an attribute with one value has no secret"
            )
        if self.input is not None and len(self.input.spelling) != len(self.values):
            raise InvalidInput(
                "spelling",
                self.input.spelling,
                f"must have a row for each of {len(self.values)} values",
                "spell every value",
            )

    def candidates(self, features: Floats) -> tuple[Floats, ...]:
        """The inputs to ask the model: one version per value, or the features as they are if it is not an input."""
        if self.input is None:
            return (np.asarray(features, dtype=np.float64),)
        return tuple(self.input.write(features, value) for value in range(len(self.values)))

    def others(self, features: Floats) -> Floats:
        """All that is known of a record but its attribute."""
        if self.input is None:
            return np.asarray(features, dtype=np.float64)
        return np.delete(np.asarray(features, dtype=np.float64), list(self.input.columns), axis=1)


@dataclass(frozen=True, eq=False)
class Asked:
    """Records without their attribute: all an attack gets to see."""

    features: Floats
    labels: Codes

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class AttributeRecords:
    """Records with their attribute, as a number by `Attribute.values`."""

    features: Floats
    labels: Codes
    sensitive: Codes

    def __post_init__(self) -> None:
        sizes = {len(self.features), len(self.labels), len(self.sensitive)}
        if len(sizes) != 1:
            raise InvalidInput(
                "records", sorted(sizes), "features, labels and attribute must be alike long", "check them"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, which: NDArray[np.int64]) -> AttributeRecords:
        return AttributeRecords(self.features[which], self.labels[which], self.sensitive[which])

    def asked(self, attribute: Attribute) -> Asked:
        """The records with the first value write in place of the attribute, so that no attack can peek."""
        if attribute.input is None:
            return Asked(self.features, self.labels)
        return Asked(attribute.input.write(self.features, 0), self.labels)

    def halves(self, random: np.random.Generator, most: int) -> tuple[AttributeRecords, AttributeRecords]:
        """A random half to learn from and the other to be judged by; at most `most` records in all."""
        order = random.permutation(len(self))[:most]
        middle = len(order) // 2
        return self.rows(order[:middle]), self.rows(order[middle:])


def join(first: AttributeRecords, second: AttributeRecords) -> AttributeRecords:
    """The records of both, the first ones first."""
    return AttributeRecords(
        np.concatenate([first.features, second.features]),
        np.concatenate([first.labels, second.labels]),
        np.concatenate([first.sensitive, second.sensitive]),
    )


# What an attack may ask of a model.


class AttributeTarget(Protocol):
    """A classifier that answers with probabilities: all that a black-box attack needs."""

    def probabilities(self, features: Floats) -> Floats:
        """One row per record, one column per class."""
        ...


@runtime_checkable
class WhiteBoxTarget(AttributeTarget, Protocol):
    """A classifier whose weights are available."""

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """What only the weights tell, one row per record: activations, scores, the norm of the loss gradient."""
        ...


# What every attribute attack is given, and what it must do.

Guess = Callable[[Asked], Codes]
"""From records without their attribute to one guess each; each record by itself, so that guesses are independent."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the attacker has: the model, and some members with their attribute, none of which is asked about."""

    target: AttributeTarget
    attribute: Attribute
    known_members: AttributeRecords
    classes: int
    seed: int

    @property
    def prior(self) -> Floats:
        """How frequent each value is among the records the attacker knows; never zero."""
        counts = np.bincount(self.known_members.sensitive, minlength=len(self.attribute.values)) + 1.0
        return np.asarray(counts / counts.sum(), dtype=np.float64)

    def context(self, asked: Asked) -> Floats:
        """What is known of a record without the model: its other features and its label."""
        return np.hstack([self.attribute.others(asked.features), np.eye(self.classes)[asked.labels]])

    def answers(self, asked: Asked) -> Floats:
        """The model's probabilities for every candidate value: candidates x records x classes."""
        return np.stack([self.target.probabilities(version) for version in self.attribute.candidates(asked.features)])

    def confidences(self, asked: Asked) -> Floats:
        """The probability of each record's true label, for every candidate value: records x candidates."""
        answers = self.answers(asked)
        return np.asarray(answers[:, np.arange(len(asked)), asked.labels].T, dtype=np.float64)


@final
@dataclass(frozen=True)
class AttributeAttack:
    """One way to guess the attribute."""

    name: str
    learn: Callable[[Knowledge], Guess]
    """Everything that happens before the first record is asked about."""
    obstacle: Callable[[Knowledge], str | None] = lambda knowledge: None
    """Why the attack cannot be made here; None if it can."""


def needs_input(knowledge: Knowledge) -> str | None:
    """The obstacle of attacks that ask the model about every value in turn."""
    if knowledge.attribute.input is None:
        return f"{knowledge.attribute.name} is not an input of the model, so its values cannot be tried out"
    return None


def _yeom(knowledge: Knowledge) -> Guess:
    """The argmax over v of p(label | record with v) * prior(v)."""
    return lambda asked: np.asarray((knowledge.confidences(asked) * knowledge.prior).argmax(axis=1), dtype=np.int64)


def _csmia(knowledge: Knowledge) -> Guess:
    """Some values right: the most confident of them. None right: the least confident."""

    def guess(asked: Asked) -> Codes:
        answers = knowledge.answers(asked)
        right = (answers.argmax(axis=2) == asked.labels).T
        firmness = answers.max(axis=2).T
        among_right = np.where(right, firmness, -np.inf).argmax(axis=1)
        return np.asarray(np.where(right.any(axis=1), among_right, firmness.argmin(axis=1)), dtype=np.int64)

    return guess


_SHARE_TO_CHOOSE = 0.25
"""Of the records, for choosing a classifier. A weak imputation would make every attack look strong, so a linear and a
boosted-tree one compete on records set aside for it."""
_LEAST_TO_CHOOSE = 40


class AttackModel(Enum):
    LINEAR = "logistic regression"
    TREES = "boosted trees"


@dataclass(frozen=True, eq=False)
class Classifier:
    """Probabilities of every value, for values numbered 0 to `values - 1`."""

    fitted: Any
    values: int

    def probabilities(self, inputs: Floats) -> Floats:
        found = np.zeros((len(inputs), self.values))
        if isinstance(self.fitted, int):
            found[:, self.fitted] = 1.0
        else:
            found[:, self.fitted.classes_] = self.fitted.predict_proba(inputs)
        return found

    def guesses(self, inputs: Floats) -> Codes:
        return np.asarray(self.probabilities(inputs).argmax(axis=1), dtype=np.int64)


def fit_classifier(inputs: Floats, codes: Codes, values: int, seed: int) -> Classifier:
    """Learn codes from inputs; deterministic for a seed. One value only gives a constant answer."""
    present = np.unique(codes)
    if len(present) == 0:
        raise InvalidInput("codes", "none", "must not be empty", "give records to learn from")
    if len(present) == 1:
        return Classifier(int(present[0]), values)
    order = np.random.default_rng(seed).permutation(len(codes))
    aside = int(_SHARE_TO_CHOOSE * len(codes))
    chosen = AttackModel.LINEAR
    if aside >= _LEAST_TO_CHOOSE:
        judge, learn = order[:aside], order[aside:]
        if len(np.unique(codes[learn])) > 1:
            trials = {kind: _fit(kind, inputs[learn], codes[learn], seed) for kind in AttackModel}
            chosen = max(AttackModel, key=lambda kind: np.mean(trials[kind].predict(inputs[judge]) == codes[judge]))
    return Classifier(_fit(chosen, inputs, codes, seed), values)


def _fit(kind: AttackModel, inputs: Floats, codes: Codes, seed: int) -> Any:
    try:
        from sklearn import ensemble, exceptions, linear_model, pipeline, preprocessing
    except ImportError:
        raise InvalidInput(
            "attribute inference",
            "scikit-learn",
            "is needed for the imputation baseline and is not installed",
            "pip install 'privfair[audit]'",
        ) from None
    match kind:
        case AttackModel.LINEAR:
            with warnings.catch_warnings():
                # A descent stopped early is a classifier too, and which one wins is judged by its hits.
                warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
                descent = linear_model.LogisticRegression(max_iter=300)
                return pipeline.make_pipeline(preprocessing.StandardScaler(), descent).fit(inputs, codes)
        case AttackModel.TREES:
            trees = ensemble.HistGradientBoostingClassifier(
                max_iter=60, max_leaf_nodes=15, early_stopping=False, random_state=seed
            )
            return trees.fit(inputs, codes)
        case _:
            assert_never(kind)


_SMALLEST = 1e-12


def _learn_from(look: Callable[[Knowledge, Asked], Floats], knowledge: Knowledge) -> Guess:
    known = knowledge.known_members
    classifier = fit_classifier(
        look(knowledge, known.asked(knowledge.attribute)),
        known.sensitive,
        len(knowledge.attribute.values),
        knowledge.seed,
    )
    return lambda asked: classifier.guesses(look(knowledge, asked))


def _outputs(knowledge: Knowledge, asked: Asked) -> Floats:
    scores = np.log(np.maximum(knowledge.answers(asked), _SMALLEST))
    of_label = scores[:, np.arange(len(asked)), asked.labels]
    return np.hstack([knowledge.context(asked), *scores, of_label.T, _against_mean(of_label).T])


def _everything(knowledge: Knowledge, asked: Asked) -> Floats:
    assert isinstance(knowledge.target, WhiteBoxTarget)
    signals = np.stack(
        [knowledge.target.signals(version, asked.labels) for version in knowledge.attribute.candidates(asked.features)]
    )
    return np.hstack([_outputs(knowledge, asked), *signals, *_against_mean(signals)])


def _against_mean(candidates: Floats) -> Floats:
    """Each candidate against their mean: trees split one column at a time and would not find a difference."""
    return candidates - candidates.mean(axis=0) if len(candidates) > 1 else candidates[:0]


def _lomia(knowledge: Knowledge) -> Guess:
    """Labels only. Where exactly one value makes the model predict the true label, that value is the guess.

    Such records teach a classifier what to guess elsewhere. It is taught by the members the attacker knows, with the
    model's word for their attribute and not their true one, so that asked records stay independent of one another.
    """
    known, values = knowledge.known_members.asked(knowledge.attribute), len(knowledge.attribute.values)
    taught, told = _only_value(knowledge, known)
    classifier = Classifier(int(knowledge.prior.argmax()), values)
    if taught.any():
        teachers = Asked(known.features[taught], known.labels[taught])
        classifier = fit_classifier(knowledge.context(teachers), told[taught], values, knowledge.seed)

    def guess(asked: Asked) -> Codes:
        one, which = _only_value(knowledge, asked)
        return np.where(one, which, classifier.guesses(knowledge.context(asked))).astype(np.int64)

    return guess


def _only_value(knowledge: Knowledge, asked: Asked) -> tuple[NDArray[np.bool_], Codes]:
    """Whether one value alone gives the true label, and which."""
    right = (knowledge.answers(asked).argmax(axis=2) == asked.labels).T
    return right.sum(axis=1) == 1, np.asarray(right.argmax(axis=1), dtype=np.int64)


def _needs_weights(knowledge: Knowledge) -> str | None:
    return None if isinstance(knowledge.target, WhiteBoxTarget) else "the model's weights are not at hand"


YEOM = AttributeAttack("Yeom", _yeom, needs_input)
"""Attribute inference by confidence (Yeom et al., CSF 2018): the value that makes the true label most likely."""
CSMIA = AttributeAttack("CSMIA", _csmia, needs_input)
LOMIA = AttributeAttack("LOMIA", _lomia, needs_input)
"""Mehnaz et al., USENIX Security 2022."""
LEARNED_FROM_OUTPUTS = AttributeAttack("learned from outputs", partial(_learn_from, _outputs))
"""Black box: from features, label and the model's probabilities for every candidate value."""
WHITE_BOX = AttributeAttack("white box", partial(_learn_from, _everything), _needs_weights)
"""From what the weights tell as well: activations, scores and the norm of the loss gradient.

Jayaraman and Evans (CCS 2022) look for single neurons that follow the attribute; here a classifier weighs all.
"""
ALL_ATTACKS = (YEOM, CSMIA, LOMIA, LEARNED_FROM_OUTPUTS, WHITE_BOX)
