"""Commands that use what was trained: report, evaluate, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normfed.cli.app import Json, app, print_json, print_table
from normfed.errors import Refused, nearest

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run's or a comparison's folder.")]


@app.command()
def report(folder: Folder) -> None:
    """Writes report.html from a run's or a comparison's folder, anew.

    Example: normfed report runs/demo
    """
    from normfed.report import write

    typer.echo(str(write(folder)))


@app.command()
def evaluate(
    folder: Folder,
    data: Annotated[str | None, typer.Option(help="Your own data: a folder, a .csv, .parquet or .npz file.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A dataset by name.")] = None,
    root: Annotated[Path | None, typer.Option(help="Where datasets lie; else NORMFED_DATA, else the cache.")] = None,
    partition: Annotated[str | None, typer.Option(help="How the data are dealt to sites.")] = None,
    split: Annotated[
        str | None, typer.Option(help="test: their test samples; all: every sample, as where nobody has split them.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which of the run's seeds; else the first.")] = None,
    predictions: Annotated[Path | None, typer.Option(help="A .csv or .parquet file to write them to.")] = None,
    as_json: Json = False,
) -> None:
    """A finished run on other data, or on a client it has not seen.

    A site with the name of one of the run's clients is served by that client's model; any other as an unseen one, with
    averaged statistics, re-estimated ones, those of the test batches, or those of the nearest client.

    Example: normfed evaluate runs/mine --data photos/new_site --predictions out.csv
    """
    from normfed.runs import load
    from normfed.runs.evaluate import check_predictions, table, write_predictions
    from normfed.runs.evaluate import evaluate as look

    if (data is None) == (dataset is None):
        raise Refused("give --data, a path of your own, or --dataset, a name")
    if split not in (None, "test", "all"):
        raise Refused(f"unknown split '{split}'; {nearest(split, ('test', 'all'))}")
    if predictions is not None:
        check_predictions(predictions)
    wanted = dataset if data is None else data if Path(data).is_absolute() else f"./{data}"  # a path, never a name
    document, rows = look(load(folder, seed), str(wanted), partition, split=split, root=root)
    if predictions is not None:
        write_predictions(predictions, rows)
    if as_json:
        print_json(document)
        return
    print_table(*table(document))
    typer.echo(f"\nAccuracy in percent of {document['method']}, seed {document['seed']}")
    if document["note"]:
        typer.echo(document["note"])
    if predictions is not None:
        typer.echo(f"Predictions in {predictions}")


@app.command()
def export(
    folder: Folder,
    kind: Annotated[str, typer.Option("--as", help="csv, md or tex.")] = "md",
) -> None:
    """The final table for a paper or a spreadsheet, to stdout.

    Example: normfed export runs/demo --as tex
    """
    from normfed.compare import FORMATS
    from normfed.compare import export as written
    from normfed.runs.join import comparison_of

    if kind not in FORMATS:
        raise Refused(f"unknown format '{kind}'; {nearest(kind, FORMATS)}")
    typer.echo(written(comparison_of(folder), kind), nl=False)
