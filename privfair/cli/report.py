"""What a run is shown as: an HTML page, a model card, a registry entry, a table of thresholds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from audit.report.exports import CardFacts, RegistryFacts, as_yaml, model_card, registry_entry
from audit.report.page import empty_model, protection_lines, read_audit, render, report_content
from calibrate.errors import InvalidInput
from privfair.cli.keys import read_trust_file
from privfair.cli.options import FILE, FOLDER, asked, audit_option, options, threshold_options, trust_options
from privfair.cli.output import number_text, print_json, print_wrapped, table_lines
from privfair.cli.plots import plot_frontier
from privfair.durable import write_named
from privfair.fairness.measurement import Measured, emptiness
from privfair.plan.plan import AS_IT_IS, ThresholdRule
from privfair.run.folder import RunFolder
from privfair.run.metrics import Decision, Frontier, decide, read_frontier, read_threshold


@click.command("report", short_help="one page about a run, for a privacy officer")
@click.argument("run", type=FOLDER, required=False)
@click.option("--out", type=FILE, required=True, help="HTML file to write.")
@audit_option
@trust_options
def report_command(
    run: Path | None, out: Path, audit_path: Path | None, trust_path: Path | None, root: Path | None
) -> None:
    """Write a self-contained HTML page: verdict, promise, figures, what is not protected, evidence.

    \b
    Example:
      privfair audit run/ --trust trust.json --ledger ledger.db --out audit.json
      privfair report run/ --audit audit.json --trust trust.json --out report.html
    Without --trust the page says in red that nobody checked the manifest's signatures.
    Without RUN the page is about the model that was audited with --model.
    """
    if run is None and audit_path is None:
        raise click.UsageError("name a RUN folder, or the --audit of a model")
    audit = None if audit_path is None else read_audit(audit_path)
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    content = report_content(run, audit, trust)
    write_named(out, render(content).encode())
    checked = run is None or trust is not None
    protection = [] if content.manifest is None else list(protection_lines(content.manifest.document))
    warning = empty_model(content)
    if asked().as_json:
        facts = {"signatures_checked": None if run is None else trust is not None, "warning": warning}
        print_json({"report": str(out), **facts, "protection": protection})
        return
    print_wrapped(*protection)
    if warning is not None:
        print_wrapped(f"WARNING  {warning}")
    click.echo(f"report written to {out}{'' if checked else '; SIGNATURES NOT CHECKED: give --trust'}")


run_options = options(
    click.argument("run", type=FOLDER),
    click.option("--out", type=FILE, help="File to write; standard output without it."),
    audit_option,
    trust_options,
)


def write_or_print(text: str, out: Path | None, document: dict[str, Any] | None = None) -> None:
    """To the file, or to standard output where none was named; with `document` that is what standard output gets."""
    if document is not None:
        if out is not None:
            write_named(out, text.encode())
        print_json({**document, "out": None if out is None else str(out)})
        return
    if out is None:
        click.echo(text, nl=False)
        return
    write_named(out, text.encode())
    click.echo(f"written to {out}", err=True)


@click.command("card", short_help="a model card of a run, for model hubs")
@run_options
@click.option("--name", help="Name of the model; the run folder's name without it.")
@click.option("--license", help="Licence of the model as hubs spell it, such as apache-2.0.")
@click.option("--with-metrics", is_flag=True, help="Tell the numbers on held-out records, which are not private.")
def card_command(
    run: Path,
    out: Path | None,
    audit_path: Path | None,
    trust_path: Path | None,
    root: Path | None,
    name: str | None,
    license: str | None,
    with_metrics: bool,
) -> None:
    """Write a model card: Markdown with the front matter that hubs read.

    \b
    Example:
      privfair card run/ --trust trust.json --audit audit.json --license apache-2.0 --out README.md
    Without --trust the card says that nobody checked the signatures.
    """
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    audit = None if audit_path is None else read_audit(audit_path)
    facts = CardFacts(name or run.resolve().name, license, with_metrics)
    text = model_card(report_content(run, audit, trust), facts)
    write_or_print(text, out, {"card": text} if asked().as_json else None)


_SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")


@click.command("registry", short_help="an entry for OpenDP's deployments registry, as YAML")
@run_options
@click.option("--name", help="Name of the data product; the run folder's name without it.")
@click.option(
    "--curator", "curators", multiple=True, help="Who publishes the model; the declared custodian without it."
)
@click.option("--region", required=True, help="Which region the data describe, or whose laws apply.")
@click.option("--author", "authors", multiple=True, required=True, help="Who filled out the entry; may be repeated.")
@click.option("--sector", type=click.Choice(_SECTORS), help="Industry or domain that the data describe.")
@click.option("--intended-use", help="Intended use; the budget's justification without it.")
@click.option("--date", "published", type=click.DateTime(["%Y-%m-%d"]), help="Day of publication; today without it.")
def registry_command(
    run: Path,
    out: Path | None,
    audit_path: Path | None,
    trust_path: Path | None,
    root: Path | None,
    name: str | None,
    curators: tuple[str, ...],
    region: str,
    authors: tuple[str, ...],
    sector: str | None,
    intended_use: str | None,
    published: datetime | None,
) -> None:
    """Write what the registry of differential privacy deployments asks for, as far as a run knows it.

    \b
    Example:
      privfair registry run/ --region Norway --curator "North Hospital" --author "A. Lund" --out entry.yaml
    A run that promises nothing is refused.
    """
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    content = report_content(run, None if audit_path is None else read_audit(audit_path), trust)
    assert content.manifest is not None
    declared = content.manifest.document.dataset
    curators = curators or (() if declared is None else (declared.custodian,))
    if not curators:
        raise InvalidInput("--curator", None, "is needed: the budget names no custodian", "say who publishes it")
    day = (datetime.now(UTC) if published is None else published).date()
    facts = RegistryFacts(name or run.resolve().name, curators, region, authors, day, intended_use, sector)
    entry = registry_entry(content, facts)
    write_or_print(as_yaml(entry), out, {"entry": entry} if asked().as_json else None)


_SHOWN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@click.command("frontier", short_help="accuracy against the gap between groups, by threshold")
@click.argument("runs", type=FOLDER, nargs=-1, required=True, metavar="RUN..")
@click.option("--plot", type=FILE, help="Write a figure (.png, .svg or .pdf).")
@threshold_options
def frontier_command(
    runs: tuple[Path, ...],
    plot: Path | None,
    threshold: float | None,
    target_gap: float | None,
    target_rate: float | None,
) -> None:
    """Show what each threshold does on the held-out records, and choose the one that predictions use.

    Several RUNs, trained with different fairness weights, are compared in one figure. All numbers are exact functions
    of the held-out records and are NOT private.

    \b
    Examples:
      privfair frontier run/ --plot frontier.svg
      privfair frontier run/ --target-gap 0.05      (predict uses it from now on)
      privfair frontier fairness-0/ fairness-4/ fairness-20/ --plot fairness.svg
    """
    rule = ThresholdRule(threshold, target_gap, target_rate)
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
        print_json({"private": False, "runs": documents, "decisions": decisions, "plot": plot and str(plot)})
        return
    for run, folder, frontier in zip(runs, folders, found, strict=True):
        _show(run, frontier, read_threshold(folder))
    for decision in decisions:
        if decision["not_reached"] is not None:
            print_wrapped(f"WARNING  {decision['not_reached']}; the threshold stays at {decision['threshold']:g}")
    if plot is not None:
        print_wrapped(f"figure written to {plot}")


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
