"""White-box attribute inference, on an overfit torch network and on signals that can be worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from audit.models.attribute_attacks import WHITE_BOX, YEOM, AttributeRecords
from audit.models.attribute_audit import AttributeOptions, attribute_inference
from audit.models.attribute_targets import ModuleWeights, RunModel
from audit.report.results import AttributeFinding
from calibrate.errors import InvalidInput
from privfair.models.linear import LogisticRegression
from tests.audit.attribute_cases import as_input, population

TWO = AttributeOptions(attacks=(YEOM, WHITE_BOX))


def _overfit(records: AttributeRecords, steps: int) -> nn.Module:
    """A network with more parameters than records, trained to its end on labels that are partly chance."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(records.features.shape[1], 96), nn.ReLU(), nn.Linear(96, 2))
    x = torch.from_numpy(records.features).float()
    y = torch.from_numpy(records.labels)
    descent = torch.optim.Adam(module.parameters(), lr=0.02)
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        descent.step()
    return module


def test_signals_of_a_module_are_the_last_layers_gradient() -> None:
    random = np.random.default_rng(0)
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    x, y = random.normal(size=(6, 3)), random.integers(0, 4, 6)
    signals = ModuleWeights(module).signals(x, y)
    assert signals.shape == (6, 5 + 4 + 1 + 1)
    for row in range(6):
        module.zero_grad()
        loss = nn.functional.cross_entropy(module(torch.from_numpy(x[row : row + 1])), torch.tensor([y[row]]))
        loss.backward()
        last = module[2]
        norm = torch.cat([last.weight.grad.flatten(), last.bias.grad]).norm()
        assert signals[row, -2] == pytest.approx(float(loss.detach()))
        assert signals[row, -1] == pytest.approx(float(norm))


def test_a_module_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="linear layer"):
        ModuleWeights(nn.Sequential(nn.ReLU()))


def test_signals_of_a_runs_model_are_scores_loss_and_gradient_norm() -> None:
    model = LogisticRegression(3, 2)
    theta = torch.from_numpy(np.random.default_rng(1).normal(size=model.size))
    x = np.random.default_rng(2).normal(size=(4, 3))
    y = np.array([0, 1, 1, 0])
    target = RunModel(model, theta, torch.float64)
    signals, found = target.signals(x, y), target.probabilities(x)
    assert signals[:, 2] == pytest.approx(-np.log(found[np.arange(4), y]))
    off = np.abs(found[:, 1] - y)
    assert signals[:, 3] == pytest.approx(off * np.sqrt(1 + np.square(x).sum(axis=1)))


@pytest.mark.slow
def test_an_overfit_network_leaks_and_an_early_one_does_not() -> None:
    random = np.random.default_rng(8)
    members, others = population(random, 500, 2, False), population(random, 900, 2, False)
    attribute = as_input(2, False)
    overfit = attribute_inference(ModuleWeights(_overfit(members, 400)), attribute, members, others, TWO)
    assert overfit.finding is AttributeFinding.LEAKAGE
    assert WHITE_BOX.name in {one.name for one in overfit.attacks}
    early = attribute_inference(ModuleWeights(_overfit(members, 10)), attribute, members, others, TWO)
    assert early.finding is AttributeFinding.NONE_FOUND
