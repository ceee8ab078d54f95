"""A Lightning callback: the noise of a signed budget in a LightningModule that optimises by hand. Needs lightning.

The module returns per-sample gradients from `training_step`, as a matrix with one row per record of the batch that
the callback hands to it; the callback clips, publishes and calls `apply_gradient(noisy_mean)`.
"""

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import privfair as pf


class SignedBudgetCallback(Callback):
    """One charged round per training batch; the trainer stops when the budget is spent.

    Use it with a data loader of one item per step: batches are drawn by the run, not by the loader.
    """

    def __init__(self, run: pf.BudgetedRun, value: str, bound: float, expected: float) -> None:
        self._run, self._value, self._bound, self._expected = run, value, bound, expected
        self._round = None

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: object, index: int) -> int | None:
        if not self._run.rounds_left:
            trainer.should_stop = True
            return -1
        self._round = self._run.next_round()
        module.rows = torch.from_numpy(self._round.batch)
        return None

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: object, batch: object, index: int
    ) -> None:
        if self._round is None:  # the budget is spent, and this batch was skipped
            return
        parts = module.per_sample_gradients.double()
        norms = parts.norm(dim=1)
        parts = parts * (self._bound * (1 - 1e-6) / norms.clamp(min=self._bound))[:, None]
        largest = float(parts.norm(dim=1).max()) if len(parts) else 0.0
        noisy = self._round.publish(self._value, parts.sum(dim=0), bound=self._bound, measured=largest)
        self._round = None
        module.apply_gradient(torch.from_numpy(noisy) / self._expected)
