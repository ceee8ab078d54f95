"""Are batches drawn as declared, and independent of each other? Poisson, fixed size, shuffled, randomly allocated.

A sampling is told by what it repeats. Poisson batches vary in size and share units by chance; fixed-size ones share
units but not their size; shuffled ones share none within an epoch; randomly allocated ones share none either and vary
in size. Pricing one as another is a broken promise. Given their sizes, independent batches (of different rounds, silos
and beginnings of a run) are random parts of the units, for every sampling that treats units alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import kl_div, logsumexp

from audit.bounds.binomial import two_sided
from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.evidence import rows_only, sensitive_silos, wrong_answers
from audit.runs.rerun import Rehearsal
from calibrate.manifest.mechanism import NoiseSource, NoPrivacyPromised
from calibrate.sampling import (
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.participation import Participation, declared_sampling, group_of_units
from privfair.batches.randomness import SystemWords

ALPHA = 1e-5
"""False-alarm probability of all questions about one rehearsal's batches together."""
_TESTS = 17
"""Of one silo: five of the rounds one after the other, five of the later ones, three of the whole run, one of rounds
between silos (in either part), one of a second beginning, one of the groups of a cycle."""
_SLOPES = np.geomspace(1e-3, 100.0, 120)
_STEEPEST = 2.0
"""Of the slopes for sizes that vary too much; steeper ones only see the cuts."""
_TELLING = 8
"""From so many batches on their sizes show a law."""

_MOST_LOOKED_AT = 200_000_000
"""Units times rounds of an epoch that is drawn beyond a rehearsal."""
_DRAWN_APART, _MOST_DRAWS = 300_000, 4000
"""Units times rounds, and rounds, that are drawn for each silo to see rates change over the whole run."""
_PAIRED = 512
"""Units of which any two are compared: do they take part together?"""
_MOST_KINDS = 8
_PARTS = 4
"""The whole run, its halves and its quarters each have their rate tested."""


def check_batches(rehearsal: Rehearsal) -> tuple[Check, ...]:
    """The batches that the engine drew in the rehearsal, against the manifest's declaration."""
    if isinstance(rehearsal.document.guarantee, NoPrivacyPromised):
        return ()
    if rehearsal.algorithm.draws:
        return (
            not_possible(
                Layer.PROBE,
                "batches as declared",
                "the algorithm draws parts of its own, priced apart; whether they are uniform was not tried",
            ),
        )
    declared = declared_sampling(rehearsal.document)
    level = ALPHA / (_TESTS * len(rehearsal.silos) + 1)
    sensitive = sensitive_silos(rehearsal.algorithm, rehearsal.silos)
    wrong, rounds = [], 0
    for sendings in (rehearsal.of, rehearsal.later_of):
        drawn = {silo.name: {one.round: one.batch.numpy() for one in sendings(silo.name)} for silo in rehearsal.silos}
        drawn = {name: batches for name, batches in drawn.items() if batches}
        rounds += max((len(batches) for batches in drawn.values()), default=0)
        for silo in rehearsal.silos if drawn else ():
            if silo.name in sensitive:
                fault = wrong_answers(silo, rehearsal.silos, drawn, sensitive)
            elif isinstance(declared, Cyclic):
                fault = _wrong_cycle(declared, group_of_units(silo, declared.groups), drawn[silo.name], level)
            else:
                fault = wrong_batches(declared, silo.units, drawn[silo.name], level)
                fault = fault or follows_records(declared, silo, drawn[silo.name], level)
                fault = fault or related_rounds(declared, silo.units, drawn[silo.name], level)
            if fault is not None:
                wrong.append(f"{silo.name}: {fault}")
        drawing = {name: batches for name, batches in drawn.items() if name not in sensitive}
        sizes = {silo.name: silo.units for silo in rehearsal.silos}
        shared = related_silos(declared, sizes, drawing, level)
        if shared is not None:
            wrong.append(shared)
    again = {
        one.name: {each.round: each.batch.numpy() for each in rehearsal.again if each.party == one.name}
        for one in rehearsal.silos
    }
    unpredictable = rehearsal.document.noise_source is NoiseSource.OPERATING_SYSTEM
    for silo in rehearsal.silos:
        if silo.name not in sensitive:
            units, first = silo.units, {one.round: one.batch.numpy() for one in rehearsal.of(silo.name)}
            fault = _wrong_epoch_apart(declared, units, rehearsal.steps, level)
            fault = fault or wrong_rates(declared, units, rehearsal.document.rounds, level)
            fault = fault or wrong_places(declared, units, level)
            if unpredictable:
                fault = fault or predicted_batches(declared, units, first, again[silo.name], level)
            if isinstance(declared, Cyclic):
                fault = fault or moving_groups(silo, declared.groups)
            if fault is not None:
                wrong.append(f"{silo.name}: {fault}")
    name = "full" if declared is None else type(declared).__name__
    text = "; ".join(wrong) or f"{rounds} rounds of {len(rehearsal.silos)} silos look {name}"
    return (passed_if(Layer.PROBE, "batches as declared", not wrong, text),)


def follows_records(sampling: Sampling | None, silo: SiloTensors, batches: Batches, level: float) -> str | None:
    """Whether who is drawn depends on a record's attribute or label; None if nothing shows it.

    Given its size a batch is a uniformly random part of the units, so that its members of one group are hypergeometric
    (with replacement: binomial, whose tails are wider). Batches at one place of all epochs are independent, and
    Hoeffding's bound for draws without replacement holds for their sum.
    """
    if sampling is None or silo.unit_of_row is not None:
        return None
    per_epoch = 1
    if isinstance(sampling, ShuffledEpochs):
        per_epoch = -(-len(silo) // sampling.size)
    elif isinstance(sampling, RandomAllocation):
        per_epoch = sampling.batches
    kinds = {
        f"{name} {int(value)}": (column == value).numpy()
        for name, column in (("attribute", silo.s), ("label", silo.y))
        for value in torch.unique(column).tolist()[:_MOST_KINDS]
    }
    each = level / (2 * len(kinds))
    for kind, member in kinds.items():
        numbers, sizes = list(batches), np.array([len(batch) for batch in batches.values()])
        counts = np.array([int(member[batch].sum()) for batch in batches.values()])
        p_values = 2 * np.minimum(*_tails(sampling, len(silo), int(member.sum()), sizes, counts))
        worst = int(p_values.argmin())
        if p_values[worst] < each / len(numbers):
            return f"the batch of round {numbers[worst]} has {counts[worst]} records of {kind} among {sizes[worst]}"
        for place in {number % per_epoch for number in numbers}:
            there = [index for index, number in enumerate(numbers) if number % per_epoch == place]
            size = int(sizes[there].sum())
            beyond = int(counts[there].sum()) - size * float(member.mean())
            if size and 2 * math.exp(-2 * beyond**2 / size) < each / per_epoch:
                return f"batches at place {place} of an epoch have {beyond:+.0f} records of {kind} more than by chance"
    return None


def _tails(
    sampling: Sampling, units: int, members: int, sizes: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How likely as few, and as many, of the members of a group are in batches of these sizes."""
    if isinstance(sampling, WithReplacement):
        each = stats.binom(sizes, members / units)
        return np.asarray(each.cdf(counts)), np.asarray(each.sf(counts - 1))
    law = stats.hypergeom(units, members, sizes)
    return np.asarray(law.cdf(counts)), np.asarray(law.sf(counts - 1))


def wrong_rates(sampling: Sampling | None, units: int, rounds: int, level: float) -> str | None:
    """Whether batches of some part of the run are larger or smaller than declared, in draws without any training.

    Poisson batches of all signed rounds (of a long run: of rounds spread over it) are drawn as often as is cheap. The
    participations of a part are binomial; the whole, the halves and the quarters share the level. Other batches have
    their size fixed by the round, so one pass through the rounds is enough.
    """
    if sampling is None or isinstance(sampling, RandomAllocation | Cyclic):
        return None
    visited = np.linspace(0, rounds - 1, min(rounds, max(_PARTS, _DRAWN_APART // units), _MOST_DRAWS)).astype(int)
    if not isinstance(sampling, Poisson | TruncatedPoisson):
        party = Participation("rehearsal", units, sampling, SystemWords())
        drawn = {round_number: party.batch(round_number) for round_number in visited.tolist()}
        fault = wrong_batches(sampling, units, drawn, level)
        if fault is None and not isinstance(sampling, ShuffledEpochs):
            each = np.bincount(np.concatenate(list(drawn.values())), minlength=units)
            trials, rate = len(drawn), len(drawn[0]) / units
            if isinstance(sampling, WithReplacement):
                trials, rate = len(drawn) * sampling.draws, 1 / units
            fault = _favoured_units(each, trials, rate, level)
        return fault
    times = max(1, min(_DRAWN_APART // (units * len(visited)), _MOST_DRAWS // len(visited)))
    sizes_of, each = np.zeros(len(visited), dtype=np.int64), np.zeros(units, dtype=np.int64)
    members = np.zeros((times * len(visited), min(units, _PAIRED)), dtype=np.float32)
    for repeat in range(times):
        party = Participation("rehearsal", units, sampling, SystemWords())
        for place, round_number in enumerate(visited.tolist()):
            batch = party.batch(round_number)
            sizes_of[place] += len(batch)
            each[batch] += 1
            members[repeat * len(visited) + place, batch[batch < members.shape[1]]] = 1.0
    parts = [part for cut in (1, 2, _PARTS) for part in np.array_split(np.arange(len(visited)), cut) if len(part)]
    for part in parts:
        trials, found = units * len(part) * times, int(sizes_of[part].sum())
        if two_sided(found, trials, sampling.rate) < level / len(parts):
            which = f"in rounds {visited[part[0]]} to {visited[part[-1]]} of {times} draws of the run"
            return f"{found} participations {which} where {trials * sampling.rate:.0f} are declared"
    fault = _favoured_units(each, times * len(visited), sampling.rate, level)
    if fault is None and isinstance(sampling, Poisson):
        fault = _joined_units(members, sampling.rate, level)
    return fault


def _joined_units(members: NDArray[np.float32], rate: float, level: float) -> str | None:
    """Whether two units take part together more or less often than independent ones; a row of `members` per draw."""
    one, two = np.triu_indices(members.shape[1], 1)
    if not len(one):
        return None
    together = (members.T @ members)[one, two]
    law = stats.binom(len(members), rate**2)
    most, least = int(together.argmax()), int(together.argmin())
    for worst, p_value in ((most, law.sf(together[most] - 1)), (least, law.cdf(together[least]))):
        if 2 * len(one) * float(p_value) < level:
            pair = f"units {one[worst]} and {two[worst]} take part together {together[worst]:.0f} times"
            return f"{pair} of {len(members)} where {law.mean():.1f} are expected"
    return None


def _favoured_units(times: NDArray[np.int64], trials: int, rate: float, level: float) -> str | None:
    """Whether some unit, or some part of the file, takes part more or less often than declared."""
    parts = [part for cut in (2, _PARTS) for part in np.array_split(np.arange(len(times)), cut) if len(part)]
    for part in parts:
        all_trials, found = trials * len(part), int(times[part].sum())
        if two_sided(found, all_trials, rate) < level / (2 * len(parts)):
            where = f"units {part[0]} to {part[-1]}"
            return f"{found} participations of {where} where {all_trials * rate:.0f} are declared"
    p_values = two_sided(times, trials, rate)
    worst = int(p_values.argmin())
    if p_values[worst] < level / (2 * len(times)):
        return f"one unit takes part {times[worst]} times of {trials} where {trials * rate:.1f} are declared"
    return None


def wrong_places(sampling: Sampling | None, units: int, level: float) -> str | None:
    """Whether a randomly allocated unit favours a round of the epoch, or has the same one in the next epoch."""
    if not isinstance(sampling, RandomAllocation) or sampling.batches == 1:
        return None
    places = sampling.batches
    epochs = min(_MOST_DRAWS // (4 * places), _DRAWN_APART // units)
    if epochs < 2:
        return None
    party = Participation("rehearsal", units, sampling, SystemWords())
    drawn = np.full((epochs, units), -1, dtype=np.int64)
    for epoch in range(epochs):
        for place in range(places):
            drawn[epoch, party.batch(epoch * places + place)] = place
    times = np.stack([(drawn == place).sum(axis=0) for place in range(places)])
    fault = _favoured_units(times.ravel(), epochs, 1 / places, level / 2)
    if fault is not None:
        return f"{fault}, place by place of an epoch"
    pairs, same = units * (epochs - 1), int((drawn[1:] == drawn[:-1]).sum())
    if two_sided(same, pairs, 1 / places) < level / 2:
        return f"{same} times a unit has the place of the epoch before, where {pairs / places:.0f} are expected"
    return None


def wrong_batches(sampling: Sampling | None, units: int, batches: Batches, level: float) -> str | None:
    """What is wrong with these batches; None if nothing is. Each statistical question has this level.

    Cyclic batches have a check of their own, because groups follow from contents.
    """
    sizes = {len(batch) for batch in batches.values()}
    match sampling:
        case None:
            whole = all(np.array_equal(batch, np.arange(units)) for batch in batches.values())
            return None if whole else "a batch is not everybody"
        case WithReplacement(draws=draws):
            return None if sizes <= {draws} else "a batch has another number of draws"
        case ShuffledEpochs(size=size):
            return _wrong_epochs(units, size, batches)
        case RandomAllocation(batches=places):
            return _wrong_allocation(units, places, batches, level)
        case FixedSize(size=size):
            if not sizes <= {size} or _twice_in_a_batch(batches):
                return f"a batch has not {size} different units"
            return _wrong_returns(size / units, batches, level)
        case TruncatedPoisson(limit=limit) if max(sizes) > limit:
            return f"a batch has more than {limit} units"
        case Poisson(rate=rate) | TruncatedPoisson(rate=rate):  # cuts are too rare to be seen in any size
            if _twice_in_a_batch(batches):
                return "a unit is in a batch twice"
            return _wrong_sizes(units, rate, batches, level) or _wrong_returns(rate, batches, level)
        case Cyclic():
            raise ValueError("cyclic batches are judged by the groups of their units")


def _wrong_cycle(sampling: Cyclic, groups: NDArray[np.int64], batches: Batches, level: float) -> str | None:
    """Nobody out of turn, for then a unit meets itself within one mixture; and as many of each group as declared."""
    due = joined = 0
    for step, batch in batches.items():
        turn = np.flatnonzero(groups == step % sampling.groups)
        if not np.isin(batch, turn).all() or len(np.unique(batch)) != len(batch):
            return f"a unit takes part in round {step}, which is not the turn of its group"
        due, joined = due + len(turn), joined + len(batch)
    if two_sided(joined, due, sampling.rate) < level:
        return f"{joined} participations where {due * sampling.rate:.0f} are declared"
    return None


def _wrong_allocation(units: int, places: int, batches: Batches, level: float) -> str | None:
    """Nobody twice in one epoch, nobody left out of a whole one, and no batch larger or smaller than by chance."""
    for epoch in {step // places for step in batches}:
        members = [batch for step, batch in batches.items() if step // places == epoch]
        met = np.concatenate(members)
        if len(np.unique(met)) != len(met):
            return "a unit is in two batches of one epoch"
        if len(members) == places and len(met) != units:
            return "a unit is in no batch of an epoch"
    law, each = stats.binom(units, 1 / places), level / (4 * len(batches))
    sizes = np.array([len(batch) for batch in batches.values()])
    if sizes.min() < law.ppf(each) or sizes.max() > law.isf(each):
        return f"a batch has {sizes.max()} or {sizes.min()} units where {units / places:.1f} are expected"
    return _cut_from_an_order(units, places, batches, level / 2)


def _cut_from_an_order(units: int, places: int, batches: Batches, level: float) -> str | None:
    """Whether whole epochs have equal batches more often than chance: a walk through shuffled data sold as allocation.

    Sizes of one epoch are multinomial. Equal means either all but the last full, or all within one of another.
    """
    least, more = divmod(units, places)
    full = -(-units // places)
    shapes: set[tuple[int, ...]] = {(least,) * (places - more) + (least + 1,) * more}
    if units > (places - 1) * full:
        shapes.add(tuple(sorted((*(full,) * (places - 1), units - (places - 1) * full))))
    epochs = {step // places for step in batches}
    whole = [
        tuple(sorted(len(batches[epoch * places + place]) for place in range(places)))
        for epoch in epochs
        if all(epoch * places + place in batches for place in range(places))
    ]
    equal = sum(shape in shapes for shape in whole)
    chance = min(1.0, sum(math.exp(_log_chance_of_sizes(shape)) for shape in shapes))
    if equal and stats.binom.sf(equal - 1, len(whole), chance) < level:
        return f"{equal} of {len(whole)} epochs have batches of equal size, as if cut from a shuffled order"
    return None


def _log_chance_of_sizes(sizes: tuple[int, ...]) -> float:
    """Of so many units in the batches of an epoch, in any order, where each unit chooses its batch uniformly."""
    # n! / (prod n_i!) / k^n for these sizes in this order, times the number of their orders.
    arranged = math.lgamma(len(sizes) + 1) - sum(math.lgamma(sizes.count(size) + 1) for size in set(sizes))
    placed = math.lgamma(sum(sizes) + 1) - sum(math.lgamma(size + 1) for size in sizes)
    return arranged + placed - sum(sizes) * math.log(len(sizes))


def _wrong_epoch_apart(sampling: Sampling | None, units: int, rehearsed: int, level: float) -> str | None:
    """Where a rehearsal is shorter than an epoch, one more epoch of the engine's draws alone, without any training.

    A few rounds of a long epoch look alike whether each unit is in exactly one batch or joins each independently.
    """
    if not isinstance(sampling, RandomAllocation) or rehearsed >= sampling.batches:
        return None
    party = Participation("rehearsal", units, sampling, SystemWords())
    epoch = {step: party.batch(step) for step in range(min(sampling.batches, 1 + _MOST_LOOKED_AT // units))}
    return _wrong_allocation(units, sampling.batches, epoch, level)


def _twice_in_a_batch(batches: Batches) -> bool:
    return any(len(np.unique(batch)) != len(batch) for batch in batches.values())


def _wrong_sizes(units: int, rate: float, batches: Batches, level: float) -> str | None:
    """As many participations as declared, and as unevenly spread over the rounds."""
    sizes = np.array([len(batch) for batch in batches.values()])
    if two_sided(sizes.sum(), units * len(sizes), rate) < level:
        return f"{sizes.sum()} participations where {units * len(sizes) * rate:.0f} are declared"
    spread = units * rate * (1 - rate)
    if spread < 1 or len(sizes) < _TELLING:
        return None
    dispersion = float(np.square(sizes - units * rate).sum() / spread)
    if _so_uneven(units, rate, sizes, dispersion, level) < level:
        return f"sizes vary {math.sqrt(dispersion / len(sizes)):.2f} times as much as Poisson batches do"
    return None


def _so_uneven(units: int, rate: float, sizes: NDArray[np.int64], dispersion: float, level: float) -> float:
    """How likely sizes of true Poisson batches vary so little or so much, at most, if that is below `level`.

    Chernoff's bound with the exact law of one size, cut where that law has next to nothing left; a size beyond the cuts
    is itself as unlikely as they are. Chi-squared would sound too many alarms where batches are small.
    """
    law, rounds = stats.binom(units, rate), len(sizes)
    beyond = level / 4
    low, high = law.ppf(beyond / (2 * rounds)), law.isf(beyond / (2 * rounds))
    if sizes.min() < low or sizes.max() > high:
        return beyond
    usual = np.arange(low, high + 1)
    squares = np.square(usual - units * rate) / (units * rate * (1 - rate))
    slopes = np.concatenate((-_SLOPES, _SLOPES[_SLOPES < _STEEPEST]))[:, np.newaxis]
    moments = logsumexp(law.logpmf(usual) + slopes * squares, axis=1)
    # Chernoff: min over slopes of exp(n log E exp(slope x) - slope d); negative slopes bound the lower tail.
    smallest = float(np.min(rounds * moments - slopes[:, 0] * dispersion))
    return beyond + 2 * math.exp(min(0.0, smallest))


def _wrong_returns(rate: float, batches: Batches, level: float) -> str | None:
    """How many units of one batch are in the next one, over pairs of rounds that do not overlap."""
    in_order = [batches[number] for number in sorted(batches)]
    pairs = list(zip(in_order[::2], in_order[1::2], strict=False))
    again = sum(len(np.intersect1d(one, other)) for one, other in pairs)
    # Given the first batch of a pair, each of its units is in the second with the declared probability; with a
    # fixed size the draws are negatively dependent, which makes the binomial tails safe.
    trials = sum(len(one) for one, _ in pairs)
    if pairs and two_sided(again, trials, rate) < level:
        return f"{again} units came back in the next round where {trials * rate:.0f} are expected"
    return None


def _wrong_epochs(units: int, size: int, batches: Batches) -> str | None:
    """Within the rounds of one epoch nobody takes part twice, and only the last batch is smaller."""
    per_epoch = -(-units // size)
    epochs: dict[int, dict[int, NDArray[np.int64]]] = {}
    for number, batch in batches.items():
        epochs.setdefault(number // per_epoch, {})[number % per_epoch] = batch
    for epoch, parts in epochs.items():
        joined = np.concatenate(list(parts.values()))
        if len(np.unique(joined)) != len(joined):
            return f"a unit takes part twice in the epoch that begins at round {epoch * per_epoch}"
        if any(len(batch) != size for place, batch in parts.items() if place < per_epoch - 1):
            return f"a batch before the last of its epoch has not {size} units"
    return None


Batches = Mapping[int, NDArray[np.int64]]
"""By round; rounds that a crash left behind are missing."""
_MOST_UNITS = 100_000
"""Of a larger silo so many are compared."""


def related_rounds(sampling: Sampling | None, units: int, batches: Batches, level: float) -> str | None:
    """Whether two rounds share more or fewer units than by chance; of allocated epochs, rounds of different ones."""
    if not isinstance(sampling, Poisson | TruncatedPoisson | FixedSize | RandomAllocation):
        return None
    per_epoch, units = _per_epoch(sampling, units), min(units, _MOST_UNITS)
    numbers = np.array(sorted(batches))
    members = _membership(units, [batches[number] for number in numbers.tolist()])
    one, two = np.triu_indices(len(numbers), 1)
    apart = numbers[one] // per_epoch != numbers[two] // per_epoch
    one, two = one[apart], two[apart]
    if not len(one):
        return None
    sizes, both = members.sum(axis=1), (members @ members.T)[one, two]
    p_values = _chance_of_sharing(both, sizes[one], sizes[two], units)
    worst = int(p_values.argmin())
    if p_values[worst] < level / len(one):
        pair = f"rounds {numbers[one[worst]]} and {numbers[two[worst]]}"
        return f"{pair} share {both[worst]:.0f} units, far from what chance explains"
    return None


def _per_epoch(sampling: Sampling | None, units: int) -> int:
    """Rounds within which batches depend on one another."""
    if isinstance(sampling, ShuffledEpochs):
        return -(-units // sampling.size)
    return sampling.batches if isinstance(sampling, RandomAllocation) else 1


def _membership(units: int, batches: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """A row per batch with ones for its members, of the first so many units."""
    table = np.zeros((len(batches), units))
    for row, batch in zip(table, batches, strict=True):
        row[batch[batch < units]] = 1.0
    return table


def _chance_of_sharing(
    both: NDArray[np.float64], one: NDArray[np.float64], two: NDArray[np.float64], units: int
) -> NDArray[np.float64]:
    """How likely two random parts of these sizes share so few or so many units, at most.

    Hoeffding's bound exp(-size KL(share, rate)) for draws without replacement, either way.
    """
    size, rate = np.maximum(one, 1.0), two / units
    share = both / size
    # KL(share, rate) of two coins; `kl_div` is x log(x / y) - x + y, whose rests cancel in the sum.
    bits = np.where(one > 0, kl_div(share, rate) + kl_div(1 - share, 1 - rate), 0.0)  # an empty batch tells nothing
    return np.asarray(np.minimum(1.0, 2 * np.exp(-one * bits)))


def related_silos(
    sampling: Sampling | None, units: Mapping[str, int], drawn: Mapping[str, Batches], level: float
) -> str | None:
    """Whether two silos share their randomness: the same places of both are drawn together, in files of any size."""
    pairs = list(combinations(drawn.items(), 2))
    for (one, first), (other, second) in pairs:
        common = min(units[one], units[other])
        if isinstance(sampling, ShuffledEpochs | WithReplacement):  # silos of one size only
            same = all(n in second and np.array_equal(batch, second[n]) for n, batch in first.items())
            if same and _log_chance_of_batches(sampling, common, first) < math.log(level / len(pairs)):
                return f"{one} and {other} drew the same units in every round"
        if predicted_batches(sampling, common, first, second, level / len(pairs)) is not None:
            return f"{one} and {other} draw the same places of their files"
    return None


def predicted_batches(
    sampling: Sampling | None, units: int, first: Batches, again: Batches, level: float
) -> str | None:
    """Whether a run that is begun once more under the same papers and seed draws the same units in the same rounds.

    Batches that follow from the plan's seed or the manifest are no secret, however random they look.
    """
    if not isinstance(sampling, Poisson | TruncatedPoisson | FixedSize | RandomAllocation):
        return None
    rounds, units = sorted(first.keys() & again.keys()), min(units, _MOST_UNITS)
    if not rounds:
        return None
    here, there = (_membership(units, [batches[r] for r in rounds]) for batches in (first, again))
    sizes, both = here.sum(axis=1), (here * there).sum(axis=1)
    p_values = _chance_of_sharing(both, sizes, there.sum(axis=1), units)
    chance = 0.0
    if np.array_equal(here, there):  # small batches tell nothing one by one; a batch of an epoch is part of the rest
        chance = _log_chance_of_batches(sampling, units, {r: first[r][first[r] < units] for r in rounds})
    if chance < math.log(level / 2) or p_values.min() < level / (2 * len(rounds)):
        return "batches are the same when the run is begun again under the same papers"
    return None


def _log_chance_of_batches(sampling: Sampling, units: int, batches: Batches) -> float:
    """The logarithm of how likely these very batches are, in any order of their members, given their sizes."""
    taken: dict[int, int] = {}
    chance, per_epoch = 0.0, _per_epoch(sampling, units)
    for round_number, batch in batches.items():
        if isinstance(sampling, WithReplacement):
            repeats = np.unique(batch, return_counts=True)[1].tolist()
            chance += math.lgamma(len(batch) + 1) - sum(math.lgamma(one + 1) for one in repeats)
            chance -= len(batch) * math.log(units)
            continue
        epoch = round_number // per_epoch
        chance -= _log_choices(units - taken.get(epoch, 0), len(batch))
        taken[epoch] = taken.get(epoch, 0) + len(batch)
    return chance


def _log_choices(units: int, size: int) -> float:
    return math.lgamma(units + 1) - math.lgamma(size + 1) - math.lgamma(units - size + 1)


def moving_groups(silo: SiloTensors, groups: int) -> str | None:
    """Whether a record's group of the cycle depends on the others: without the first one, and in another order."""
    whole = group_of_units(silo, groups)
    for rows in (torch.arange(1, len(silo)), torch.arange(len(silo)).flip(0)):
        if not np.array_equal(group_of_units(rows_only(silo, rows), groups), whole[rows.numpy()]):
            return "the group of a record in the cycle depends on the other records"
    return None
