"""Opacus under a signed budget: the loop ends when the budget does, and nothing that was signed can be changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import privfair as pf
from calibrate.errors import GateRefused, InvalidInput, ManifestRefused, Refused
from privfair.run.budgeted import BudgetedRound
from privfair.transcript import Transcript

pytest.importorskip("opacus", reason="needs the extra opacus")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"),
]

from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402

from privfair.integrations.opacus import SignedPrivacyEngine  # noqa: E402

UNITS, ROUNDS, CLIP = 120, 6, 0.5
LOSS = nn.CrossEntropyLoss()


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


SIZE = sum(p.numel() for p in net().parameters())


def data(units: int = UNITS) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = 5 * torch.randn(units, 4, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


class Bench:
    """A ledger, a key, and as many budgets and engines as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ledger, self.key = folder, folder / "ledger.db", pf.generate_key()
        pf.Ledger.create(self.ledger).close()
        self.budgets = 0
        self.first = self.budget()
        self.trust = self.first.own_trust()

    def budget(self, **changed: Any) -> pf.SignedBudget:
        terms: dict[str, Any] = {"units": UNITS, "rounds": ROUNDS, "shapes": {"gradient": (SIZE,)}, "bounds": CLIP}
        terms |= {"sampling_rate": 0.25} if "sampling" not in changed else {}
        return pf.budget(20.0, 1e-5, **(terms | changed)).sign(self.key)

    def engine(self, budget: pf.SignedBudget | None = None, out: str | None = None, **more: Any) -> SignedPrivacyEngine:
        self.budgets += 1
        place = self.folder / (out or f"run-{self.budgets}")
        return SignedPrivacyEngine(
            self.budget() if budget is None else budget, trust=self.trust, ledger=self.ledger, out=place, **more
        )


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("opacus"))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, np.ndarray, float, np.ndarray]]:
    """What went through the gate: the round, the sum before, the measured norm, the noisy sum after."""
    found: list[tuple[int, np.ndarray, float, np.ndarray]] = []
    publish = BudgetedRound.publish

    def noted(self: BudgetedRound, name: str, values: np.ndarray, *, bound: float, measured: float) -> np.ndarray:
        noisy = publish(self, name, values, bound=bound, measured=measured)
        found.append((self.number, np.array(values), measured, noisy))
        return noisy

    monkeypatch.setattr(BudgetedRound, "publish", noted)
    return found


def private(engine: SignedPrivacyEngine, lr: float = 0.1, **more: Any) -> tuple[Any, ...]:
    module = net()
    return engine.make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=lr), dataset=data(), **more
    )


def train(model: Any, optimizer: Any, loader: Any, epochs: int = 9, loss: Any = LOSS) -> int:
    steps = 0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()
            steps += 1
    return steps


def clipped_sum(x: Tensor, y: Tensor) -> np.ndarray:
    """By hand: one gradient at a time, in double precision."""
    total = np.zeros(SIZE)
    for one, label in zip(x, y, strict=True):
        module = net().double()
        LOSS(module(one.double()[None]), label[None]).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None]).numpy()
        total += gradient * min(1.0, CLIP / np.linalg.norm(gradient))
    return total


class Shared(nn.Module):
    """Positions are embedded once for the whole batch, as a full BERT does it without `position_ids`."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.out = nn.Embedding(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.out(x + self.places(torch.arange(4)[None]).sum(dim=-1))
        return found


def test_a_parameter_with_one_gradient_per_batch_is_named_before_the_budget_is_claimed(tmp_path: Path) -> None:
    module = Shared()
    size = sum(p.numel() for p in module.parameters())
    bench = Bench(tmp_path)
    with bench.engine(bench.budget(shapes={"gradient": (size,)})) as engine:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        with pytest.raises(InvalidInput, match=r"'places\.weight': has 1 gradient for a batch of 2 samples"):
            engine.make_private(module=module, optimizer=optimizer, dataset=data())
    with pf.Ledger(bench.ledger) as ledger:
        assert ledger.status().manifests == ()


def test_the_loop_ends_when_the_budget_does(bench: Bench) -> None:
    with bench.engine(out="whole") as engine:
        model, optimizer, loader = private(engine)
        assert train(model, optimizer, loader) == ROUNDS
        assert engine.get_epsilon() == engine.promise.epsilon == 20.0
        with pytest.raises(InvalidInput, match="is not the signed"):
            engine.get_epsilon(1e-6)
        assert engine.run.rounds_left == 0
    transcript = Transcript.read(bench.folder / "whole" / "transcript.bin")
    assert {release.round for release in transcript.releases()} == set(range(ROUNDS))


@pytest.mark.parametrize(
    ("terms", "per_epoch", "drawn"),
    [
        ({"sampling": "fixed", "batch_size": 30}, 4, 30),
        ({"sampling": "random-allocation", "batches": 3}, 3, None),
        ({"sampling": "full"}, 1, UNITS),
    ],
    ids=["fixed", "random allocation", "full"],
)
def test_batches_are_drawn_as_signed(bench: Bench, terms: dict[str, Any], per_epoch: int, drawn: int | None) -> None:
    with bench.engine(bench.budget(**terms)) as engine:
        model, optimizer, loader = private(engine)
        assert len(loader) == per_epoch
        sizes = []
        for x, y in loader:
            optimizer.zero_grad()
            LOSS(model(x), y).backward()
            optimizer.step()
            sizes.append(len(y))
    assert drawn is None or sizes == [drawn] * per_epoch
    assert drawn is not None or sum(sizes) == UNITS, "each record joins exactly one batch of an epoch"


@pytest.mark.parametrize("clipping", ["per-sample", "ghost"])
def test_what_is_published_is_the_clipped_sum_of_the_batch(
    bench: Bench, sent: list[tuple[int, np.ndarray, float, np.ndarray]], clipping: str
) -> None:
    with bench.engine() as engine:
        more = {"criterion": nn.CrossEntropyLoss()} if clipping == "ghost" else {}
        model, optimizer, *criterion, loader = private(engine, clipping=clipping, **more)
        x, y = next(iter(loader))
        (criterion[0] if criterion else LOSS)(model(x), y).backward()
        optimizer.step()
        (_, values, measured, noisy) = sent[0]
        np.testing.assert_allclose(values, clipped_sum(x, y), rtol=2e-3, atol=1e-4)
        assert 0.99 * CLIP < measured <= CLIP
        expected = 0.25 * UNITS
        moved = torch.cat([p.reshape(-1) for p in model.parameters()]) - torch.cat(
            [p.reshape(-1) for p in net().parameters()]
        )
        np.testing.assert_allclose(moved.detach().numpy(), -0.1 * noisy / expected, atol=1e-5)
        assert np.std(noisy - values) > 0


def test_virtual_steps_are_one_round_per_logical_batch(
    bench: Bench, sent: list[tuple[int, np.ndarray, float, np.ndarray]]
) -> None:
    with bench.engine() as engine:
        model, optimizer, loader = private(engine, lr=0.0)
        pieces: list[list[tuple[Tensor, Tensor]]] = [[]]
        with BatchMemoryManager(data_loader=loader, max_physical_batch_size=7, optimizer=optimizer) as small:
            for x, y in small:
                optimizer.zero_grad()
                LOSS(model(x), y).backward()
                before = len(sent)
                optimizer.step()
                pieces[-1].append((x, y))
                if len(sent) > before:
                    pieces.append([])
        assert len(sent) == engine.run.step == len(loader)
        assert max(map(len, pieces)) > 2
        for (_, values, _, _), parts in zip(sent, pieces, strict=False):
            whole = clipped_sum(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))
            np.testing.assert_allclose(values, whole, rtol=2e-3, atol=1e-4)


def test_accumulated_gradients_are_published_batch_by_batch(
    bench: Bench, sent: list[tuple[int, np.ndarray, float, np.ndarray]]
) -> None:
    """One sum over two batches would let a record that is in both move it by twice its bound."""
    with bench.engine() as engine:
        model, optimizer, loader = private(engine)
        batches = []
        for number, (x, y) in enumerate(loader):
            LOSS(model(x), y).backward()
            batches.append((x, y))
            if number % 2:
                optimizer.step()
                break
        assert [number for number, *_ in sent] == [0, 1]
        for (_, values, _, _), (x, y) in zip(sent, batches, strict=True):
            np.testing.assert_allclose(values, clipped_sum(x, y), rtol=2e-3, atol=1e-4)
        noisy = (sent[0][3] + sent[1][3]) / (2 * 0.25 * UNITS)
        moved = torch.cat([p.reshape(-1) for p in model.parameters()]) - torch.cat(
            [p.reshape(-1) for p in net().parameters()]
        )
        np.testing.assert_allclose(moved.detach().numpy(), -0.1 * noisy, atol=1e-5)


def test_a_batch_left_half_done_does_not_reach_the_next_round(
    bench: Bench, sent: list[tuple[int, np.ndarray, float, np.ndarray]]
) -> None:
    with bench.engine() as engine:
        model, optimizer, loader = private(engine)
        batches: Iterator[Any] = iter(loader)
        x, y = next(batches)
        optimizer.signal_skip_step(do_skip=True)
        LOSS(model(x), y).backward()
        optimizer.step()
        x, y = next(batches)
        LOSS(model(x), y).backward()
        optimizer.step()
        assert [number for number, *_ in sent] == [1]
        np.testing.assert_allclose(sent[0][1], clipped_sum(x, y), rtol=2e-3, atol=1e-4)


def test_empty_batches_send_noise_alone(bench: Bench, sent: list[tuple[int, np.ndarray, float, np.ndarray]]) -> None:
    for clipping in ("per-sample", "ghost"):
        with bench.engine(bench.budget(sampling_rate=1e-4, rounds=2)) as engine:
            more = {"criterion": nn.CrossEntropyLoss()} if clipping == "ghost" else {}
            model, optimizer, *criterion, loader = private(engine, clipping=clipping, **more)
            assert train(model, optimizer, loader, 1, criterion[0] if criterion else LOSS) == 2
    assert all(not values.any() and measured == 0 for _, values, measured, _ in sent)
    assert all(noisy.any() for *_, noisy in sent)


class TestRefusals:
    def test_fewer_records_than_the_signed_lower_bound(self, bench: Bench) -> None:
        module = net()
        with bench.engine() as engine, pytest.raises(ManifestRefused, match="120"):
            engine.make_private(
                module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), dataset=data(UNITS - 1)
            )

    def test_another_clip(self, bench: Bench) -> None:
        with bench.engine() as engine:
            with pytest.raises(Refused, match="is not the signed clip"):
                private(engine, max_grad_norm=1.0)
            _, optimizer, _ = private(engine, max_grad_norm=CLIP)
            for name, value in (("max_grad_norm", 10.0), ("noise_multiplier", 0.0), ("expected_batch_size", 1)):
                with pytest.raises(Refused, match="signed budget"):
                    setattr(optimizer, name, value)
            assert optimizer.noise_multiplier > 0

    def test_a_second_run_under_one_budget(self, bench: Bench) -> None:
        budget = bench.budget()
        with bench.engine(budget) as engine:
            private(engine)
            with pytest.raises(Refused, match="was used before"):
                private(engine)
        with pytest.raises(Refused, match="claim"):
            private(bench.engine(budget))

    def test_detaching_the_optimiser(self, bench: Bench) -> None:
        with bench.engine() as engine:
            model, optimizer, loader = private(engine)
            x, y = next(iter(loader))
            LOSS(model(x), y).backward()
            with pytest.raises(Refused, match="cannot step by itself"):
                optimizer.original_optimizer.step()
            assert all(p.grad is None for p in model.parameters()), "no other optimiser finds a gradient"

    def test_two_passes_over_one_batch(self, bench: Bench) -> None:
        with bench.engine() as engine:
            model, optimizer, loader = private(engine)
            x, y = next(iter(loader))
            LOSS(model(x), y).backward()
            LOSS(model(x), y).backward()
            with pytest.raises(GateRefused, match="once per batch"):
                optimizer.step()

    def test_records_that_were_not_drawn_and_steps_without_a_round(self, bench: Bench) -> None:
        with bench.engine() as engine:
            model, optimizer, loader = private(engine)
            x, y = data().tensors
            with pytest.raises(GateRefused, match="no gradient"):
                optimizer.step()
            LOSS(model(x), y).backward()
            with pytest.raises(GateRefused, match="whose batch has 0 records"):
                optimizer.step()
            optimizer.zero_grad()
            next(iter(loader))
            LOSS(model(x), y).backward()
            with pytest.raises(GateRefused, match=f"gradients of {UNITS} samples"):
                optimizer.step()

    def test_gradients_that_are_not_finite(self, bench: Bench) -> None:
        with bench.engine() as engine:
            model, optimizer, loader = private(engine)
            x, y = next(iter(loader))
            LOSS(model(x) * float("inf"), y).backward()
            with pytest.raises(GateRefused, match="not finite"):
                optimizer.step()

    def test_modules_that_mix_samples_and_optimisers_of_something_else(self, bench: Bench) -> None:
        engine, mixing, module = bench.engine(), nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), net()
        with pytest.raises(InvalidInput, match="mixes samples"):
            engine.make_private(module=mixing, optimizer=torch.optim.SGD(mixing.parameters(), lr=0.1), dataset=data())
        with pytest.raises(InvalidInput, match="exactly the module's"):
            engine.make_private(module=module, optimizer=torch.optim.SGD(net().parameters(), lr=0.1), dataset=data())
        with pytest.raises(InvalidInput, match="needed for ghost clipping"):
            private(engine, clipping="ghost")
        with pytest.raises(Refused, match="call make_private"):
            _ = engine.run

    def test_a_value_that_is_not_declared(self, bench: Bench) -> None:
        two = bench.budget(shapes={"gradient": (SIZE,), "loss": (1,)})
        with pytest.raises(InvalidInput, match="it has gradient, loss"):
            private(bench.engine(two))


def test_a_run_resumes_from_a_checkpoint(bench: Bench, tmp_path: Path) -> None:
    budget, checkpoint = bench.budget(), tmp_path / "checkpoint.pt"

    def stopped_after_two() -> None:
        with bench.engine(budget, "stopped") as engine:
            model, optimizer, loader = private(engine)
            for number, (x, y) in enumerate(loader):
                if number == 2:
                    raise KeyboardInterrupt
                optimizer.zero_grad()
                LOSS(model(x), y).backward()
                optimizer.step()
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)

    with pytest.raises(KeyboardInterrupt):
        stopped_after_two()
    with bench.engine(budget, "stopped", resume=True) as engine:
        model, optimizer, loader = private(engine)
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = train(model, optimizer, loader)
    assert 0 < done <= ROUNDS - 2, "what was charged stays spent"
