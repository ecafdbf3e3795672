"""Commands that train: demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from normfed.cli.app import app, print_table, seeds_of


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and comparison.json.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
) -> None:
    """Compares methods on an embedded federation: real digits, seen through five instruments.

    Example: normfed demo
    """
    from normfed.compare import table
    from normfed.demo import demo as play

    def say(method: str) -> None:
        if sys.stderr.isatty():
            print(f"{method} done", file=sys.stderr)

    comparison = play(out, seeds_of(seeds), on_done=say)
    print_table(*table(comparison["results"]))
    typer.echo(f"\nOpen {out / 'report.html'}; then type: normfed explain fedbn --model resnet18")
