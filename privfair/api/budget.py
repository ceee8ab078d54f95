"""`pf.budget`: a budget for your own training loop, priced and signed in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal, TypedDict, Unpack

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.errors import InvalidInput
from calibrate.manifest.document import (
    VALID_DAYS,
    BudgetDocument,
    DataBinding,
    DataIdentity,
    Issuer,
    LedgerBinding,
    OwnCode,
)
from calibrate.manifest.draft import BudgetSubject, draft_document
from calibrate.manifest.issue import BudgetDraft, issue
from calibrate.manifest.keys import SigningKey, load_private
from calibrate.manifest.strict_json import digest, digest_of_bytes, in_our_words
from calibrate.notebook import as_html
from calibrate.plans import plan_from_mapping
from calibrate.plans.plan import AlgorithmName
from calibrate.privacy_unit import EpsilonDelta
from privfair.durable import read_named
from privfair.ledger import Ledger
from privfair.plan.plan import plan_from_flags
from privfair.run.public import RunPromise, promise_of
from privfair.run.signed_budget import SignedBudget

Key = SigningKey | str | Path
"""A private key in memory (`pf.generate_key()`), or the file that holds it (`privfair keys generate`)."""
Sampling = Literal["poisson", "truncated-poisson", "fixed", "shuffled", "random-allocation", "full"]
RelationName = Literal["add-remove", "replace-one", "replace-attribute"]


@dataclass(frozen=True)
class PricedBudget:
    """A budget that two accountants agree on and no one has signed yet; no engine accepts it.

    >>> import privfair as pf
    >>> priced = pf.budget(1.0, 1e-5, units=1000, rounds=10, sampling_rate=0.05, shapes={"gradient": (3,)})
    >>> priced.promise.epsilon, priced.promise.delta
    (1.0, 1e-05)
    """

    draft: BudgetDraft = field(repr=False)

    @property
    def document(self) -> BudgetDocument:
        """What will be signed."""
        return self.draft.document

    @property
    def promise(self) -> RunPromise:
        """What is promised, to whom, and what is not protected."""
        return promise_of(self.document)

    @property
    def _certified(self) -> CertifiedBudget:
        assert self.draft.certified is not None
        return self.draft.certified

    def noise(self, name: str) -> float:
        """The standard deviation of the noise on a value.

        Args:
            name: of the value, as the budget declares it.
        """
        return self._certified.value(name).sigma

    def sign(self, key: Key) -> SignedBudget:
        """The budget under a signature, ready to be spent once.

        Args:
            key: the officer's or owner's private key, or the path of its file.
        """
        signing = key if isinstance(key, SigningKey) else load_private(Path(key))
        return SignedBudget(issue(self.draft, signing), signing.public)

    def _repr_html_(self) -> str:
        noisy = (value for value in (value.to_json() for value in self._certified.values) if value["sigma"] is not None)
        rows = ((value["name"], f"{value['sensitivity']:.6g}", f"{value['sigma']:.6g}") for value in noisy)
        return as_html(self.promise.text, " (not signed yet)", rows, header=("value", "bound", "sigma"))


def budget(
    epsilon: float,
    delta: float,
    *,
    units: int,
    rounds: int,
    shapes: Mapping[str, Sequence[int]],
    sampling: Sampling = "poisson",
    sampling_rate: float | None = None,
    batch_size: int | None = None,
    batches: int | None = None,
    batch_limit: int | None = None,
    most_units: int | None = None,
    bounds: Mapping[str, float] | float = 1.0,
    noise: Mapping[str, float] | None = None,
    relation: RelationName = "add-remove",
    protects: Literal["record", "user"] = "record",
    silos: Mapping[str, int] | None = None,
    dataset: tuple[str, str, str] | None = None,
    ledger: str | Path | Ledger | None = None,
    code: Iterable[str | Path] = (),
    valid_days: int = VALID_DAYS,
    why: str = "",
    unsafe_seeded_research_noise: bool = False,
) -> PricedBudget:
    """The smallest noise for your own loop that keeps (epsilon, delta), priced by two accountants.

    >>> import privfair as pf
    >>> priced = pf.budget(1.0, 1e-5, units=1000, rounds=100, sampling_rate=0.05, shapes={"gradient": (3,)})
    >>> round(priced.noise("gradient"), 2)
    2.14
    >>> signed = priced.sign(pf.generate_key())
    >>> print(signed)
    budget for own-loop: epsilon 1 at delta 1e-05 for one record, 100 rounds

    Args:
        epsilon: the promise, for all rounds together.
        delta: the probability with which the promise may fail; below one over the number of units.
        units: a public lower bound of the number of protected units; exactly their number for a replace relation.
        rounds: how many rounds the loop may make; what a crash loses counts, so have a few more signed.
        shapes: the shape of each value that a round publishes, with the value's name as key.
        sampling: how each round's batch is drawn.
        sampling_rate: for "poisson" and "truncated-poisson", the probability that a unit joins a batch.
        batch_size: for "fixed" and "shuffled", the units in a batch.
        batches: for "random-allocation", the batches per epoch.
        batch_limit: for "truncated-poisson", the most units in a batch, so that padded batches have one shape.
        most_units: for "truncated-poisson", a public upper bound of the number of units.
        bounds: the L2 bound of one unit's part of each value, by the value's name, or one number for all.
        noise: the noise of each value relative to its bound and to the others, by the value's name; 1 by default.
        relation: how neighbouring data sets differ: a unit is added or removed, or replaced, or its attribute is.
        protects: what one unit is.
        silos: the name of each silo and its units, if there are several; by default one called "data".
        dataset: the data's declared identity (name, custodian, version), by which a ledger keeps its totals.
        ledger: the ledger that the budget may be spent from (its path, URL, id, or the open ledger); None for any.
        code: your own files to bind by digest; `BudgetedRun(code=...)` must then name the same.
        valid_days: how long the budget may be spent.
        why: the justification that is in the manifest.
        unsafe_seeded_research_noise: reproducible noise that protects no one, for experiments on public data.

    Guarantee: as `calibrate.plans.gaussian.OwnLoopPlan`; the manifest lists what it assumes of the loop.
    """
    names = tuple(shapes)
    if not names:
        raise InvalidInput("shapes", shapes, "must name at least one value", 'give shapes={"gradient": (d,)}')
    flags = {
        "units": units,
        "rounds": rounds,
        "sampling": sampling,
        "sampling_rate": sampling_rate,
        "batch_size": batch_size,
        "batches": batches,
        "batch_limit": batch_limit,
        "most_units": most_units,
        "names": names,
        "bounds": _by_name("bounds", bounds, names),
        "noise": _by_name("noise", 1.0 if noise is None else noise, names),
        "relation": relation,
        "protects": protects,
    }
    file = plan_from_flags(AlgorithmName.OWN_LOOP.value, None, flags)
    subject = BudgetSubject(
        data=DataBinding.of(digest(None), ({"data": units} if silos is None else silos).items()),
        dataset=None if dataset is None else _identity_of_data(dataset),
        code=tuple(own_code(path) for path in code),
        shapes={name: tuple(int(side) for side in shape) for name, shape in shapes.items()},
    )
    issuer = issuer_of(
        ledger=ledger, why=why, valid_days=valid_days, unsafe_seeded_research_noise=unsafe_seeded_research_noise
    )
    plan = plan_from_mapping(file.algorithm, file.privacy)
    priced = calibrate_plan(plan, EpsilonDelta(epsilon, delta), subject.numbers)
    return PricedBudget(draft_document(priced, subject, issuer))


class Asking(TypedDict, total=False):
    """What may be asked of a budget in addition to the plan: see `privfair.Plan.price`."""

    ledger: str | Path | Ledger | None
    why: str
    valid_days: int
    unsafe_seeded_research_noise: bool


def issuer_of(**asked: Unpack[Asking]) -> Issuer:
    """The issuer's choices, as they are given in Python."""
    ledger = asked.get("ledger")
    return Issuer(
        ledgers=() if ledger is None else (LedgerBinding(ledger=Ledger.identity_of(ledger)),),
        lifetime=timedelta(days=asked.get("valid_days", VALID_DAYS)),
        why=asked.get("why", ""),
        research_noise=asked.get("unsafe_seeded_research_noise", False),
    )


def own_code(path: str | Path) -> OwnCode:
    """The user's own file, as a manifest binds it: its name and its digest."""
    return OwnCode(name=Path(path).name, sha256=digest_of_bytes(read_named(Path(path), "code")))


def _by_name(argument: str, given: Mapping[str, float] | float, names: tuple[str, ...]) -> tuple[float, ...]:
    if not isinstance(given, Mapping):
        return (float(given),) * len(names)
    if set(given) != set(names):
        raise InvalidInput(argument, sorted(given), f"must name exactly {', '.join(names)}", "give one number for each")
    return tuple(float(given[name]) for name in names)


def _identity_of_data(parts: tuple[str, str, str]) -> DataIdentity:
    with in_our_words("dataset"):
        name, custodian, version = parts
        return DataIdentity(name=name, custodian=custodian, version=version)
