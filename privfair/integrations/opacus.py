"""Opacus under a signed budget: Opacus computes per-sample gradients, the gate charges and adds the exact noise.

::

    with SignedPrivacyEngine("budget.json", trust="trust.json", ledger="ledger.db", out="run") as engine:
        model, optimizer, loader = engine.make_private(module=model, optimizer=optimizer, dataset=data)
        for epoch in range(epochs):          # the loop as it was; the loader runs dry when the budget is spent
            for x, y in loader:
                optimizer.zero_grad()
                loss(model(x), y).backward()
                optimizer.step()

The loader opens the rounds: each logical batch that it yields is drawn as the manifest says, and is charged on disk
before. Gradients that are accumulated over several batches are published batch by batch, each with its own noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, assert_never

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.data_loader import wrap_collate_with_empty
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, default_collate

from calibrate.errors import GateRefused, InvalidInput, Refused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.manifest.trust import TrustFile
from calibrate.sampling import FixedSize, Poisson, RandomAllocation, Sampling, ShuffledEpochs, WithReplacement
from privfair.batches.participation import declared_sampling
from privfair.run.budgeted import BudgetedRound, BudgetedRun
from privfair.run.public import RunPromise
from privfair.run.signed_budget import BudgetSource, SignedBudget, envelope_of

ClippingMode = Literal["per-sample", "ghost"]
_SEGMENT, _ROWS = 256, 16
"""Segments of squares and groups of rows of weighted samples that are added up in the model's precision; the rest is
double precision (docs/integrations.md, "Rounding")."""
_NORMS = 2.0**-16
_SINGLE = 2.0**-24
_LARGEST_SHARE, _LEAST_ROOM = 4, 64
"""A batch of more than four times the expected size is refused, which has no chance to happen by honest sampling."""
_GHOST = 2.0**-10
"""Ghost norms are computed by Opacus in the model's precision: what is kept of the clip for their rounding."""
_SIGNED = frozenset({"noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction", "generator"})


class _Rounds:
    """One charged round per logical batch: drawing a batch opens its round, so the two cannot part."""

    def __init__(self, run: BudgetedRun, value: str, bound: float, per_epoch: int) -> None:
        self.run, self.value, self.bound, self.per_epoch = run, value, bound, per_epoch
        self.current: BudgetedRound | None = None
        self.before_next: Callable[[], None] = lambda: None
        self.samples, self.measured = 0, 0.0

    def __len__(self) -> int:
        return self.per_epoch

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.per_epoch):
            self.before_next()
            if not self.run.rounds_left:
                return
            self.current, self.samples, self.measured = self.run.next_round(), 0, 0.0
            yield self.current.batch.tolist()

    def note(self, samples: int, largest: float) -> None:
        """Count the gradients of this round: more of them than records were drawn means that one came twice."""
        self.samples += samples
        drawn = 0 if self.current is None else len(self.current.batch)
        if self.samples > drawn:
            raise GateRefused(
                f"gradients of {self.samples} samples in a round whose batch has {drawn} records: take batches from "
                "the loader of make_private, and call backward() once per batch"
            )
        if not math.isfinite(largest):
            raise GateRefused("a sample's gradient is not finite; lower the learning rate, or check the data")
        self.measured = max(self.measured, largest)

    def publish(self, total: Tensor) -> Tensor:
        """The noisy sum of this round's gradients; the round is over then."""
        if self.current is None:
            raise GateRefused("no round is open: step once per batch of the loader of make_private")
        array = total.detach().to("cpu", torch.float64).numpy()
        noisy = self.current.publish(self.value, array, bound=self.bound, measured=self.measured)
        self.current = None
        return torch.from_numpy(noisy)


class _Gated:
    """What both optimisers share: noise comes from the gate, and what was signed cannot be set."""

    _rounds: _Rounds
    _held: Tensor | None
    _made = False
    original_optimizer: Optimizer
    pre_step: Callable[[], bool]

    def __setattr__(self, name: str, value: object) -> None:
        if self._made and name in _SIGNED:
            raise Refused(f"{name} cannot be set to {value!r}: noise, clip and batches are those of the signed budget")
        super().__setattr__(name, value)

    def _attach(self, rounds: _Rounds, noise_multiplier: float, original: Optimizer) -> None:
        self._rounds, self._held, self._rounds_held, self._inside = rounds, None, 0, False
        self.noise_multiplier = noise_multiplier
        self._made = True
        rounds.before_next = self._publish_unstepped
        original.register_step_pre_hook(self._require_inside)

    def _require_inside(self, *_: object) -> None:
        if not self._inside:
            raise Refused("the wrapped optimiser cannot step by itself; call step() of the one from make_private")

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step along the noisy gradient; refused where no round is open. What `closure` found is returned."""
        found = None
        if closure is not None:
            with torch.enable_grad():
                found = closure()
        if self.pre_step():
            self._inside = True
            try:
                self.original_optimizer.step()
            finally:
                self._inside = False
        return found

    @property
    def accumulated_iterations(self) -> int:
        """The rounds whose noisy sums one step averages."""
        return self._rounds_held + 1

    def _publish(self, params: Sequence[nn.Parameter]) -> Tensor:
        return self._rounds.publish(torch.cat([_summed(p).reshape(-1) for p in params]))

    def _hold(self, noisy: Tensor) -> None:
        self._held = noisy if self._held is None else self._held + noisy
        self._rounds_held += 1

    def _spread(self, noisy: Tensor, params: Sequence[nn.Parameter]) -> None:
        """Give each parameter its part of the noisy sum, those of earlier batches of this step included."""
        total = noisy if self._held is None else self._held + noisy
        place = 0
        for p in params:
            part = total[place : place + p.numel()].view(p.shape)
            p.grad, place = part.to(device=p.device, dtype=p.dtype), place + p.numel()

    def _publish_unstepped(self) -> None:
        raise NotImplementedError


def _summed(p: nn.Parameter) -> Tensor:
    found: Tensor | None = getattr(p, "summed_grad", None)
    if found is None:
        raise GateRefused("a parameter has no gradient: call backward() on a batch of the loader before step()")
    return found.to("cpu", torch.float64)


class GatedOptimizer(_Gated, DPOptimizer):  # type: ignore[misc]  # Opacus has no types
    """Opacus's optimiser with the gate in place of its noise; made by `SignedPrivacyEngine.make_private`.

    Guarantee: as `BudgetedRun`. Each sample's gradient is scaled to norm `bound` at most; what single precision can add
    to a norm and to the distance of two sums is paid for by a smaller clip (docs/integrations.md, "Rounding").
    """

    def __init__(self, optimizer: Optimizer, rounds: _Rounds, noise_multiplier: float, expected: float) -> None:
        self._most = max(_LEAST_ROOM, math.ceil(_LARGEST_SHARE * expected))
        reach = rounds.bound / ((1 + _NORMS) * (1 + 2 * (_ROWS + 3) * self._most * _SINGLE))
        DPOptimizer.__init__(
            self, optimizer, noise_multiplier=noise_multiplier, max_grad_norm=reach, expected_batch_size=expected
        )
        self._attach(rounds, noise_multiplier, optimizer)
        for p in self.params:  # autograd's own gradient is not private: no other optimiser may find it
            p.register_post_accumulate_grad_hook(_forget)

    def clip_and_accumulate(self) -> None:
        """Scale each sample's gradient to the clip at most, and add all up."""
        samples = [self._get_flat_grad_sample(p).flatten(1) for p in self.params]
        squares = [_squared_norms(g) for g in samples]
        norms = torch.stack([one.to(squares[0].device) for one in squares]).sum(dim=0).sqrt()
        factor = self.max_grad_norm / norms.clamp(min=self.max_grad_norm)
        largest = float((norms * factor).max()) * (1 + _NORMS) if len(norms) else 0.0
        self._rounds.note(len(norms), largest)
        if self._rounds.samples > self._most:
            raise GateRefused(
                f"a batch of {self._rounds.samples} records is more than the {self._most} that are provided for"
            )
        for p, sample in zip(self.params, samples, strict=True):
            total = _weighted_sum(factor.to(device=sample.device, dtype=sample.dtype), sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample = None

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Clip; publish, unless this is a part of a larger batch; hand the noisy mean to the wrapped optimiser."""
        if any(getattr(p, "grad_sample", None) is None for p in self.params):
            raise GateRefused("a parameter has no gradient: call backward() on a batch of the loader before step()")
        self.clip_and_accumulate()
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            return False
        self._spread(self._publish(self.params), self.params)
        self.scale_grad()
        self._clear()
        return True

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Forget the gradients of this batch, and the noisy sums that wait for a step; rounds stay spent."""
        super().zero_grad(set_to_none)
        if not self._is_last_step_skipped:
            self._held, self._rounds_held = None, 0

    def _clear(self) -> None:
        for p in self.params:
            p.grad_sample = p.summed_grad = None
        self._held, self._rounds_held, self._is_last_step_skipped = None, 0, False

    def _publish_unstepped(self) -> None:
        """The next batch is asked for: what was computed on this one, if anything, is published in its own round.

        Nothing of this round may reach the next one's sum, in which the same records may take part again.
        """
        if self._rounds.current is not None and all(getattr(p, "grad_sample", None) is not None for p in self.params):
            self.clip_and_accumulate()
            self._hold(self._publish(self.params))
        for p in self.params:
            p.grad_sample = p.summed_grad = None
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False


class GatedGhostOptimizer(_Gated, DPOptimizerFastGradientClipping):  # type: ignore[misc]  # Opacus has no types
    """The same for ghost clipping, where Opacus computes norms without per-sample gradients and sums by autograd.

    Guarantee: as `BudgetedRun`, on the caller's word that norms are right: Opacus computes them, and the sum, in the
    model's precision; 2^-10 of the clip is kept for the rounding of norms, which is enough for linear layers of up to
    2^15 inputs and outputs on single vectors. For sequences no such bound is known.
    """

    def __init__(self, optimizer: Optimizer, rounds: _Rounds, noise_multiplier: float, expected: float) -> None:
        reach = rounds.bound / (1 + _GHOST)
        DPOptimizerFastGradientClipping.__init__(
            self, optimizer, noise_multiplier=noise_multiplier, max_grad_norm=reach, expected_batch_size=expected
        )
        self._attach(rounds, noise_multiplier, optimizer)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """As `GatedOptimizer.pre_step`; `p.grad` is the clipped sum here."""
        self._require_gradients()
        self.accumulate()
        if self._check_skip_next_step():
            self._is_last_step_skipped = True
            return False
        self._spread(self._publish(self.params), self.params)
        self.scale_grad()
        for p in self.params:
            p.summed_grad = None
        self._held, self._rounds_held, self._is_last_step_skipped = None, 0, False
        return True

    def _require_gradients(self) -> None:
        if self._rounds.current is None or any(p.grad is None for p in self.params):
            raise GateRefused("no round is open, or a parameter has no gradient: step once per batch of the loader")

    def _publish_unstepped(self) -> None:
        if self._rounds.current is not None and self._rounds.samples and all(p.grad is not None for p in self.params):
            self.accumulate()
            self._hold(self._publish(self.params))
        for p in self.params:
            p.summed_grad = p.grad = None
        self._step_skip_queue.clear()
        self._is_last_step_skipped = False


def _squared_norms(rows: Tensor) -> Tensor:
    """The squared norm of each row, in double precision from segments in the rows' own."""
    whole = rows.shape[1] // _SEGMENT * _SEGMENT
    segments = torch.linalg.vector_norm(rows[:, :whole].reshape(len(rows), whole // _SEGMENT, _SEGMENT), dim=2)
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)
    return torch.cat([segments, rest], dim=1).double().square().sum(dim=1)


def _weighted_sum(factor: Tensor, rows: Tensor) -> Tensor:
    """The sum of the rows times their factors, in double precision from groups of rows in the rows' own."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64, device=rows.device)
    for first in range(0, len(rows), _ROWS):
        total += factor[first : first + _ROWS] @ rows[first : first + _ROWS]
    return total


def _forget(p: Tensor) -> None:
    p.grad = None


class _GhostModule(GradSampleModuleFastGradientClipping):  # type: ignore[misc]  # Opacus has no types
    """Tells the round how many samples came, and the largest norm after clipping."""

    rounds: _Rounds

    def get_clipping_coef(self) -> Tensor:
        norms: Tensor = self.get_norm_sample()
        factor: Tensor = self.max_grad_norm / norms.clamp(min=self.max_grad_norm)
        largest = float((norms.double() * factor.double()).max()) if len(norms) else 0.0
        self.rounds.note(len(norms), largest)
        return factor


class SignedPrivacyEngine:
    """Opacus's `PrivacyEngine` under a signed budget: same loop, but noise, clip and number of steps are signed.

    Args:
        budget: the signed manifest: a path, its bytes, or what `pf.budget(...).sign()` returned. It must declare one
            Gaussian value of the size of the model (or name it with `value`), of `own-loop` or `gaussian`.
        trust: the trust file that says whose signatures count: a path, or a `TrustFile` in memory.
        ledger: the ledger that the budget is spent from.
        out: the folder for the run's files; None keeps them in a temporary folder that is deleted.
        value: the declared value that gradients are published as; needed where there are several.
        party: which silo of the manifest this is; needed where it names several.
        resume: continue the run in `out` after an interruption; load the checkpoint of model and optimiser yourself.
        seed: of noise and batches under seeded research noise, which protects no one; else unused.

    Guarantee: as `BudgetedRun`: every noisy gradient left through the gate, in a round that was charged before its
    batch was drawn. What the loop computes from the data otherwise (a loss that is printed, a validation metric that a
    decision depends on) is not covered.
    """

    def __init__(
        self,
        budget: BudgetSource,
        *,
        trust: str | Path | TrustFile,
        ledger: str | Path,
        out: str | Path | None = None,
        value: str | None = None,
        party: str | None = None,
        resume: bool = False,
        seed: int = 0,
    ) -> None:
        self._open = partial(
            BudgetedRun, budget, trust=trust, ledger=ledger, out=out, party=party, resume=resume, seed=seed
        )
        self._budget, self._value = budget, value
        self._run: BudgetedRun | None = None
        self._ended = False

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        dataset: Dataset[Any],
        max_grad_norm: float | None = None,
        clipping: ClippingMode = "per-sample",
        criterion: nn.Module | None = None,
        collate_fn: Callable[[list[Any]], Any] = default_collate,
    ) -> tuple[Any, ...]:
        """The module, the optimiser and a loader (with ghost clipping also the criterion) under the budget.

        Args:
            module: the model; what Opacus cannot take apart by sample (batch normalisation) is refused.
            optimizer: any torch optimiser over exactly the module's trainable parameters.
            dataset: with one item per protected unit, at least as many as were signed.
            max_grad_norm: the clip, to be compared with the signed one; by default the signed one.
            clipping: "per-sample", or "ghost" for large models, which needs `criterion`.
            criterion: the loss, for ghost clipping.
            collate_fn: puts items together to a batch.
        """
        if self._run is not None:
            raise Refused("this engine was used before; make another one, with a separate budget or resume=True")
        _check_module(module, optimizer)
        params = [p for p in module.parameters() if p.requires_grad]
        size, units = sum(p.numel() for p in params), len(dataset)  # type: ignore[arg-type]
        name = _value(SignedBudget(envelope_of(self._budget)).document, self._value)
        run = self._open(units=units, shapes={name: (size,)})
        signed = run.document.release(name)
        assert isinstance(signed, GaussianNoise)
        if max_grad_norm is not None and max_grad_norm != signed.sensitivity:
            raise Refused(
                f"max_grad_norm {max_grad_norm:g} is not the signed clip {signed.sensitivity:g}; use that one, or have "
                "another budget signed"
            )
        declared = next(silo.size for silo in run.document.data.silos if silo.name == run.party)
        per_epoch, expected = epoch_of(declared_sampling(run.document), declared)
        rounds = _Rounds(run, name, signed.sensitivity, per_epoch)
        wrapped = _wrap(clipping, module, optimizer, rounds, signed.noise_multiplier, expected, criterion)
        if clipping == "per-sample":
            _require_gradients_per_sample(wrapped[0], dataset[0])
        loader = DataLoader(dataset, batch_sampler=rounds, collate_fn=collate_with_empty(dataset, collate_fn))
        self._run = run.__enter__()
        return (*wrapped, loader)

    @property
    def run(self) -> BudgetedRun:
        """The run behind the engine, once `make_private` was called."""
        if self._run is None:
            raise Refused("nothing was made private yet; call make_private")
        return self._run

    @property
    def promise(self) -> RunPromise:
        """What is promised, to whom, and what is not protected; however far the training got."""
        return self.run.promise

    def get_epsilon(self, delta: float | None = None) -> float | None:
        """The promised epsilon, as Opacus's engine has it; None if nothing is promised.

        Args:
            delta: must be the signed one, if given.
        """
        promise = self.promise
        if delta is not None and delta != promise.delta:
            raise InvalidInput("delta", delta, f"is not the signed {promise.delta:g}", "leave it out")
        return promise.epsilon

    def finish(self) -> None:
        """End the run: unspent rounds lapse, the transcript is closed."""
        self.__exit__(None, None, None)

    def __enter__(self) -> SignedPrivacyEngine:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._run is not None and not self._ended:
            self._ended = True
            self._run.__exit__(*error)


def _wrap(
    clipping: ClippingMode,
    module: nn.Module,
    optimizer: Optimizer,
    rounds: _Rounds,
    noise_multiplier: float,
    expected: float,
    criterion: nn.Module | None,
) -> tuple[Any, ...]:
    match clipping:
        case "per-sample":
            return GradSampleModule(module), GatedOptimizer(optimizer, rounds, noise_multiplier, expected)
        case "ghost":
            if criterion is None:
                raise InvalidInput(
                    "criterion", None, "is needed for ghost clipping", "give the loss, such as nn.MSELoss()"
                )
            ghost = GatedGhostOptimizer(optimizer, rounds, noise_multiplier, expected)
            model = _GhostModule(module, max_grad_norm=ghost.max_grad_norm)
            model.rounds = rounds
            return model, ghost, DPLossFastGradientClipping(model, ghost, criterion)
        case _:
            assert_never(clipping)


def _check_module(module: nn.Module, optimizer: Optimizer) -> None:
    errors = ModuleValidator.validate(module, strict=False)
    if errors:
        first = str(errors[0]).strip().splitlines()[0]
        raise InvalidInput("module", type(module).__name__, f"mixes samples ({first})", "replace that layer")
    if any(p.dtype not in (torch.float32, torch.float64) for p in module.parameters() if p.requires_grad):
        raise InvalidInput(
            "module", type(module).__name__, "has parameters in half precision", "use float32 or float64"
        )
    own = {id(p) for p in module.parameters() if p.requires_grad}
    if own != {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}:
        rule = "does not hold exactly the module's trainable parameters"
        raise InvalidInput("optimizer", type(optimizer).__name__, rule, "make it from module.parameters()")


def _require_gradients_per_sample(model: nn.Module, item: Any) -> None:
    """Try two samples of zeros before the budget is claimed: each parameter must have a gradient for each of them."""
    first = item[0] if isinstance(item, tuple | list) else item
    params = {name.removeprefix("_module."): p for name, p in model.named_parameters() if p.requires_grad}
    if not isinstance(first, Tensor):
        return
    with torch.random.fork_rng(), suppress(Exception):  # how the model is called is the caller's business
        zeros = torch.zeros((2, *first.shape), dtype=first.dtype, device=next(iter(params.values())).device)
        found = model(zeros)
        parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, tuple) else (found,)
        torch.stack([part.sum() for part in parts if isinstance(part, Tensor) and part.requires_grad]).sum().backward()  # type: ignore[no-untyped-call]
    for name, p in params.items():
        sample, p.grad_sample, p.grad = getattr(p, "grad_sample", None), None, None  # type: ignore[attr-defined]
        if isinstance(sample, Tensor) and len(sample) != 2:
            rule = f"has {len(sample)} gradient for a batch of 2 samples"
            raise InvalidInput("module", name, rule, "give it an input per sample (as position_ids), or freeze it")


def _value(document: BudgetDocument, asked: str | None) -> str:
    gaussian = [one.name for one in document.releases if isinstance(one, GaussianNoise)]
    if asked is None and len(gaussian) == 1 and len(document.releases) == 1:
        return gaussian[0]
    if asked not in gaussian:
        names = ", ".join(gaussian) or "none"
        raise InvalidInput(
            "value", asked, f"is not a Gaussian value of the budget (it has {names})", "name one of them"
        )
    return asked


def epoch_of(sampling: Sampling | None, units: int) -> tuple[int, float]:
    """Batches per epoch of the loader, and the public number that sums are divided by: from signed numbers alone."""
    match sampling:
        case None:
            return 1, float(units)
        case Poisson(rate=rate):
            return max(1, math.ceil(1 / rate)), rate * units
        case FixedSize(population=population, size=size) | ShuffledEpochs(population=population, size=size):
            return max(1, math.ceil(population / size)), float(size)
        case RandomAllocation(batches=batches):
            return batches, units / batches
        case WithReplacement():
            raise InvalidInput("budget", "with-replacement", "draws records twice into one batch", "sign other batches")
        case _:
            raise InvalidInput("budget", type(sampling).__name__, "is not known to the loader", "sign Poisson batches")


def collate_with_empty(
    dataset: Dataset[Any], collate_fn: Callable[[list[Any]], Any] = default_collate
) -> Callable[[list[Any]], Any]:
    """As given, and for an empty batch tensors without rows."""
    item = dataset[0]
    parts = item if isinstance(item, tuple | list) else (item,)
    shapes = [(0, *np.shape(part)) for part in parts]
    kinds = [part.dtype if isinstance(part, Tensor) else type(part) for part in parts]
    found: Callable[[list[Any]], Any] = wrap_collate_with_empty(
        collate_fn=collate_fn, sample_empty_shapes=shapes, dtypes=kinds
    )
    return found
