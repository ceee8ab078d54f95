"""Training functions of strangers, right and wrong: numpy, scikit-learn, Opacus. None knows of privfair."""

from __future__ import annotations

from typing import Any

import numpy as np

from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Batch, Poisson

RATE, STEPS = 0.05, 30
SIGMA_OF_ONE = 1.49
"""At least the noise multiplier of epsilon 1 at delta 1e-5 for this rate and number of steps."""
DECLARED = Repeated(Sampled(Poisson(RATE, Batch.SECRET), Gaussian(SIGMA_OF_ONE)), STEPS)
"""What the honest loop publishes."""


def census(records: int = 1500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Like the usual census data: six numbers and eight categories as one-hot columns, and a class."""
    random = np.random.default_rng(seed)
    blocks = [random.normal(size=(records, 6))]
    for size in (8, 16, 7, 14, 6, 5, 2, 30):
        weights = 1 / np.arange(1, size + 1) ** 1.2
        blocks.append(np.eye(size)[random.choice(size, records, p=weights / weights.sum())])
    x = np.hstack(blocks)
    score = x @ random.normal(0, 0.7, x.shape[1])
    return x.astype(np.float32), (score + random.logistic(size=records) > np.quantile(score, 0.75)).astype(np.int64)


def gradients_at(theta: np.ndarray, records: Any) -> np.ndarray:
    x, y = (np.asarray(part, dtype=np.float64) for part in records)
    return np.asarray((1 / (1 + np.exp(-np.clip(x @ theta, -50, 50))) - y)[:, np.newaxis] * x)


class LogisticLoop:
    """DP-SGD in numpy: Poisson batches, clipping to 1, Gaussian noise; `wrong` names what it gets wrong."""

    def __init__(self, sigma: float = SIGMA_OF_ONE, wrong: str = "") -> None:
        self.sigma, self.wrong = sigma, wrong

    def __call__(self, data: Any, watch: Any) -> Any:
        x, y = data
        size, theta = RATE * len(x), np.zeros(x.shape[1])
        for _ in range(STEPS):
            before, batch = theta.copy(), np.random.random(len(x)) < RATE
            each = gradients_at(theta, (x[batch], y[batch]))
            if self.wrong == "the mean is clipped":
                mean = each.sum(axis=0) / size
                total = mean * min(1.0, 1 / np.linalg.norm(mean)) * size
            else:
                total = (each / np.maximum(1.0, np.linalg.norm(each, axis=1))[:, np.newaxis]).sum(axis=0)
            noisy = (total + self.sigma * np.random.normal(size=len(theta))) / size
            watch.gradient(noisy, lambda records, at=before: gradients_at(at, records))
            theta = theta - 0.5 * noisy
            watch.parameters(theta, lambda records, at=theta: gradients_at(at, records))
        return lambda features: np.column_stack((np.zeros(len(features)), np.asarray(features, np.float64) @ theta))


honest = LogisticLoop()
without_noise = LogisticLoop(0.0)
no_noise_to_speak_of = LogisticLoop(SIGMA_OF_ONE / 10)


def scikit_learn(data: Any) -> Any:
    """Without any privacy, whatever its author says."""
    from sklearn.linear_model import LogisticRegression

    if isinstance(data, tuple):
        return LogisticRegression(max_iter=60).fit(*data)
    return LogisticRegression(max_iter=60).fit(data.drop(columns=["label"]), data["label"])


def silent(data: Any) -> Any:
    """Learns nothing at all."""
    return lambda features: np.zeros((len(features), 2))


def opacus_loop(
    data: Any,
    watch: Any,
    *,
    hidden: int = 0,
    noise: float = 1.0,
    clip_mean: bool = False,
    rate: float = 0.1,
    steps: int = 20,
) -> Any:
    """An Opacus loop for epsilon 1 at delta 1e-5 if `noise` is its multiplier; one line is the auditor's."""
    import torch
    from opacus import PrivacyEngine
    from torch import nn

    x, y = (torch.as_tensor(part) for part in data)
    layers = [nn.Linear(x.shape[1], hidden), nn.Tanh(), nn.Linear(hidden, 2)] if hidden else [nn.Linear(x.shape[1], 2)]
    model, loss, size = nn.Sequential(*layers), nn.CrossEntropyLoss(), int(rate * len(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    if clip_mean:
        for _ in range(steps):
            batch = torch.rand(len(x)) < rate
            optimizer.zero_grad()
            loss(model(x[batch]), y[batch]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for one in model.parameters():
                assert one.grad is not None
                one.grad += noise / size * torch.randn_like(one)
            optimizer.step()
            watch.step(model, loss)
        return model
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=size)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=1.0
    )
    done = 0
    while done < steps:
        for features, labels in loader:
            if done == steps or not len(features):
                continue
            optimizer.zero_grad()
            loss(model(features), labels).backward()
            optimizer.step()
            watch.step(model, loss)
            done += 1
    return model
