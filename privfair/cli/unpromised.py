"""`privfair calibrate PLAN.toml --no-privacy` and `--as-printed`: manifests that are not a calibrated promise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.output import print_json, print_rich

if TYPE_CHECKING:
    from calibrate.manifest.document import BudgetDocument
    from calibrate.privacy_unit import EpsilonDelta
    from privfair.plan.file import PlanFile

_PATH = click.Path(path_type=Path, dir_okay=False)


def baseline_command(path: Path, algorithm: str) -> click.Command:
    """The command for a plan whose algorithm has no private variant."""
    from privfair.cli.output import json_option, ledger_option

    @click.command(algorithm, help=f"{algorithm} protects nobody: sign that, with the reason, and train with it.")
    @click.option("--no-privacy", "reason", metavar="WHY", help="Why nobody is protected; stands in every output.")
    @click.option("--out", type=_PATH, help="Write the manifest here, signed with --key.")
    @click.option("--key", "key_path", type=_PATH, help="Signing key for --out.")
    @click.option("--valid-days", type=click.IntRange(1, 36_500), default=90, show_default=True)
    @ledger_option
    @click.option("--why", default="", metavar="TEXT", help="The justification to put on record.")
    @json_option
    def run(reason: str | None, as_json: bool, **manifest: Any) -> None:
        from privfair.plan.file import read_plan_file

        if reason is None:
            raise click.UsageError(
                f"{algorithm} has no private variant; say so: "
                f'privfair calibrate {path} --no-privacy "why" --out budget.json --key officer.pem'
            )
        no_privacy(read_plan_file(path), reason, as_json, manifest)

    return run


def no_privacy(file: PlanFile, reason: str, as_json: bool, manifest: dict[str, Any]) -> None:
    """Sign a manifest that promises nothing."""
    from privfair.api.draft import Unprotected, draft
    from privfair.cli.manifest import issuer_from_flags, write_manifest

    _require_output(manifest, "--no-privacy")
    drafted = draft(file, issuer_from_flags(**manifest), Unprotected(reason))
    write_manifest(drafted, manifest["out"], manifest["key_path"])
    _show(drafted.document, manifest, as_json, f"NO PRIVACY PROMISED: {reason}", {})


def as_printed(file: PlanFile, target: EpsilonDelta, as_json: bool, manifest: dict[str, Any]) -> None:
    """Sign a paper's own noise with its claimed and its true epsilon."""
    from calibrate.manifest.mechanism import AsPrintedGuarantee
    from privfair.api.draft import draft
    from privfair.cli.manifest import issuer_from_flags, write_manifest

    _require_output(manifest, "--as-printed")
    drafted = draft(file, issuer_from_flags(**manifest), "as-printed", target)
    write_manifest(drafted, manifest["out"], manifest["key_path"])
    document = drafted.document
    guarantee = document.guarantee
    assert isinstance(guarantee, AsPrintedGuarantee)
    true = "no finite epsilon" if guarantee.epsilon is None else f"epsilon {guarantee.epsilon:.6g}"
    text = f"AS PRINTED: {guarantee.claim} claims epsilon {target.epsilon:g}; the true cost is {true}"
    more = {
        "claimed_epsilon": target.epsilon,
        "epsilon": guarantee.epsilon,
        "delta": target.delta,
        "certified": document.accounting.model_dump(mode="json")["interval"],
    }
    _show(document, manifest, as_json, text, more)


def _require_output(manifest: dict[str, Any], flag: str) -> None:
    if manifest["out"] is None or manifest["key_path"] is None:
        raise click.UsageError(f"{flag} writes a manifest: give --out and --key")


def _show(document: BudgetDocument, manifest: dict[str, Any], as_json: bool, text: str, more: dict[str, Any]) -> None:
    if as_json:
        print_json(
            {
                "algorithm": document.algorithm,
                "kind": document.guarantee.kind,
                "rounds": document.rounds,
                "releases": [
                    {"name": release.name, "mechanism": release.mechanism, "sigma": getattr(release, "sigma", None)}
                    for release in document.releases
                ],
                "promise": text,
                "manifest": str(manifest["out"]),
            }
            | more
        )
        return
    from rich.markup import escape

    names = ", ".join(release.name for release in document.releases)
    print_rich(
        f"[bold]{document.algorithm}[/bold]: {escape(text)}",
        f"{document.rounds} rounds; published: {names}",
        f"manifest written to {manifest['out']}",
    )
