"""Lightning under a signed budget: what was forgotten is refused before anything is charged.

Needs `lightning` in the environment; it is in none of the pinned ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import privfair as pf
from calibrate.errors import GateRefused, InvalidInput, Refused
from privfair.ledger import LedgerAccess
from privfair.transcript import Transcript

pytest.importorskip("opacus", reason="needs the extra opacus")
lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed (pip install lightning)")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

from privfair.integrations.lightning import SignedPrivacy  # noqa: E402

UNITS, ROUNDS = 100, 8


class Plain(lightning.LightningModule):  # type: ignore[misc, name-defined]
    """A module as anyone writes it: nothing in it knows of privacy."""

    def __init__(self, optimizers: int = 1, by_hand: bool = False, normed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = [nn.Linear(4, 3), nn.BatchNorm1d(3)] if normed else [nn.Linear(4, 3), nn.Tanh()]
        self.net, self.optimizers_wanted = nn.Sequential(*layers, nn.Linear(3, 2)), optimizers
        self.automatic_optimization = not by_hand

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self(x), y)

    def configure_optimizers(self) -> Any:
        made = [torch.optim.SGD(self.parameters(), lr=0.5) for _ in range(self.optimizers_wanted)]
        return made[0] if len(made) == 1 else made


SIZE = sum(p.numel() for p in Plain().parameters())


class Replaces(lightning.Callback):  # type: ignore[misc, name-defined]
    """Another callback that puts its optimizer in place."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        trainer.strategy.optimizers = [torch.optim.SGD(module.parameters(), lr=0.5)]


class StepsItself(lightning.Callback):  # type: ignore[misc, name-defined]
    """Another callback that steps an optimizer of the module's parameters after each backward pass."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        before = [p.detach().clone() for p in module.parameters()]
        torch.optim.SGD(module.parameters(), lr=0.5).step()
        assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True)), "a step without noise"


class World:
    def __init__(self, folder: Path) -> None:
        self.folder, self.ledger = folder, folder / "ledger.db"
        pf.Ledger.create(self.ledger).close()
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(UNITS, 4, generator=generator)
        self.data = TensorDataset(x, (x[:, 0] > 0).long())
        shapes = {"gradient": (SIZE,)}
        priced = pf.budget(20.0, 1e-5, units=UNITS, rounds=ROUNDS, sampling_rate=0.25, shapes=shapes)
        self.budget = priced.sign(pf.generate_key())

    def privacy(self, **more: Any) -> SignedPrivacy:
        place = {"trust": self.budget.own_trust(), "ledger": self.ledger, "out": self.folder / "run"}
        return SignedPrivacy(self.budget, self.data, **(place | more))

    def trainer(self, *callbacks: Any, **more: Any) -> Any:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
        return lightning.Trainer(callbacks=list(callbacks), **({"max_epochs": 9, "devices": 1} | quiet | more))

    @property
    def charged(self) -> int:
        with pf.Ledger(self.ledger, access=LedgerAccess.READ) as ledger:
            return sum(one.charged for one in ledger.status().manifests)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_module_that_knows_nothing_of_privacy_trains_until_the_budget_is_spent(world: World) -> None:
    module, privacy = Plain(), world.privacy()
    before = [p.detach().clone() for p in module.parameters()]
    world.trainer(privacy, StepsItself()).fit(module, privacy.loader)
    transcript = Transcript.read(world.folder / "run" / "transcript.bin")
    assert sorted(key.round for key in transcript.keys) == list(range(ROUNDS))
    assert world.charged == ROUNDS
    assert any(not torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    with pytest.raises(Refused, match="used before"):
        world.trainer(privacy).fit(Plain(), privacy.loader)


@pytest.mark.parametrize(
    ("module", "trainer", "why"),
    [
        (Plain(optimizers=2, by_hand=True), {}, "several optimizers"),
        (Plain(by_hand=True), {}, "optimises by hand"),
        (Plain(), {"precision": "bf16-mixed"}, "precision"),
        (Plain(), {"accumulate_grad_batches": 2}, "accumulated"),
        (Plain(), {"gradient_clip_val": 1.0}, "clips no single record"),
        (Plain(normed=True), {}, "mixes samples"),
    ],
)
def test_what_would_train_without_privacy_is_refused_before_the_first_charge(
    world: World, module: Any, trainer: dict[str, Any], why: str
) -> None:
    privacy = world.privacy()
    with pytest.raises((Refused, InvalidInput), match=why):
        world.trainer(privacy, **trainer).fit(module, privacy.loader)
    assert world.charged == 0


def test_a_forgotten_sampler_or_callback_is_refused(world: World) -> None:
    privacy = world.privacy()
    with pytest.raises(Refused, match=r"privacy\.loader"):
        world.trainer(privacy).fit(Plain(), DataLoader(world.data, batch_size=25))
    with pytest.raises(GateRefused, match="without its callback"):
        world.trainer().fit(Plain(), world.privacy().loader)
    assert world.charged == 0


def test_another_callback_can_not_put_its_optimizer_in_place(world: World) -> None:
    privacy = world.privacy()
    with pytest.raises(GateRefused, match="replaced the private optimizer"):
        world.trainer(privacy, Replaces()).fit(Plain(), privacy.loader)


def test_a_removed_clip_is_refused(world: World) -> None:
    class Removes(lightning.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            privacy._model.disable_hooks()

    privacy = world.privacy()
    with pytest.raises(GateRefused, match="no gradient"):
        world.trainer(privacy, Removes()).fit(Plain(), privacy.loader)


def test_a_checkpoint_is_restored_only_by_a_resumed_run(world: World) -> None:
    module, privacy = Plain(), world.privacy()
    trainer = world.trainer(privacy, max_epochs=1)
    trainer.fit(module, privacy.loader)
    trainer.save_checkpoint(world.folder / "last.ckpt")
    other = world.privacy(out=world.folder / "other")
    with pytest.raises(Refused, match="resume=True"):
        world.trainer(other).fit(Plain(), other.loader, ckpt_path=world.folder / "last.ckpt", weights_only=False)
