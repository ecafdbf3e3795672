"""The commands about datasets: data fetch, data show, data check."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed.cli.app import Json, app, print_json, print_table
from normfed.errors import Refused

data = typer.Typer(help="Get, look at, verify a dataset.", no_args_is_help=True)
app.add_typer(data, name="data")


def known_datasets(incomplete: str) -> list[str]:
    """For completion in a shell."""
    from normfed.data import DATASETS

    return [name for name in DATASETS if name.startswith(incomplete)]


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A dataset; see normfed list datasets.", autocompletion=known_datasets)
]
NameOrPath = Annotated[str, typer.Argument(metavar="NAME", help="A dataset, or a path.", autocompletion=known_datasets)]
Root = Annotated[
    Path | None, typer.Option("--data", help="Where datasets lie; else NORMFED_DATA, else the user's cache.")
]


@data.command()
def fetch(
    name: Name,
    source: Annotated[
        Path | None, typer.Option("--from", help="A folder or a .zip of images that you have, domain/class/image.")
    ] = None,
    root: Root = None,
) -> None:
    """Gets a dataset from the Hugging Face hub, or from what you downloaded, into the folder where it is looked for.

    What is whole already stays; what was cut off is done again. Training itself never downloads.

    Example: normfed data fetch pacs
    """
    from normfed.library import bring
    from normfed.library import fetch as get

    with _watched("images") as on_rows:
        found = get(name, root, on_rows=on_rows) if source is None else bring(name, source, root, on_rows)
    rows = [[file, str(n), "written"] for file, n in found.written.items()]
    rows += [[file, str(n), "whole already"] for file, n in found.kept.items()]
    rows += [[file, "", "yours, left alone"] for file in found.left]
    print_table(["file", "samples", ""], rows)
    for line in found.obtain:
        typer.echo(line)
    typer.echo(f"\nIn {found.folder}")


@data.command()
def check(name: NameOrPath, root: Root = None, as_json: Json = False) -> None:
    """Reads every file of a dataset, or of your own data, to its last image and says what is wrong with any.

    Example: normfed data check digits
    """
    from normfed.library import check as look

    with _watched("images") as on_rows:
        found = look(name, root, on_rows)
    if as_json:
        print_json(found.to_dict())
    else:
        print_table(*found.table())
        if found.missing:
            typer.echo(f"\nNot there: {', '.join(found.missing)}")
    if found.problems:
        raise Refused(*found.problems)


@data.command()
def show(
    name: NameOrPath,
    partition: Annotated[str | None, typer.Option(help="How the data are dealt to clients.")] = None,
    seed: Annotated[int, typer.Option(help="Of the partition.")] = 0,
    out: Annotated[Path | None, typer.Option(help="The picture to write; else NAME.png.")] = None,
    root: Root = None,
) -> None:
    """A contact sheet of a federation, clients in rows and classes in columns; and who has how many samples.

    Example: normfed data show embedded --partition "domain / clients(2) / dirichlet(0.5)"
    """
    from normfed.data import open_federation
    from normfed.library.sheet import sheet, sizes
    from normfed.runs import disk

    path = out or Path(f"{Path(name.partition('(')[0].rstrip('/')).name}.png")
    if path.suffix.lower() != ".png":
        raise Refused(f"--out {path}: the picture is a .png")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise Refused(f"--out {path}: {'it is a folder' if path.is_dir() else f'there is no folder {path.parent}'}")
    federation = open_federation(name, partition, seed, root)
    disk.write(path, sheet(federation))
    print_table(*sizes(federation))
    typer.echo(f"\n{federation.partition}, seed {federation.seed}, hash {federation.hash[:16]}")
    typer.echo(f"Picture in {path}")


@contextlib.contextmanager
def _watched(unit: str) -> Iterator[Callable[[str, int, int], None]]:
    """A bar of what is done and what is left, at a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: tuple[Any, ...] = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(f"{unit},"),
        TimeRemainingColumn(), TextColumn("left"),
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def on_rows(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done)

        yield on_rows
