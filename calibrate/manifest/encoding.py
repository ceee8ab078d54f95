"""The release algebra as JSON and back, exactly.

A manifest embeds what was priced, not only the price, so that anyone can recompute epsilon from the signed
bytes. Encoding and decoding are inverse to each other (tested as a law); decoding is strict: unknown kinds,
missing or additional keys and out-of-range numbers are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import assert_never

from calibrate.errors import InvalidInput
from calibrate.manifest.strict_json import Json
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
)
from calibrate.sampling import (
    Batch,
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)


def encode_release(release: Release) -> dict[str, Json]:
    """The JSON value of a release; `decode_release` is its inverse."""
    match release:
        case Gaussian(multiplier):
            return {"kind": "gaussian", "noiseMultiplier": float(multiplier)}
        case Laplace(scale):
            return {"kind": "laplace", "scale": float(scale)}
        case RandomizedResponse(epsilon, categories):
            return {"kind": "randomized-response", "epsilon": float(epsilon), "categories": int(categories)}
        case NonPrivate(why, depends):
            return {"kind": "non-private", "why": why, "dependsOnUnit": bool(depends)}
        case Together(parts):
            return {"kind": "together", "releases": [encode_release(part) for part in parts]}
        case Sampled(sampling, inner):
            return {"kind": "sampled", "sampling": encode_sampling(sampling), "release": encode_release(inner)}
        case Repeated(inner, times):
            return {"kind": "repeated", "release": encode_release(inner), "times": int(times)}
        case InSequence(parts):
            return {"kind": "in-sequence", "releases": [encode_release(part) for part in parts]}
        case _:
            assert_never(release)


def encode_sampling(sampling: Sampling) -> dict[str, Json]:
    """The JSON value of a sampling; `decode_sampling` is its inverse."""
    match sampling:
        case Poisson(rate, batch):
            return {"scheme": "poisson", "rate": float(rate), "batch": batch.value}
        case FixedSize(population, size, batch):
            return _sized("fixed-size", population, "size", size, batch)
        case ShuffledEpochs(population, size, batch):
            return _sized("shuffled-epochs", population, "size", size, batch)
        case WithReplacement(population, draws, batch):
            return _sized("with-replacement", population, "draws", draws, batch)
        case RandomAllocation(batches, drawn, batch):
            counts: dict[str, Json] = {"batches": int(batches), "drawn": int(drawn)}
            return {"scheme": "random-allocation", **counts, "batch": batch.value}
        case TruncatedPoisson(rate, population, limit, batch):
            sizes: dict[str, Json] = {"population": int(population), "limit": int(limit)}
            return {"scheme": "truncated-poisson", "rate": float(rate), **sizes, "batch": batch.value}
        case Cyclic(groups, rate, bands, batch):
            cycle: dict[str, Json] = {"groups": int(groups), "rate": float(rate), "bands": int(bands)}
            return {"scheme": "cyclic", **cycle, "batch": batch.value}
        case _:
            assert_never(sampling)


def decode_release(value: object) -> Release:
    """The release a JSON value stands for; raises `InvalidInput` for anything `encode_release` cannot write."""
    fields = _object("release", value)
    match fields.get("kind"):
        case "gaussian":
            _exactly(fields, "kind", "noiseMultiplier")
            return Gaussian(_number(fields, "noiseMultiplier"))
        case "laplace":
            _exactly(fields, "kind", "scale")
            return Laplace(_number(fields, "scale"))
        case "randomized-response":
            _exactly(fields, "kind", "epsilon", "categories")
            return RandomizedResponse(_number(fields, "epsilon"), _whole(fields, "categories"))
        case "non-private":
            _exactly(fields, "kind", "why", "dependsOnUnit")
            return NonPrivate(_text(fields, "why"), _truth(fields, "dependsOnUnit"))
        case "together":
            _exactly(fields, "kind", "releases")
            return Together(tuple(_noisy(part) for part in _list(fields, "releases")))
        case "sampled":
            _exactly(fields, "kind", "sampling", "release")
            return Sampled(decode_sampling(fields["sampling"]), _noisy_or_together(fields["release"]))
        case "repeated":
            _exactly(fields, "kind", "release", "times")
            return Repeated(decode_release(fields["release"]), _whole(fields, "times"))
        case "in-sequence":
            _exactly(fields, "kind", "releases")
            return InSequence(tuple(decode_release(part) for part in _list(fields, "releases")))
        case kind:
            raise InvalidInput("kind", kind, "is not a release of the algebra", "use one that privfair writes")


def decode_sampling(value: object) -> Sampling:
    """The sampling a JSON value stands for; raises `InvalidInput` for anything `encode_sampling` cannot write."""
    fields = _object("sampling", value)
    match fields.get("scheme"):
        case "poisson":
            _exactly(fields, "scheme", "rate", "batch")
            return Poisson(_number(fields, "rate"), _batch(fields))
        case "fixed-size":
            _exactly(fields, "scheme", "population", "size", "batch")
            return FixedSize(_whole(fields, "population"), _whole(fields, "size"), _batch(fields))
        case "shuffled-epochs":
            _exactly(fields, "scheme", "population", "size", "batch")
            return ShuffledEpochs(_whole(fields, "population"), _whole(fields, "size"), _batch(fields))
        case "with-replacement":
            _exactly(fields, "scheme", "population", "draws", "batch")
            return WithReplacement(_whole(fields, "population"), _whole(fields, "draws"), _batch(fields))
        case "random-allocation":
            _exactly(fields, "scheme", "batches", "drawn", "batch")
            return RandomAllocation(_whole(fields, "batches"), _whole(fields, "drawn"), _batch(fields))
        case "truncated-poisson":
            _exactly(fields, "scheme", "rate", "population", "limit", "batch")
            sizes = _whole(fields, "population"), _whole(fields, "limit")
            return TruncatedPoisson(_number(fields, "rate"), *sizes, _batch(fields))
        case "cyclic":
            _exactly(fields, "scheme", "groups", "rate", "bands", "batch")
            return Cyclic(_whole(fields, "groups"), _number(fields, "rate"), _whole(fields, "bands"), _batch(fields))
        case scheme:
            raise InvalidInput("scheme", scheme, "is not a known sampling", "use one that privfair writes")


def _sized(scheme: str, population: int, key: str, size: int, batch: Batch) -> dict[str, Json]:
    return {"scheme": scheme, "population": int(population), key: int(size), "batch": batch.value}


def _noisy(value: object) -> Gaussian | Laplace:
    release = decode_release(value)
    if isinstance(release, Gaussian | Laplace):
        return release
    raise InvalidInput("releases", type(release).__name__, "cannot be one value of a batch", "use Gaussian or Laplace")


def _noisy_or_together(value: object) -> Gaussian | Laplace | Together:
    release = decode_release(value)
    if isinstance(release, Gaussian | Laplace | Together):
        return release
    raise InvalidInput("release", type(release).__name__, "cannot be sampled", "use Gaussian, Laplace or Together")


def _object(argument: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidInput(argument, value, "must be a JSON object", "write it as privfair does")
    return value


def _exactly(fields: Mapping[str, object], *names: str) -> None:
    if set(fields) != set(names):
        raise InvalidInput("keys", sorted(fields), f"must be exactly {sorted(names)}", "write them as privfair does")


def _number(fields: Mapping[str, object], name: str) -> float:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, value, "must be a number", "write a JSON number, not a text")
    return float(value)


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(name, value, "must be a whole number", "write a JSON integer")
    return value


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise InvalidInput(name, value, "must be a text", "write a JSON string")
    return value


def _truth(fields: Mapping[str, object], name: str) -> bool:
    value = fields[name]
    if not isinstance(value, bool):
        raise InvalidInput(name, value, "must be true or false", "write a JSON truth value")
    return value


def _list(fields: Mapping[str, object], name: str) -> Sequence[object]:
    value = fields[name]
    if not isinstance(value, list | tuple):
        raise InvalidInput(name, value, "must be a list", "write a JSON array")
    return value


def _batch(fields: Mapping[str, object]) -> Batch:
    value = fields["batch"]
    for batch in Batch:
        if value == batch.value:
            return batch
    raise InvalidInput("batch", value, "must be secret or revealed", "state whether the observer knows the batch")
