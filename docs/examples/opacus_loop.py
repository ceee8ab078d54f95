"""Opacus under a signed budget, start to end, on made-up records; needs the extra opacus."""

import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import privfair as pf
from privfair.integrations.opacus import SignedPrivacyEngine

folder = Path(tempfile.mkdtemp())
torch.manual_seed(0)
x = torch.randn(2000, 20)
data = TensorDataset(x, (x[:, 0] + x[:, 1] > 0).long())
module = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 2))
size = sum(p.numel() for p in module.parameters())

# The officer prices and signs; `units` is a public lower bound of the number of records.
key, ledger = pf.generate_key(), folder / "ledger.db"
pf.Ledger.create(ledger).close()
budget = pf.budget(4.0, 1e-5, units=2000, rounds=60, sampling_rate=0.05, shapes={"gradient": (size,)}).sign(key)

# The engineer trains; the loop is the one of plain Opacus.
with SignedPrivacyEngine(budget, trust=budget.own_trust(), ledger=ledger, out=folder / "run") as engine:
    model, optimizer, loader = engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), dataset=data
    )
    for _ in range(10):  # asks for more than was signed: the loader runs dry
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    print(f"{engine.run.step} steps; {engine.promise.text}")
    accuracy = (model(x).argmax(1) == data.tensors[1]).float().mean()
    print(f"accuracy on the training records {accuracy:.3f} (this number is not private)")
