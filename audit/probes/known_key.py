"""A rehearsal whose randomness the auditor knows: is everything in it what follows from the key, the plan and the past?

No statistics and no false alarms. Every published number and every batch is computed again by code of the auditor
(`audit.runs.reference`); every state that silos were asked with is computed again from the transcript, also after the
algorithm has met other people's records; every message must find its round charged. A broken source of the operating
system's entropy shows elsewhere: in the noise of the gate alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from audit.probes.setting import owned_units
from audit.report.results import KNOWN_KEY, Check, Layer, not_possible, passed_if
from audit.runs.evidence import Batches, rows_only, sensitive_silos, wrong_answers
from audit.runs.reference import KnownBatches, KnownStream, answered, known_bytes, noisy
from audit.runs.rerun import Publication, Rehearsal
from calibrate.arrays import Floats, Integers
from calibrate.errors import PrivfairError
from calibrate.manifest.mechanism import (
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSource,
    NoPrivacyPromised,
    RandomizedCategory,
)
from calibrate.sampling import Cyclic, ShuffledEpochs, TruncatedPoisson
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.batches.participation import declared_sampling, group_of_units
from privfair.batches.randomness import SystemWords
from privfair.data.dataset import Silos
from privfair.rounding import RunningTotal
from privfair.run.replay import replay


def check_known_key(rehearsal: Rehearsal) -> tuple[Check, ...]:
    """All that a known key decides."""
    if isinstance(rehearsal.document.guarantee, NoPrivacyPromised):
        return ()
    checks = (_check_charged(rehearsal), *_check_states(rehearsal))
    if rehearsal.document.noise_source is not NoiseSource.OPERATING_SYSTEM:
        why = "the manifest signs seeded research noise, which follows from the plan"
        return (not_possible(Layer.PROBE, "noise and batches of a known key", why), *checks)
    return (_check_noise(rehearsal), _check_batches(rehearsal), *checks)


def _passed_unless(name: str, wrong: str | None, right: str) -> Check:
    return passed_if(Layer.PROBE, name, wrong is None, right if wrong is None else wrong)


# Every published number: the message on its grid, with the noise that the key gives.


def _check_noise(rehearsal: Rehearsal) -> Check:
    numbers, wrong = 0, None
    for secret, publications in zip(rehearsal.secrets, (rehearsal.publications, rehearsal.later), strict=True):
        found, first = _noise_of(rehearsal, secret, publications)
        numbers, wrong = numbers + found, wrong or first
    label = rehearsal.made.evidence.transcript.header.noise_source
    if "REHEARSAL" not in label:
        wrong = wrong or f"the rehearsal's transcript names its noise {label!r}, which no auditor's key gives"
    right = f"{numbers} numbers are the message with the noise of the key, bit for bit"
    return _passed_unless(KNOWN_KEY, wrong, right)


def _noise_of(rehearsal: Rehearsal, secret: bytes, publications: Sequence[Publication]) -> tuple[int, str | None]:
    """How many numbers were compared, and the first message that is not what the key gives."""
    declared = {one.name: one for one in rehearsal.document.releases}
    streams: dict[int, KnownStream] = {}
    mixed: dict[tuple[int, str, str], list[tuple[int, Floats]]] = {}
    numbers = 0
    for one in publications:
        if one.session not in streams:
            streams[one.session] = KnownStream(known_bytes(secret, f"noise of session {one.session}"))
        for name, published in one.published.items():
            signed, clean = declared[name], one.clean[name]
            match signed:
                case GaussianNoise() if signed.strategy is not None:
                    earlier = mixed.setdefault((one.session, one.party, name), [])
                    earlier.append((published.round, clean))
                    want = noisy(signed, _mixture(signed.strategy, earlier), streams[one.session])
                case GaussianNoise() | LaplaceNoise():
                    want = noisy(signed, clean, streams[one.session])
                case RandomizedCategory():
                    want = answered(signed, clean, streams[one.session])
                case InTheClear():
                    want = np.asarray(clean, dtype=np.float64)
            numbers += want.size
            if want.shape != published.values.shape or not np.array_equal(want, published.values):
                where = f"{name} of {one.party} in round {published.round}"
                return numbers, f"{where} is not the message with the noise that the key gives"
    return numbers, None


def _mixture(strategy: tuple[float, ...], earlier: list[tuple[int, Floats]]) -> Floats:
    """c_0 of the last message, c_1 of the one before, and so on, while rounds follow each other."""
    last, newest = earlier[-1]
    total = RunningTotal(np.zeros(newest.shape))
    for back, weight in enumerate(strategy[1:], start=1):
        if back >= len(earlier) or earlier[-1 - back][0] != last - back:
            break
        total.add(weight * earlier[-1 - back][1])
    return np.asarray(strategy[0] * newest + total.value)


# Every batch: what the party's words give, by the signed sampling.


def _check_batches(rehearsal: Rehearsal) -> Check:
    name = "batches of known words"
    if rehearsal.run.algorithm.draws:
        return _passed_unless(name, _wrong_draws(rehearsal), "every draw is the one that its words give")
    declared = declared_sampling(rehearsal.document)
    sensitive = sensitive_silos(rehearsal.run.algorithm, rehearsal.run.silos)
    wrong, rounds = None, 0
    for secret, publications in zip(rehearsal.secrets, (rehearsal.publications, rehearsal.later), strict=True):
        for silo in rehearsal.run.silos:
            own = [one for one in publications if one.party == silo.name and one.published]
            rounds += len(own)
            if silo.name not in sensitive:
                wrong = wrong or _wrong_batches(rehearsal, silo, secret, own)
            elif own:
                wrong = wrong or wrong_answers(silo, rehearsal.run.silos, _by_round(publications), sensitive)
    if isinstance(declared, Cyclic):
        wrong = wrong or next(filter(None, (moving_groups(one, declared.groups) for one in rehearsal.run.silos)), None)
    kind = "full" if declared is None else type(declared).__name__
    return _passed_unless(name, wrong, f"{rounds} batches ({kind}) are those that the words give")


def _by_round(publications: Sequence[Publication]) -> dict[str, Batches]:
    found: dict[str, dict[int, Integers]] = {}
    for one in publications:
        for published in one.published.values():
            found.setdefault(one.party, {})[published.round] = one.batch.numpy()
    return dict(found)


def _wrong_batches(
    rehearsal: Rehearsal, silo: SiloTensors, secret: bytes, publications: Sequence[Publication]
) -> str | None:
    declared = declared_sampling(rehearsal.document)
    groups = group_of_units(silo, declared.groups) if isinstance(declared, Cyclic) else None
    units, known = rehearsal.run.units[silo.name], dict[int, KnownBatches]()
    drawn = set[int]()
    for one in publications:
        if one.session not in known:
            recorded = [other.epochs for other in known.values()] if isinstance(declared, ShuffledEpochs) else []
            epochs = dict(recorded[-1]) if recorded else {}
            entropy = known_bytes(secret, f"batches of {silo.name}, session {one.session}")
            known[one.session] = KnownBatches(declared, units, entropy, groups, epochs)
        number = next(iter(one.published.values())).round
        if number in drawn:  # the reply of a round whose batch was drawn for its first message
            continue
        drawn.add(number)
        if not np.array_equal(known[one.session].batch(number), one.batch.numpy()):
            return f"the batch of round {number} of {silo.name} is not the one that its words give"
    return None


def _wrong_draws(rehearsal: Rehearsal) -> str | None:
    """Of an algorithm that draws its own parts: asked with the same words, the same draw."""
    run, words = rehearsal.run, dict[tuple[int, str], SystemWords]()
    silos = {silo.name: silo for silo in run.silos}
    drawn = set[tuple[int, str]]()
    for one in rehearsal.publications:
        place = (one.session, one.party)
        if place not in words:
            purpose = f"batches of {one.party}, session {one.session}"
            words[place] = SystemWords(known_bytes(rehearsal.secrets[0], purpose))
        if (one.step, one.party) in drawn:
            continue
        drawn.add((one.step, one.party))
        if not np.array_equal(run.algorithm.draw(silos[one.party], words[place]), one.batch.numpy()):
            return f"the draw of step {one.step} of {one.party} is not the one that its words give"
    return None


def moving_groups(silo: SiloTensors, groups: int) -> str | None:
    """Whether a record's group of the cycle depends on the others: without the first one, and in another order."""
    whole = group_of_units(silo, groups)
    for rows in (torch.arange(1, len(silo)), torch.arange(len(silo)).flip(0)):
        if not np.array_equal(group_of_units(rows_only(silo, rows), groups), whole[rows.numpy()]):
            return "the group of a record in the cycle depends on the other records"
    return None


# Every message: paid before it was computed.


def _check_charged(rehearsal: Rehearsal) -> Check:
    early = [
        f"round {published.round} of {one.party}: {one.charged} rounds were charged"
        for one in (*rehearsal.publications, *rehearsal.later)
        for published in one.published.values()
        if one.charged <= published.round
    ]
    right = f"{len(rehearsal.publications) + len(rehearsal.later)} messages found their round charged"
    return _passed_unless("charged before computed", early[0] if early else None, right)


# Every state: a function of published values.


def _check_states(rehearsal: Rehearsal) -> Iterator[Check]:
    """The states that silos saw follow from the transcript, and so again once other people's records were met."""
    name, algorithm = "states follow from the transcript", rehearsal.run.algorithm
    before, wrong = _states(rehearsal), None
    limits = [one.scheme.limit for one in rehearsal.document.sampling if isinstance(one.scheme, TruncatedPoisson)]
    limit = min(limits, default=None)
    for step, seen in enumerate(rehearsal.states):
        if step >= len(before) or not _same(algorithm.checkpoint(seen), before[step]):
            wrong = f"the state of step {step} does not follow from what was published before"
            break
    last = algorithm.checkpoint(rehearsal.made.last.state)
    if wrong is None and not (before and _same(last, before[-1])):
        wrong = "the last state does not follow from what was published"
    yield _passed_unless(name, wrong, f"{len(rehearsal.states)} states, to the bit")
    if wrong is None:
        for silo in _other_people(rehearsal):
            _meet(algorithm, rehearsal.states[-1] if rehearsal.states else algorithm.start(), silo, limit)
        later = _states(rehearsal)
        apart = [step for step, (one, two) in enumerate(zip(before, later, strict=True)) if not _same(one, two)]
        text = f"the state of step {apart[0]} is another one after other records were loaded" if apart else None
        yield _passed_unless("updates know no records", text, f"{len(later)} states are the same with other records")


def _states(rehearsal: Rehearsal) -> list[dict[str, Floats]]:
    evidence, algorithm = rehearsal.made.evidence, rehearsal.run.algorithm
    positions = replay(algorithm, evidence.transcript, evidence.sessions)
    return [{name: np.array(each) for name, each in algorithm.checkpoint(one.state).items()} for one in positions]


def _same(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def _other_people(rehearsal: Rehearsal) -> tuple[SiloTensors, ...]:
    """As many records, none of them real: loaded again, with features, labels and attributes of different records."""
    data, parties = rehearsal.run.data, []
    for silo in data.parties:
        own, half = silo.data, len(silo.data) // 2
        label, group = np.roll(own.label, half), np.roll(own.group, half // 2)
        parties.append(replace(silo, data=replace(own, features=own.features[::-1], label=label, group=group)))
    return replace(data, parties=Silos(tuple(parties))).tensors(rehearsal.run.plan.model.dtype)


def _meet(algorithm: Algorithm[Any], state: Any, silo: SiloTensors, most: int | None) -> None:
    """Let the algorithm compute on these records; code that keeps what it met keeps these."""
    everybody = owned_units(silo)[: most or None]
    try:
        if algorithm.draws:
            everybody = torch.from_numpy(algorithm.draw(silo, SystemWords(known_bytes(b"other people", silo.name))))
        algorithm.contribution(state, 0, silo, everybody)
    except PrivfairError:
        return  # refused: nothing was met
