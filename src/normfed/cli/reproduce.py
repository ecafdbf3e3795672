"""The command that sets a paper's tables beside ours: reproduce."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed.cli.app import Json, app, known_tables, print_json, print_table
from normfed.cli.progress import Progress
from normfed.cli.train import Data, Device, Jobs, Quick, Resume, Seeds, Set, given

Folder = Annotated[Path, typer.Option(help="Where reproductions lie, all tables together.")]


@app.command()
def reproduce(
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="[PAPER | PAPER/TABLE | DIR]", help="A table, a paper, or a folder of finished runs.",
            autocompletion=known_tables,
        ),
    ] = None,
    quick: Quick = False,
    seeds: Seeds = None,
    device: Device = None,
    sets: Set = None,
    data: Data = None,
    out: Folder = Path("runs/reproduce"),
    resume: Resume = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Plays a paper's table and sets its numbers beside ours. Without a name: all tables and their state.

    Example: normfed reproduce fedbn/table11 --quick
    """
    from normfed import reproduce as tables

    if table is None:
        _overview(out, data, as_json)
        return
    if _is_folder(table):
        documents = tables.from_folder(Path(table), data)
    else:
        asked = given(seeds, None, device, sets)
        documents = _play(table, quick, asked, out, data, resume, jobs)
    if as_json:
        print_json({"schema": 1, "tables": documents})
        return
    for number, document in enumerate(documents):
        typer.echo("\n" * bool(number) + tables.heading(document))
        print_table(*tables.grid(document))
        for line in tables.notes(document):
            typer.echo(line)


def _is_folder(name: str) -> bool:
    """A table's name goes before a folder's: `./fedbn` is a folder."""
    from normfed.recipe import names

    known = {part for n in names() if "/" in n for part in (n, n.partition("/")[0])}
    return name not in known and Path(name).is_dir()


def _play(
    name: str, quick: bool, asked: dict[str, Any], out: Path, root: Path | None, resume: bool, jobs: int | None
) -> list[dict[str, Any]]:
    from normfed import reproduce as tables
    from normfed.recipe import tables as named

    found = [(table, tables.lines(table, quick, asked, out, root)) for table in named(name)]
    every = [line for _, lines in found for line in lines]
    tables.check(every, any(table.command for table, _ in found))
    for reason in tables.skipped(every):
        print(f"normfed: skipped {reason}", file=sys.stderr)
    trials = [line.config for line in every if line.config is not None]
    with Progress(sum(len(c["seeds"]) for c in trials), max((c["rounds"] for c in trials), default=0)) as progress:
        tables.play(every, resume=resume, root=root, jobs=jobs, on_round=progress.on_round)
    return [tables.report(table, lines, quick, root, out) for table, lines in found]


def _overview(out: Path, root: Path | None, as_json: bool) -> None:
    from normfed import reproduce as tables

    rows = tables.overview("", out, root)
    if as_json:
        print_json({"schema": 1, "tables": rows})
        return
    header = {"name": "table", "item": "in the paper", "quick": "short form", "full": "in full"}
    widths = {key: max(len(row[key]) for row in (header, *rows)) for key in ("name", "item")}
    for row in (header, *rows):
        named = "  ".join(row[key].ljust(width) for key, width in widths.items())
        typer.echo(f"{named}  {row['quick'].ljust(20)}  {row['full']}")
