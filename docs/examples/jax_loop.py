"""A jax loop under a signed budget: clipped sums by jax, the noise by the gate. Needs jax, which privfair does not."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import privfair as pf

folder = Path(tempfile.mkdtemp())
random = np.random.default_rng(0)
x = random.normal(size=(1000, 10)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.float32)
CLIP, RATE, ROUNDS = 1.0, 0.1, 40

key, ledger = pf.generate_key(), folder / "ledger.db"
pf.Ledger.create(ledger).close()
budget = pf.budget(4.0, 1e-5, units=1000, rounds=ROUNDS, sampling_rate=RATE, bounds=CLIP, shapes={"gradient": (10,)})
signed = budget.sign(key)


def loss(theta, features, label):
    score = features @ theta
    return jnp.logaddexp(0.0, score) - label * score


per_sample = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
theta = jnp.zeros(10)
with pf.BudgetedRun(signed, trust=signed.own_trust(), ledger=ledger, units=1000, out=folder / "run") as run:
    for round_ in run:
        rows = np.asarray(round_.batch)
        parts = np.asarray(per_sample(theta, x[rows], y[rows]), dtype=np.float64)  # clip and add up in double precision
        norms = np.linalg.norm(parts, axis=1)
        parts *= (CLIP * (1 - 1e-6) / np.maximum(norms, CLIP))[:, None]
        largest = float(np.linalg.norm(parts, axis=1).max()) if len(rows) else 0.0
        noisy = round_.publish("gradient", parts.sum(axis=0), bound=CLIP, measured=largest)
        theta = theta - jnp.asarray(noisy / (RATE * 1000))
    print(f"{run.step} rounds; {run.promise.text}")
print(f"accuracy on the training records {float(((x @ theta > 0) == y).mean()):.3f} (this number is not private)")
