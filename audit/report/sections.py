"""The page's texts and tables: verdict, promise, what is not protected, evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from audit.report.content import ReportContent
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import AsPrintedGuarantee

_MEANING = {
    "consistent": "The audit found nothing against the promise, and would have noticed a breach.",
    "violated": "The evidence contradicts the promise. Do not rely on it.",
    "inconclusive": "The audit found nothing against the promise, but would hardly have noticed a breach.",
}
_LAYERS = {"conformance": "papers", "L0": "probes (L0)", "L1": "noise (L1)", "L2": "attack (L2)"}


def verdict_section(content: ReportContent) -> str:
    found = content.verdict
    if found is None:
        return (
            '<section class="verdict inconclusive"><div class="word">Not audited</div>'
            "<p>This run has not been audited; nothing below has been doubted yet.</p></section>"
        )
    word = found["verdict"]
    lines = [f"<b>{_MEANING[word]}</b>", escape(_sentence(found["why"]))]
    if found["promised"] is not None:
        promised = found["promised"]
        lines.append(
            f"On trial: ε = {promised['epsilon']:g} at δ = {power_of_ten(promised['delta'])}, "
            f"{escape(promised['source'])}. {_odds(promised['epsilon'], promised['delta'])}"
        )
    else:
        lines.append("No privacy was promised, so there is no promise to break.")
    cost = unbacked_cost(content)
    if cost is not None:
        lines.append(f"<b>The noise cannot keep this claim:</b> its certified cost is {cost}, attack or no attack.")
    if content.attribute is not None and content.attribute["finding"] != "no leakage found":
        lines.append(f"<b>Beside the verdict:</b> {escape(_sentence(content.attribute['why']))}")
    told = "".join(f"<p>{line}</p>" for line in lines)
    return f'<section class="verdict {word}"><div class="word">{word}</div>{told}</section>{_tiles(content)}'


def _odds(epsilon: float, delta: float) -> str:
    """What an epsilon means to somebody who never heard of it: the best accuracy of a guess at even odds."""
    right = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    return (
        "Somebody who knows everything else, and would otherwise have to toss a coin, can then be right about one "
        f"protected fact at most {100 * right:.{0 if right < 0.99 else 2}f}% of the time."
    )


def said(found: dict[str, Any]) -> str:
    """Whether the epsilon on trial is a promise or only a claim."""
    return "promised" if found["promised"]["source"].startswith("promised") else "claimed"


def unbacked_cost(content: ReportContent) -> str | None:
    """The certified cost of a run whose noise is a paper's and costs more than the paper claims."""
    guarantee = None if content.document is None else content.document.guarantee
    if not isinstance(guarantee, AsPrintedGuarantee):
        return None
    if guarantee.epsilon is None:
        return "unbounded"
    return f"ε = {guarantee.epsilon:.3g}" if guarantee.epsilon > guarantee.claimed_epsilon else None


def _tiles(content: ReportContent) -> str:
    found = content.verdict
    assert found is not None
    tiles = []
    if found["promised"] is not None:
        tiles.append((f"ε = {found['promised']['epsilon']:.3g}", f"{said(found)}, at most"))
    cost = unbacked_cost(content)
    if cost is not None:
        tiles.append((cost, "certified cost of the noise that was used"))
    if found["epsilon_lower"] is not None:
        tiles.append(
            (f"ε = {found['epsilon_lower']:.3g}", f"measured, at least ({100 * found['confidence']:g}% confidence)")
        )
    outcomes = [check["outcome"] for check in found["checks"]]
    tiles.append(
        (
            f"{outcomes.count('passed')} of {len(outcomes)}",
            f"checks passed; {outcomes.count('failed')} failed, {outcomes.count('not possible')} not possible",
        )
    )
    if content.membership is not None and content.membership["attacks"]:
        best = max(content.membership["attacks"], key=lambda one: one["auc"]["value"])
        tiles.append((f"AUC {best['auc']['value']:.3f}", "best membership attack; 0.5 is blind guessing"))
    if content.attribute is not None:
        tiles.append((content.attribute["finding"], f"attribute inference: {content.attribute['attribute']}"))
    shown = "".join(
        f'<div class="tile"><b{_red(big)}>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _red(finding: str) -> str:
    return ' class="leaks"' if finding == "leakage" else ""


def promise_section(document: BudgetDocument | None) -> str:
    if document is None:
        return ""
    guarantee = document.guarantee
    lines = [
        f"Protected unit: one {guarantee.unit.value} ({guarantee.adjacency.value}). {guarantee.scope}",
        *guarantee.covered,
    ]
    assumed = document.accounting.assumptions
    more = f"<p>This holds only if:</p>{_list(assumed)}" if assumed else ""
    return f"<h2>What is promised, and what it assumes</h2><p>{escape(_headline(document))}</p>{_list(lines)}{more}"


def _headline(document: BudgetDocument) -> str:
    guarantee = document.guarantee
    match guarantee.kind:
        case "private":
            return f"ε = {guarantee.epsilon:g} at δ = {power_of_ten(guarantee.delta)}, for {document.rounds} rounds."
        case "as-printed":
            true = "unbounded" if guarantee.epsilon is None else f"{guarantee.epsilon:.4g}"
            return (
                f"Nothing beyond the true cost: the paper claims ε = {guarantee.claimed_epsilon:g}, "
                f"the certified cost is {true} at δ = {power_of_ten(guarantee.delta)}."
            )
        case _:
            return f"No privacy is promised: {guarantee.why}"


def not_protected_section(document: BudgetDocument | None) -> str:
    if document is None:
        return ""
    return f"<h2>Not protected</h2>{_list(document.guarantee.not_protected)}"


def evidence_section(content: ReportContent) -> str:
    found = content.verdict
    if found is None:
        return ""
    attacks = "".join(
        f"<p><b>{escape(one['name'])}</b>: {escape(one['evidence'])}. ε is at least {one['bound']['epsilon']:.3f} "
        f"({escape(one['bound']['method'])}, {escape(one['bound']['selection'])}). Power, had the noise been missing: "
        f"{one['power']:.2f}.</p>"
        for one in found["attacks"]
    )
    passed = [check for check in found["checks"] if check["outcome"] == "passed"]
    others = sorted((c for c in found["checks"] if c["outcome"] != "passed"), key=lambda c: c["outcome"] != "failed")
    first = _checks(others) if others else ""
    rest = ""
    if passed:
        state = "" if others else " open"
        rest = f"<details{state}><summary>{_counted(len(passed))} passed</summary>{_checks(passed)}</details>"
    inferred = _membership(content.membership) + _attribute(content.attribute, found)
    return f"<h2>Evidence</h2>{attacks}{inferred}<h3>Checks</h3>{first}{rest}"


def _counted(checks: int) -> str:
    return "1 check" if checks == 1 else f"{checks} checks"


def _checks(checks: list[dict[str, str]]) -> str:
    rows = [
        (
            escape(check["name"]),
            escape(_LAYERS.get(check["layer"], check["layer"])),
            f'<span class="{check["outcome"].replace(" ", "-")}">{escape(check["outcome"])}</span>',
            escape(check["finding"]),
        )
        for check in checks
    ]
    return table(("check", "layer", "outcome", "finding"), rows)


def _membership(section: dict[str, Any] | None) -> str:
    if section is None or not section["attacks"]:
        return ""
    rows = [
        (escape(one["name"]), _ends(one["auc"], 3), *(_ends(rate, 4) for rate in one["tpr_at_fpr"]))
        for one in section["attacks"]
    ]
    rates = [f"found at {100 * one['fpr']:g}% accused" for one in section["attacks"][0]["tpr_at_fpr"]]
    return f"<h3>Membership inference</h3>{table(('attack', 'AUC', *rates), rows)}"


def _attribute(section: dict[str, Any] | None, found: dict[str, Any]) -> str:
    if section is None:
        why = found.get("attribute_inference_not_possible")
        return f'<p class="soft">Attribute inference: not possible, {escape(why)}.</p>' if why else ""
    rows = [
        (
            "imputation, without the model",
            *(_ends(section["imputation"][side], 3) for side in ("members", "nonmembers")),
            "",
        )
    ]
    rows += [
        (
            escape(one["name"]),
            *(_ends(one[side]["accuracy"], 3) for side in ("members", "nonmembers")),
            _ends(one["leakage"], 3) + (' <span class="failed">leaks</span>' if one["leaks"] else ""),
        )
        for one in section["attacks"]
    ]
    heads = ("guess by", "right on members", "right on non-members", "members minus non-members, over imputation")
    missing = "; ".join(f"{one['name']}: {one['why']}" for one in section["not_applied"])
    note = f'<p class="soft">Not applied: {escape(missing)}.</p>' if missing else ""
    return (
        f"<h3>Attribute inference: {escape(section['attribute'])}</h3><p>{escape(_sentence(section['why']))}</p>"
        f'{table(heads, rows)}{note}<p class="soft">{escape(section["method"])}</p>'
    )


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table that becomes a list on a narrow window; cells are HTML already."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-label="{escape(head)}">{cell}</td>' for head, cell in zip(heads, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<table class="stacked"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def power_of_ten(value: float) -> str:
    """0.00001 as 10⁻⁵: a probability that a reader can compare with the number of people."""
    if not 0 < value < 1e-3:
        return f"{value:g}"
    digits, power = f"{value:.3e}".split("e")
    raised = "⁻" + str(abs(int(power))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    leading = f"{float(digits):g}"
    return f"10{raised}" if leading == "1" else f"{leading}·10{raised}"


def _ends(interval: dict[str, float], places: int) -> str:
    return (
        f'{interval["value"]:.{places}f} <span class="nowrap soft">[{interval["lower"]:.{places}f}, '
        f"{interval['upper']:.{places}f}]</span>"
    )


def _list(lines: Any) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _sentence(text: str) -> str:
    """With a capital and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
