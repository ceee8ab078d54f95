"""One self-contained HTML page about a run or a model, for a privacy officer: verdict first, evidence after.

`report_content` reads what the page shows (budget, metrics, receipts) from a run folder, which may come from anyone; it
needs no engine.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError

from audit.report.figures import Metrics, draw_figures
from audit.report.results import AuditReport, CheckOutcome, Conclusion, ModelQuality
from calibrate.epsilon_so_far import EpsilonSoFar
from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    InTheClear,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    instant_to_text,
)
from calibrate.manifest.show import as_json as manifest_json
from calibrate.manifest.show import protected_text
from calibrate.manifest.strict_json import first_fault
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import AuthenticManifest, UnverifiedManifest, authenticate, read_unverified
from calibrate.meaning import Meaning, Protection, percent
from calibrate.privacy_unit import EpsilonDelta
from privfair.durable import read_named
from privfair.fairness.measurement import emptiness
from privfair.run.folder import RunFolder
from privfair.run.record import PartiesReceipts, Receipts

_MEANING = {
    Conclusion.CONSISTENT: "The audit found nothing against the guarantee. Its detection limits are named below.",
    Conclusion.VIOLATED: "The evidence contradicts the guarantee. Do not rely on it.",
    Conclusion.INCONCLUSIVE: "The audit found nothing against the guarantee, but was too weak to detect a breach.",
    Conclusion.LEAKS: "Members of the training data can be distinguished from others. No privacy was guaranteed.",
    Conclusion.NO_LEAK_FOUND: "These attacks did not distinguish members of the training data from others.",
}
_LAYERS = {"conformance": "documents", "L0": "probes (L0)", "L1": "noise (L1)", "L2": "attack (L2)"}


@dataclass(frozen=True)
class ReportContent:
    """Everything the page shows; `manifest` is None for a model without a run, `audit` where there was none."""

    manifest: AuthenticManifest | UnverifiedManifest | None
    audit: AuditReport | None
    metrics: Metrics
    budget: tuple[tuple[int, float], ...]
    """Certified epsilon after this many rounds."""
    engine: str = ""
    """What carried the messages of a run over guards; empty for a run in one process."""
    receipts: Mapping[str, Receipts] = field(default_factory=dict)
    """What each party's guard says its ledger holds about the run."""


def render(content: ReportContent) -> str:
    """The page as text; every value is escaped by the template, and only our own charts are markup."""
    audit, manifest = content.audit, content.manifest
    document = None if manifest is None else manifest.document
    cost = None if document is None else _unbacked_cost(document)
    subjects = {} if audit is None else dict(audit.subjects)
    if manifest is not None:
        subjects.setdefault("manifest", manifest.digest)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {"power_of_ten": power_of_ten, "sentence": _sentence, "instant": instant_to_text}
    return environment.get_template("page.html.j2").render(
        title=f"privfair report: {_subject(content)}",
        audit=audit,
        engine=content.engine,
        receipts=content.receipts,
        membership=None if audit is None else audit.membership,
        attribute=None if audit is None else audit.attribute_inference,
        meaning=None if audit is None else _MEANING[audit.verdict],
        odds=None if audit is None or audit.promised is None else _odds(audit.promised.epsilon, audit.promised.delta),
        tiles=() if audit is None else _tiles(audit, cost),
        layers=_LAYERS,
        protected=None if document is None else protected_text(document.guarantee),
        cost=cost,
        document=document,
        empty_model=empty_model(content),
        signed=_signed(manifest) if isinstance(manifest, AuthenticManifest) else None,
        headline=None if document is None else _headline(document),
        figures=draw_figures(audit, None if document is None else document.guarantee, content.metrics, content.budget),
        subjects=subjects,
        manifest_text=None if manifest is None else json.dumps(manifest_json(manifest), indent=2),
    )


def protection_lines(document: BudgetDocument) -> tuple[str, str]:
    """Who is protected and who is not, in two lines."""
    guarantee, finite = document.guarantee, None
    if not isinstance(guarantee, NoPrivacyPromised) and document.noise_source is NoiseSource.OPERATING_SYSTEM:
        finite = None if guarantee.epsilon is None else EpsilonDelta(guarantee.epsilon, guarantee.delta)
    return Protection(guarantee.privacy_unit(), finite).lines()


def empty_model(content: ReportContent) -> str | None:
    """The warning of a model that answers all records alike: by the audit's own measurement, else by the run's last."""
    if content.audit is not None and content.audit.model is not None:
        return content.audit.model.warning
    try:
        return emptiness(content.metrics[-1]["overall"]) if content.metrics else None
    except (AttributeError, KeyError, TypeError, ValueError):  # the file may come from anybody
        return None


def _signed(manifest: AuthenticManifest) -> str:
    """Who signed the manifest, and when that was checked."""
    signers = " and ".join(f"the {each.role.value} (key {each.key_id[:12]})" for each in manifest.signatures)
    checked = f"The budget is signed by {signers}; checked at {instant_to_text(manifest.checked_at)}."
    return checked if manifest.remark is None else f"{checked} {manifest.remark}"


def _subject(content: ReportContent) -> str:
    if content.manifest is not None:
        return content.manifest.document.algorithm
    membership = None if content.audit is None else content.audit.membership
    return "model" if membership is None or membership.target is None else f"{membership.target.kind} model"


def _odds(epsilon: float, delta: float) -> str:
    """What an epsilon means: the best accuracy of an attacker's guess at even odds."""
    right = percent(Meaning(EpsilonDelta(epsilon, delta)).right_guesses)
    return (
        "An attacker who sees every published value and knows all other data guesses one protected fact correctly at "
        f"most {right} of the time (random guessing: 50%, two equally likely values)."
    )


def _unbacked_cost(document: BudgetDocument) -> str | None:
    """The certified cost of a run whose noise is a paper's and costs more than the paper claims."""
    guarantee = document.guarantee
    if not isinstance(guarantee, AsPrintedGuarantee):
        return None
    if guarantee.epsilon is None:
        return "unbounded"
    return f"ε = {guarantee.epsilon:.3g}" if guarantee.epsilon > guarantee.claimed_epsilon else None


def _tiles(audit: AuditReport, cost: str | None) -> list[tuple[str, str]]:
    """The most important numbers, each with what it is."""
    tiles = []
    if audit.promised is not None:
        tiles.append((f"ε = {audit.promised.epsilon:.3g}", f"{audit.promised.word}, at most"))
    if cost is not None:
        tiles.append((cost, "certified cost of the noise that was used"))
    if audit.epsilon_lower is not None:
        confidence = f"{100 * audit.confidence:g}% confidence"
        tiles.append((f"ε = {audit.epsilon_lower:.3g}", f"measured, at least ({confidence})"))
    outcomes = Counter(check.outcome for check in audit.checks)
    others = f"{outcomes[CheckOutcome.FAILED]} failed, {outcomes[CheckOutcome.NOT_POSSIBLE]} not possible"
    tiles.append((f"{outcomes[CheckOutcome.PASSED]} of {len(audit.checks)}", f"checks passed; {others}"))
    if audit.membership is not None and audit.membership.attacks:
        best = max(one.auc.value for one in audit.membership.attacks)
        tiles.append((f"AUC {best:.3f}", "best membership attack; 0.5 is blind guessing"))
    if audit.attribute_inference is not None:
        found = audit.attribute_inference
        tiles.append((found.finding.value, f"attribute inference: {found.attribute}"))
    return tiles


def _headline(document: BudgetDocument) -> str:
    match document.guarantee:
        case PrivateGuarantee(epsilon=epsilon, delta=delta):
            return f"ε = {epsilon:g} at δ = {power_of_ten(delta)}, for {document.rounds} rounds."
        case AsPrintedGuarantee(epsilon=epsilon, delta=delta, claimed_epsilon=claimed):
            true = "unbounded" if epsilon is None else f"{epsilon:.4g}"
            return (
                f"Nothing beyond the true cost: the paper claims ε = {claimed:g}, the certified cost is {true} "
                f"at δ = {power_of_ten(delta)}."
            )
        case NoPrivacyPromised(why=why):
            return f"No privacy is promised: {why}"


def power_of_ten(value: float) -> str:
    """0.00001 as 10⁻⁵: a probability that a reader can compare with the number of people."""
    if not 0 < value < 1e-3:
        return f"{value:g}"
    digits, power = f"{value:.3e}".split("e")
    raised = "⁻" + str(abs(int(power))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    leading = f"{float(digits):g}"
    return f"10{raised}" if leading == "1" else f"{leading}·10{raised}"


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


_POINTS = 12
"""Number of points of the figure of epsilon by rounds."""


def report_content(run: Path | None, audit: AuditReport | None, trust: TrustFile | None) -> ReportContent:
    """What the page of a run folder, or of a model's audit alone, shows; needs no engine.

    run: The folder, None for a model. audit: Its audit, if any. trust: Whose signatures count; None checks none.
    """
    if run is None:
        return ReportContent(None, audit, (), ())
    RunFolder.existing(run)
    envelope = read_named(run / "budget.json", "RUN")
    manifest = read_unverified(envelope) if trust is None else authenticate(envelope, trust, for_reading=True)
    metrics, budget = _metrics(run / "metrics.jsonl"), _budget(manifest.document)
    return ReportContent(manifest, audit, metrics, budget, *_parties(run / "receipts.json"))


def _parties(path: Path) -> tuple[str, Mapping[str, Receipts]]:
    """The engine of a run over guards and its parties' receipts; nothing for a run in one process."""
    if not path.exists() or "parties" not in RunFolder.read_json(path):
        return "", {}
    found = PartiesReceipts.read(path)
    return found.engine, found.parties


def _metrics(path: Path) -> Metrics:
    """One line per step, as far as the page reads it; refused where it is something else."""
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        found = tuple(json.loads(line) for line in lines)
        for line in found:
            ModelQuality.of(line["overall"])
            float(line["step"])
            for group in line["overall"]["groups"].values():
                group["records"], len(group["selection_rates"])
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise InvalidInput("RUN", str(path), "is not the metrics of a run", "put the run's own file back, or remove it")


def read_audit(path: Path) -> AuditReport:
    """An audit's JSON, checked, so that a page never shows half of another file."""
    try:
        return AuditReport.model_validate_json(read_named(path, "--audit"))
    except ValidationError as broken:
        raise InvalidInput(
            "--audit", str(path), f"is not an audit ({first_fault(broken)})", "give what `privfair audit --out` wrote"
        ) from None


def _budget(document: BudgetDocument) -> tuple[tuple[int, float], ...]:
    """Certified epsilon after a few numbers of rounds, for the figure."""
    prices, rounds = EpsilonSoFar(document), document.rounds
    whole = prices.after(rounds)
    if whole is not None and _paid_at_once(document):
        return ((0, 0.0), (0, whole), (rounds, whole))
    grid = sorted({round(rounds * point / _POINTS) for point in range(_POINTS + 1)})
    spent = [(count, prices.after(count)) for count in grid]
    return tuple((count, epsilon) for count, epsilon in spent if epsilon is not None)


def _paid_at_once(document: BudgetDocument) -> bool:
    """Whether everything private is published once, before the first round, so that rounds are free."""
    noisy = [declared for declared in document.releases if not isinstance(declared, InTheClear)]
    return all(declared.publications == 1 for declared in noisy)
