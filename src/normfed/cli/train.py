"""Commands that train: run, compare, demo."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from normfed.cli.app import (
    Json,
    again,
    app,
    known_methods,
    known_recipes,
    print_json,
    print_table,
    say,
    seeds_of,
    write_report,
)
from normfed.cli.progress import Progress
from normfed.errors import Refused

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE", help="A recipe by name, or the path of a .toml file.", autocompletion=known_recipes
    ),
]
Seeds = Annotated[str | None, typer.Option(help="Seeds, separated by commas: 0,1,2.")]
Engine = Annotated[str | None, typer.Option(help="auto, serial or stacked.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Sets a key of the recipe.")]
Data = Annotated[Path | None, typer.Option(help="Where datasets lie; else NORMFED_DATA, else the user's cache.")]
Out = Annotated[Path | None, typer.Option(help="The folder to write; else runs/<hash of the config>.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is in the folder.")]
Quick = Annotated[bool, typer.Option("--quick", help="The recipe's short form.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trials at once, each in a process; else one a core.")]
Sweep = Annotated[
    list[str] | None, typer.Option("--sweep", metavar="KEY=VALUE,…", help="Tries each value; keeps the best.")
]
Select = Annotated[str | None, typer.Option(help="What a sweep chooses by: val (else), train_loss or test.")]
Track = Annotated[str | None, typer.Option(help="tensorboard or mlflow: pass the numbers on as they come.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would run and what it would cost; run nothing.")]


@app.command()
def run(
    recipe: RecipeName,
    method: Annotated[str | None, typer.Option(help="A method expression.", autocompletion=known_methods)] = None,
    seeds: Seeds = None,
    engine: Engine = None,
    device: Device = None,
    sets: Set = None,
    data: Data = None,
    out: Out = None,
    resume: Resume = False,
    quick: Quick = False,
    jobs: Jobs = None,
    sweep: Sweep = None,
    select: Select = None,
    track: Track = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Trains by one method and keeps everything in a folder.

    Example: normfed run demo --method "fedprox(mu=0.01)" --seeds 0,1,2
    """
    from normfed import runs
    from normfed.recipe import find, resolve

    found = find(recipe)
    asked = given(seeds, engine, device, sets, method=method)
    _check_select(sweep, select)
    if sweep:
        chosen = asked.pop("method", None) or resolve(found, quick=quick)["method"]
        _sweep(found, [chosen], asked, sweep, select, quick, data, out, resume, jobs, track, dry_run, as_json)
        return
    config = resolve(found, asked, quick=quick)
    if dry_run:
        _dry_run([config], data, as_json)
        return
    folder = out or runs.folder_of(config)
    with _watched(len(config["seeds"]), config["rounds"], track, folder) as on_round:
        document = runs.run(config, folder, resume=resume, root=data, recipe=found.name, jobs=jobs, on_round=on_round)
    _show(document, folder, as_json)


@app.command()
def compare(
    recipe: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE | DIR…", help="A recipe; or folders of finished runs.", autocompletion=known_recipes
        ),
    ],
    methods: Annotated[str | None, typer.Option(help="Method expressions, separated by commas.")] = None,
    seeds: Seeds = None,
    engine: Engine = None,
    device: Device = None,
    sets: Set = None,
    data: Data = None,
    out: Out = None,
    resume: Resume = False,
    quick: Quick = False,
    jobs: Jobs = None,
    sweep: Sweep = None,
    select: Select = None,
    track: Track = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Trains by several methods on the same data and the same seeds: one table. Or puts finished runs into one.

    Example: normfed compare demo --methods "fedavg,fedbn,fedprox(mu=0.1)" --seeds 0,1,2
    """
    from normfed import runs
    from normfed.recipe import find, resolve
    from normfed.text import split

    _check_select(sweep, select)
    if methods is None:
        training = {
            "seeds": seeds, "engine": engine, "device": device, "set": sets, "data": data, "resume": resume,
            "quick": quick, "jobs": jobs, "sweep": sweep, "track": track, "dry-run": dry_run,
        }  # fmt: skip
        _show(runs.join(_folders(recipe, training), out), out, as_json)
        return
    if len(recipe) > 1:
        raise Refused(f"compare takes one recipe, not {len(recipe)}: {', '.join(recipe)}")
    found, named = find(recipe[0]), split(methods, ",")
    asked = given(seeds, engine, device, sets)
    if "method" in asked:
        raise Refused("compare takes its methods from --methods, not from --set")
    if sweep:
        _sweep(found, named, asked, sweep, select, quick, data, out, resume, jobs, track, dry_run, as_json)
        return
    configs = [resolve(found, {**asked, "method": method}, quick=quick) for method in named]
    if dry_run:
        _dry_run(configs, data, as_json)
        return
    folder = out or runs.folder_of(runs.named_by(configs))
    trials = sum(len(config["seeds"]) for config in configs)
    with _watched(trials, configs[0]["rounds"], track, folder) as on_round:
        document = runs.compare(
            configs, folder, resume=resume, root=data, recipe=found.name, jobs=jobs, on_round=on_round
        )
    _show(document, folder, as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.html and comparison.json.")] = Path("runs/demo"),
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0,1,2",
    quick: Quick = False,
    jobs: Jobs = None,
) -> None:
    """Compares methods on an embedded federation: real digits, seen through five instruments.

    Example: normfed demo
    """
    from normfed import demo as first
    from normfed.compare import caption, table
    from normfed.recipe import find, resolve

    chosen = tuple(seeds_of(seeds))
    rounds = resolve(find("demo"), quick=quick)["rounds"]
    with _watched(len(first.METHODS) * len(chosen), rounds, None, out, "the same command goes on with it") as on_round:
        comparison = first.demo(out, chosen, jobs, on_round, quick=quick)
    print_table(*table(comparison))
    write_report(out)
    typer.echo(f"\n{caption(comparison)}")
    typer.echo(f"Open {out / 'report.html'} in a browser; then type: {again()} run demo --method fedbn")


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


def _check_select(sweep: list[str] | None, select: str | None) -> None:
    if select is not None and not sweep:
        raise Refused("--select: there is nothing to choose from without --sweep")


def _folders(names: Sequence[str], training: Mapping[str, Any]) -> list[Path]:
    """Folders of finished runs to compare; what is about training is not for them."""
    problems = [f"compare {name}: is no folder; a recipe needs --methods" for name in names if not Path(name).is_dir()]
    if not problems:
        given = [f"--{option}" for option, value in training.items() if value]
        problems = [f"compare: {', '.join(given)}: nothing is trained without --methods"] if given else []
    if problems:
        raise Refused(*problems)
    return [Path(name) for name in names]


@contextlib.contextmanager
def _watched(
    trials: int, rounds: int, track: str | None, folder: Path, how: str = "--resume goes on with it"
) -> Iterator[Any]:
    """What is called after every round: the progress bar, and the tracker where one is asked for. An interrupt says
    where the work is kept."""
    with contextlib.ExitStack() as stack:
        stack.push(lambda kind, *_: _interrupted(folder, how) if kind is KeyboardInterrupt else None)
        listeners: list[Any] = [stack.enter_context(Progress(trials, rounds))]
        if track is not None:
            from normfed.runs.track import Tracker

            listeners.append(stack.enter_context(Tracker(track, folder)))

        def on_round(method: str, row: dict[str, Any]) -> None:
            for listener in listeners:
                listener.on_round(method, row)

        yield on_round


def _interrupted(folder: Path, how: str) -> None:
    kept = f"; {folder} keeps what was done, {how}" if folder.exists() else ""
    print(f"normfed: interrupted{kept}", file=sys.stderr)


def _show(document: dict[str, Any], folder: Path | None, as_json: bool) -> None:
    """The result first; then the report, which may fail for reasons of its own."""
    from normfed.compare import caption, table

    if as_json:
        print_json(document)
    else:
        comparison = document if "results" in document else {"results": [document]}
        print_table(*table(comparison))
        typer.echo(f"\n{caption(comparison)}")
        if folder is not None:
            typer.echo(f"Kept in {folder}")
    if folder is not None:
        write_report(folder)


def _sweep(
    recipe: Any, methods: list[str], asked: dict[str, Any], texts: list[str], select: str | None, quick: bool,
    data: Path | None, out: Path | None, resume: bool, jobs: int | None, track: str | None, dry: bool, as_json: bool,
) -> None:  # fmt: skip
    from normfed.runs import sweep as sweeps

    plan = sweeps.plan(recipe, methods, sweeps.grid_of(texts), asked, out, quick=quick, select=select or "val")
    if dry:
        _dry_run(plan.configs, data, as_json)
        return
    trials = sum(len(config["seeds"]) for config in plan.configs)
    with _watched(trials, max(c["rounds"] for c in plan.configs), track, plan.folder) as on_round:
        document = sweeps.sweep(plan, resume=resume, root=data, jobs=jobs, on_round=on_round)
    if as_json:
        print_json(document)
    else:
        print_table(*sweeps.table(document))
        typer.echo(f"\nChosen by {plan.select}. Kept in {plan.folder}")
    write_report(plan.folder)


def _dry_run(configs: Sequence[dict[str, Any]], root: Path | None, as_json: bool) -> None:
    """The resolved config, who owns what, and what it would cost."""
    from normfed.runs.estimate import prospect

    found = []
    for config in configs:
        say(f"measuring {config['method']}")
        found.append(prospect(config, root))
    if as_json:
        print_json([p.to_dict() for p in found])
        return
    typer.echo("\n\n".join(p.text for p in found))
