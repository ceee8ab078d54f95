"""One self-contained HTML page about a run or a model, for a privacy officer: verdict first, evidence after."""

from __future__ import annotations

import json
from html import escape

from audit.report.content import ReportContent
from audit.report.figures import figures
from audit.report.sections import (
    evidence_section,
    not_protected_section,
    promise_section,
    table,
    verdict_section,
)
from audit.report.style import STYLE
from calibrate.manifest.show import as_json as manifest_json

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
