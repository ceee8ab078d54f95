"""`privfair predict`: what does the model say about these records?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from privfair.cli.output import json_option, print_json, print_wrapped, show_values_option, trust_options

_EXAMPLE = """
\b
Example:
  privfair predict run/ --input patients.csv --id patient --out predictions.csv
The file needs the feature columns of the training files; class and sensitive attribute may be missing.
"""


@click.command("predict", epilog=_EXAMPLE, short_help="the predictions of a trained model")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--input",
    "input_path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="CSV or Parquet file with the features.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="CSV to write.")
@click.option("--id", "id_column", metavar="COLUMN", help="Column of the input to repeat first, to know who is who.")
@click.option("--keep", multiple=True, metavar="COLUMN", help="Another column of the input to repeat; once per column.")
@click.option(
    "--threshold",
    type=float,
    metavar="T",
    help="Predict the positive class from this probability on; the run's own threshold unless given.",
)
@click.option(
    "--target-rate", type=float, metavar="R", help="Predict the positive class for this share of the file's records."
)
@trust_options
@show_values_option
@json_option
def command(
    run: Path,
    input_path: Path,
    out: Path,
    id_column: str | None,
    keep: tuple[str, ...],
    threshold: float | None,
    target_rate: float | None,
    trust_path: Path | None,
    root: Path | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Apply the model in RUN to every record of a file: its class, and the probability of each class.

    The CSV can be opened in a spreadsheet: a text that would run as a formula there gets an apostrophe in front.
    """
    from privfair.cli.keys import read_trust_file
    from privfair.durable import write_named
    from privfair.run.folder_trust import FolderTrust
    from privfair.run.prediction import predict

    signers = None if trust_path is None else read_trust_file(trust_path, root)
    kept = tuple(dict.fromkeys((*(() if id_column is None else (id_column,)), *keep)))
    trusted = FolderTrust(signers, trust_code)
    found = predict(run, input_path, trusted, keep=kept, threshold=threshold, target_rate=target_rate)
    write_named(out, found.as_csv())
    counts = Counter(found.predicted)
    warning = None
    if len(counts) == 1 and len(found.predicted) > 1:
        alike = f"all {len(found.predicted)} records get {found.predicted[0]!r}"
        warning = f"{alike}; privfair frontier RUN shows other thresholds"
    if as_json:
        answer = {"predictions": str(out), "records": len(found.predicted), "classes": dict(counts)}
        remark = {} if found.remark is None else {"remark": found.remark}
        print_json({**answer, "threshold": found.threshold, "notes": list(found.notes), "warning": warning, **remark})
        return
    if found.remark is not None:
        print_wrapped(found.remark)
    for note in found.notes:
        print_wrapped(f"{input_path}: {note}, unlike in the training files; read so")
    shown = ", ".join(f"{name}: {counts[name]}" for name in found.class_names)
    at = "" if found.threshold is None else f"; threshold {found.threshold:g}"
    click.echo(f"{out}: {len(found.predicted)} records ({shown}{at})")
    if warning is not None:
        print_wrapped(f"WARNING  {warning}")
