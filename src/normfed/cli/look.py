"""Commands that look and run nothing: explain, list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed.cli.app import Json, app, known_methods
from normfed.errors import Refused, nearest


@app.command()
def explain(
    method: Annotated[str, typer.Argument(help="A method expression.", autocompletion=known_methods)],
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
    found = look(parse(method), models.make(model, shape=shape), model, shape)
    typer.echo(json.dumps(found.to_dict(), indent=1) if as_json else render(found, clients))


@app.command("list")
def list_(
    what: Annotated[str, typer.Argument(help="methods, models, datasets or recipes.")],
    data: Annotated[Path | None, typer.Option(help="Where datasets lie; else NORMFED_DATA, else the cache.")] = None,
    as_json: Json = False,
) -> None:
    """What can be named.

    Example: normfed list methods
    """
    rows = _listing(what, data)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["name"]) for row in rows)
    for row in _told(rows, data) if what == "recipes" else rows:
        here = "  (here)" if row.get("present") else ""
        typer.echo(f"{row['name'].ljust(width)}  {row['about']}{here}")


def _told(rows: list[dict[str, Any]], root: Path | None) -> list[dict[str, Any]]:
    """Recipes with a word about where they are from and what is in the way of running them in full."""
    from normfed.recipe import find
    from normfed.reproduce import hindrance

    found = []
    for row in rows:
        recipe = find(row["name"])
        about = ", ".join(filter(None, (row["paper"], row["item"], row["dataset"]))) if recipe.paper else recipe.about
        found.append({"name": row["name"], "about": "; ".join(filter(None, (about, hindrance(recipe, root))))})
    return found


def _listing(what: str, root: Path | None) -> list[dict[str, Any]]:
    from normfed.methods import METHODS
    from normfed.models import MODELS

    if what == "methods":
        return [{"name": name, "about": (make.__doc__ or "").split("\n")[0]} for name, make in sorted(METHODS.items())]
    if what == "models":
        return [{"name": n, "about": k.about, "input": list(k.shape), "classes": k.classes} for n, k in MODELS.items()]
    if what == "datasets":
        return _datasets(root)
    if what == "recipes":
        from normfed.reproduce import listing

        return listing(root)
    raise Refused(f"nothing called '{what}' to list; {nearest(what, ['methods', 'models', 'datasets', 'recipes'])}")


def _datasets(root: Path | None) -> list[dict[str, Any]]:
    from normfed.data import DATASETS, MADE
    from normfed.data.catalogue import root_of

    made = [(name, make()) for name, make in MADE.items()]
    rows: list[dict[str, Any]] = [
        {"name": name, "about": f"{source.about}; needs no files", "domains": list(source.domains),
         "classes": list(source.classes), "present": True, "homes": [], "obtain": [], "licence": "",
         "partition": source.partition}
        for name, source in made
    ]  # fmt: skip
    return rows + [
        {"name": name, "about": dataset.about, "domains": list(dataset.domains), "classes": list(dataset.classes),
         "present": bool(dataset.files(root_of(root))), "homes": [home.id for home in dataset.homes],
         "obtain": list(dataset.obtain), "licence": dataset.licence, "partition": dataset.partition}
        for name, dataset in DATASETS.items()
    ]  # fmt: skip
