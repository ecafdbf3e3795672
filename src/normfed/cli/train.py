"""Commands that train: run, compare, demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed.cli.app import Json, app, print_table, seeds_of
from normfed.errors import Refused

RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe by name, or the path of a .toml file.")]
Seeds = Annotated[str | None, typer.Option(help="Seeds, separated by commas: 0,1,2.")]
Engine = Annotated[str | None, typer.Option(help="auto, serial or stacked.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Sets a key of the recipe.")]
Data = Annotated[Path | None, typer.Option(help="Where datasets lie; else NORMFED_DATA, else the user's cache.")]
Out = Annotated[Path | None, typer.Option(help="The folder of the run; else runs/<hash of the config>.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder.")]
Quick = Annotated[bool, typer.Option("--quick", help="The recipe's short form.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trials at once, each in a process; else one a core.")]


def given(
    seeds: str | None, engine: str | None, device: str | None, sets: list[str] | None, **more: Any
) -> dict[str, Any]:
    """What the command line says about a config."""
    from normfed.recipe import overrides

    named = {"seeds": None if seeds is None else seeds_of(seeds), "engine": engine, "device": device, **more}
    named = {key: value for key, value in named.items() if value is not None}
    found = overrides(sets or ())
    twice = [f"{key} is set twice: by an option and by --set" for key in named if key in found]
    if twice:
        raise Refused(*twice)
    return {**found, **named}


@app.command()
def run(
    recipe: RecipeName,
    method: Annotated[str | None, typer.Option(help="A method expression.")] = None,
    seeds: Seeds = None,
    engine: Engine = None,
    device: Device = None,
    sets: Set = None,
    data: Data = None,
    out: Out = None,
    resume: Resume = False,
    quick: Quick = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Trains by one method and keeps everything in a folder.

    Example: normfed run demo --method "fedprox(mu=0.01)" --seeds 0,1,2
    """
    from normfed import runs
    from normfed.recipe import find, resolve

    found = find(recipe)
    config = resolve(found, given(seeds, engine, device, sets, method=method), quick=quick)
    document = runs.run(config, out, resume=resume, root=data, recipe=found.name, jobs=jobs)
    show([document], as_json, document)


@app.command()
def compare(
    recipe: RecipeName,
    methods: Annotated[str, typer.Option(help="Method expressions, separated by commas.")],
    seeds: Seeds = None,
    engine: Engine = None,
    device: Device = None,
    sets: Set = None,
    data: Data = None,
    out: Out = None,
    resume: Resume = False,
    quick: Quick = False,
    jobs: Jobs = None,
    as_json: Json = False,
) -> None:
    """Trains by several methods on the same data and the same seeds: one table.

    Example: normfed compare demo --methods "fedavg,fedbn,fedprox(mu=0.1)" --seeds 0,1,2
    """
    from normfed import runs
    from normfed.recipe import find, resolve
    from normfed.text import split

    found = find(recipe)
    asked = given(seeds, engine, device, sets)
    if "method" in asked:
        raise Refused("compare takes its methods from --methods, not from --set")
    configs = [resolve(found, {**asked, "method": method}, quick=quick) for method in split(methods, ",")]
    comparison = runs.compare(configs, out, resume=resume, root=data, recipe=found.name, jobs=jobs)
    show(comparison["results"], as_json, comparison)


def show(documents: list[dict[str, Any]], as_json: bool, document: dict[str, Any]) -> None:
    from normfed.compare import table

    if as_json:
        typer.echo(json.dumps(document, indent=1))
        return
    print_table(*table(documents))
