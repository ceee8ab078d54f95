"""The report in a real browser without any network: figures and verdict are there, wide and narrow."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from audit.report.page import ReportContent, render
from audit.report.results import AuditReport
from calibrate.manifest.verify import read_unverified
from tests.end_to_end.headless_browser import AXE, CHROMIUM, dumped_page, screenshot
from tests.privfair.small_runs import GAUSSIAN, Desk

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt install chromium)")

_MEASURE = """<script>
const charts = [...document.querySelectorAll('figure > svg')].map(c => c.getBoundingClientRect());
const texts = (what) => [...document.querySelectorAll(what)].map(found => found.textContent);
parent.postMessage(JSON.stringify({window: innerWidth, content: document.documentElement.scrollWidth,
  charts: charts.map(c => [Math.round(c.left), Math.round(c.right), Math.round(c.height)]),
  verdict: texts('.verdict.violated .word'), captions: texts('figcaption'), headings: texts('h2'),
  loaded: performance.getEntriesByType('resource').length}), '*');
</script>"""
_FRAME = """<!doctype html><meta charset="utf-8"><title></title>
<script>onmessage = (said) => {{ document.body.insertAdjacentHTML('beforeend', '<pre>' + btoa(said.data) + '</pre>') }}
</script><body><iframe src="measured.html" width="{width}" height="900" style="border:0"></iframe></body>"""
"""A frame has any width one likes, where a window of the browser has a least one."""


def _ends(value: float) -> dict[str, float]:
    return {"value": value, "lower": max(0.0, value - 0.1), "upper": min(1.0, value + 0.1)}


def _audit() -> dict[str, Any]:
    """An audit with every section: violated, with membership and attribute results."""
    side = {"accuracy": _ends(0.7), "advantage": _ends(0.1)}
    roc = [{"fpr": f, "tpr": min(1.0, 3 * f), "lower": f, "upper": min(1.0, 5 * f)} for f in (0.001, 0.01, 0.1, 1.0)]
    bound = {
        "epsilon": 9.1,
        "delta": 1e-5,
        "confidence": 0.95,
        "method": "one-run",
        "family": "epsilon-delta",
        "mu": None,
    }
    bound |= {"selection": "fixed beforehand", "comparisons": 1, "evidence": {"coins": 9, "guesses": 9, "correct": 9}}
    leak = {"name": "Yeom", "members": side, "nonmembers": side, "leakage": _ends(0.2), "leaks": True}
    rates = [{"fpr": 0.001, **_ends(0.2)}]
    return {
        "verdict": "violated",
        "why": "the observer's guesses show epsilon of at least 9.100",
        "epsilon_lower": 9.1,
        "confidence": 0.95,
        "promised": {"epsilon": 8.0, "delta": 1e-5, "source": "promised by the manifest"},
        "attacks": [{"name": "coins", "power": 0.9, "evidence": "2 runs <b>", "bound": bound, "curve": None}],
        "checks": [
            {
                "layer": "L1",
                "name": "variance",
                "outcome": "failed",
                "finding": "noise measures 0.7000 of sigma",
                "noise_power": {"noticed": 0.9, "curve": [{"share": s, "power": 1 - s} for s in (0.0, 0.8, 1.0)]},
            },
            {"layer": "conformance", "name": "plan", "outcome": "passed", "finding": "x" * 200},
        ],
        "attribute_inference": {
            "attribute": "sex",
            "values": ["female", "male"],
            "finding": "leakage",
            "why": "the model remembers sex of its members",
            "confidence": 0.95,
            "records": {"members": 10, "nonmembers": 10, "auxiliary": 20},
            "imputation": {"members": _ends(0.6), "nonmembers": _ends(0.6)},
            "attacks": [leak | {"beats_imputation": True}],
            "not_applied": [{"name": "white box", "why": "no weights"}],
            "method": "by betting",
        },
        "membership": {
            "target": {"kind": "torch", "source": "model.pt"},
            "members": 10,
            "nonmembers": 10,
            "confidence": 0.95,
            "attacks": [{"name": "rmia", "auc": _ends(0.8), "tpr_at_fpr": rates, "roc": roc}],
        },
        "subjects": {"model": "ab" * 32},
        "audited_at": "2030-01-01T00:00:00Z",
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a real, small run under an audit that found everything."""
    folder = tmp_path_factory.mktemp("browser")
    desk = Desk.at(folder / "desk", GAUSSIAN.format(rate=0.2, rounds=4, more="measure-every = 1"))
    desk.train(desk.budget())
    run = desk.folder / "run"
    metrics = tuple(json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines())
    content = ReportContent(
        read_unverified((run / "budget.json").read_bytes()),
        AuditReport.model_validate_json(json.dumps(_audit())),
        metrics,
        ((0, 0.0), (2, 4.0), (4, 8.0)),
    )
    out = folder / "report.html"
    out.write_text(render(content), encoding="utf-8")
    return out


def _measured(page: Path, width: int, folder: Path) -> dict[str, Any]:
    """What the browser made of the page; the copy that is measured may run the measuring script only."""
    text = page.read_text("utf-8")
    assert "default-src 'none'" in text
    allowed = text.replace("style-src 'unsafe-inline'", "style-src 'unsafe-inline'; script-src 'unsafe-inline'")
    copy, frame = folder / "measured.html", folder / "frame.html"
    copy.write_text(allowed.replace("</body>", _MEASURE + "</body>"), encoding="utf-8")
    frame.write_text(_FRAME.format(width=width), encoding="utf-8")
    loaded = dumped_page(frame, 1400, folder / "profile")
    said = re.search(r"<pre>([A-Za-z0-9+/=]+)</pre>", loaded)
    assert said is not None, loaded[:500]
    found: dict[str, Any] = json.loads(base64.b64decode(said.group(1)))
    return found


@pytest.mark.parametrize("width", [1280, 390])
def test_figures_and_verdict_are_there_and_fit_the_window(page: Path, width: int, tmp_path: Path) -> None:
    found = _measured(page, width, tmp_path)
    assert found["verdict"] == ["Signatures not checked", "violated"]
    for caption in (
        "Trade-off curve",
        "What the audit would have noticed",
        "Budget over rounds",
        "Membership inference",
        "Attribute inference",
    ):
        assert any(one.startswith(caption) for one in found["captions"])
    assert "Not protected" in found["headings"]
    assert found["window"] == width
    assert found["content"] <= width, "the page must not scroll sideways"
    assert len(found["charts"]) == 8
    assert all(0 <= left < right <= width and height > 60 for left, right, height in found["charts"])
    assert found["loaded"] == 0, "the page loads nothing"


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(1280, 1600), (390, 1600)])
def test_the_page_is_painted(page: Path, width: int, height: int, tmp_path: Path) -> None:
    """Not blank: the verdict's red and the figures' blue are on the screen."""
    shot = screenshot(page, width, height, tmp_path / "shot.png", tmp_path / "profile")
    with Image.open(shot) as image:
        assert image.size == (width, height)
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}
    assert (0xC0, 0x2B, 0x2B) in colours
    assert len(colours) > 50


def test_the_page_names_no_address_and_quotes_no_markup(page: Path) -> None:
    assert "2 runs &lt;b&gt;" in page.read_text("utf-8")
    assert not re.search(
        r"""(src|action)\s*=|href\s*=(?!"\#)|url\(|@import|<script|https?://(?!in-toto)""", page.read_text("utf-8")
    )


@pytest.mark.slow
@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed (npm install --no-save axe-core@4)")
def test_axe_finds_nothing_in_light_and_dark_wide_and_narrow(page: Path) -> None:
    """Contrast of every text, names of every figure, order of headings: with all details unfolded."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with driver.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=60_000)
        for scheme, width in (("light", 1280), ("dark", 390)):
            viewport = {"width": width, "height": 900}
            opened = browser.new_page(viewport=viewport, color_scheme=scheme, bypass_csp=True)
            opened.set_default_timeout(60_000)
            opened.goto(page.as_uri())
            opened.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            opened.add_script_tag(path=AXE)
            found = opened.evaluate("axe.run().then(result => result.violations.map(one => one.id + ': ' + one.help))")
            assert not found, (scheme, width, found)
            opened.close()
        browser.close()
