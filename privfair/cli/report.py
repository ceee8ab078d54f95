"""What a run is shown as: an HTML page, a model card, a registry entry, a table of thresholds."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from datetime import date as day_type
from enum import StrEnum
from pathlib import Path
from typing import Literal

import click

from audit.report.exports import CardFacts, RegistryFacts, as_yaml, model_card, registry_entry
from audit.report.page import ReportContent, empty_model, protection_lines, read_audit, render, report_content
from calibrate.errors import InvalidInput
from privfair.cli.config import configured_trust, read_trust_file
from privfair.cli.options import FILE, FOLDER, asked, audit_option
from privfair.cli.output import answer, number_text, print_json, print_wrapped, table_lines
from privfair.cli.plots import plot_frontier
from privfair.durable import read_named, write_named
from privfair.fairness.measurement import Measured, emptiness
from privfair.plan.plan import AS_IT_IS, ThresholdRule
from privfair.plan.sections import read_section
from privfair.run.folder import RunFolder
from privfair.run.metrics import Decision, Frontier, decide, read_frontier, read_threshold


class Format(StrEnum):
    """What is written about a run."""

    HTML = "html"
    CARD = "card"
    REGISTRY = "registry"
    FRONTIER = "frontier"


@dataclass(frozen=True)
class Meta:
    """What only the publisher of a model knows: --meta of a card or an entry."""

    name: str | None = None
    license: str | None = None
    with_metrics: bool = False
    curators: tuple[str, ...] = ()
    region: str | None = None
    authors: tuple[str, ...] = ()
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] | None = None
    intended_use: str | None = None
    date: day_type | None = None


@click.command("report")
@click.argument("runs", type=FOLDER, nargs=-1, metavar="RUN..")
@click.option(
    *("--format", "wanted"),
    type=click.Choice([one.value for one in Format]),
    default=Format.HTML.value,
    show_default=True,
    help="What to write.",
)
@audit_option
@configured_trust
@click.option(
    "--meta", type=FILE, help="What only you know, for a card or an entry, as TOML (docs/integrations.md#meta)."
)
@click.option(
    "--decide",
    metavar="RULE",
    help="With frontier: the threshold that predictions use from now on, such as target-gap=0.05.",
)
@click.option("--out", type=FILE, help="File to write, a figure for frontier; needed for html.")
def report_command(
    runs: tuple[Path, ...],
    wanted: str,
    audit_path: Path | None,
    trust_path: Path | None,
    meta: Path | None,
    decide: str | None,
    out: Path | None,
) -> None:
    """Show a run: an HTML page for a privacy officer, a model card, a registry entry, or its thresholds.

    \b
    Examples:
      privfair report run/ --audit audit.json --trust trust.json --out report.html
      privfair report run/ --format card --trust trust.json --meta meta.toml --out README.md
      privfair report run/ --format registry --meta meta.toml --out entry.yaml
      privfair report run/ --format frontier --decide target-gap=0.05
      privfair report fairness-0/ fairness-4/ --format frontier --out fairness.svg
    Pass --trust; otherwise the page is marked as not verified. Without RUN it is about the
    model that was audited. Thresholds are chosen on held-out records: their numbers are exact and NOT private.
    """
    if decide is not None and wanted != Format.FRONTIER:
        raise click.UsageError("--decide goes with --format frontier")
    if wanted == Format.FRONTIER:
        _frontier(runs, decide, out)
        return
    if len(runs) != 1 and (runs or audit_path is None or wanted != Format.HTML):
        raise click.UsageError("name one RUN folder, or for html the --audit of a model")
    if wanted == Format.HTML and out is None:
        raise click.UsageError("--out is needed: the page is an HTML file")
    run = runs[0] if runs else None
    trust = None if trust_path is None else read_trust_file(trust_path)
    content = report_content(run, None if audit_path is None else read_audit(audit_path), trust)
    if wanted == Format.HTML:
        assert out is not None
        _page(content, out, None if run is None else trust is not None)
        return
    assert run is not None
    facts = Meta() if meta is None else _read_meta(meta)
    name = facts.name or run.resolve().name
    if wanted == Format.CARD:
        text: str = model_card(content, CardFacts(name, facts.license, facts.with_metrics))
        document: dict[str, object] = {"card": text}
    else:
        entry = registry_entry(content, _registry_facts(content, name, facts))
        text, document = as_yaml(entry), {"entry": entry}
    if out is not None:
        write_named(out, text.encode())
    if asked().as_json:
        print_json({**document, "out": None if out is None else str(out), "kind": wanted})
    elif out is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"written to {out}", err=True)


def _page(content: ReportContent, out: Path, checked: bool | None) -> None:
    """The HTML page; `checked` is whether signatures were, None where there is no run to have any."""
    write_named(out, render(content).encode())
    protection = [] if content.manifest is None else list(protection_lines(content.manifest.document))
    warning = empty_model(content)
    document = {"report": str(out), "signatures_checked": checked, "warning": warning, "protection": protection}
    lines = [*protection, *(() if warning is None else (f"WARNING  {warning}",))]
    written = f"report written to {out}{'; SIGNATURES NOT CHECKED: give --trust' if checked is False else ''}"
    answer({**document, "kind": Format.HTML}, *lines, written)


def _read_meta(path: Path) -> Meta:
    content = read_named(path, "--meta")
    try:
        table = tomllib.loads(content.decode("utf-8"))
    except ValueError as error:
        raise InvalidInput("--meta", str(path), f"is not TOML: {error}", "fix the file") from None
    return read_section(Meta, str(path), table)


def _registry_facts(content: ReportContent, name: str, facts: Meta) -> RegistryFacts:
    """What an entry needs, with the budget's custodian as curator unless others are named; refused if incomplete."""
    assert content.manifest is not None
    declared = content.manifest.document.dataset
    curators = facts.curators or (() if declared is None else (declared.custodian,))
    for key, value in (("region", facts.region), ("authors", facts.authors), ("curators", curators)):
        if not value:
            raise InvalidInput(f"--meta {key}", None, "is needed for an entry", f"write {key} = ... in its file")
    assert facts.region is not None
    day = facts.date or datetime.now(UTC).date()
    return RegistryFacts(name, curators, facts.region, facts.authors, day, facts.intended_use, facts.sector)


_SHOWN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def _frontier(runs: tuple[Path, ...], chosen: str | None, plot: Path | None) -> None:
    """What each threshold does on the held-out records of each run; with a rule, the one that predictions use."""
    if not runs:
        raise click.UsageError("name at least one RUN folder")
    rule = AS_IT_IS if chosen is None else _rule(chosen)
    folders = [RunFolder.existing(run) for run in runs]
    found = [read_frontier(folder) for folder in folders]
    decisions: list[Decision] = []
    for folder, frontier in zip(folders, found, strict=True):
        if rule != AS_IT_IS:
            decisions.append(decide(frontier, rule))
            folder.write_json(folder.decision, decisions[-1])
    if plot is not None:
        plot_frontier({str(run): frontier for run, frontier in zip(runs, found, strict=True)}, plot)
    if asked().as_json:
        documents = [{"run": str(run), **frontier} for run, frontier in zip(runs, found, strict=True)]
        document = {"private": False, "runs": documents, "decisions": decisions, "plot": plot and str(plot)}
        print_json({**document, "kind": Format.FRONTIER})
        return
    for run, folder, frontier in zip(runs, folders, found, strict=True):
        _show(run, frontier, read_threshold(folder))
    for decision in decisions:
        if decision["not_reached"] is not None:
            print_wrapped(f"WARNING  {decision['not_reached']}; the threshold stays at {decision['threshold']:g}")
    if plot is not None:
        print_wrapped(f"figure written to {plot}")


def _rule(text: str) -> ThresholdRule:
    """The rule in `threshold=T`, `target-gap=G` or `target-rate=R`."""
    name, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        raise click.UsageError("--decide takes threshold=T, target-gap=G or target-rate=R") from None
    return read_section(ThresholdRule, "--decide", {name.strip(): number})


def _show(run: Path, frontier: Frontier, used: tuple[float, str]) -> None:
    """Ten thresholds, and the one in use with its warning."""
    points = frontier["points"]
    if not points:
        print_wrapped(f"{run}: more than two classes; the most likely class is predicted, without a threshold")
        return
    weight = "" if frontier["fairness"] is None else f", fairness weight {frontier['fairness']:g}"
    print_wrapped(f"{run}: held-out records{weight}; these numbers are exact and NOT private")
    nearest = {_nearest(points, cut)["threshold"]: _nearest(points, cut) for cut in (*_SHOWN, used[0])}
    rows: list[tuple[str, ...]] = [
        ("threshold", f"gets {frontier['positive_class']!r}", "accuracy", "balanced", "parity gap", "")
    ]
    for cut, point in sorted(nearest.items()):
        mark = "<- used" if point is _nearest(points, used[0]) else ""
        mark += " empty" if emptiness(point) is not None else ""
        numbers = (point["positive_rate"], point["accuracy"], point["balanced_accuracy"], point["demographic_parity"])
        rows.append((f"{cut:.4f}", *(number_text(number) for number in numbers), mark.strip()))
    print_wrapped(*(f"  {line}" for line in table_lines(rows)))
    warning = emptiness(_nearest(points, used[0]))
    print_wrapped(f"used: {used[0]:g} ({used[1]})", *(() if warning is None else (f"WARNING  {warning}",)))


def _nearest(points: list[Measured], threshold: float) -> Measured:
    return min(points, key=lambda point: abs(float(point["threshold"]) - threshold))
