"""`privfair frontier`: accuracy against the gap between groups, by threshold and by fairness weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from privfair.cli.output import json_option, number_text, print_json, print_wrapped, table_lines, threshold_options

_SHOWN = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@click.command("frontier", short_help="accuracy against the gap between groups, by threshold")
@click.argument("runs", type=click.Path(path_type=Path, file_okay=False), nargs=-1, required=True, metavar="RUN..")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write a figure (.png, .svg or .pdf).")
@threshold_options
@json_option
def command(
    runs: tuple[Path, ...],
    plot: Path | None,
    threshold: float | None,
    target_gap: float | None,
    target_rate: float | None,
    as_json: bool,
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
    from privfair.run.folder import RunFolder
    from privfair.run.metrics import AS_IT_IS, ThresholdRule, decide, read_frontier, read_threshold

    rule = ThresholdRule(threshold, target_gap, target_rate)
    folders = [RunFolder.existing(run) for run in runs]
    found = [read_frontier(folder) for folder in folders]
    decisions: list[dict[str, Any]] = []
    for folder, frontier in zip(folders, found, strict=True):
        if rule != AS_IT_IS:
            decisions.append(decide(frontier, rule))
            folder.write_json(folder.decision, decisions[-1])
    if plot is not None:
        from privfair.cli.plots import plot_frontier

        plot_frontier({str(run): frontier for run, frontier in zip(runs, found, strict=True)}, plot)
    if as_json:
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


def _show(run: Path, frontier: dict[str, Any], used: tuple[float, str]) -> None:
    """Ten thresholds, and the one in use with its warning."""
    from privfair.fairness.measurement import emptiness

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


def _nearest(points: list[dict[str, Any]], threshold: float) -> dict[str, Any]:
    return min(points, key=lambda point: abs(float(point["threshold"]) - threshold))
