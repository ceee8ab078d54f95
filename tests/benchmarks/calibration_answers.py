"""How long any answer takes: seeded grids for `account` and `calibrate`, and random allocation against its authors'.

Each table comes with sentences made of its own numbers. `PLD_accounting`, the library of the authors of random
allocation's analysis, is installed by the `bench` extra and measured in a process of its own, one after the other.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from random import Random

import dp_accounting
from dp_accounting import pld

from calibrate import questions
from calibrate.accountants.registry import best_epsilon
from calibrate.accountants.sampled_losses import _allocation_law
from calibrate.errors import InvalidInput, NotCertified
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Poisson
from calibrate.solve import Certificate, solve_noise

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
_GRID_SIZES = tuple(int(size) for size in os.environ.get("CALIBRATION_GRID", "2000,300,60,60").split(","))
"""Settings of `account`, of `calibrate`, of random allocation, and how many of the first are held against a peer."""
LEAST_RATIO_OF_ALLOCATION = 200.0
_THEIR_ROUNDING = 1e-15


@dataclass(frozen=True)
class Answer:
    """Seconds of processor time and the sigma found; no sigma if stopped or failed."""

    seconds: float
    sigma: float | None
    note: str = ""

    @property
    def text(self) -> str:
        if self.note:
            return self.note
        return f"{1000 * self.seconds:.3g} ms" if self.seconds < 1 else f"{self.seconds:.3g} s"


Timed = Callable[[Callable[["Setting"], float], "Setting"], Answer]


@dataclass(frozen=True)
class Setting:
    """One question to the accountant: what do these rounds cost?"""

    noise_multiplier: float
    rate: float
    rounds: int
    delta: float

    @property
    def release(self) -> Repeated:
        return Repeated(Sampled(Poisson(self.rate), Gaussian(self.noise_multiplier)), self.rounds)


def account_settings(number: int = 2000, seed: int = 20240) -> list[Setting]:
    """Log-uniform: z .05 to 100, q 1e-8 to 1, T 1 to 1e7 (and 20 times 1e12), delta 1e-3 to 1e-30."""
    random = Random(seed)
    settings = [
        Setting(
            math.exp(random.uniform(math.log(0.05), math.log(100))),
            10 ** random.uniform(-8, 0),
            round(10 ** random.uniform(0, 7)),
            10 ** random.uniform(-30, -3),
        )
        for _ in range(number - 20)
    ]
    return settings + [replace(setting, rounds=10**12) for setting in settings[:20]]


def answers_section(timed: Timed) -> tuple[list[str], bool]:
    """The last three parts of the page, and whether everything came out as promised."""
    accounts, calibrations, allocations, compared = _GRID_SIZES
    parts = (
        account_part(account_settings()[-accounts:], compared, timed),
        calibrate_part(calibrations),
        allocation_part(allocations),
    )
    return [line for lines, _ in parts for line in lines], all(good for _, good in parts)


def _percentiles(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle, high, top = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99, 1.0))
    return f"{1000 * middle:.0f} ms | {1000 * high:.0f} ms | {top:.2f} s"


def _progress(what: str, done: int, number: int, seconds: list[float]) -> None:
    if done and done % 50 == 0:
        print(f"{what}: {done} of {number}, so far {_percentiles(seconds)}", file=sys.stderr, flush=True)


def account_part(settings: list[Setting], compared: int, timed: Timed) -> tuple[list[str], bool]:
    """Processor time of `account` over the settings, widths, and a random share against dp-accounting's upper bound."""
    seconds: list[float] = []
    refused: list[Setting] = []
    answers: list[tuple[Setting, EpsilonInterval]] = []
    for number, setting in enumerate(settings):
        _progress("account", number, len(settings), seconds)
        start = time.process_time()
        try:
            answers.append((setting, best_epsilon(setting.release, ADD_REMOVE, setting.delta).interval))
        except NotCertified:
            refused.append(setting)
        seconds.append(time.process_time() - start)
    memory = _peak_memory()
    widths = sorted(_width(interval) for _, interval in answers)
    wide = [sum(width > most for width in widths) for most in (0.01, 0.05, 0.1)]
    widest = [(setting, interval) for setting, interval in answers if _width(interval) > 0.1]
    large, long = sum(each.upper > 400 for _, each in widest), sum(each.rounds == 10**12 for each, _ in widest)
    agreed, contradicted, slow = _against_dp_accounting(answers, compared, timed)
    quick = max(seconds) < 2 and sorted(seconds)[len(seconds) // 2] < 0.02 and memory < 1
    lines = [
        "## Every answer of `account`, from one round on",
        "",
        "A seeded log-uniform sample of noise multipliers .05 to 100, rates 1e-8 to 1, rounds 1 to 1e7 (and 20",
        "times 1e12), deltas 1e-3 to 1e-30, both ends of the interval each.",
        "",
        "| settings | refused | 50th percentile | 99th | 100th | largest memory | wider than 1% | than 5% | than 10% |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        " | ".join(
            [f"| {len(settings)} | {len(refused)} | {_percentiles(seconds)} | {memory:.2f} GiB", *map(str, wide)]
        )
        + " |",
        "",
        *paragraph(
            "Goals are 20 ms, 200 ms, 2 s and 1 GiB. Of the refusals "
            f"{sum(each.rounds == 10**12 for each in refused)} ask about 1e12 rounds. Half of the intervals are "
            "narrower "
            f"than {widths[len(widths) // 2]:.0e} of epsilon; of the {wide[2]} that are wider than 10% {large} have an "
            f"epsilon above 400 and {long} 1e12 rounds."
        ),
        *paragraph(
            f"Against dp-accounting's upper bound, a random {min(compared, len(answers))} of the settings below 1e6 "
            "rounds, with an epsilon below 100 and a delta that its rounding leaves alone: "
            f"{agreed} agree, {contradicted} contradict, {slow} were stopped or failed. Where its "
            "rounding is not small next to delta it can be wrong: `tests/calibrate/test_certified_corners.py` has a "
            "case "
            "that a third computation decides."
        ),
    ]
    return lines, contradicted == 0 and quick


def _peak_memory() -> float:
    """GiB that this process has held at most so far."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 2**20


def paragraph(text: str) -> list[str]:
    """Lines of a page, and the empty one after them."""
    return [*textwrap.wrap(text, 118), ""]


def _width(interval: EpsilonInterval) -> float:
    return (interval.upper - interval.lower) / interval.upper if interval.upper > 0 else 0.0


def _against_dp_accounting(
    answers: list[tuple[Setting, EpsilonInterval]], compared: int, timed: Timed
) -> tuple[int, int, int]:
    """Of a random share: how many agree with dp-accounting's upper bound, contradict it, or got no answer in time."""
    comparable = [
        each
        for each in answers
        # Each of its rounds rounds by about 1e-16 of the whole mass; where that shows beside delta it bounds nothing.
        if each[0].rounds * _THEIR_ROUNDING < 1e-4 * each[0].delta and each[0].rounds < 10**6 and each[1].upper < 100
    ]
    contradicted = agreed = stopped = 0
    for setting, interval in Random(1).sample(comparable, min(compared, len(comparable))):
        answer = timed(_their_epsilon, setting)
        print(f"dp-accounting: {setting}: {answer.text}, ours {interval}", file=sys.stderr, flush=True)
        if answer.sigma is None:
            stopped += 1
            continue
        contradicted += interval.lower > answer.sigma * (1 + 1e-9)
        agreed += interval.lower <= answer.sigma * (1 + 1e-9)
    return agreed, contradicted, stopped


def _their_epsilon(setting: Setting) -> float:
    event = dp_accounting.PoissonSampledDpEvent(setting.rate, dp_accounting.GaussianDpEvent(setting.noise_multiplier))
    accountant = pld.PLDAccountant().compose(dp_accounting.SelfComposedDpEvent(event, setting.rounds))
    return float(accountant.get_epsilon(setting.delta))


def calibrate_part(number: int, seed: int = 7) -> tuple[list[str], bool]:
    """Processor time of solving for sigma over a seeded grid."""
    random, seconds, refused = Random(seed), [], 0
    for done in range(number):
        _progress("calibrate", done, number, seconds)
        rate, rounds = 10 ** random.uniform(-6, 0), round(10 ** random.uniform(0, 6))
        target = EpsilonDelta(math.exp(random.uniform(math.log(0.05), math.log(20))), 10 ** random.uniform(-12, -3))
        start = time.process_time()
        try:
            template = Repeated(Sampled(Poisson(rate), Gaussian(1.0)), rounds)
            solve_noise(template, ADD_REMOVE, target, Certificate.UPPER)
        except (NotCertified, InvalidInput):
            refused += 1
        seconds.append(time.process_time() - start)
    lines = [
        "## Every answer of `calibrate`",
        "",
        "A seeded log-uniform sample of rates 1e-6 to 1, rounds 1 to 1e6, epsilon .05 to 20, delta 1e-3 to 1e-12; the",
        "certified upper sigma each.",
        "",
        "| settings | refused | 50th percentile | 99th | 100th |",
        "|---:|---:|---:|---:|---:|",
        f"| {number} | {refused} | {_percentiles(seconds)} |",
        "",
    ]
    return lines, max(seconds) < 5


_PEER = """
import json, sys, time
from PLD_accounting import gaussian_allocation_epsilon_range as bounds
sigma, steps, epochs, delta = json.loads(sys.argv[1])
start = time.process_time()
upper, lower = bounds(delta=delta, sigma=sigma, num_steps=steps, num_epochs=epochs)
print(json.dumps([time.process_time() - start, lower, upper]))
"""
_SIDE_BY_SIDE = ((1.0, 10, 1, 1e-5), (1.0, 1000, 1, 1e-5), (2.0, 100, 10, 1e-6))


def allocation_part(number: int, seed: int = 5) -> tuple[list[str], bool]:
    """Random allocation side by side with the authors' library, and the widths and times of a seeded grid."""
    lines = [
        "## Random allocation",
        "",
        *paragraph(
            "Both ends of epsilon against those of the authors' library `PLD_accounting` "
            f"{version('PLD_accounting')}, at its default accuracy and in a process of its own; ours from scratch, "
            "nothing kept from earlier questions. Then a seeded log-uniform sample of 2 to 1e5 batches, sigma "
            ".5 to 30, 1 to 1000 epochs, delta 1e-3 to 1e-10."
        ),
        "| sigma | batches | epochs | delta | ours | time | PLD_accounting | time | ratio |",
        "|---:|---:|---:|---:|---|---:|---|---:|---:|",
    ]
    good = True
    for sigma, batches, epochs, delta in _SIDE_BY_SIDE:
        interval, seconds = _allocated(sigma, batches, epochs, delta)
        theirs = _authors_answer(sigma, batches, epochs, delta)
        ours = f"[{interval.lower:.5f}, {interval.upper:.5f}] | {seconds:.2f} s"
        ratio = theirs[0] / seconds
        lines.append(
            f"| {sigma:g} | {batches} | {epochs} | {delta:g} | {ours} | [{theirs[1]:.5f}, {theirs[2]:.5f}] "
            f"| {theirs[0]:.1f} s | {ratio:.0f}x |"
        )
        good &= interval.lower <= theirs[2] and theirs[1] <= interval.upper
        if batches >= 1000:
            good &= ratio >= LEAST_RATIO_OF_ALLOCATION and interval.upper - interval.lower < theirs[2] - theirs[1]
    random, seconds_of, wide, widest = Random(seed), [], 0, 0.0
    for _ in range(number):
        batches, sigma = round(10 ** random.uniform(math.log10(2), 5)), math.exp(random.uniform(math.log(0.5), 3.401))
        interval, seconds = _allocated(sigma, batches, round(10 ** random.uniform(0, 3)), 10 ** random.uniform(-10, -3))
        width = interval.upper - interval.lower
        seconds_of.append(seconds)
        wide += width > max(0.01 * interval.upper, 1e-4)
        widest = max(widest, width / interval.upper if width > 1e-4 else 0.0)
    lines += [
        "",
        "| settings | 50th percentile | 99th | 100th | wider than 1% and 1e-4 | widest |",
        "|---:|---:|---:|---:|---:|---:|",
        f"| {number} | {_percentiles(seconds_of)} | {wide} | {100 * widest:.2f}% |",
        "",
    ]
    return lines, good and wide == 0


def _allocated(sigma: float, batches: int, epochs: int, delta: float) -> tuple[EpsilonInterval, float]:
    _allocation_law.cache_clear()
    start = time.process_time()
    interval = questions.epsilon(
        noise_multiplier=sigma, sampling="random-allocation", batches=batches, epochs=epochs, delta=delta
    )
    return interval, time.process_time() - start


def _authors_answer(sigma: float, batches: int, epochs: int, delta: float) -> tuple[float, float, float]:
    """Seconds, lower and upper end by `PLD_accounting`."""
    question = json.dumps([sigma, batches, epochs, delta])
    done = subprocess.run([sys.executable, "-c", _PEER, question], capture_output=True, text=True, check=True)
    seconds, lower, upper = json.loads(done.stdout)
    return float(seconds), float(lower), float(upper)
