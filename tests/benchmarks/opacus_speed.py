"""What the gate costs Opacus: steps of `SignedPrivacyEngine` against steps of Opacus's own engine, in one process.

Run `python -m tests.benchmarks.opacus_speed` to measure and to rewrite docs/benchmarks.md; it ends with exit
code 1 if a step at 1e5 parameters takes more than 1.2 times Opacus's. Both draw Poisson batches of the same rate, clip,
add noise and step; ours also charges the ledger, writes the transcript, and draws exact noise. Times are processor time
of this process, in blocks that alternate between the two.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from opacus import PrivacyEngine
from threadpoolctl import threadpool_limits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privfair as pf
from privfair.integrations.opacus import SignedPrivacyEngine
from tests.sections import write_section

PROMISED, AT = 1.2, "1e5"
UNITS, RATE = 4000, 0.05
CASES = {"1e4": (64, 150, 8), "1e5": (200, 490, 4), "1e6": (400, 2480, 2), "1e7": (1000, 9970, 1)}
"""Parameters: features, width of the hidden layer, steps per block."""
BLOCKS = 3

Step = Callable[[], None]


def net(features: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, 2))


def loop(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[object]) -> Iterator[None]:
    """One step each time it is asked."""
    while True:
        for x, y in loader:  # type: ignore[misc]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[has-type]
            optimizer.step()
            yield


def measured(features: int, hidden: int, steps: int, folder: Path) -> tuple[int, float, float]:
    """Parameters, and the median milliseconds of a step: ours, Opacus's."""
    units = UNITS if features < 400 else UNITS // 50
    x = torch.randn(units, features)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    ours, theirs = net(features, hidden), net(features, hidden)
    size = sum(p.numel() for p in ours.parameters())
    rounds = 1024  # as many as people train, so that rounds are charged in blocks; most of them lapse
    key, ledger = pf.generate_key(), folder / "ledger.db"
    pf.Ledger.create(ledger).close()
    budget = pf.budget(8.0, 1e-5, units=units, rounds=rounds, sampling_rate=RATE, shapes={"gradient": (size,)}).sign(
        key
    )
    with SignedPrivacyEngine(budget, trust=budget.own_trust(), ledger=ledger, out=folder / "run") as engine:
        signed = loop(
            *engine.make_private(module=ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1), dataset=data)
        )
        plain = loop(
            *PrivacyEngine().make_private(
                module=theirs,
                optimizer=torch.optim.SGD(theirs.parameters(), lr=0.1),
                data_loader=DataLoader(data, batch_size=int(RATE * units)),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
            )
        )
        times: dict[str, list[float]] = {"ours": [], "theirs": []}
        for block in range(BLOCKS + 1):
            for name, steps_of in (("ours", signed), ("theirs", plain)):
                begun = time.process_time()
                for _ in range(steps):
                    next(steps_of)
                if block:  # the first block warms up
                    times[name].append(1e3 * (time.process_time() - begun) / steps)
    return size, statistics.median(times["ours"]), statistics.median(times["theirs"])


def main() -> int:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    rows, ratio = [], {}
    for name, (features, hidden, steps) in CASES.items():
        with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
            size, ours, theirs = measured(features, hidden, steps, Path(folder))
        ratio[name] = ours / theirs
        rows.append(f"| {size:,} | {ours:.1f} | {theirs:.1f} | {ratio[name]:.2f} |")
        print(rows[-1], flush=True)
    write_section("opacus", _page(rows))
    return int(ratio[AT] > PROMISED)


def _page(rows: list[str]) -> str:
    table = "\n".join(rows)
    return f"""# What the gate costs Opacus

Processor milliseconds per step of a two-layer net, one thread, both engines in one process and in turns: the median of
{BLOCKS} blocks. Poisson batches of 200 records on average (4 from a million parameters on, because per-sample gradients
fill the memory). Written by `python -m tests.benchmarks opacus`.

| parameters | SignedPrivacyEngine | Opacus | ratio |
|---|---|---|---|
{table}

Ours includes the charge on disk, the transcript (8 bytes per parameter and round) and exact discrete noise at about 25
million values per second, which is what a large model pays whatever its batch: at ten million parameters the noise
alone takes about 0.4 seconds per step. The promise is a ratio of at most {PROMISED} at a hundred thousand parameters.
"""


if __name__ == "__main__":
    sys.exit(main())
