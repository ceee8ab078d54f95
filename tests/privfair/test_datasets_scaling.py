"""Scaling by public constants, and the non-private door that private runs keep shut."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.errors import UnsupportedCombination
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.data.dataset import TrainTest
from privfair.data.encode import fit_standardisation, load_own_silos
from privfair.data.partition import split_silos
from privfair.data.schema import PublicBounds, PublicMeanScale, Transform, Unscaled
from privfair.data.schema_toml import parse_schema
from privfair.data.stability import DerivedFact, FactKind, NothingPromised, require_allowed

finite = st.floats(-1e6, 1e6)


@given(st.lists(finite, min_size=1), finite, st.floats(1e-3, 1e6), st.sampled_from(Transform))
def test_bounds_always_land_in_the_unit_interval(
    values: list[float], low: float, width: float, transform: Transform
) -> None:
    scaled = PublicBounds(low, low + width, transform).apply(np.array(values))
    assert ((scaled >= 0) & (scaled <= 1)).all()
    order = np.argsort(values)
    assert (np.diff(scaled[order]) >= 0).all()  # monotone, so a partition by the feature is one by the value


def test_known_values() -> None:
    values = np.array([-5.0, 0.0, 50.0, 1000.0])
    np.testing.assert_allclose(PublicBounds(0, 100).apply(values), [0, 0, 0.5, 1])
    np.testing.assert_allclose(PublicMeanScale(50, 25).apply(values), [-2.2, -2, 0, 10])
    np.testing.assert_allclose(PublicMeanScale(50, 25, reach=1).apply(values), [-1, -1, 0, 1])
    log = PublicMeanScale(0, 1, Transform.SIGNED_LOG).apply(values)
    np.testing.assert_allclose(log, [-math.log(6), 0, math.log(51), math.log(1001)])
    np.testing.assert_array_equal(Unscaled().apply(values), values)


_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
_RECORD = PrivacyUnit.of(Relation.REPLACE_ONE)
_USER = PrivacyUnit(Protected.USER, Relation.ADD_REMOVE)


@pytest.mark.parametrize(
    ("kind", "refused_by"),
    [
        (FactKind.SCALE, (_RECORD, _USER)),
        (FactKind.CATEGORIES, (_RECORD, _USER)),
        (FactKind.CLASSES, (_RECORD, _USER)),
        (FactKind.GROUPS, (_ATTRIBUTE, _RECORD, _USER)),
        (FactKind.ATTRIBUTE_IN_FEATURES, (_ATTRIBUTE,)),
    ],
)
def test_which_promise_refuses_which_fact(kind: FactKind, refused_by: tuple[PrivacyUnit, ...]) -> None:
    facts = (DerivedFact(kind, "x"),)
    require_allowed(facts, NothingPromised("a baseline"))
    for unit in (_ATTRIBUTE, _RECORD, _USER):
        if unit in refused_by:
            with pytest.raises(UnsupportedCombination, match=r"column 'x'"):
                require_allowed(facts, unit)
        else:
            require_allowed(facts, unit)


def test_standardisation_uses_the_training_records_alone(tmp_path) -> None:
    rng = np.random.default_rng(1)
    files = []
    for name, shift in (("a", 0.0), ("b", 100.0)):
        lines = ["x,k,s,y"] + [
            f"{v},{k},{'f' if i % 2 else 'm'},{i % 3 % 2}"
            for i, (v, k) in enumerate(zip(rng.normal(shift, 5, 80), rng.choice(["u", "v"], 80), strict=True))
        ]
        files.append(tmp_path / f"{name}.csv")
        files[-1].write_text("\n".join(lines))
    own = parse_schema(
        'version = 1\n[target]\ncolumn = "y"\nclasses = [0, 1]\n[sensitive]\ncolumn = "s"\ngroups = ["f", "m"]\n'
        '[numeric.x]\nscaling = "non-private-standardisation"\n[categorical.k]\nvalues = ["u", "v"]\n'
    )
    silos = load_own_silos(files, own)
    assert silos[0].data.unscaled_features == (0,)
    parts = split_silos(silos, seed=3)
    fitted = fit_standardisation(parts.train)
    done = TrainTest(fitted.apply_to_silos(parts.train), fitted.apply_to_silos(parts.test))
    train = done.train.pooled().features[:, 0]
    assert train.mean() == pytest.approx(0, abs=1e-12)
    assert train.std() == pytest.approx(1)
    raw = parts.train.pooled().features[:, 0]
    expected = (parts.test.pooled().features[:, 0] - raw.mean()) / raw.std()
    np.testing.assert_allclose(done.test.pooled().features[:, 0], expected)
    np.testing.assert_array_equal(done.train.pooled().features[:, 1:], parts.train.pooled().features[:, 1:])
    assert done.train[0].data.unscaled_features == ()
    assert fitted.as_json()["columns"] == [0]
    np.testing.assert_allclose(fitted.apply(parts.test[1].data.features), done.test[1].data.features)
    done.train.require_allowed(_ATTRIBUTE)
    with pytest.raises(UnsupportedCombination, match="scale of a numeric feature"):
        done.train.require_allowed(_RECORD)
