"""The noise that is shown is the noise that is signed, and a signature costs one solve and a second opinion."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibrate import budget as budget_module
from calibrate.accountants import registry
from calibrate.manifest.keys import Role, generate, save
from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, RandomizedCategory
from calibrate.manifest.verify import read_unverified
from privfair.cli import cli

PLANS = {
    "gaussian": "--epsilon 1 --delta 1e-5 --sampling-rate 0.01 --rounds 1000",
    "steffle": "--epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172 --minority-fraction 0.4"
    " --lipschitz 1 --w-radius 1",
    "mmd-fedavg": "--epsilon 2 --delta 1e-5 --group-size 2000 --samples-per-group 50 --rounds 20 --mechanism laplace",
    "pay-once": "--epsilon 1 --delta 1e-5",
}


def calibrated(algorithm: str, *more: str) -> dict[str, Any]:
    result = CliRunner().invoke(cli, ["calibrate", algorithm, *PLANS[algorithm].split(), "--json", *more])
    assert result.exit_code == 0, result.output
    shown: dict[str, Any] = json.loads(result.stdout)
    return shown


def signing_flags(folder: Path) -> list[str]:
    save(generate(), Role.PRIVACY_OFFICER, folder / "officer.pem")
    return ["--out", str(folder / "budget.json"), "--key", str(folder / "officer.pem"), "--silo", "north=9000"]


@pytest.mark.parametrize("algorithm", PLANS)
def test_the_noise_shown_is_the_noise_signed_bit_for_bit(algorithm: str, tmp_path: Path) -> None:
    beforehand, while_signing = calibrated(algorithm), calibrated(algorithm, *signing_flags(tmp_path))
    document = read_unverified((tmp_path / "budget.json").read_bytes()).document
    assert while_signing["releases"] == beforehand["releases"]
    for shown in beforehand["releases"]:
        match document.release(shown["name"]):
            case GaussianNoise(sigma=sigma, noise_multiplier=multiplier):
                assert (sigma, multiplier) == (shown["sigma"], shown["noise_multiplier"])
            case LaplaceNoise(scale=scale, noise_multiplier=multiplier):
                assert (scale, multiplier) == (shown["sigma"], shown["noise_multiplier"])
            case RandomizedCategory() as response:
                kept = 1 / (1 + (response.categories - 1) * 2.718281828459045**-response.epsilon)
                assert kept == pytest.approx(shown["keep_probability"], rel=1e-12)
            case other:
                raise AssertionError(other)


@pytest.mark.parametrize(
    ("algorithm", "asked"), [("gaussian", ["solve", "second opinion"]), ("pay-once", ["price", "second opinion"])]
)
def test_one_signature_takes_one_solve_and_a_second_opinion(
    algorithm: str, asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The price of the noise found is the last one of the solve, which is kept."""
    calls: list[str] = []
    inside: list[str] = []

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if not inside:
                calls.append(name)
            inside.append(name)
            try:
                return function(*arguments, **named)
            finally:
                inside.pop()

        return counted

    monkeypatch.setattr(budget_module, "solve_noise", counting("solve", budget_module.solve_noise))
    monkeypatch.setattr(registry, "second_opinion", counting("second opinion", registry.second_opinion))
    monkeypatch.setattr(registry, "price", counting("price", registry.price))
    calibrated(algorithm, *signing_flags(tmp_path))
    assert calls == asked
