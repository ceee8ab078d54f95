"""`privfair report`: one page about a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

_PATH = click.Path(path_type=Path, dir_okay=False)
_POINTS = 12


@click.command("report", short_help="one page about a run, for a privacy officer")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option("--out", type=_PATH, required=True, help="The HTML file to write.")
@click.option("--audit", "audit_path", type=_PATH, help="The verdict that `privfair audit --out` wrote.")
def command(run: Path, out: Path, audit_path: Path | None) -> None:
    """Write a self-contained HTML page: verdict, promise, figures, what is not protected, evidence.

    \b
    Example:
      privfair audit run/ --trust trust.json --ledger ledger.db --out audit.json
      privfair report run/ --audit audit.json --out report.html
    """
    from audit.report.page import ReportContent, render
    from calibrate.manifest.verify import read_unverified
    from privfair.cli.files import read_bytes, write_bytes
    from privfair.run_folder import RunFolder

    folder = RunFolder.existing(run)
    manifest = read_unverified(folder.manifest.read_bytes())
    verdict = None if audit_path is None else json.loads(read_bytes(audit_path, "--audit"))
    lines = folder.metrics.read_text("utf-8").splitlines() if folder.metrics.exists() else []
    content = ReportContent(
        manifest, verdict, tuple(json.loads(line) for line in lines), _budget(manifest.document)
    )
    write_bytes(out, render(content).encode())
    click.echo(f"report written to {out}")


def _budget(document: Any) -> tuple[tuple[int, float], ...]:
    """Certified epsilon after a few numbers of rounds, for the figure."""
    from privfair.cli.epsilon_so_far import EpsilonSoFar

    prices = EpsilonSoFar(document)
    grid = sorted({round(document.rounds * point / _POINTS) for point in range(_POINTS + 1)})
    spent = [(rounds, prices.after(rounds)) for rounds in grid]
    return tuple((rounds, epsilon) for rounds, epsilon in spent if epsilon is not None)
