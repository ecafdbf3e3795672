"""The command line: thin over the Python functions. stdout carries the result only."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from normfed import __version__
from normfed.cli.app import app
from normfed.errors import NormfedError
from normfed.memory import keep_big_blocks

# isort: off
# Importing a module registers its commands, in the order of the help.
from normfed.cli import train, use, reproduce, data, look, measure, later  # noqa: F401
# isort: on

MOST = 50  # lines of what is wrong; who has more broken pictures than that has one problem, not many


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command line; a wrong value ends with exit code 2 and its reasons on stderr."""
    keep_big_blocks()
    if "" not in sys.path:  # a network of your own, package.module:factory, may lie where the command is typed
        sys.path.append("")
    warnings.showwarning = lambda message, *where: print(f"normfed: note: {message}", file=sys.stderr)
    try:
        app(prog_name="normfed")  # however it was called: it is what completion knows it by
    except NormfedError as error:
        lines = str(error).splitlines()
        for line in lines[:MOST]:
            print(f"normfed: {line}", file=sys.stderr)
        if len(lines) > MOST:
            print(f"normfed: … and {len(lines) - MOST} more", file=sys.stderr)
        sys.exit(2)
