"""A manifest in words, for an officer before signing and for anybody after: the page, the short form, what changed."""

from __future__ import annotations

import decimal
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    DeclaredRelease,
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
    instant_to_text,
)
from calibrate.manifest.strict_json import Json
from calibrate.manifest.verify import (
    AuthenticManifest,
    Signature,
    UnverifiedManifest,
    VerifiedManifest,
    promises_privacy,
)
from calibrate.meaning import Meaning
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Protected, Relation
from calibrate.releases import encode_sampling

WIDTH = 80

_UNIT = {
    Protected.RECORD: "one record",
    Protected.USER: "one user, with all of their records",
    Protected.ATTRIBUTE: "the sensitive attribute of one record",
}
_RELATION = {
    Relation.ADD_REMOVE: "being in the data or not",
    Relation.REPLACE_ONE: "being replaced by any other",
    Relation.REPLACE_ATTRIBUTE: "having any other value (features and label stay, and are not protected)",
}


def protected_text(guarantee: PrivateGuarantee | AsPrintedGuarantee | NoPrivacyPromised) -> str:
    """Whom a guarantee speaks of, in words: the unit, and what may differ."""
    return describe_unit(guarantee.privacy_unit())


def describe_unit(unit: PrivacyUnit) -> str:
    """A unit in words: who is protected, and what may differ."""
    return f"{_UNIT[unit.protected]}, {_RELATION[unit.relation]}"


def meaning_of(guarantee: PrivateGuarantee | AsPrintedGuarantee | NoPrivacyPromised) -> Meaning | None:
    """What a guarantee means to a person; None where there is no finite promise."""
    if isinstance(guarantee, NoPrivacyPromised) or guarantee.epsilon is None:
        return None
    return Meaning(EpsilonDelta(guarantee.epsilon, guarantee.delta))


Shown = VerifiedManifest | AuthenticManifest | UnverifiedManifest


def render(manifest: Shown) -> str:
    """The whole page as plain text; it says first whether signatures were checked."""
    document = manifest.document
    parts = (
        (f"Privacy budget for {document.algorithm}", _standing(manifest)),
        ("What is promised", _promise(document)),
        ("What is covered", document.guarantee.covered or ("Nothing.",)),
        ("What is NOT protected", document.guarantee.not_protected),
        ("What the promise assumes", _assumptions(document)),
        ("What is published, and with how much noise", _releases(document)),
        ("How the price was computed", _price(document)),
        ("For which data and plan", _binding(document)),
        ("In force", _validity(document)),
        ("Why", (document.justification,)),
    )
    return "\n\n".join(_section(title, lines) for title, lines in parts) + "\n"


def as_json(manifest: Shown) -> dict[str, Json]:
    """The same for machines: how far it was checked, by whom it is signed, and the whole document."""
    signatures: tuple[Signature, ...] = ()
    match manifest:
        case UnverifiedManifest():
            checked = "nothing"
        case AuthenticManifest():
            checked, signatures = "signatures", manifest.signatures
        case VerifiedManifest():
            checked, signatures = "signatures, plan and data", manifest.signatures
        case _:
            assert_never(manifest)
    meaning = meaning_of(manifest.document.guarantee)
    return {
        "checked": checked,
        "promises_privacy": promises_privacy(manifest.document),
        "meaning": None if meaning is None else meaning.to_json(),
        "manifest": manifest.digest,
        "signatures": [{"role": each.role.value, "key_id": each.key_id} for each in signatures],
        "document": manifest.document.to_json(),
    }


def _section(title: str, lines: Iterable[str]) -> str:
    wrapped = [
        textwrap.fill(line, WIDTH, initial_indent="  - ", subsequent_indent="    ", break_long_words=False)
        for line in lines
    ]
    return "\n".join([title, "-" * len(title), *wrapped])


def _standing(manifest: Shown) -> Iterator[str]:
    match manifest:
        case UnverifiedManifest():
            yield "SIGNATURES NOT CHECKED: this page shows what the file claims, whoever wrote it."
            for key_id in manifest.claimed_key_ids:
                yield f"claims to be signed by key {key_id}"
        case AuthenticManifest():
            yield from _signatures(manifest)
            yield "Not yet compared with a plan or with data."
        case VerifiedManifest():
            yield from _signatures(manifest.authentic)
            yield "The plan and the data of this run are the ones it was signed for."
        case _:
            assert_never(manifest)
    yield f"manifest {manifest.digest}"


def _signatures(manifest: AuthenticManifest) -> Iterator[str]:
    for signature in manifest.signatures:
        yield f"signed by the {signature.role.value} with key {signature.key_id}"
    for key_id in manifest.unknown_key_ids:
        yield f"also carries a signature by the unknown key {key_id}, which was ignored"
    if manifest.remark is not None:
        yield manifest.remark
    yield f"checked at {instant_to_text(manifest.checked_at)}"


def _promise(document: BudgetDocument) -> Iterator[str]:
    guarantee = document.guarantee
    whom = protected_text(guarantee)
    if document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY:
        yield (
            "NOBODY IS PROTECTED: the noise is seeded and can be subtracted by whoever has the seed. "
            "What follows would hold with noise from the operating system."
        )
    match guarantee:
        case PrivateGuarantee():
            yield f"({_at_most(guarantee.epsilon)}, {_at_most(guarantee.delta)})-differential privacy for {whom}."
            yield (
                f"No event that an observer may see becomes more than {_factor(guarantee.epsilon)} times likelier "
                f"through that change, beyond an added probability of {_at_most(guarantee.delta)}."
            )
            yield from Meaning(EpsilonDelta(guarantee.epsilon, guarantee.delta)).sentences(whom.split(",")[0])
        case AsPrintedGuarantee():
            true = "no finite epsilon" if guarantee.epsilon is None else f"epsilon = {_at_most(guarantee.epsilon)}"
            yield (
                f"A paper's own noise. Claimed: epsilon = {guarantee.claimed_epsilon!r} ({guarantee.claim}). "
                f"True: {true} at delta = {_at_most(guarantee.delta)}, for {whom}."
            )
        case NoPrivacyPromised():
            yield f"NO PRIVACY IS PROMISED: {guarantee.why}"
        case _:
            assert_never(guarantee)
    yield f"Against: {guarantee.scope}"


def _assumptions(document: BudgetDocument) -> Iterator[str]:
    yield from document.accounting.assumptions
    for declaration in document.sampling:
        scheme = encode_sampling(declaration.scheme)
        drawn = ", ".join(f"{name} {value}" for name, value in scheme.items() if name != "scheme")
        state = "enforced by" if declaration.assumption_enforced else "NOT ENFORCED; it rests on"
        yield f"Batches are drawn {scheme['scheme']} ({drawn}): {state} {declaration.enforced_by}."
    if isinstance(document.guarantee, NoPrivacyPromised):
        yield "Nothing: no promise rests on how batches are drawn."
    elif not document.sampling:
        yield "Every round uses all data: nothing is assumed about batches."


def _releases(document: BudgetDocument) -> Iterator[str]:
    yield f"{document.rounds} rounds; noise: {document.noise_source.value}"
    for declared in document.releases:
        shape = "" if declared.shape is None else f", shape {' x '.join(map(str, declared.shape)) or 'scalar'}"
        yield f"{declared.name}: {_noise(declared)}; {declared.publications} times{shape}"
    if document.retention_text is not None:
        yield f"TRANSCRIPT: {document.retention_text}"


def _noise(declared: DeclaredRelease) -> str:
    match declared:
        case GaussianNoise():
            mixed = "" if declared.strategy is None else f", on sums mixed over {declared.bands} rounds (banded)"
            return f"Gaussian noise of standard deviation {_at_least(declared.sigma)}{_relative(declared)}{mixed}"
        case LaplaceNoise():
            return f"Laplace noise of scale {_at_least(declared.scale)}{_relative(declared)}"
        case RandomizedCategory():
            price = _at_most(declared.epsilon)
            return f"randomised response over {declared.categories} categories with epsilon {price}"
        case InTheClear():
            depends = declared.depends_on_unit
            effect = "DEPENDS ON THE PROTECTED UNIT" if depends else "free of the protected unit"
            return f"WITHOUT NOISE, {effect}: {declared.why}"
        case _:
            assert_never(declared)


def _relative(declared: GaussianNoise | LaplaceNoise) -> str:
    clip = "" if declared.clip is None else f", clipped at {_at_most(declared.clip)}"
    return (
        f", which is {_at_least(declared.noise_multiplier)} times one unit's largest {declared.norm} contribution "
        f"({_at_most(declared.sensitivity)}{clip})"
        + ("" if declared.family is None else f"; of the family {declared.family} a record touches two at most")
    )


def _price(document: BudgetDocument) -> Iterator[str]:
    accounting = document.accounting
    opinions = (accounting,) if accounting.second_opinion is None else (accounting, accounting.second_opinion)
    for opinion in opinions:
        yield (
            f"{opinion.accountant} ({opinion.library} {opinion.version}): epsilon between {_bounds(opinion.interval)}"
        )


def _binding(document: BudgetDocument) -> Iterator[str]:
    if document.dataset is None:
        yield "no data set is declared"
    else:
        named = document.dataset
        yield f"data set {named.name}, version {named.version}, kept by {named.custodian} (in a ledger: {named.label})"
    for silo in document.data.silos:
        yield f"{silo.name}: {silo.size} {'users' if document.guarantee.unit is Protected.USER else 'records'}"
    yield f"schema {document.data.schema_digest}"
    yield f"plan {document.config_digest}"
    for code in document.code:
        yield f"own code {code.name}, which sees the records: {code.sha256}"


def _validity(document: BudgetDocument) -> Iterator[str]:
    window = document.validity
    yield f"from {instant_to_text(window.not_before)} until {instant_to_text(window.not_after)}"
    yield f"issued {instant_to_text(window.issued_at)}; usable once (nonce {document.nonce[:16]}...)"
    for bound in document.ledgers:
        who = "" if bound.silo is None else f"by {bound.silo} "
        yield f"to be claimed {who}in the ledger {bound.ledger} and in no other"
    if not document.ledgers:
        yield "NOT BOUND TO A LEDGER: whoever has a second ledger can claim it a second time"
    if document.witness is None:
        yield "no witness: a second use with restored copies of ledger, anchor and run is detected, not prevented"
    else:
        yield f"second use is prevented: the witness {document.witness} countersigns each block of charges"


def _bounds(interval: EpsilonInterval) -> str:
    return f"{_at_least(interval.lower)} and {_at_most(interval.upper)}"


def _at_most(value: float) -> str:
    """Six digits, rounded up: for costs, so that the page never looks better than what was signed."""
    return _six_digits(value, decimal.ROUND_CEILING)


def _at_least(value: float) -> str:
    """Six digits, rounded down: for noise."""
    return _six_digits(value, decimal.ROUND_FLOOR)


def _six_digits(value: float, rounding: str) -> str:
    if value == math.inf:
        return "infinity"
    # The decimal text is what was signed (RFC 8785), so it is what gets rounded, not the binary expansion.
    rounded = decimal.Context(prec=6, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(rounded):.6g}"


def _factor(epsilon: float) -> str:
    """exp(epsilon), rounded up to three digits."""
    if epsilon > 500:
        return f"exp({_at_most(epsilon)})"
    exact = decimal.Context(prec=30).exp(decimal.Decimal(repr(float(epsilon))))
    return f"{float(decimal.Context(prec=3, rounding=decimal.ROUND_CEILING).create_decimal(exact)):.3g}"


# In short: what signing a document would promise, and what is different from the last one.


def plain_words(document: BudgetDocument) -> tuple[str, ...]:
    """What signing this document would promise, whom it protects and what that means, one sentence per line."""
    guarantee = document.guarantee
    epsilon, delta = getattr(guarantee, "epsilon", None), getattr(guarantee, "delta", None)
    lines: list[str] = []
    if isinstance(guarantee, AsPrintedGuarantee):
        lines.append(
            f"A paper's own noise, which claims epsilon {guarantee.claimed_epsilon:g}; what it costs is below."
        )
    elif not promises_privacy(document):
        lines.append("NOBODY IS PROTECTED by this budget, whatever numbers stand in it.")
    lines.append(f"Protected: {protected_text(guarantee)}.")
    if epsilon is None or delta is None:
        lines.append("There is no finite promise: an observer of this run may learn everything.")
    else:
        lines.append(f"Promise: epsilon {epsilon:g} at delta {delta:g}.")
        lines += Meaning(EpsilonDelta(epsilon, delta)).sentences(protected_text(guarantee).split(",")[0])
    lines.append(f"It covers {document.rounds} rounds of {document.algorithm}, and can be spent once.")
    lines.append(f"Purpose: {document.justification}")
    return tuple(lines)


@dataclass(frozen=True)
class BudgetChange:
    """One thing that differs from an earlier budget; `worse` is True where it protects less, None where it depends."""

    what: str
    before: str
    after: str
    worse: bool | None = None

    @property
    def sentence(self) -> str:
        mark = {True: " (protects less)", False: " (protects more)", None: ""}[self.worse]
        return f"{self.what}: {self.before} -> {self.after}{mark}"


def last_before(document: BudgetDocument, others: Iterable[BudgetDocument]) -> BudgetDocument | None:
    """The newest other document for the same data set (the same silos where none is declared)."""
    same = [one for one in others if _subject(one) == _subject(document) and one.nonce != document.nonce]
    earlier = [one for one in same if one.validity.issued_at <= document.validity.issued_at]
    return max(earlier, key=lambda one: one.validity.issued_at, default=None)


def _subject(document: BudgetDocument) -> object:
    named = document.dataset
    return named.label if named is not None else tuple(sorted(silo.name for silo in document.data.silos))


def changes(before: BudgetDocument, after: BudgetDocument) -> tuple[BudgetChange, ...]:
    """Everything that a reader of the earlier budget would be wrong about in the later one."""
    return tuple(_changes(before, after))


def _changes(before: BudgetDocument, after: BudgetDocument) -> Iterator[BudgetChange]:
    old, new = before.guarantee, after.guarantee
    for name in ("epsilon", "delta"):
        first, second = getattr(old, name, None), getattr(new, name, None)
        if first != second:
            yield BudgetChange(name, _number(first), _number(second), _more(first, second))
    yield from _different(_promised(before), _promised(after), "none")
    yield from _different(_noises(before), _noises(after), "not published")
    for lost in sorted(set(old.not_protected) - set(new.not_protected)):
        yield BudgetChange("no longer listed as unprotected", lost, "-")
    for gained in sorted(set(new.not_protected) - set(old.not_protected)):
        yield BudgetChange("newly listed as unprotected", "-", gained)
    yield from _different(_bound(before), _bound(after), "none")


def _different(before: Mapping[str, object], after: Mapping[str, object], missing: str) -> Iterator[BudgetChange]:
    """Values are compared, not their texts, which may agree to the digits shown."""
    for what in dict.fromkeys((*before, *after)):
        first, second = before.get(what), after.get(what)
        if first != second:
            yield BudgetChange(what, _number(first, missing), _number(second, missing))


def _promised(document: BudgetDocument) -> dict[str, object]:
    return {
        "kind of promise": document.guarantee.kind,
        "protected": protected_text(document.guarantee),
        "source of noise": document.noise_source.value,
        "algorithm": document.algorithm,
        "rounds": document.rounds,
    } | {
        f"parameter {name.replace('_', '-')}": value
        for name, value in sorted(document.parameters.items())
        if name != "rounds"
    }


def _noises(document: BudgetDocument) -> dict[str, str]:
    return {f"noise on {one.name}": _noise_in_short(one) for one in document.releases}


def _noise_in_short(declared: DeclaredRelease) -> str:
    match declared:
        case GaussianNoise(sigma=scale) | LaplaceNoise(scale=scale):
            return f"{scale:.6g} ({declared.mechanism})"
        case RandomizedCategory():
            return f"randomised response with epsilon {declared.epsilon:.6g}"
        case InTheClear():
            return "none: sent in the clear"
        case _:
            assert_never(declared)


def _bound(document: BudgetDocument) -> dict[str, object]:
    """What the budget is bound to."""
    window, named = document.validity, document.dataset
    return {
        "data set": "none declared" if named is None else named.label,
        "silos": ", ".join(f"{silo.name} {silo.size}" for silo in document.data.silos),
        "schema of the data": document.data.schema_digest[:12],
        "plan file": document.config_digest[:12],
        "code that sees records": ", ".join(f"{code.name} {code.sha256[:12]}" for code in document.code) or "none",
        "ledger": ", ".join(bound.ledger[:12] for bound in document.ledgers) or "not bound to a ledger",
        "days it is valid": (window.not_after - window.not_before).days,
        "purpose": document.justification,
    }


def _number(value: object, missing: str = "none") -> str:
    if value is None:
        return missing
    return f"{value:g}" if isinstance(value, float) else str(value)


def _more(first: float | None, second: float | None) -> bool:
    """Whether the second of two prices is the higher; none at all is the highest."""
    if second is None:
        return True
    return first is not None and second > first
