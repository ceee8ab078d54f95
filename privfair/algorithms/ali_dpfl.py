"""ALI-DPFL: the number of noisy local steps between two aggregations follows a convergence bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from calibrate.errors import InvalidInput, count
from privfair.algorithms.algorithm import Received
from privfair.algorithms.parts.clients import ClippedSums, LocalModels, LocalSteps, weighted_mean
from privfair.models.model import Model
from privfair.plan.sections import AtLeastZero, Count, Options, Positive


@dataclass(frozen=True)
class AliDpflOptions(Options):
    """ALI-DPFL: how often models may be averaged, and the constants of its convergence bound."""

    learning_rate: Positive = 0.5
    communications: Count = 20
    """R_s: aggregations allowed; as many as steps, or more, means one step each."""
    first_steps: Count = 2
    """Local steps before the first aggregation, and until mu is known."""
    most_steps: Count = 100
    strong_convexity: Positive | None = None
    """mu, if it is public; left out: estimated from published gradients."""
    heterogeneity: AtLeastZero = 0.0
    """Gamma = F* - sum_k p_k F_k*, a public figure."""


@dataclass(frozen=True, eq=False)
class AliDpflState:
    """All of it follows from published gradients and public numbers."""

    models: LocalModels
    steps: int
    """tau: local steps until the next aggregation."""
    spent: int
    """Noisy steps so far."""
    communications: int
    """Aggregations so far."""
    curvature: float | None
    """mu, as far as it is known."""
    first: Tensor | None = None
    """What each client published at the global model of this round; kept only where mu is estimated."""


@final
@dataclass(frozen=True, eq=False)
class AliDpfl(LocalSteps[AliDpflState]):
    """Ling et al. (arXiv:2308.10457): w_k <- w_k - eta g_k, averaged after tau steps; tau by `local_steps`.

    Guarantee: none of its own. Each local step publishes one sum of gradients clipped to `sending.clip`, and a
    `gaussian` manifest prices all `budget` steps, whatever tau is. tau decides only when published models are
    averaged; it is computed from public numbers and published gradients, so it costs nothing. The authors' public code
    takes mu and Gamma from exact losses and gradients of the clients, neither noisy nor charged: here mu is public
    or estimated from what was published, and Gamma is public. Unit: one record, as the manifest says.

    That code stops after its last allowed communication even with budget left. Here tau is never smaller than what
    spends the budget within the communications left.
    """

    model: Model
    options: AliDpflOptions
    weights: Mapping[str, float]
    sending: ClippedSums
    noise: float
    """Standard deviation of the noise on each client's sum; 0 where nothing is promised."""
    budget: int
    """Noisy steps in all (the paper's R_c)."""
    seed: int = 0

    def __post_init__(self) -> None:
        count("budget", self.budget)
        if not 0 <= self.noise < math.inf:
            raise InvalidInput("noise", self.noise, "must be a finite number of at least 0", "give sigma")

    def start(self) -> AliDpflState:
        theta, known = self.model.initial(self.seed), self.options.strong_convexity
        return AliDpflState(LocalModels(theta), self._allowed_steps(self.options.first_steps, 0, 0), 0, 0, known)

    def update(self, state: AliDpflState, received: Received) -> AliDpflState:
        models = state.models
        before = models.rows(len(self.weights))
        gradients = self.gradients(received, before)
        rows, spent = before - self.options.learning_rate * gradients, state.spent + 1
        estimated = self.options.strong_convexity is None
        first = state.first if models.inner else (gradients if estimated else None)
        if models.inner + 1 < state.steps:
            moved = LocalModels(models.theta, rows, models.inner + 1)
            return AliDpflState(moved, state.steps, spent, state.communications, state.curvature, first)
        curvature = state.curvature
        if first is not None and models.inner:
            curvature = self._curvature(before - models.theta, gradients - first) or curvature
        made = state.communications + 1
        wanted = state.steps if curvature is None else self.local_steps(curvature, state.steps)
        following = self._allowed_steps(wanted, spent, made)
        return AliDpflState(LocalModels(weighted_mean(self.weights, rows)), following, spent, made, curvature)

    def local_models(self, state: AliDpflState) -> LocalModels:
        return state.models

    def local_steps(self, curvature: float, last: int) -> int:
        """tau* = sqrt(1 + (4/mu^2 + 3 C^2 + 2 mu Gamma T + V) / ((2 + 2/T) (C^2 + V))), rounded, in [1, most].

        V = noise^2 d / B^2 with the smallest expected batch B, and T = min(R_s * last tau, R_c). This is the rule of
        the authors' public code, read as a formula.
        """
        squared = self.sending.clip**2
        variance = self.model.size * (self.noise / min(self.sending.expected.values())) ** 2
        horizon = min(self.options.communications * last, self.budget)
        drift = 2 * curvature * self.options.heterogeneity * horizon
        top = 4 / curvature**2 + 3 * squared + drift + variance
        best = math.sqrt(1 + top / ((2 + 2 / horizon) * (squared + variance)))
        # Compared before rounding: a curvature near zero asks for more steps than a whole number can say.
        return self.options.most_steps if best >= self.options.most_steps else max(1, math.floor(best + 0.5))

    def _curvature(self, moved: Tensor, changed: Tensor) -> float | None:
        """sum_k p_k |change of gradient| / |move|, the noise's share of the squared change taken off; None if nothing
        is left."""
        found = 0.0
        for place, (party, share) in enumerate(self.weights.items()):
            noise = 2 * self.model.size * (self.noise / self.sending.expected[party]) ** 2
            square = float(changed[place] @ changed[place]) - noise
            length = float(moved[place].norm())
            found += share * math.sqrt(max(square, 0.0)) / length if length > 0 else 0.0
        return found if found > 0 else None

    def _allowed_steps(self, wanted: int, spent: int, made: int) -> int:
        """As many steps as wanted, but no more than are left, and enough to use them in the communications left."""
        left = self.budget - spent
        if self.options.communications >= self.budget:
            return 1  # with a communication for every step there is nothing to save
        needed = math.ceil(left / max(1, self.options.communications - made))
        return max(1, min(left, max(wanted, needed)))
