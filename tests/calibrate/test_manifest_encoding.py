"""The release algebra survives JSON exactly, and nothing ambiguous gets through the parser."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.errors import InvalidInput
from calibrate.manifest.strict_json import NotStrictJson, canonical, digest, parse, parse_object
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
    decode_release,
    decode_sampling,
    encode_release,
    encode_sampling,
)
from calibrate.sampling import Batch, FixedSize, Poisson, Sampling, ShuffledEpochs, WithReplacement

positives = st.floats(min_value=5e-324, max_value=1.7e308, allow_nan=False, allow_infinity=False)
counts = st.integers(1, 2**53 - 1)
batches = st.sampled_from(Batch)
noisy = positives.map(Gaussian) | positives.map(Laplace)
together = st.lists(noisy, min_size=1, max_size=3).map(lambda parts: Together(tuple(parts)))
sizes = st.tuples(counts, counts).map(lambda pair: (max(pair), min(pair)))
samplings: st.SearchStrategy[Sampling] = st.one_of(
    st.builds(Poisson, st.floats(min_value=1e-300, max_value=1), batches),
    st.builds(lambda pair, batch: FixedSize(*pair, batch), sizes, batches),
    st.builds(lambda pair, batch: ShuffledEpochs(*pair, batch), sizes, batches),
    st.builds(WithReplacement, counts, counts, batches),
)
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip)
leaves = st.one_of(
    noisy,
    together,
    st.builds(RandomizedResponse, positives, st.integers(2, 1000)),
    st.builds(NonPrivate, texts, st.booleans()),
    st.builds(Sampled, samplings, noisy | together),
)
releases: st.SearchStrategy[Release] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, counts),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: InSequence(tuple(parts))),
    ),
    max_leaves=6,
)


@given(releases)
def test_a_release_survives_the_round_trip_through_canonical_bytes(release: Release) -> None:
    text = canonical(encode_release(release))
    assert decode_release(parse(text)) == release
    assert canonical(encode_release(decode_release(parse(text)))) == text


@given(samplings)
def test_a_sampling_survives_the_round_trip(sampling: Sampling) -> None:
    assert decode_sampling(parse(canonical(encode_sampling(sampling)))) == sampling


@given(releases, releases)
def test_different_releases_have_different_digests(first: Release, second: Release) -> None:
    assert (first == second) == (digest(encode_release(first)) == digest(encode_release(second)))


@pytest.mark.parametrize(
    "value",
    [
        {"kind": "magic"},
        {},
        [],
        "gaussian",
        {"kind": "gaussian"},
        {"kind": "gaussian", "noiseMultiplier": "1"},
        {"kind": "gaussian", "noiseMultiplier": True},
        {"kind": "gaussian", "noiseMultiplier": 0},
        {"kind": "gaussian", "noiseMultiplier": -1},
        {"kind": "gaussian", "noiseMultiplier": float("nan")},
        {"kind": "gaussian", "noiseMultiplier": 1, "note": ""},
        {"kind": "laplace", "noiseMultiplier": 1},
        {"kind": "randomized-response", "epsilon": 1, "categories": 2.0},
        {"kind": "non-private", "why": " ", "dependsOnUnit": False},
        {"kind": "non-private", "why": "x", "dependsOnUnit": 0},
        {"kind": "together", "releases": []},
        {"kind": "together", "releases": {"kind": "gaussian", "noiseMultiplier": 1}},
        {"kind": "together", "releases": [{"kind": "non-private", "why": "x", "dependsOnUnit": False}]},
        {"kind": "repeated", "release": {"kind": "gaussian", "noiseMultiplier": 1}, "times": 0},
        {"kind": "repeated", "release": {"kind": "gaussian", "noiseMultiplier": 1}, "times": 1.5},
        {
            "kind": "sampled",
            "sampling": {"scheme": "poisson", "rate": 0.1, "batch": "secret"},
            "release": {"kind": "repeated", "release": {"kind": "gaussian", "noiseMultiplier": 1}, "times": 2},
        },
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_no_release_writes_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        decode_release(value)


@pytest.mark.parametrize(
    "value",
    [
        {"scheme": "poisson", "rate": 0.1},
        {"scheme": "poisson", "rate": 1.5, "batch": "secret"},
        {"scheme": "poisson", "rate": 0.1, "batch": "Secret"},
        {"scheme": "fixed-size", "population": 10, "size": 11, "batch": "secret"},
        {"scheme": "fixed-size", "population": 10.0, "size": 1, "batch": "secret"},
        {"scheme": "every-other-record"},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_what_no_sampling_writes_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        decode_sampling(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"a":1,"a":1}', "twice"),
        (b'{"b":{"a":1,"a":2}}', "twice"),
        (b'{"a":1,"\\u0061":2}', "twice"),
        (b'{"a":NaN}', "NaN"),
        (b"[Infinity]", "Infinity"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e400]", "too large"),
        (b"[" + b"9" * 399 + b"]", "too large"),
        (b"[" + b"9" * 5000 + b"]", "digits"),
        (b"{} {}", "Extra data"),
        (b"{}\x00", "Extra data"),
        (b"\xff", "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'"\\udc00"', "surrogate"),
        (b'{"\\ud800":1}', "surrogate"),
        (b"[" * 33 + b"]" * 33, "deeper"),
        (b'{"a":' * 100_000, "deeper"),
        (b'["a\nb"]', "control character"),
        (b"{'a':1}", "not JSON"),
        (b"[01]", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"", "not JSON"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_ambiguous_json_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(NotStrictJson, match=why):
        parse(text)


def test_too_large_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(NotStrictJson, match="bytes"):
        parse(b"[" * (1 << 21))


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    assert parse(b'["' + b"[" * 100 + b'\\"{{"]') == ["[" * 100 + '"{{']


@pytest.mark.parametrize("text", [b"[]", b"1", b'"a"', b"null"])
def test_an_object_is_asked_for_and_nothing_else_taken(text: bytes) -> None:
    with pytest.raises(NotStrictJson, match="object"):
        parse_object(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_canonical_text_is_a_fixed_point(value: Any) -> None:
    text = canonical(value)
    assert canonical(parse(text)) == text
    assert parse(text) == value
