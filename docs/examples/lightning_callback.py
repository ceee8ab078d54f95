"""Lightning under a signed budget, without a change to the module. Needs the extra opacus, and lightning."""

import torch
from lightning.pytorch import LightningModule, Trainer

from privfair.integrations.lightning import SignedPrivacy


class Classifier(LightningModule):
    """Any module with automatic optimisation: nothing in it knows of privacy."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


def main(data: torch.utils.data.Dataset) -> Classifier:
    module = Classifier()
    privacy = SignedPrivacy("budget.json", data, trust="trust.json", ledger="ledger.db", out="run")
    trainer = Trainer(callbacks=[privacy], max_epochs=20, logger=False, enable_checkpointing=False)
    trainer.fit(module, privacy.loader)
    return module
