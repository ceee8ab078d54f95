"""A plain PyTorch loop under a signed budget: per-sample gradients by torch.func, the noise by the gate."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import privfair as pf

folder = Path(tempfile.mkdtemp())
torch.manual_seed(0)
x = torch.randn(1000, 10)
y = (x[:, 0] > 0).long()
model = nn.Linear(10, 2)
theta = {name: p.detach().clone() for name, p in model.named_parameters()}
size = sum(p.numel() for p in theta.values())
CLIP, RATE, ROUNDS = 1.0, 0.1, 40

key, ledger = pf.generate_key(), folder / "ledger.db"
pf.Ledger.create(ledger).close()
budget = pf.budget(4.0, 1e-5, units=1000, rounds=ROUNDS, sampling_rate=RATE, bounds=CLIP, shapes={"gradient": (size,)})
signed = budget.sign(key)


def loss(theta, features, label):
    return nn.functional.cross_entropy(functional_call(model, theta, features[None]), label[None])


with pf.BudgetedRun(signed, trust=signed.own_trust(), ledger=ledger, units=1000, out=folder / "run") as run:
    for round_ in run:  # charged on disk before the body runs; stops by itself
        rows = torch.from_numpy(round_.batch)
        parts = vmap(grad(loss), in_dims=(None, 0, 0))(theta, x[rows], y[rows])
        flat = torch.cat([part.reshape(len(rows), -1) for part in parts.values()], dim=1).double()
        norms = flat.norm(dim=1)
        factor = (CLIP * (1 - 1e-6) / norms.clamp(min=CLIP)).clamp(max=1.0)  # nudged down: rounding is paid for
        clipped = flat * factor[:, None]
        largest = float(clipped.norm(dim=1).max()) if len(rows) else 0.0
        noisy = torch.from_numpy(round_.publish("gradient", clipped.sum(dim=0), bound=CLIP, measured=largest))
        place = 0
        for name, p in theta.items():
            step = noisy[place : place + p.numel()].view_as(p) / (RATE * 1000)  # public constants, never len(rows)
            theta[name], place = p - step.to(p.dtype), place + p.numel()
    print(f"{run.step} rounds; {run.promise.text}")
accuracy = (functional_call(model, theta, x).argmax(1) == y).float().mean()
print(f"accuracy on the training records {accuracy:.3f} (this number is not private)")
