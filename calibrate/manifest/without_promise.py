"""The document of a run that protects nobody, such as a baseline: signed, so that it cannot pass for private."""

from __future__ import annotations

from importlib.metadata import version

from calibrate.manifest.document import Accounting, BudgetDocument, DiscreteNoise, Interval
from calibrate.manifest.guarantee import NoPrivacyPromised
from calibrate.manifest.steps import in_our_words
from calibrate.manifest.terms import Terms, checked_document, only_clear
from calibrate.privacy_unit import PrivacyUnit


@in_our_words("document")
def document_without_promise(
    algorithm: str, unit: PrivacyUnit, rounds: int, why: str, config_digest: str, terms: Terms
) -> BudgetDocument:
    """The document that promises nothing; all the run publishes stands in `terms.clear`."""
    return checked_document(
        terms,
        algorithm=algorithm,
        guarantee=NoPrivacyPromised(
            unit=unit.protected,
            adjacency=unit.relation,
            scope=terms.scope or "Whoever sees anything of this run.",
            covered=(),
            not_protected=("Everything: this run carries no noise.",),
            why=why,
        ),
        releases=terms.clear,
        rounds=rounds,
        sampling=(),
        accounting=Accounting(
            accountant="none",
            library="privfair",
            version=version("privfair"),
            interval=Interval(lower=0.0, upper=None),
            event=only_clear(terms.clear),
            delta=None,
            discrete_noise=DiscreteNoise(epsilon=0.0, mass=0.0),
            assumptions=(),
            second_opinion=None,
        ),
        config_digest=config_digest,
    )
