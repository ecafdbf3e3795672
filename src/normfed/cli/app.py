"""What the commands share: the application, options, and how results are printed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed.errors import Refused

app = typer.Typer(
    name="normfed",
    help="Federated learning that keeps its normalization straight on non-IID data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def seeds_of(text: str) -> list[int]:
    """'0,1,2' -> [0, 1, 2]"""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"seeds '{text}' cannot be read; write for example 0,1,2") from None


def known_recipes(incomplete: str) -> list[str]:
    """For completion in a shell."""
    from normfed.recipe import names

    return [name for name in names() if name.startswith(incomplete)]


def known_methods(incomplete: str) -> list[str]:
    """For completion in a shell: the last method of an expression."""
    from normfed.methods import METHODS

    before, plus, last = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in METHODS if name.startswith(last)]


def again() -> str:
    """How to call this program once more."""
    called = Path(sys.argv[0])
    if shutil.which("normfed"):
        return "normfed"
    return str(called) if called.name == "normfed" else "python -m normfed.cli"


def known_tables(incomplete: str) -> list[str]:
    """For completion in a shell: papers and their tables."""
    found = [name for name in known_recipes("") if "/" in name]
    papers = dict.fromkeys(name.partition("/")[0] for name in found)
    return [name for name in (*papers, *found) if name.startswith(incomplete)]


def say(text: str) -> None:
    """A word to who sits at a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=1, ensure_ascii=False))


def write_report(folder: Path) -> None:
    """report.html beside a result, unless it is there."""
    from normfed.report import REPORT, write

    if not (folder / REPORT).exists():
        write(folder)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns aligned: the first to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        first, *others = (
            cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        typer.echo("  ".join((first, *others)))
