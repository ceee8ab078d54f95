"""`privfair predict`: what does the model say about these records?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from privfair.cli.output import json_option, print_json, show_values_option, trust_options

_EXAMPLE = """
\b
Example:
  privfair predict run/ --input patients.csv --out predictions.csv
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
@trust_options
@show_values_option
@json_option
def command(
    run: Path, input_path: Path, out: Path, trust_path: Path | None, root: Path | None, trust_code: bool, as_json: bool
) -> None:
    """Apply the model in RUN to every record of a file: its class, and the probability of each class."""
    from privfair.cli.keys import read_trust_file
    from privfair.cli.output import write_bytes
    from privfair.run.prediction import predict
    from privfair.run.trusted_plan import FolderTrust

    signers = None if trust_path is None else read_trust_file(trust_path, root)
    found = predict(run, input_path, FolderTrust(signers, trust_code))
    write_bytes(out, found.as_csv())
    counts = Counter(found.predicted)
    if as_json:
        print_json({"predictions": str(out), "records": len(found.predicted), "classes": dict(counts)})
    else:
        shown = ", ".join(f"{name}: {counts[name]}" for name in found.class_names)
        click.echo(f"{out}: {len(found.predicted)} records ({shown})")
