"""How fast sigma is calibrated, as a ratio against the peers in the same process.

Run `python -m tests.benchmarks calibration` (about a quarter of an hour) to measure and to write the whole of
docs/benchmarks.md; `python -m tests.benchmarks.calibration_speed --quick` for the two headline cases alone.
It ends with exit code 1 if the certified upper answer is less than 100 times
faster than dp-accounting at equal or better tightness on the headline cases, if any case of the grid is slower than
dp-accounting, if the time grows faster than the square root of the number of rounds, or if an answer of the last tables
is slow, wide or contradicted.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import dp_accounting
from dp_accounting import pld
from opacus.accountants.utils import get_noise_multiplier
from prv_accountant.dpsgd import find_noise_multiplier

from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.releases import Gaussian, Repeated, Sampled
from calibrate.sampling import Poisson
from calibrate.solve import Certificate, solve_noise
from tests.benchmarks.calibration_answers import Answer, answers_section, paragraph
from tests.sections import write_section

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
TOLERANCE = 5e-6
LIMIT = 30.0
"""Seconds of processor time after which a peer is stopped."""
BESIDE_A_PEER = 12
"""How many cases of the grid are put to dp-accounting as well; all of them would take it half an hour."""
LEAST_RATIO = 100.0


@dataclass(frozen=True)
class Case:
    rate: float
    rounds: int
    epsilon: float
    delta: float

    def __str__(self) -> str:
        return f"{self.rate:g} | {self.rounds:,} | {self.epsilon:g} | {self.delta:g}"


HEADLINES = (Case(0.01, 1000, 1.0, 1e-5), Case(0.001, 100_000, 2.0, 1e-6))
GRID = tuple(
    Case(q, t, e, 1e-5) for q, t, e in product((0.001, 0.01, 0.1, 0.5), (50, 300, 3000, 10**6), (0.5, 2.0, 8.0))
)
GROWTH = tuple(Case(0.001, 10**k, 2.0, 1e-6) for k in range(8))


Question = TypeVar("Question")


class _OutOfTime(Exception):
    pass


def timed(solve: Callable[[Question], float], case: Question, repeats: int = 1) -> Answer:
    """Processor time of one answer (the median of some repeats), stopped at the limit."""

    def stop(*_: object) -> None:
        raise _OutOfTime

    signal.signal(signal.SIGPROF, stop)
    seconds, sigma = [], math.nan
    try:
        for _ in range(repeats):
            signal.setitimer(signal.ITIMER_PROF, LIMIT)
            start = time.process_time()
            sigma = solve(case)
            seconds.append(time.process_time() - start)
    except _OutOfTime:
        return Answer(LIMIT, None, f"> {LIMIT:.0f} s")
    except (ValueError, RuntimeError, OverflowError, AssertionError, MemoryError) as error:
        return Answer(math.inf, None, f"fails ({type(error).__name__})")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Answer(statistics.median(seconds), sigma)


def ours(certificate: Certificate, tolerance: float = TOLERANCE) -> Callable[[Case], float]:
    def solve(case: Case) -> float:
        template = Repeated(Sampled(Poisson(case.rate), Gaussian(1.0)), case.rounds)
        target = EpsilonDelta(case.epsilon, case.delta)
        return solve_noise(template, ADD_REMOVE, target, certificate, tolerance).factor

    return solve


def dp_accounting_pld(case: Case) -> float:
    def event(sigma: float) -> dp_accounting.DpEvent:
        sampled = dp_accounting.PoissonSampledDpEvent(case.rate, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(sampled, case.rounds)

    return float(dp_accounting.calibrate_dp_mechanism(pld.PLDAccountant, event, case.epsilon, case.delta))


def opacus(accountant: str) -> Callable[[Case], float]:
    """At its own default tolerance of 0.01 in epsilon: far looser than the others."""

    def solve(case: Case) -> float:
        return float(
            get_noise_multiplier(
                target_epsilon=case.epsilon,
                target_delta=case.delta,
                sample_rate=case.rate,
                steps=case.rounds,
                accountant=accountant,
            )
        )

    return solve


def prv_accountant(case: Case) -> float:
    """With an error of 0.01 in epsilon."""
    return float(find_noise_multiplier(case.rate, case.rounds, case.epsilon, case.delta, eps_error=0.01))


PEERS: dict[str, Callable[[Case], float]] = {
    "dp-accounting PLD": dp_accounting_pld,
    "Opacus rdp": opacus("rdp"),
    "Opacus prv": opacus("prv"),
    "prv-accountant": prv_accountant,
}


def ratio(theirs: Answer, mine: Answer) -> str:
    if theirs.sigma is None and not theirs.note.startswith(">"):
        return "-"
    return ("> " if theirs.sigma is None else "") + f"{theirs.seconds / mine.seconds:.0f}x"


def excess(answer: Answer, reference: float) -> str:
    return "-" if answer.sigma is None else f"{answer.sigma / reference - 1:+.1e}"


def headline_table() -> tuple[list[str], bool]:
    lines = [
        "| q | T | eps | delta | who | time | sigma | above the certified lower | slower than ours by |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    good = True
    for case in HEADLINES:
        template = Repeated(Sampled(Poisson(case.rate), Gaussian(1.0)), case.rounds)
        target = EpsilonDelta(case.epsilon, case.delta)
        lower = solve_noise(template, ADD_REMOVE, target, tolerance=1e-6).factor_lower
        upper = timed(ours(Certificate.UPPER), case, 9)
        rows = {
            "privfair, certified upper": upper,
            "privfair, two-sided": timed(ours(Certificate.TWO_SIDED), case, 9),
        } | {name: timed(solve, case) for name, solve in PEERS.items()}
        for name, answer in rows.items():
            sigma = "-" if answer.sigma is None else f"{answer.sigma:.7f}"
            lines.append(
                f"| {case} | {name} | {answer.text} | {sigma} | {excess(answer, lower)} | {ratio(answer, upper)} |"
            )
        theirs = rows["dp-accounting PLD"]
        good &= theirs.seconds / upper.seconds >= LEAST_RATIO
        good &= theirs.sigma is None or (upper.sigma is not None and upper.sigma <= theirs.sigma)
        print("\n".join(lines[-len(rows) :]), file=sys.stderr, flush=True)
    return lines, good


def grid_section() -> tuple[list[str], bool]:
    """All cases by ours, and a seeded sample of them by dp-accounting too."""
    uppers = [timed(ours(Certificate.UPPER), case, 3) for case in GRID]
    seconds = [answer.seconds for answer in uppers]
    slowest = GRID[seconds.index(max(seconds))]
    lines = [
        "## A grid from easy to hard",
        "",
        *paragraph(
            "q in 0.001, 0.01, 0.1, 0.5; T in 50, 300, 3,000, 1,000,000; eps in 0.5, 2, 8; delta 1e-5. Ours alone: all "
            f"{len(GRID)} cases together take {sum(seconds):.1f} s, the slowest {max(seconds):.2f} s "
            f"(q = {slowest.rate:g}, T = {slowest.rounds:,}, eps = {slowest.epsilon:g}), the fastest "
            f"{min(seconds):.3f} s. A random {BESIDE_A_PEER} of them side by side; a positive difference in sigma "
            "means "
            "that dp-accounting adds more noise."
        ),
        "| q | T | eps | delta | sigma | certified upper | two-sided | dp-accounting PLD | sigma difference | ratio |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    good = all(answer.sigma is not None for answer in uppers)
    for number in sorted(Random(3).sample(range(len(GRID)), BESIDE_A_PEER)):
        case, upper = GRID[number], uppers[number]
        both = timed(ours(Certificate.TWO_SIDED), case, 1)
        theirs = timed(dp_accounting_pld, case)
        sigma = upper.sigma or math.nan
        lines.append(
            f"| {case} | {sigma:.6g} | {upper.text} | {both.text} | {theirs.text} | {excess(theirs, sigma)} "
            f"| {ratio(theirs, upper)} |"
        )
        good &= upper.seconds < theirs.seconds
        print(lines[-1], file=sys.stderr, flush=True)
    return [*lines, ""], good


def growth_table() -> tuple[list[str], bool]:
    lines = [
        "| T | sigma | certified upper | two-sided | dp-accounting PLD | ratio |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    seconds = {}
    for case in GROWTH:
        upper = timed(ours(Certificate.UPPER), case, 3)
        both = timed(ours(Certificate.TWO_SIDED), case, 1)
        theirs = timed(dp_accounting_pld, case)
        seconds[case.rounds] = upper.seconds
        lines.append(
            f"| {case.rounds:,} | {upper.sigma or math.nan:.6g} | {upper.text} | {both.text} | {theirs.text} "
            f"| {ratio(theirs, upper)} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    return lines, seconds[10**7] / seconds[10**5] <= 1.2 * math.sqrt(100)


def page(headlines: list[str], grid: list[str], growth: list[str], answers: list[str], load: str) -> str:
    return "\n".join(
        [
            "# Speed of calibration",
            "",
            *paragraph(
                "Written by one run of `python -m tests.benchmarks calibration`: seconds of processor time on one "
                "core, "
                f"imports warmed up, ours the median of several runs, peers one run and stopped after {LIMIT:.0f} s. "
                f"{load}"
            ),
            *paragraph(
                "Poisson sampling, add-remove. *Certified upper* is the fast answer with a proof for its private side, "
                "which is what dp-accounting's calibration gives too; *two-sided* adds a proved lower sigma and the "
                f"achieved epsilon. Ours is asked for a relative tolerance of {TOLERANCE:g} in sigma; dp-accounting "
                "runs "
                "at its default grid of 1e-4; Opacus at its default tolerance (0.01 in epsilon) and prv-accountant "
                "with "
                "an error of 0.01 in epsilon, both far looser."
            ),
            "## Two headline cases",
            "",
            *headlines,
            "",
            "## Cost as the number of rounds grows (q = 0.001, eps = 2, delta = 1e-6)",
            "",
            *growth,
            "",
            *grid,
            *answers,
        ]
    )


def load_sentence(before: float, after: float) -> str:
    """What the reader must know of the machine: processor time grows where processes share cores and caches."""
    return (
        f"The machine had {os.cpu_count()} cores and a load of {before:.0f} when the run began and of {after:.0f} when "
        "it ended; processor time on a shared machine is inflated, for all who are measured in the same way."
    )


def main(arguments: list[str]) -> int:
    before = os.getloadavg()[0]
    warm, quick = Case(0.1, 10, 1.0, 1e-5), "--quick" in arguments
    timed(ours(Certificate.TWO_SIDED), warm)
    # First, because the memory that it measures would else be what peers have left behind.
    answers, always_quick = ([], True) if quick else answers_section(timed)
    for solve in PEERS.values():
        timed(solve, warm)
    headlines, good = headline_table()
    if quick:
        print("\n".join(headlines))
        return int(not good)
    growth, grows_slowly = growth_table()
    grid, never_slower = grid_section()
    text = page(headlines, grid, growth, answers, load_sentence(before, os.getloadavg()[0]))
    write_section("calibration", text)
    print(text)
    return int(not (good and grows_slowly and never_slower and always_quick))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
