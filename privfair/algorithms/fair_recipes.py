"""From a plan to the fair algorithms of the papers; torch is imported only when one is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_never

from calibrate.errors import InvalidInput
from privfair.algorithms.baselines.options import StepMethod
from privfair.algorithms.fair_options import PairMethod

if TYPE_CHECKING:
    from privfair.algorithms.algorithm import Algorithm
    from privfair.algorithms.fedfdp import FedFdpClips
    from privfair.algorithms.mmd_fedavg import CountsInTheClear, PaidCounts, PublicShares
    from privfair.algorithms.registry import Blueprint
    from privfair.fairness.kernels import Noise


def fedfdp(blueprint: Blueprint) -> Algorithm[Any]:
    """FedFDP; without a clip (and so without a promise) FedFair."""
    from privfair.algorithms.fedfdp import FedFdp, FedFdpClips

    _refuse_normalisation(blueprint)
    clip, clips, rate = blueprint.privacy.get("clip"), None, 1.0
    if clip is not None:
        clips = FedFdpClips(float(clip), float(blueprint.needed("loss-clip")))
        rate = float(blueprint.needed("sampling-rate"))
    expected = {name: rate * size for name, size in blueprint.parties}
    if blueprint.options.method is not PairMethod.FEDFDP:
        return _other_pairs(blueprint, clips, expected)
    return FedFdp(blueprint.model, blueprint.options, blueprint.shares, expected, clips, blueprint.seed)


def _other_pairs(blueprint: Blueprint, clips: FedFdpClips | None, expected: dict[str, float]) -> Algorithm[Any]:
    from privfair.algorithms.baselines.agnostic_fl import AgnosticFl
    from privfair.algorithms.baselines.options import AgnosticOptions, QFflOptions
    from privfair.algorithms.baselines.q_ffl import QFfl
    from privfair.algorithms.parts.clients import ClippedPairs, PlainMeans

    options, model, shares, seed = blueprint.options, blueprint.model, blueprint.shares, blueprint.seed
    sending = PlainMeans() if clips is None else ClippedPairs(clips.gradient, clips.loss, expected)
    if options.method is PairMethod.Q_FFL:
        own = QFflOptions(options.learning_rate, options.local_steps, options.exponent, options.loss_floor)
        return QFfl(model, own, shares, sending, seed)
    return AgnosticFl(model, AgnosticOptions(options.learning_rate, options.weight_rate), shares, sending, seed)


def private_local_steps(blueprint: Blueprint, rate: float, clip: float) -> Algorithm[Any] | None:
    """The corrected local steps that a `gaussian` plan asks for; None for plain DP-FedSGD."""
    from privfair.algorithms.ali_dpfl import AliDpfl
    from privfair.algorithms.baselines.feddyn import FedDyn
    from privfair.algorithms.baselines.fedprox import FedProx
    from privfair.algorithms.baselines.scaffold import Scaffold
    from privfair.algorithms.parts.clients import ClippedSums

    options, model, shares, seed = blueprint.options, blueprint.model, blueprint.shares, blueprint.seed
    sending = ClippedSums(clip, {name: rate * size for name, size in blueprint.parties})
    match options.method:
        case StepMethod.FEDPROX:
            return FedProx(model, options.prox, shares, sending, seed)
        case StepMethod.SCAFFOLD:
            return Scaffold(model, options.controlled, shares, sending, seed)
        case StepMethod.FEDDYN:
            return FedDyn(model, options.dynamic, shares, sending, seed)
        case StepMethod.ALI_DPFL:
            noise = _gradient_noise(blueprint)
            return AliDpfl(model, options.adaptive, shares, sending, noise, blueprint.rounds, seed)
        case StepMethod.FEDSGD:
            return None
        case _:
            assert_never(options.method)


def _gradient_noise(blueprint: Blueprint) -> float:
    """The signed noise of a `gaussian` plan; 0 where nothing is promised, or while the manifest is being issued."""
    from calibrate.manifest.mechanism import GaussianNoise
    from privfair.algorithms.parts.clients import NOISY

    signed = None if blueprint.document is None else blueprint.document.release(NOISY)
    return signed.sigma if isinstance(signed, GaussianNoise) else 0.0


def fpfl(blueprint: Blueprint) -> Algorithm[Any]:
    """FPFL and its ladder; without a clip (and so without a promise) FL and FFL."""
    from privfair.algorithms.fpfl import Fpfl

    _refuse_normalisation(blueprint)
    clip = blueprint.privacy.get("clip")
    return Fpfl(
        model=blueprint.model,
        options=blueprint.options,
        groups=blueprint.groups,
        expected_cohort=float(blueprint.needed("cohort")),
        clip=None if clip is None else float(clip),
        seed=blueprint.seed,
    )


def mmd_fedavg(blueprint: Blueprint) -> Algorithm[Any]:
    """MMD-fair FedAvg; what noise does to the kernel is read off the manifest."""
    from privfair.algorithms.mmd_fedavg import MmdFedAvg, MmdTerms

    _require_two_groups(blueprint)
    clients = tuple(size for _, size in blueprint.clients)
    users = blueprint.privacy.get("users")
    if users is not None and users != len(clients):
        raise InvalidInput(
            "[privacy] users", users, f"is not the data's {len(clients)} clients", f"write users = {len(clients)}"
        )
    clip = blueprint.privacy.get("update-clip")
    terms = MmdTerms(
        clients=clients,
        samples=blueprint.needed("samples-per-group"),
        cohort=blueprint.privacy.get("cohort") or len(clients),
        counts=_counts(blueprint),
        update_clip=None if clip is None else float(clip),
        noise=_prediction_noise(blueprint),
        smallest_cell=blueprint.privacy.get("group-size") or 1,
    )
    return MmdFedAvg(blueprint.model, blueprint.options, terms, blueprint.seed)


def _counts(blueprint: Blueprint) -> PublicShares | PaidCounts | CountsInTheClear:
    from privfair.algorithms.mmd_fedavg import CountsInTheClear, PaidCounts, PublicShares

    if blueprint.options.group_shares is not None:
        return PublicShares(blueprint.options.group_shares)
    paid = blueprint.privacy.get("histogram-noise-ratio") is not None
    return PaidCounts() if paid else CountsInTheClear()


def _prediction_noise(blueprint: Blueprint) -> Noise | None:
    """The signed noise of the predictions; None where nothing is promised, or while the manifest is being issued."""
    from calibrate.manifest import mechanism
    from privfair.algorithms.mmd_fedavg import PREDICTIONS
    from privfair.fairness.kernels import GaussianNoise, LaplaceNoise

    if blueprint.document is None:
        return None
    signed = blueprint.document.release(PREDICTIONS[0])
    if isinstance(signed, mechanism.GaussianNoise):
        return GaussianNoise(signed.sigma)
    if isinstance(signed, mechanism.LaplaceNoise):
        return LaplaceNoise(signed.scale)
    return None


def _refuse_normalisation(blueprint: Blueprint) -> None:
    if blueprint.privacy.get("normalisation-noise-ratio") is not None:
        raise InvalidInput(
            "[privacy] normalisation-noise-ratio",
            blueprint.privacy["normalisation-noise-ratio"],
            "pays for statistics that training does not publish",
            "drop it: features are scaled by the public bounds of their schema",
        )


def fedprox(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.fedprox import FedProx

    return FedProx(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


def scaffold(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.scaffold import Scaffold

    return Scaffold(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


def feddyn(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.feddyn import FedDyn

    return FedDyn(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


def q_ffl(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.q_ffl import QFfl

    return QFfl(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


def agnostic_fl(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.agnostic_fl import AgnosticFl

    return AgnosticFl(blueprint.model, blueprint.options, blueprint.shares, seed=blueprint.seed)


def local_mmd(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.local_mmd import LocalMmd

    _require_two_groups(blueprint)
    return LocalMmd(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


def fairfed(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.fairfed import FairFed

    _require_two_groups(blueprint)
    return FairFed(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


def fedfb(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.fedfb import FedFb

    _require_two_groups(blueprint)
    return FedFb(blueprint.model, blueprint.options, blueprint.shares, blueprint.seed)


def tran(blueprint: Blueprint) -> Algorithm[Any]:
    from privfair.algorithms.baselines.tran import TranMultipliers

    cohort = float(blueprint.options.cohort or sum(size for _, size in blueprint.parties))
    return TranMultipliers(blueprint.model, blueprint.options, blueprint.groups, cohort, None, blueprint.seed)


def _require_two_groups(blueprint: Blueprint) -> None:
    if blueprint.groups != 2:
        raise InvalidInput("groups", blueprint.groups, "must be 2 here", "compare two groups")
