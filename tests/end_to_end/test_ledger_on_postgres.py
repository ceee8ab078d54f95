"""A ledger moves from a file to PostgreSQL and back, as docs/how-to/postgres.md says, with identity and claims."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Ledger, ManifestTerms, RolledBack
from privfair.ledger.entries import AlreadyClaimed
from tests.end_to_end.command_line import config_file, privfair
from tests.postgres_server import NotInstalled, postgres_server


def terms(name: str) -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(name.encode()).hexdigest(),
        nonce=name,
        envelope_digest="e" * 64,
        rounds=8,
        epsilon=1.0,
        delta=1e-5,
        dataset="patients",
        data_digest="d" * 64,
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=PrivacyUnit.of(Relation.REPLACE_ONE),
    )


def _move(source: object, source_anchor: Path, target: object, target_anchor: Path, copy: Path) -> None:
    """As the page says: copy the entries, move the anchor, bring the entries back at the new place."""
    config = config_file(copy.parent, ledger=source, anchor=source_anchor)
    assert privfair("ledger", "backup", "--config", config, "--out", copy).code == 0
    source_anchor.rename(target_anchor)
    config = config_file(copy.parent, ledger=target, anchor=target_anchor)
    moved = privfair("ledger", "restore", copy, "--config", config, "--json")
    assert moved.code == 0, moved.err
    assert moved.json()["complete"]


@pytest.mark.slow
def test_a_ledger_moves_to_postgresql_and_back_and_the_old_place_can_spend_nothing(tmp_path: Path) -> None:
    try:
        with postgres_server() as url:
            _there_and_back(url, tmp_path)
    except NotInstalled as missing:
        pytest.skip(str(missing))


def _there_and_back(url: str, folder: Path) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        for silo in ("north", "south"):
            connection.execute(text(f"CREATE ROLE {silo} LOGIN"))
            connection.execute(text(f"CREATE SCHEMA {silo} AUTHORIZATION {silo}"))
    engine.dispose()
    places = {
        silo: f"{url.replace('privfair@', f'{silo}@', 1)}&options=-csearch_path%3D{silo}" for silo in ("north", "south")
    }
    first, anchors = folder / "first.db", [folder / f"{number}.anchor" for number in range(3)]
    with Ledger.create(first, anchors[0]) as ledger:
        identity = ledger.identity
        ledger.claim(terms("before")).charge(3)
    _move(first, anchors[0], places["north"], anchors[1], folder / "copy")
    with pytest.raises(RolledBack, match="anchor"):
        Ledger.open(first, anchors[0])
    with Ledger.open(places["north"], anchors[1]) as ledger:
        assert ledger.identity == identity
        with pytest.raises(AlreadyClaimed):
            ledger.claim(terms("before"))
        ledger.claim(terms("there")).charge(2)
    other = create_engine(places["south"])
    with other.connect() as connection, pytest.raises(ProgrammingError):
        connection.execute(text("SELECT * FROM north.privfair_ledger"))
    other.dispose()
    _move(places["north"], anchors[1], folder / "second.db", anchors[2], folder / "copy again")
    with Ledger.open(folder / "second.db", anchors[2]) as ledger:
        assert ledger.identity == identity
        assert [one.charged for one in ledger.status().manifests] == [3, 2]
        ledger.verify()
