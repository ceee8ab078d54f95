"""The transparency log: proofs as in RFC 6962, and a second use of a budget is seen."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Ledger, ManifestTerms, Unavailable
from privfair.ledger.entries import NotIntact
from privfair.ledger.witness import (
    ClaimReceipt,
    LogHead,
    LogProof,
    NotedHeads,
    WitnessLog,
    consistency_proof,
    consistent,
    hashed,
    head_of,
    included,
    inclusion_proof,
    leaf_hash,
    second_uses,
    tree_root,
)

VECTORS = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
"""The leaves of the reference implementation's tests."""


def numbered(size: int) -> list[bytes]:
    return [leaf_hash(bytes([number])) for number in range(size)]


def test_roots_are_those_of_the_reference_implementation() -> None:
    leaves = [leaf_hash(bytes.fromhex(text)) for text in VECTORS]
    assert tree_root([]).hex() == hashlib.sha256(b"").hexdigest()
    assert tree_root(leaves[:1]).hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert tree_root(leaves[:7]).hex() == "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"
    assert tree_root(leaves).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


def test_each_leaf_of_each_small_tree_is_proved_and_no_other() -> None:
    for size in range(1, 18):
        leaves = numbered(size)
        root = tree_root(leaves)
        for index in range(size):
            proof = inclusion_proof(leaves, index)
            assert included(leaves[index], index, size, proof, root)
            assert not included(leaf_hash(b"another"), index, size, proof, root)
            assert not included(leaves[index], size, size, proof, root)
            assert not included(leaves[index], index, size, (*proof, root), root)
            if proof:
                assert not included(leaves[index], index, size, proof[:-1], root)
                assert not included(leaves[index], (index + 1) % size, size, proof, root)


def test_each_growth_of_each_small_tree_is_proved_and_no_rewriting() -> None:
    for size in range(1, 18):
        leaves = numbered(size)
        root = tree_root(leaves)
        for first in range(1, size + 1):
            proof, before = consistency_proof(leaves, first), tree_root(leaves[:first])
            assert consistent(first, size, before, root, proof)
            other = tree_root([leaf_hash(b"another"), *leaves[1:first]])
            assert not consistent(first, size, other, root, proof)
            assert not consistent(first, size, before, other, proof)
            assert not consistent(first, size, before, root, (*proof, root))
            if proof:
                assert not consistent(first, size, before, root, proof[:-1])
    assert consistent(0, 5, b"", tree_root(numbered(5)), ())
    assert not consistent(3, 2, b"", b"", ())


def terms(name: str, ledgers: tuple[str, ...] = ()) -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(name.encode()).hexdigest(),
        nonce=f"nonce of {name}",
        envelope_digest="e" * 64,
        rounds=3,
        epsilon=1.0,
        delta=1e-5,
        dataset="patients",
        data_digest="d" * 64,
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=PrivacyUnit.of(Relation.REPLACE_ONE),
        ledgers=ledgers,
    )


def receipts_of(path: Path, *names: str) -> tuple[ClaimReceipt, ...]:
    with Ledger.create(path) as ledger:
        for name in names:
            ledger.claim(terms(name))
        return ledger.receipts()


def test_a_budget_claimed_on_two_machines_is_seen(tmp_path: Path) -> None:
    north = receipts_of(tmp_path / "north.db", "shared", "north alone")
    south = receipts_of(tmp_path / "south.db", "south alone", "shared")
    assert not second_uses(north)
    assert not second_uses((*north, *north)), "the same claim logged twice is one use"
    found = second_uses((*north, *south))
    assert len(found) == 2, "the manifest and its nonce"
    assert "was used a second time, in ledger" in found[0]


def test_one_claim_per_silo_is_no_second_use_where_it_was_signed_so(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "north.db") as north, Ledger.create(tmp_path / "south.db") as south:
        signed = terms("of both", (north.identity, south.identity))
        north.claim(signed)
        south.claim(signed)
        both = (*north.receipts(), *south.receipts())
    assert not second_uses(both)
    third = both[0].model_copy(update={"ledger": "a" * 64, "claim": "b" * 64})
    assert second_uses((*both, third))


def test_a_ledger_that_was_put_back_has_two_histories(tmp_path: Path) -> None:
    (first,) = receipts_of(tmp_path / "a.db", "first")
    again = first.model_copy(update={"claim": "c" * 64, "manifest": "1" * 64, "nonce": "another"})
    assert "has two histories" in second_uses((first, again))[0]
    reused = first.model_copy(update={"claim": "c" * 64, "manifest": "1" * 64, "seq": 9})
    assert "nonce" in second_uses((first, reused))[0]


def test_a_log_keeps_whole_lines_and_refuses_changed_ones(tmp_path: Path) -> None:
    log, receipts = WitnessLog(tmp_path / "claims.log"), receipts_of(tmp_path / "a.db", "one", "two", "three")
    assert log.read() == ()
    log.append(receipts[:2])
    with log.path.open("ab") as file:
        file.write(b'{"unfinished')
    assert log.read() == receipts[:2]
    assert log.append(receipts) == receipts
    assert log.append(receipts) == receipts
    whole = log.path.read_bytes()
    for damaged in (whole.replace(b"patients", b"patient "), whole.replace(b'{"claim"', b'{ "claim"'), b"{}\n"):
        log.path.write_bytes(damaged)
        if b"patient " in damaged:
            assert hashed(log.read())[0] != leaf_hash(receipts[0].encode())
            continue
        with pytest.raises(NotIntact, match="line 1 is not a receipt"):
            log.read()
    with pytest.raises(Unavailable):
        WitnessLog(tmp_path / "no folder" / "x.log").append(receipts)
    with pytest.raises(Unavailable):
        WitnessLog(tmp_path).read()


def test_a_log_that_was_cut_or_rewritten_is_refused_by_who_saw_it(tmp_path: Path) -> None:
    log, receipts = WitnessLog(tmp_path / "claims.log"), receipts_of(tmp_path / "a.db", "one", "two")
    notes = NotedHeads(tmp_path / "note")
    notes.note(log, hashed(log.append(receipts)))
    notes.require(log, hashed((*receipts, receipts[0])))
    for other in (receipts[:1], receipts[::-1], ()):
        with pytest.raises(NotIntact, match="does not begin with them now"):
            notes.require(log, hashed(other))
    for text in ("[]", '{"claims.log": "x"}', '{"claims.log": "1:zz"}'):
        notes.path.write_text(text)
        with pytest.raises(NotIntact, match="not a note"):
            notes.require(log, [])


def test_proofs_travel_without_the_log(tmp_path: Path) -> None:
    log, receipts = WitnessLog(tmp_path / "claims.log"), receipts_of(tmp_path / "a.db", "one", "two", "three")
    log.append(receipts)
    early, late = head_of(hashed(receipts[:2])), head_of(hashed(receipts))
    claim = LogProof.decode(LogProof.of_claim([log], receipts[1].manifest[:8]).encode())
    growth = LogProof.decode(LogProof.of_growth([log], str(early)).encode())
    assert claim.holds_for(late)
    assert "was claimed in ledger" in claim.statement
    assert growth.holds_for(late)
    assert "only grew" in growth.statement
    for proof in (claim, growth):
        assert not proof.holds_for(early if proof is claim else LogHead(3, early.root))
    assert not LogProof(head="", path=()).holds_for(late)
    for bad in ("", "7", "x:" + "0" * 64, "1:" + "g" * 64):
        with pytest.raises(InvalidInput):
            LogHead.parse(bad)
    with pytest.raises(InvalidInput):
        LogProof.of_claim([log], "f" * 64)
    with pytest.raises(InvalidInput):
        LogProof.of_growth([log], f"2:{'0' * 64}")
    with pytest.raises(InvalidInput):
        LogProof.decode(b"{}")
