"""Lightning under a signed budget, without a change to the module: batches, clip, noise and optimiser are replaced.

::

    privacy = SignedPrivacy("budget.json", dataset, trust="trust.json", ledger="ledger.db", out="run")
    trainer = Trainer(callbacks=[privacy], max_epochs=5)
    trainer.fit(module, privacy.loader)

Training is refused before the first charge if a part was forgotten. The trainer stops when the budget is spent. What
the module logs of a batch (its loss, its accuracy) is not private.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from calibrate.errors import GateRefused, Refused
from privfair.batches.participation import declared_sampling
from privfair.integrations.opacus import SignedPrivacyEngine, collate_with_empty, epoch_of
from privfair.run.signed_budget import BudgetSource, SignedBudget, envelope_of


class _Batches:
    """The loader's batch sampler: refused until the callback made the optimiser private, then the charged rounds."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rounds: Any = None

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[list[int]]:
        if self.rounds is None:
            raise GateRefused("the loader of SignedPrivacy without its callback; give Trainer(callbacks=[privacy])")
        yield from self.rounds


class SignedPrivacy(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """A callback under which a Trainer can only take the steps of a signed budget; give `fit` its `loader`.

    Args:
        budget: the signed manifest, as for `SignedPrivacyEngine`.
        dataset: with one item per protected unit.
        engine: `trust`, `ledger`, `out`, `value`, `party`, `resume` and `seed` of `SignedPrivacyEngine`.

    Guarantee: as `SignedPrivacyEngine`. Refused are: other batches, a second optimizer, an optimizer that another
    callback put in place, manual optimization, several devices, half precision, and a checkpoint without `resume=True`.
    """

    def __init__(self, budget: BudgetSource, dataset: Dataset[Any], **engine: Any) -> None:
        self._engine = SignedPrivacyEngine(budget, **engine)
        self._dataset, self._resume, self._optimizer = dataset, bool(engine.get("resume")), None
        document = SignedBudget(envelope_of(budget)).document
        silos = {silo.name: silo.size for silo in document.data.silos}
        size = silos.get(str(engine.get("party")), next(iter(silos.values())))
        self._batches = _Batches(epoch_of(declared_sampling(document), size)[0])
        self.loader: DataLoader[Any] = DataLoader(
            dataset, batch_sampler=self._batches, collate_fn=collate_with_empty(dataset)
        )

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Refuse what would train without privacy; then open the run and put the gated optimizer in place."""
        for forgotten, rule in (
            (trainer.train_dataloader is not self.loader, "fit was given other batches; give it `privacy.loader`"),
            (len(trainer.optimizers) != 1, "the module has several optimizers or none; configure one"),
            (not module.automatic_optimization, "the module optimises by hand; use pf.BudgetedRun for such a loop"),
            (trainer.world_size != 1, "several devices would draw batches apart; train on one"),
            (trainer.precision not in ("32-true", "64-true"), f"precision is {trainer.precision}; use 32-true"),
            (trainer.accumulate_grad_batches != 1, "batches are accumulated; have larger batches signed instead"),
            (trainer.gradient_clip_val is not None, "gradient_clip_val clips no single record; leave it out"),
            (bool(trainer.ckpt_path) and not self._resume, "a checkpoint is restored; give SignedPrivacy resume=True"),
        ):
            if forgotten:
                raise Refused(f"Lightning's trainer: {rule}")
        (original,) = trainer.optimizers
        private = self._engine.make_private(module=module, optimizer=original, dataset=self._dataset)
        self._model, self._optimizer, self._batches.rounds = private[0], private[1], private[2].batch_sampler
        trainer.strategy.optimizers = [self._optimizer]

    def on_train_batch_start(self, trainer: Trainer, module: LightningModule, batch: Any, index: int) -> None:
        """Refuse to take a step with an optimizer that another callback put in place."""
        if [id(one) for one in trainer.optimizers] != [id(self._optimizer)]:
            raise GateRefused("another callback replaced the private optimizer; leave that callback out")

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Stop when the budget is spent."""
        trainer.should_stop = trainer.should_stop or not self._engine.run.rounds_left

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """End the run: unspent rounds lapse."""
        self._model.to_standard_module()
        self._engine.finish()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Leave the run open for `resume=True`."""
        self._engine.__exit__(type(exception), exception, exception.__traceback__)
