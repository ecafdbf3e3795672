"""The command line: thin over the Python functions. stdout carries the result only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed import __version__
from normfed.errors import NormfedError, Refused, nearest
from normfed.memory import keep_big_blocks

app = typer.Typer(
    name="normfed",
    help="Federated learning that keeps its normalization straight on non-IID data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.callback(invoke_without_command=True)
def _main(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def explain(
    method: Annotated[str, typer.Argument(help="A method expression.")],
    model: Annotated[str, typer.Option(help="A model by name, or package.module:factory.")] = "digits_cnn",
    input: Annotated[str | None, typer.Option(help="Shape of one sample, 3,224,224.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Also count a round of this many clients as the papers do.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Who owns each entry of the state, and what crosses the wire, in bytes.

    Example: normfed explain "fedbn+fedprox(mu=0.01)" --model resnet18
    """
    from normfed import models
    from normfed.explain import explain as look
    from normfed.explain import input_shape, render
    from normfed.expression import parse

    known = models.find(model)
    shape = known.shape if input is None else input_shape(input)
    found = look(parse(method), models.make(model), model, shape)
    typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else render(found, clients))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets or recipes.")],
    as_json: Json = False,
) -> None:
    """What can be named.

    Example: normfed list methods
    """
    rows = _listing(what)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        typer.echo(f"{row['name'].ljust(width)}  {row['about']}")


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

    comparison = play(out, _seeds(seeds), on_done=say)
    _print_table(*table(comparison["results"]))
    typer.echo(f"\nOpen {out / 'report.html'}; then type: normfed explain fedbn --model resnet18")


@app.command()
def bench(
    only: Annotated[str | None, typer.Option(help="Scenarios, separated by commas: S1,S3.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedavg,fedprox,fedbn",
    as_json: Json = False,
) -> None:
    """Seconds of a round as a ratio to the textbook loop in examples/one_file.py, in one run.

    Example: normfed bench --only S2,S3
    """
    from normfed.bench import SCENARIOS
    from normfed.bench import bench as measure
    from normfed.text import split

    def say(scenario: str, method: str, found: dict[str, Any]) -> None:
        if not as_json:
            typer.echo(
                f"{scenario} {SCENARIOS[scenario].about}, {method} ({found['engine']}): {found['ratio']:.2f} of the "
                f"plain loop, {found['seconds']:.3f} s a round"
            )

    chosen = None if only is None else [part.strip() for part in only.split(",")]
    document = measure(chosen, device, tuple(split(methods, ",")), on_result=say)
    if as_json:
        typer.echo(json.dumps(document, indent=1))


def _seeds(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise Refused(f"seeds '{text}' cannot be read; write for example 0,1,2") from None


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    for row in (header, *rows):
        first, *others = (
            cell.ljust(w) if not i else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        typer.echo("  ".join((first, *others)))


def _listing(what: str) -> list[dict[str, Any]]:
    from normfed.methods import METHODS
    from normfed.models import MODELS

    if what == "methods":
        return [{"name": name, "about": (make.__doc__ or "").split("\n")[0]} for name, make in sorted(METHODS.items())]
    if what == "models":
        return [{"name": n, "about": k.about, "input": list(k.shape), "classes": k.classes} for n, k in MODELS.items()]
    if what in ("datasets", "recipes"):
        raise Refused(f"list {what}: not yet")
    raise Refused(f"nothing called '{what}' to list; {nearest(what, ['methods', 'models', 'datasets', 'recipes'])}")


def main() -> None:
    """Runs the command line; a wrong value ends with exit code 2 and its reasons on stderr."""
    keep_big_blocks()
    try:
        app()
    except NormfedError as error:
        for line in str(error).splitlines():
            print(f"normfed: {line}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
