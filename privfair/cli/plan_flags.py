"""The flags of each algorithm's plan, as the command line spells them.

A flag's name is the plan's parameter with dashes; what a value must satisfy is the plan's to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True)
class Flag:
    name: str
    kind: Any
    metavar: str
    help: str
    multiple: bool = False

    @property
    def parameter(self) -> str:
        return self.name.replace("-", "_")

    def option(self) -> Any:
        return click.option(
            f"--{self.name}",
            self.parameter,
            type=self.kind,
            metavar=None if isinstance(self.kind, click.Choice) else self.metavar,
            help=self.help,
            multiple=self.multiple,
        )


_ROUNDS = Flag("rounds", int, "T", "Rounds of training.")
_HISTOGRAM = Flag(
    "histogram-noise-ratio",
    float,
    "R",
    "Pay for a noisy histogram of the groups once; R is its noise multiplier relative to a round's.",
)
_NORMALISATION = (
    Flag("normalisation-noise-ratio", float, "R", "Pay for noisy normalisation statistics once."),
    Flag("normalisation-clip", float, "C", "L2 clip of one unit's normalisation statistics."),
)

FLAGS: dict[str, tuple[Flag, ...]] = {
    "steffle": (
        Flag("silo-size", int, "N", "Records in the smallest silo."),
        Flag("batch-size", int, "M", "Records in a batch; every batch sum is divided by M."),
        _ROUNDS,
        Flag("minority-fraction", float, "RHO", "Share of the smallest group, at most 1 / groups."),
        Flag("lipschitz", float, "L", "Lipschitz constant of the class probabilities in theta."),
        Flag("w-radius", float, "D", "Radius of the Frobenius ball that W is projected onto."),
        Flag(
            "sampling",
            click.Choice(["shuffled", "poisson", "full", "with-replacement"]),
            "",
            "How batches are drawn; they count as known to the observer.",
        ),
        Flag("groups", int, "K", "Number of sensitive groups (default 2)."),
        Flag("theta-share", float, "S", "Share of a round's budget for h_theta; the rest is h_W's (default 0.5)."),
        _HISTOGRAM,
    ),
    "fedfdp": (
        Flag("sampling-rate", float, "Q", "Probability that a record joins a batch (Poisson)."),
        _ROUNDS,
        Flag("clip", float, "C", "L2 clip of one record's weighted gradient."),
        Flag("loss-clip", float, "CL", "Clip of one record's loss."),
        Flag("loss-noise-ratio", float, "R", "sigma_l = R * sigma: the loss's noise relative to the gradient's."),
        *_NORMALISATION,
    ),
    "fpfl": (
        Flag("users", int, "K", "Users in the population."),
        Flag("cohort", int, "M", "Users in a cohort (expected number, for Poisson)."),
        _ROUNDS,
        Flag("clip", float, "C", "L2 clip of one user's whole message."),
        Flag(
            "sampling",
            click.Choice(["fixed", "poisson"]),
            "",
            "Cohorts of fixed size (replace-one, 2C) or Poisson (add-remove, C).",
        ),
        *_NORMALISATION,
    ),
    "mmd-fedavg": (
        Flag("group-size", int, "N", "Records in the smaller group."),
        Flag("samples-per-group", int, "M", "Noisy predictions published per group and round."),
        _ROUNDS,
        Flag("mechanism", click.Choice(["gaussian", "laplace"]), "", "Noise on the predictions."),
        Flag("users", int, "K", "Clients, where updates are private too."),
        Flag("cohort", int, "M", "Clients in a round, where updates are private too."),
        Flag("update-clip", float, "C", "L2 clip of a client's update; without it updates are unprotected."),
        Flag("update-noise-ratio", float, "R", "Noise multiplier of the updates relative to the predictions'."),
        _HISTOGRAM,
    ),
    "gaussian": (
        Flag("sampling-rate", float, "Q", "Probability that a unit joins a batch (Poisson); 1 is the full batch."),
        _ROUNDS,
        Flag(
            "relation",
            click.Choice(["add-remove", "replace-one"]),
            "",
            "How neighbouring data sets differ (default add-remove).",
        ),
        Flag("noise", float, "R", "Relative noise of one value of the batch; repeat for several.", multiple=True),
        Flag("clip", float, "C", "L2 clip of one unit's contribution (default 1)."),
    ),
    "pay-once": (
        Flag("groups", int, "K", "Number of sensitive groups (default 2)."),
        Flag("rounds", int, "T", "Rounds of training; they are free."),
    ),
}

EXAMPLES: dict[str, str] = {
    "steffle": "--epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172 \\\n"
    "      --minority-fraction 0.4 --lipschitz 1 --w-radius 1 --sampling shuffled",
    "fedfdp": "--epsilon 2 --delta 1e-5 --sampling-rate 0.05 --rounds 268 --clip 1 --loss-clip 1 \\\n"
    "      --loss-noise-ratio 2.5",
    "fpfl": "--epsilon 2 --delta 6e-5 --users 16280 --cohort 200 --rounds 1000 --clip 1 --sampling poisson",
    "mmd-fedavg": "--epsilon 4 --delta 1e-5 --group-size 10000 --samples-per-group 100 --rounds 50 \\\n"
    "      --mechanism gaussian --users 1000 --cohort 50 --update-clip 1",
    "gaussian": "--epsilon 1 --delta 1e-5 --sampling-rate 0.01 --rounds 1000",
    "pay-once": "--epsilon 1 --delta 1e-5 --groups 2",
}

SUMMARIES: dict[str, str] = {
    "steffle": "SteFFLe: private fair federated descent-ascent. Protects one record's sensitive attribute in what a "
    "silo sends; batches count as known, because the loss gradient shows them.",
    "fedfdp": "FedFDP: fair clipping with DP-SGD. Protects one record (add-remove); gradient and loss of a batch are "
    "one joint release.",
    "fpfl": "FPFL: fairness by multipliers under user-level privacy. Protects one user from whoever sees the model; "
    "the aggregator is trusted.",
    "mmd-fedavg": "MMD-fair FedAvg: noisy predictions, and noisy updates if clipped. Protects one record, replaced.",
    "gaussian": "Any DP-SGD: one or several Gaussian values of a batch, repeated. Protects one record.",
    "pay-once": "Pay once: randomised response on the attribute. Protects one record's sensitive attribute, purely, "
    "for as many rounds as you like.",
}
