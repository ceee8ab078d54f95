"""One self-contained HTML page about a run or a model, for a privacy officer: verdict first, evidence after."""

from __future__ import annotations

import json
from html import escape

from audit.report.content import ReportContent
from audit.report.figures import figures
from audit.report.sections import evidence_section, not_protected_section, promise_section, table, verdict_section
from calibrate.manifest.show import as_json as manifest_json

# The page's look: light and dark, wide and narrow, on screen and on paper.

STYLE = """
:root{color-scheme:light dark;--text:#1a202c;--soft:#5a6576;--page:#fff;--panel:#f5f7fa;--rule:#d9dfe7;
--good:#23794b;--bad:#c02b2b;--doubt:#96620a;
--c1:#1f5fa8;--c2:#b8511a;--c3:#2a7d4f;--c4:#6b46c1;--c5:#0f7c8a;--c6:#a33a7a}
@media(prefers-color-scheme:dark){:root{--text:#e6eaf0;--soft:#a3adbd;--page:#14181f;--panel:#1e242e;--rule:#38414f;
--good:#5cc98b;--bad:#ff7b72;--doubt:#e3b341;
--c1:#6cb0f5;--c2:#f0975c;--c3:#6fd09a;--c4:#b79cf5;--c5:#5cc7d4;--c6:#ec8fc4}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:var(--text);background:var(--page);margin:0}
main{max-width:66rem;margin:auto;padding:1rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0 .25rem}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;padding-bottom:.2rem;border-bottom:1px solid var(--rule)}
h3{font-size:1.02rem;margin:1.4rem 0 .3rem}
p{margin:.4rem 0}.soft{color:var(--soft);font-size:.9rem}code{overflow-wrap:anywhere;font-size:.88em}
.verdict{padding:1rem;border-left:.5rem solid;background:var(--panel);border-radius:.3rem;margin:1rem 0}
.consistent{border-color:var(--good)}.violated{border-color:var(--bad)}.inconclusive{border-color:var(--doubt)}
.word{font-size:1.7rem;font-weight:700;text-transform:uppercase;letter-spacing:.02em}
.consistent .word{color:var(--good)}.violated .word{color:var(--bad)}.inconclusive .word{color:var(--doubt)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,9.5rem),1fr));gap:.7rem;margin:1rem 0}
.tile{background:var(--panel);border-radius:.3rem;padding:.6rem .8rem}
.tile .leaks{color:var(--bad)}
.tile b{display:block;font-size:1.35rem;line-height:1.3}.tile span{color:var(--soft);font-size:.85rem}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,23rem),1fr));gap:1.5rem 2rem}
figure{margin:0;min-width:0}figcaption{font-weight:600;margin-bottom:.3rem}
figure p{color:var(--soft);font-size:.9rem}
svg{width:100%;height:auto;display:block;font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
svg text{fill:var(--soft);paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
.grid{stroke:var(--rule);stroke-width:1}.zero{stroke:var(--text);stroke-width:1.2}
.line{fill:none;stroke-width:2.2}.band{stroke:none;opacity:.16}.dashed{stroke-dasharray:6 4}
.line.c1{stroke:var(--c1)}.line.c2{stroke:var(--c2)}.line.c3{stroke:var(--c3)}
.line.c4{stroke:var(--c4)}.line.c5{stroke:var(--c5)}.line.c6{stroke:var(--c6)}.line.alarm{stroke:var(--bad)}
.dot.c1,.bar.c1,.band.c1{fill:var(--c1)}.bar.c2,.band.c2{fill:var(--c2)}.bar.c3,.band.c3{fill:var(--c3)}
.bar.c4,.band.c4{fill:var(--c4)}.bar.c5,.band.c5{fill:var(--c5)}.bar.c6,.band.c6{fill:var(--c6)}
.dot.alarm{fill:var(--bad)}
.legend{list-style:none;margin:.3rem 0;padding:0;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;font-size:.88rem}
.legend li{display:flex;align-items:center;gap:.4rem}.legend svg{width:auto;flex:none}
table{border-collapse:collapse;width:100%;font-size:.92rem;margin:.6rem 0}
td,th{padding:.35rem .6rem .35rem 0;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top;
overflow-wrap:anywhere}
th{color:var(--soft);font-weight:600}
.failed{color:var(--bad);font-weight:700}.passed{color:var(--good)}.not-possible{color:var(--doubt)}
details{margin:.6rem 0}summary{cursor:pointer;padding:.25rem 0}
pre{overflow-x:auto;font-size:.8rem;background:var(--panel);padding:.8rem;border-radius:.3rem}
.nowrap{white-space:nowrap}
@media(max-width:42rem){
table.stacked thead{display:block;position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
table.stacked tr{display:block;padding:.45rem 0;border-bottom:1px solid var(--rule)}
table.stacked td{display:block;border:0;padding:.05rem 0}
table.stacked td[data-label]:not(:empty)::before{content:attr(data-label)": ";color:var(--soft)}
table.stacked td:first-child{font-weight:600}
table.stacked td[data-label]:first-child:not(:empty)::before{content:none}
.word{font-size:1.4rem}}
@media print{.verdict,.tile,figure,tr{break-inside:avoid}details{display:block}}
"""


__all__ = ("ReportContent", "render")


def render(content: ReportContent) -> str:
    """The page as text; it loads nothing from anywhere, and its policy forbids it to."""
    title = f"privfair report: {_subject(content)}"
    body = (
        f"<header><h1>{escape(title)}</h1>{_dated(content)}</header>",
        verdict_section(content),
        promise_section(content.document),
        not_protected_section(content.document),
        figures(content),
        evidence_section(content),
        _papers(content),
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>{''.join(body)}</main></body></html>\n"
    )


def _subject(content: ReportContent) -> str:
    if content.document is not None:
        return content.document.algorithm
    if content.membership is not None and "target" in content.membership:
        return f"{content.membership['target']['kind']} model"
    return "model"


def _dated(content: ReportContent) -> str:
    at = None if content.verdict is None else content.verdict.get("audited_at")
    return f'<p class="soft">Audited {escape(at.replace("T", " ").replace("Z", " UTC"))}</p>' if at else ""


def _papers(content: ReportContent) -> str:
    """Digests, so that page, model and manifest can be told to belong together."""
    subjects = {} if content.verdict is None else dict(content.verdict.get("subjects", {}))
    if content.manifest is not None:
        subjects.setdefault("manifest", content.manifest.digest)
    if not subjects:
        return ""
    rows = [(escape(name), f"<code>{escape(digest)}</code>") for name, digest in sorted(subjects.items())]
    whole = ""
    if content.manifest is not None:
        text = escape(json.dumps(manifest_json(content.manifest), indent=2))
        whole = f"<details><summary>The whole manifest</summary><pre>{text}</pre></details>"
    return f"<h2>What this page is about</h2>{table(('file', 'SHA-256'), rows)}{whole}"
