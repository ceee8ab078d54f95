"""FPFL: the users' vectors, the multipliers, and the step, against their equations."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.algorithms.baselines.averaging import GRADIENT, FedSgd
from privfair.algorithms.fpfl import STATISTICS, Fpfl, FpflOptions, FpflState, ModelChoice
from privfair.algorithms.parts.descent import DescentRule
from privfair.contribution import Published
from privfair.fairness.constraints import FairnessNotion, RateSums, RateValue, rates_of, violations
from privfair.models.exact import Bits
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from privfair.plan.sections import GradientOptions
from privfair.rounding import ROUNDING_SLACK
from tests.privfair.plain_models import ROUNDED, Plain

FEATURES, USERS = 3, 20


def _silo(classes: int = 2, groups: int = 2, records: int = 60, seed: int = 0) -> SiloTensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, FEATURES, generator=generator, dtype=torch.float64)
    s = torch.randint(0, groups, (records,), generator=generator)
    y = torch.randint(0, classes, (records,), generator=generator)
    x[:, 0] += 1.5 * s * y + 0.7 * s + 0.7 * y
    owner = torch.randint(0, USERS, (records,), generator=generator)
    return SiloTensors("users", x, y, s, owner)


def _received(message: Message) -> dict[str, dict[str, Published]]:
    sent = {c.name: c.values for c in message.noisy} | dict(message.clear or {})
    return {"users": {name: Published(0, "users", name, values.copy()) for name, values in sent.items()}}


def _fpfl(model: Model | None = None, groups: int = 2, clip: float | None = None, **options: object) -> Fpfl:
    records = options.pop("records", 60)
    given = {"records_per_user": records / USERS} | options
    return Fpfl(
        model or LogisticRegression(FEATURES),
        FpflOptions(**given),
        groups,
        float(USERS),
        clip,  # type: ignore[arg-type]
    )


def _state(theta: Tensor, multipliers: np.ndarray, best: Tensor, best_accuracy: float) -> FpflState:
    return FpflState(DescentRule().start(theta), multipliers, best, best_accuracy)


def _step(algorithm: Fpfl, state: FpflState, silo: SiloTensors, cohort: Tensor) -> FpflState:
    return algorithm.update(state, _received(algorithm.contribution(state, 0, silo, cohort)))


def _lagrangian(
    algorithm: Fpfl, theta: Tensor, multipliers: np.ndarray, silo: SiloTensors, notion: FairnessNotion
) -> Tensor:
    """phi + lambda . g + (damping / 2) |g|^2 on all records, straight from the definitions."""
    model, options = Plain(algorithm.model), algorithm.options
    probabilities = model.probabilities(theta, silo.x)
    value = torch.nn.functional.nll_loss(probabilities.log(), silo.y)
    for j, rate in enumerate(rates_of(notion, model.classes, options.positive_class)):
        inside = rate.members(silo.y)
        directions = rate.directions(silo.y, model.classes)
        f = (directions * probabilities).sum(dim=1) + rate.offset
        overall = f[inside].mean()
        for a in range(algorithm.groups):
            gap = (overall - f[inside & (silo.s == a)].mean()).abs()
            g = (gap - options.tolerance).clamp_min(0.0)
            value = value + multipliers[j, a] * g + options.damping / 2 * g**2
    return value


@pytest.mark.parametrize("notion", [each for each in FairnessNotion if each is not FairnessNotion.NONE])
@pytest.mark.parametrize("kind", ["logistic", "perceptron", "three classes", "three groups"])
def test_the_step_is_the_gradient_of_the_augmented_lagrangian(notion: FairnessNotion, kind: str) -> None:
    """By central differences, with the multipliers after their ascent, as Algorithm 1 orders the two."""
    classes, groups = (3 if kind == "three classes" else 2), (3 if kind == "three groups" else 2)
    hidden = kind in ("perceptron", "three classes")
    net = Perceptron(FEATURES, (4,), classes, bits=Bits.LARGEST)
    model: Model = net if hidden else LogisticRegression(FEATURES, classes)
    silo = _silo(classes, groups, records=90)
    algorithm = _fpfl(
        model,
        groups,
        records=90,
        notion=notion,
        rate_value=RateValue.PROBABILITIES,
        tolerance=0.001,
        damping=3.0,
        multiplier_rate=0.5,
        learning_rate=1.0,
    )
    generator = torch.Generator().manual_seed(3)
    theta = model.initial(1) + 0.5 * torch.randn(model.size, generator=generator, dtype=torch.float64)
    multipliers = np.linspace(0.1, 0.9, len(algorithm.rates) * groups).reshape(-1, groups)
    state = _state(theta, multipliers, theta, -1.0)
    following = _step(algorithm, state, silo, torch.arange(USERS))
    assert (following.multipliers > multipliers).any()
    step = 1e-6
    for place in range(0, model.size, max(1, model.size // 7)):
        shift = torch.zeros_like(theta)
        shift[place] = step
        up, down = (
            _lagrangian(algorithm, theta + sign * shift, following.multipliers, silo, notion) for sign in (1, -1)
        )
        slope = float(up - down) / (2 * step)
        assert float(theta[place] - following.descent.theta[place]) == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_multipliers_ascend_by_the_violations() -> None:
    silo, notion = _silo(), FairnessNotion.DEMOGRAPHIC_PARITY
    algorithm = _fpfl(notion=notion, rate_value=RateValue.PREDICTIONS, tolerance=0.05, multiplier_rate=0.3)
    theta = torch.tensor([1.0, -0.5, 0.2, 0.1], dtype=torch.float64)
    following = _step(algorithm, _state(theta, np.zeros((1, 2)), theta, -1.0), silo, torch.arange(USERS))
    positive = (algorithm.model.probabilities(theta, silo.x)[:, 1] > 0.5).double()
    gaps = np.array([abs(float(positive.mean() - positive[silo.s == a].mean())) for a in (0, 1)])
    assert (gaps > 0.05).any()
    np.testing.assert_allclose(following.multipliers[0], 0.3 * np.maximum(0, gaps - 0.05), rtol=1e-9)


@pytest.mark.parametrize("notion", list(FairnessNotion))
def test_tolerance_one_is_fedsgd(notion: FairnessNotion) -> None:
    """FPFL with tolerance 1, and FL, follow FedSGD on the same records step for step."""
    silo = _silo()
    ours = _fpfl(notion=notion, tolerance=1.0, learning_rate=0.3)
    theirs = FedSgd(ours.model, GradientOptions(learning_rate=0.3), {"users": 1.0})
    state, other = ours.start(), theirs.start()
    for step in range(5):
        state = _step(ours, state, silo, torch.arange(USERS))
        message = theirs.contribution(other, step, silo, torch.arange(len(silo)))
        assert message.clear is not None
        other = theirs.update(
            other, {"users": {GRADIENT: Published(step, "users", GRADIENT, np.array(message.clear[GRADIENT]))}}
        )
        np.testing.assert_allclose(ours.theta(state), theirs.theta(other), rtol=1e-10)
    assert not state.multipliers.any()


def test_the_whole_vector_of_each_user_is_clipped() -> None:
    silo, clip = _silo(), 1.5
    theta = torch.tensor([0.4, -0.3, 0.2, 0.0], dtype=torch.float64)
    plain = _fpfl(choice=ModelChoice.BEST_PUBLISHED)
    clipped = _fpfl(choice=ModelChoice.BEST_PUBLISHED, clip=clip)
    total, norms = np.zeros(plain.shapes()[STATISTICS]), []
    for user in range(USERS):
        state = _state(theta, np.zeros((1, 2)), theta, -1.0)
        alone = plain.contribution(state, 0, silo, torch.tensor([user])).clear
        assert alone is not None
        norm = float(np.linalg.norm(alone[STATISTICS]))
        norms.append(norm)
        total += alone[STATISTICS] * (min(1.0, clip / (1 + ROUNDING_SLACK) / norm) if norm else 1.0)
    assert min(norms) < clip < max(norms)
    (sent,) = clipped.contribution(state, 0, silo, torch.arange(USERS)).noisy
    np.testing.assert_allclose(sent.values, total, **ROUNDED)
    assert clip * (1 - 2e-5) < sent.measured <= clip


def test_one_user_moves_the_sum_by_at_most_the_clip() -> None:
    """Adding any user, however extreme, with one record or a thousand."""
    clip, silo = 0.7, _silo()
    algorithm = _fpfl(clip=clip, notion=FairnessNotion.EQUALISED_ODDS)
    state = algorithm.start()
    base = algorithm.contribution(state, 0, silo, torch.arange(USERS)).noisy[0].values
    for size, scale in itertools.product((1, 40, 1000), (0.0, 1.0, 1e6)):
        more = torch.full((size, FEATURES), scale, dtype=torch.float64)
        grown = SiloTensors(
            "users",
            torch.cat((silo.x, more)),
            torch.cat((silo.y, torch.ones(size, dtype=torch.int64))),
            torch.cat((silo.s, torch.zeros(size, dtype=torch.int64))),
            torch.cat((silo.unit_of_row, torch.full((size,), USERS))),  # type: ignore[arg-type]
        )
        moved = algorithm.contribution(state, 0, grown, torch.arange(USERS + 1)).noisy[0].values - base
        assert 0 < np.linalg.norm(moved) <= clip * (1 + 1e-9)


def test_a_cohort_counts_its_users_and_no_others() -> None:
    silo, algorithm = _silo(), _fpfl()
    state = algorithm.start()
    cohort = torch.tensor([17, 3, 11])
    parts = [
        algorithm.contribution(state, 0, silo, torch.tensor([int(user)])).clear[STATISTICS]  # type: ignore[index]
        for user in cohort
    ]
    together = algorithm.contribution(state, 0, silo, cohort).clear
    assert together is not None
    np.testing.assert_allclose(together[STATISTICS], sum(parts), rtol=1e-9)
    beyond = algorithm.contribution(state, 0, silo, torch.tensor([USERS + 500])).clear
    assert beyond is not None
    assert not beyond[STATISTICS].any(), "a user without records adds nothing"


def test_a_copy_of_a_user_has_the_users_records() -> None:
    """Units 3, 23 and 47 of a population of three copies are user 3 twice and user 7."""
    silo, algorithm = _silo(), _fpfl(clip=1.0)
    state = algorithm.start()
    population = replace(silo, users=3 * USERS, copies=3)
    assert population.units == 3 * USERS

    def sent(of: SiloTensors, cohort: list[int]) -> np.ndarray:
        (part,) = algorithm.contribution(state, 0, of, torch.tensor(cohort)).noisy
        return part.values

    once, other = sent(silo, [3]), sent(silo, [7])
    np.testing.assert_allclose(sent(population, [3, 3 + USERS, 7 + 2 * USERS]), 2 * once + other, atol=1e-12)


def test_blocks_of_users_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    silo, algorithm = _silo(), _fpfl(clip=1.0)
    state = algorithm.start()
    whole = algorithm.contribution(state, 0, silo, torch.arange(USERS)).noisy[0]
    monkeypatch.setattr("privfair.algorithms.parts.unit_sums._BLOCK", 1)
    blocks = algorithm.contribution(state, 0, silo, torch.arange(USERS)).noisy[0]
    np.testing.assert_allclose(blocks.values, whole.values, rtol=1e-10)
    assert blocks.measured == pytest.approx(whole.measured)


def test_small_and_negative_noisy_counts_are_guarded() -> None:
    gradients = np.ones((3, 2))
    sums = RateSums(np.array([5.0, 3.0, -2.0]), gradients, np.array([10.0, 0.4, -7.0]))
    found = violations(sums, 0.0, 1.0)
    assert np.isfinite(found.size).all()
    assert np.isnan(found.gaps[1:]).all()
    assert not found.gradient[1:].any()
    nothing = violations(RateSums(np.ones(2), np.ones((2, 2)), np.array([-3.0, 2.0])), 0.0, 1.0)
    assert not nothing.size.any()
    assert np.isnan(nothing.gaps).all()
    huge = violations(RateSums(np.array([90.0, 0.0]), np.ones((2, 2)), np.array([2.0, 2.0])), 0.0, 1.0)
    assert (huge.gaps <= 1).all(), "a rate lies in [0, 1]"


def _published(algorithm: Fpfl, rates: tuple[float, float], accuracy: float) -> dict[str, dict[str, Published]]:
    """Statistics of a hundred records in each group with the given rates and accuracy."""
    vector = np.zeros(algorithm.shapes()[STATISTICS])
    size = algorithm.model.size
    vector[size : size + 4] = [100 * rates[0], 100 * rates[1], 100, 100]
    vector[-2:] = [200, 200 * accuracy]
    return {"users": {STATISTICS: Published(0, "users", STATISTICS, vector)}}


def test_the_model_is_chosen_from_published_statistics() -> None:
    """Best accuracy among the fair ones; the statistics speak of the model before the step."""
    algorithm = _fpfl(choice=ModelChoice.BEST_PUBLISHED, tolerance=0.02, learning_rate=0.0001)
    state = algorithm.start()
    models = []
    for rates, accuracy in (((0.5, 0.1), 0.99), ((0.3, 0.31), 0.8), ((0.3, 0.29), 0.9), ((0.3, 0.3), 0.7)):
        models.append(state.descent.theta)
        state = algorithm.update(state, _published(algorithm, rates, accuracy))
        state = replace(state, descent=replace(state.descent, theta=state.descent.theta + 1.0))
    np.testing.assert_array_equal(algorithm.theta(state), models[2])
    assert state.best_accuracy == pytest.approx(0.9)
    last = _fpfl(choice=ModelChoice.LAST)
    np.testing.assert_array_equal(last.theta(state), state.descent.theta)


@pytest.mark.parametrize(
    ("notion", "value", "entries"),
    [
        (FairnessNotion.NONE, RateValue.PREDICTIONS, 2),
        (FairnessNotion.ACCURACY, RateValue.PREDICTIONS, 0),
        (FairnessNotion.ACCURACY, RateValue.PROBABILITIES, 1),
        (FairnessNotion.DEMOGRAPHIC_PARITY, RateValue.PREDICTIONS, 1),
        (FairnessNotion.FALSE_NEGATIVE_RATE, RateValue.PREDICTIONS, 2),
        (FairnessNotion.EQUALISED_ODDS, RateValue.PREDICTIONS, 0),
        (FairnessNotion.EQUALISED_ODDS, RateValue.PROBABILITIES, 1),
    ],
)
@pytest.mark.parametrize("positive", [0, 1])
def test_the_vector_holds_nothing_that_follows_from_the_rest(
    notion: FairnessNotion, value: RateValue, entries: int, positive: int
) -> None:
    """The model is chosen by the cohort's accuracy, with as few entries beside the rates as will do."""
    silo = _silo()
    algorithm = _fpfl(
        notion=notion,
        rate_value=value,
        choice=ModelChoice.BEST_PUBLISHED,
        tolerance=1.0,
        positive_class=positive,
        clip=1e6,
    )
    cells = len(algorithm.rates) * 2
    assert algorithm.shapes()[STATISTICS] == (4 * (1 + cells) + 2 * cells + entries,)
    theta = torch.tensor([1.0, -0.5, 0.2, 0.1], dtype=torch.float64)
    state = _state(theta, np.zeros((len(algorithm.rates), 2)), theta * 0, -1.0)
    cohort = torch.arange(3, 12)
    mine = torch.isin(silo.unit_of_row, cohort)
    right = algorithm.model.logits(theta, silo.x).argmax(dim=1) == silo.y
    following = _step(algorithm, state, silo, cohort)
    assert following.best_accuracy == pytest.approx(float(right[mine].double().mean()), abs=1e-5)
    plain = _step(
        _fpfl(
            notion=notion, rate_value=value, choice=ModelChoice.BEST_PUBLISHED, tolerance=1.0, positive_class=positive
        ),
        state,
        silo,
        cohort,
    )
    assert plain.best_accuracy == pytest.approx(following.best_accuracy, abs=1e-5)


def test_checkpoints_restore_the_state() -> None:
    silo, algorithm = _silo(), _fpfl(clip=1.0, choice=ModelChoice.BEST_PUBLISHED, tolerance=0.3)
    state = _step(algorithm, algorithm.start(), silo, torch.arange(USERS))
    again = algorithm.restore(algorithm.checkpoint(state))
    one, other = (_step(algorithm, each, silo, torch.arange(5)) for each in (state, again))
    for name, values in algorithm.checkpoint(one).items():
        np.testing.assert_array_equal(values, algorithm.checkpoint(other)[name])


def test_multipliers_close_a_gap_that_plain_learning_leaves() -> None:
    """On data where the group shifts the features, 300 full rounds of FFL end with a smaller gap than FL."""
    silo = _silo(records=400, seed=5)
    gaps = {}
    for notion in (FairnessNotion.NONE, FairnessNotion.DEMOGRAPHIC_PARITY):
        algorithm = _fpfl(
            records=400,
            notion=notion,
            tolerance=0.02,
            learning_rate=0.1,
            damping=2.0,
            multiplier_rate=0.1,
            rate_value=RateValue.PROBABILITIES,
        )
        state = algorithm.start()
        for _ in range(300):
            state = _step(algorithm, state, silo, torch.arange(USERS))
        positive = algorithm.model.probabilities(state.descent.theta, silo.x)[:, 1]
        gaps[notion] = max(abs(float(positive.mean() - positive[silo.s == a].mean())) for a in (0, 1))
    assert gaps[FairnessNotion.NONE] > 0.1
    assert gaps[FairnessNotion.DEMOGRAPHIC_PARITY] < 0.03


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="groups"):
        _fpfl(groups=1)
    with pytest.raises(InvalidInput, match="positive-class"):
        _fpfl(positive_class=2)
    with pytest.raises(InvalidInput, match="tolerance"):
        FpflOptions(tolerance=-0.1)
    for weights in (((1.0, 1.0),), ((1.0,), (1.0,)), ((1.0, 1.0), (1.0, 1.0, 1.0))):
        with pytest.raises(InvalidInput, match="one for each group, for each of the 2 classes"):
            _fpfl(group_weight=weights)
    with pytest.raises(InvalidInput, match="group-weight"):
        FpflOptions(group_weight=((1.0, 1.0), (0.0, 1.0)))


@pytest.mark.parametrize("kind", ["logistic", "perceptron"])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_records_that_are_not_finite_add_no_gradient(bad: float, clip: float | None, kind: str) -> None:
    """Every record of users 1 and 4: their gradients are zero, and the rest of their vectors is finite."""
    model: Model = Perceptron(FEATURES, (4,)) if kind == "perceptron" else LogisticRegression(FEATURES)
    silo, algorithm, cohort = _silo(), _fpfl(model, clip=clip), torch.arange(8)
    assert silo.unit_of_row is not None
    broken = silo.x.clone()
    broken[torch.isin(silo.unit_of_row, torch.tensor([1, 4])), 1] = bad
    state = algorithm.start()

    def sent(x: Tensor, users: Tensor) -> np.ndarray:
        message = algorithm.contribution(state, 0, replace(silo, x=x), users)
        return np.asarray(message.noisy[0].values if message.clear is None else message.clear[STATISTICS])

    found, others = sent(broken, cohort), sent(silo.x, torch.tensor([0, 2, 3, 5, 6, 7]))
    assert np.isfinite(found).all()
    gradients = np.ones(len(found), dtype=bool)
    gradients[model.size : model.size + 2 * len(algorithm.rates) * 2] = False  # sums and numbers of each rate's groups
    np.testing.assert_allclose(found[gradients], others[gradients], rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(sent(silo.x, cohort)[gradients] - others[gradients]) > 0.01


@pytest.mark.parametrize("clip", [None, 1e9])
def test_a_weighted_group_counts_in_the_loss_as_if_its_records_came_more_often(clip: float | None) -> None:
    """Positive records of group 0 three times and class 1 twice: six times where both hold; the rates are as before."""
    silo = replace(_silo(), unit_of_row=None)
    model, everybody = LogisticRegression(FEATURES), torch.arange(len(silo))
    weighted = _fpfl(model, clip=clip, group_weight=((1.0, 1.0), (3.0, 1.0)), class_weight=(1.0, 2.0))
    often = torch.where(silo.y == 0, 1, torch.where(silo.s == 0, 6, 2))
    plain = _fpfl(model, clip=clip)
    sums = []
    for algorithm, cohort in ((weighted, everybody), (plain, everybody.repeat_interleave(often)), (plain, everybody)):
        message = algorithm.contribution(algorithm.start(), 0, silo, cohort)
        sums.append(message.noisy[0].values if message.clear is None else message.clear[STATISTICS])
    np.testing.assert_allclose(sums[0][: model.size], sums[1][: model.size], rtol=1e-12)
    np.testing.assert_array_equal(sums[0][model.size :], sums[2][model.size :])
    assert not np.allclose(sums[0][: model.size], sums[2][: model.size])


@pytest.mark.parametrize("kind", ["logistic", "perceptron"])
def test_no_weight_carries_a_user_over_the_clip(kind: str) -> None:
    """A group that counts a thousand times: leaving any user out moves the sum by at most the signed clip."""
    model: Model = Perceptron(FEATURES, (4,)) if kind == "perceptron" else LogisticRegression(FEATURES)
    silo, clip, everybody = _silo(), 0.7, torch.arange(USERS)
    algorithm = _fpfl(model, clip=clip, group_weight=((1.0, 1e3), (1e3, 1e-3)))
    state = algorithm.start()
    (whole,) = algorithm.contribution(state, 0, silo, everybody).noisy
    moved = []
    for user in range(USERS):
        (rest,) = algorithm.contribution(state, 0, silo, everybody[everybody != user]).noisy
        moved.append(float(np.linalg.norm(whole.values - rest.values)))
    assert 0.99 * clip < max(moved) <= clip
    assert whole.measured <= clip


def test_momentum_cosine_and_the_mean_of_the_tail_are_those_of_the_descent_rule() -> None:
    """Eight rounds by hand, through checkpoints; the model is the mean of the last quarter."""
    silo, rate, momentum, rounds = _silo(), 0.5, 0.9, 8
    options = FpflOptions(
        learning_rate=rate,
        momentum=momentum,
        cosine=True,
        notion=FairnessNotion.NONE,
        choice=ModelChoice.TAIL_AVERAGE,
        records_per_user=3.0,
    )
    algorithm = Fpfl(LogisticRegression(FEATURES), options, 2, float(USERS), 2.0, rounds=rounds)
    state = algorithm.start()
    theta, velocity, models = algorithm.theta(state), torch.zeros(4, dtype=torch.float64), []
    for step in range(rounds):
        (sent,) = algorithm.contribution(state, step, silo, torch.arange(USERS)).noisy
        velocity = momentum * velocity + torch.from_numpy(sent.values) / (3.0 * USERS)
        theta = theta - rate * (1 + math.cos(math.pi * step / rounds)) / 2 * (1 - momentum) * velocity
        models.append(theta)
        state = _step(algorithm, state, silo, torch.arange(USERS))
        state = algorithm.restore(algorithm.checkpoint(state))
        np.testing.assert_allclose(state.descent.theta, theta, rtol=1e-12)
    np.testing.assert_allclose(algorithm.theta(state), (models[-1] + models[-2]) / 2, rtol=1e-12)


@pytest.mark.parametrize("kind", ["logistic", "perceptron", "three groups"])
@pytest.mark.parametrize("notion", list(FairnessNotion))
def test_without_a_clip_the_sums_are_those_of_a_clip_that_never_bites(notion: FairnessNotion, kind: str) -> None:
    """The two ways to add users up agree, on some of them and on nobody."""
    groups = 3 if kind == "three groups" else 2
    model: Model = Perceptron(FEATURES, (4,)) if kind == "perceptron" else LogisticRegression(FEATURES)
    silo = _silo(groups=groups)
    options = {"notion": notion, "choice": ModelChoice.BEST_PUBLISHED}
    plain, never = _fpfl(model, groups, None, **options), _fpfl(model, groups, 1e9, **options)
    for cohort in (torch.arange(7), torch.arange(0)):
        state = plain.start()
        clear = (plain.contribution(state, 0, silo, cohort).clear or {})[STATISTICS]
        (noisy,) = never.contribution(state, 0, silo, cohort).noisy
        np.testing.assert_allclose(clear, noisy.values, rtol=1e-8, atol=1e-8)


def test_the_smoothed_model_is_a_plain_mean_at_first_and_an_exponential_one_later() -> None:
    silo = _silo()
    algorithm = _fpfl(choice=ModelChoice.SMOOTHED, smoothing=0.25)
    state, models = algorithm.start(), []
    for _ in range(6):
        state = _step(algorithm, state, silo, torch.arange(USERS))
        models.append(state.descent.theta)
        state = algorithm.restore(algorithm.checkpoint(state))
        if len(models) == 4:
            np.testing.assert_allclose(algorithm.theta(state), torch.stack(models).mean(dim=0), rtol=1e-12)
    wanted = torch.stack(models[:4]).mean(dim=0)
    for model in models[4:]:
        wanted = 0.75 * wanted + 0.25 * model
    np.testing.assert_allclose(algorithm.theta(state), wanted, rtol=1e-12)
