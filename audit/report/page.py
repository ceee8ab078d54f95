"""One self-contained HTML page about a run, for a privacy officer: verdict first, evidence after."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from audit.bounds import EpsilonDeltaCurve
from audit.report.charts import Series, line_chart
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.show import as_json as manifest_json
from calibrate.manifest.verify import UnverifiedManifest

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;color:#1a202c;background:#fff;margin:0}
main{max-width:64rem;margin:auto;padding:1rem}
h1{font-size:1.5rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem;border-bottom:1px solid #ddd}
.verdict{padding:1rem;border-left:.5rem solid;background:#f7fafc}
.consistent{border-color:#2f855a}.violated{border-color:#c53030}.inconclusive{border-color:#b7791f}
.word{font-size:1.6rem;font-weight:700;text-transform:uppercase}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;font:11px system-ui,sans-serif}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{padding:.3rem .5rem;border-bottom:1px solid #e2e8f0;text-align:left;vertical-align:top;overflow-wrap:anywhere}
.failed{color:#c53030;font-weight:700}.passed{color:#2f855a}code{overflow-wrap:anywhere}
"""


@dataclass(frozen=True)
class ReportContent:
    """Everything the page shows; `verdict` is the JSON of an audit, None where there was none."""

    manifest: UnverifiedManifest
    verdict: dict[str, Any] | None
    metrics: tuple[dict[str, Any], ...]
    budget: tuple[tuple[int, float], ...]
    """Certified epsilon after so many rounds."""

    @property
    def document(self) -> BudgetDocument:
        return self.manifest.document


def render(content: ReportContent) -> str:
    """The page as text; it loads nothing from anywhere."""
    title = f"privfair report: {content.document.algorithm}"
    body = (
        f"<h1>{escape(title)}</h1>",
        _verdict(content),
        _promise(content.document),
        _figures(content),
        _groups(content),
        _not_protected(content.document),
        _checks(content.verdict),
        f"<h2>Manifest</h2><p>digest <code>{content.manifest.digest}</code></p>",
        f"<details><summary>The whole document</summary><pre class='scroll'>{_document(content)}</pre></details>",
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _verdict(content: ReportContent) -> str:
    found = content.verdict
    if found is None:
        return '<section class="verdict inconclusive"><p>This run has not been audited.</p></section>'
    lower, promised = found["epsilon_lower"], found["promised"]
    lines = [escape(found["why"])]
    if lower is not None:
        lines.append(f"It leaks at least epsilon = <b>{lower:.3f}</b> with {_confidence(found)}.")
    if promised is not None:
        lines.append(f"On trial: epsilon = <b>{promised['epsilon']:g}</b> ({escape(promised['source'])}).")
    told = "".join(f"<p>{line}</p>" for line in lines)
    word = found["verdict"]
    return f'<section class="verdict {word}"><div class="word">{word}</div>{told}</section>'


def _confidence(found: dict[str, Any]) -> str:
    return f"{100 * found['confidence']:g}% confidence"


def _promise(document: BudgetDocument) -> str:
    guarantee = document.guarantee
    lines = [
        f"Protected unit: one {guarantee.unit.value} ({guarantee.adjacency.value}). {guarantee.scope}",
        *guarantee.covered,
        *document.accounting.assumptions,
    ]
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f"<h2>What is promised, and what it assumes</h2><p>{escape(_headline(document))}</p><ul>{items}</ul>"
    )


def _headline(document: BudgetDocument) -> str:
    guarantee = document.guarantee
    match guarantee.kind:
        case "private":
            return f"epsilon = {guarantee.epsilon:g} at delta = {guarantee.delta:g}, for {document.rounds} rounds."
        case "as-printed":
            true = "unbounded" if guarantee.epsilon is None else f"{guarantee.epsilon:.4g}"
            return (
                f"Nothing beyond the true cost: the paper claims epsilon = {guarantee.claimed_epsilon:g}, "
                f"the certified cost is {true} at delta = {guarantee.delta:g}."
            )
        case _:
            return f"No privacy is promised: {guarantee.why}"


def _figures(content: ReportContent) -> str:
    figures = []
    if content.budget:
        rounds, spent = zip(*content.budget, strict=True)
        figures.append(
            ("Budget over rounds", "rounds", "epsilon", (Series("certified epsilon spent", rounds, spent),))
        )
    trade_off = _trade_off(content)
    if trade_off:
        figures.append(("Trade-off curve", "false positive rate", "false negative rate", trade_off))
    for name, label in (("accuracy", "accuracy"), ("demographic_parity", "demographic parity gap")):
        points = [
            (float(line["step"]), float(line["overall"][name]))
            for line in content.metrics
            if line["overall"].get(name) is not None
        ]
        if points:
            steps, values = zip(*points, strict=True)
            figures.append(
                (label.capitalize(), "step", label, (Series("test records (not private)", steps, values),))
            )
    drawn = "".join(
        f"<figure><figcaption>{escape(title)}</figcaption>{line_chart(title, x, y, series)}</figure>"
        for title, x, y, series in figures
    )
    return f'<h2>Figures</h2><div class="figures">{drawn}</div>'


def _trade_off(content: ReportContent) -> tuple[Series, ...]:
    """What no test of one record may beat, as promised, and as far as the audit got."""
    found = content.verdict
    if found is None or found["promised"] is None:
        return ()
    delta = found["promised"]["delta"]
    errors = tuple(float(alpha) for alpha in np.linspace(0, 1, 101))
    curves = [("as promised", found["promised"]["epsilon"], False)]
    if found["epsilon_lower"]:
        curves.append(("reached by the audit", found["epsilon_lower"], True))
    return tuple(
        Series(
            f"{name}: epsilon {epsilon:.3g}",
            errors,
            tuple(float(EpsilonDeltaCurve(epsilon, delta).type_two_error(alpha)) for alpha in errors),
            dashed,
        )
        for name, epsilon, dashed in curves
    )


def _groups(content: ReportContent) -> str:
    if not content.metrics:
        return ""
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{group['records']}</td><td>{group['accuracy']:.4f}</td>"
        f"<td>{', '.join(f'{rate:.4f}' for rate in group['selection_rates'])}</td></tr>"
        for name, group in content.metrics[-1]["overall"]["groups"].items()
    )
    return (
        "<h2>Groups</h2><p>On the test records, with the true attribute: these numbers are not private.</p>"
        '<div class="scroll"><table><tr><th>group</th><th>records</th><th>accuracy</th>'
        f"<th>share of each predicted class</th></tr>{rows}</table></div>"
    )


def _not_protected(document: BudgetDocument) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in document.guarantee.not_protected)
    return f"<h2>Not protected</h2><ul>{items}</ul>"


def _checks(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    attacks = "".join(
        f"<p><b>{escape(one['name'])}</b>: {escape(one['evidence'])}. "
        f"Power against missing noise: {one['power']:.2f}.</p>"
        for one in found["attacks"]
    )
    rows = "".join(_check_row(check) for check in found["checks"])
    return (
        f"<h2>Evidence</h2>{attacks}"
        '<div class="scroll"><table><tr><th>layer</th><th>check</th><th>outcome</th><th>finding</th></tr>'
        f"{rows}</table></div>"
    )


def _check_row(check: dict[str, str]) -> str:
    layer, name, outcome, finding = (escape(check[key]) for key in ("layer", "name", "outcome", "finding"))
    return f'<tr><td>{layer}</td><td>{name}</td><td class="{outcome}">{outcome}</td><td>{finding}</td></tr>'


def _document(content: ReportContent) -> str:
    import json

    return escape(json.dumps(manifest_json(content.manifest), indent=2))
