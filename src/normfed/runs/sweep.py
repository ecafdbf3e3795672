"""The same method with several values of its settings, each a run; which is best is decided on validation data.

Every point of the grid, for every method, is a run in a folder of its own, `METHOD/lr-0.1`. `sweep.json` says how each
did and which was chosen; `comparison.json` holds the chosen runs' documents, so a report is made of it as of any other.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from normfed.compare import MANY, Document, comparison, percent
from normfed.errors import Refused, nearest
from normfed.recipe import Config, Recipe, key_names, resolve, value_of
from normfed.runs import disk
from normfed.runs.config import admit, config_hash, write_config
from normfed.runs.inputs import federation
from normfed.runs.play import COMPARISON, OnRound, Task, play_tasks, slugs
from normfed.runs.trial import read_result
from normfed.text import split

SWEEP = "sweep.json"
SELECT = ("val", "test", "train_loss")
FIXED = ("method", "seeds", "data", "partition", "partition_seed")  # keys of the question, not of the answer

Grid = dict[str, list[Any]]  # key -> values


def grid_of(texts: Sequence[str]) -> Grid:
    """`lr=0.1,0.01` of --sweep: a key and its values."""
    grid: Grid = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            raise Refused(f"--sweep {text}: write key=value,value")
        if key not in key_names():
            raise Refused(f"--sweep {text}: unknown key '{key}'; {nearest(key, key_names())}")
        if key in FIXED:
            raise Refused(f"--sweep {key}: its values cannot be chosen among: they are different questions")
        if key in grid:
            raise Refused(f"--sweep {key}: given twice")
        grid[key] = [value_of(key, value, "--sweep") for value in split(values, ",")]
    return grid


@dataclass(frozen=True)
class Plan:
    """What a sweep will play: a row for each method, a column for each point of the grid."""

    folder: Path
    select: str
    recipe: str
    points: tuple[dict[str, Any], ...]
    rows: tuple[tuple[Config, ...], ...]

    @property
    def configs(self) -> list[Config]:
        return list(itertools.chain.from_iterable(self.rows))

    @property
    def held(self) -> dict[str, Any]:
        """What the folder's config.toml says."""
        named = zip(self.names, self.configs, strict=True)
        return {"select": self.select, "runs": {name: config["method"] for name, config in named}}

    @property
    def names(self) -> list[str]:
        """Folders, in the order of `configs`."""
        methods = slugs([row[0] for row in self.rows])
        return [f"{method}/{_slug(point)}" for method in methods for point in self.points]


def _slug(point: Mapping[str, Any]) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", "_".join(f"{key}-{value}" for key, value in point.items())).strip("-")


def plan(
    recipe: Recipe, methods: Sequence[str], grid: Grid, given: Mapping[str, Any], out: Path | None = None, *,
    quick: bool = False, select: str = "val",
) -> Plan:  # fmt: skip
    """Every method at every point of the grid, resolved. A point goes before what was given, that before the recipe."""
    if select not in SELECT:
        raise Refused(f"unknown --select '{select}'; {nearest(select, SELECT)}")
    points = tuple(dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values()))
    if len({_slug(point) for point in points}) < len(points):
        raise Refused("--sweep: a value is there twice")
    rows = tuple(
        tuple(resolve(recipe, {**given, "method": method, **point}, quick=quick) for point in points)
        for method in methods
    )
    found = Plan(Path(), select, recipe.name, points, rows)
    hashed = {**found.held, "configs": [config_hash(config) for config in found.configs]}
    return replace(found, folder=Path("runs") / config_hash(hashed) if out is None else Path(out))


def sweep(
    plan: Plan, *, resume: bool = False, root: Path | None = None, jobs: int | None = None,
    on_round: OnRound | None = None,
) -> Document:  # fmt: skip
    """Plays a sweep and returns the document of sweep.json."""
    new = admit(plan.folder, plan.held, resume)
    if plan.select == "val" and not any(c.val is not None for c in federation(plan.configs[0], root).values()):
        raise Refused(
            f"{plan.configs[0]['data']}: no client has validation data to choose by; give some by the partition, or "
            "choose by --select train_loss, or, saying so, by --select test"
        )
    tasks = [Task(c, plan.folder / name, plan.recipe, root) for name, c in zip(plan.names, plan.configs, strict=True)]
    play_tasks(tasks, True, jobs, on_round, before=lambda: write_config(plan.folder, plan.held) if new else None)
    if not (plan.folder / SWEEP).exists():
        size = len(plan.points)
        rows = [tasks[i : i + size] for i in range(0, len(tasks), size)]
        _choose(plan.folder, rows, plan.points, plan.select)
    return disk.read_json(plan.folder / SWEEP)


def _choose(folder: Path, tasks: Sequence[Sequence[Task]], points: Sequence[Mapping[str, Any]], select: str) -> None:
    rows, best_of = [], []
    for task_row in tasks:
        documents = [read_result(task.folder) for task in task_row]
        scores = [score(document, select) for document in documents]
        best = max(range(len(scores)), key=lambda i: (scores[i] is not None, scores[i] or 0.0, -i))
        best_of.append((task_row[best].config, documents[best]))
        for i, (task, document, point) in enumerate(zip(task_row, documents, points, strict=True)):
            rows.append({
                "method": document["method"], "set": dict(point), "score": scores[i], "chosen": i == best,
                "average": document["final"]["average"], "folder": task.folder.relative_to(folder).as_posix(),
            })  # fmt: skip
    disk.write_json(folder / COMPARISON, comparison(best_of))
    disk.write_json(folder / SWEEP, {"schema": 1, "select": select, "runs": rows})


def chosen(folder: Path) -> list[str]:
    """Folders, inside a sweep's, of the runs that it chose."""
    if not (folder / SWEEP).exists():
        raise Refused(f"{folder} is not finished: go on with it (--resume) first")
    return [row["folder"] for row in disk.read_json(folder / SWEEP)["runs"] if row["chosen"]]


def score(document: Document, select: str) -> float | None:
    """Higher is better: mean over seeds of validation accuracy at the round that is selected by it, of test accuracy,
    or of minus the last training loss. None where it is no number: a run that diverged."""
    if select == "test":
        return document["final"]["average"]["mean"]
    found: dict[int, float] = {}
    for row in document["history"]:
        values = row.get("val_accuracy" if select == "val" else "train_loss") or {}
        if not values:
            continue
        known = values.values() if len(document["clients"]) <= MANY else (values["mean"],)
        mean = float("-inf") if None in known else fmean(known)
        found[row["seed"]] = max(mean, found.get(row["seed"], mean)) if select == "val" else -mean
    finite = [value for value in found.values() if abs(value) != float("inf")]
    return fmean(finite) if finite and len(finite) == len(found) else None


def table(document: Document) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a run a row, the chosen ones marked."""
    keys = list(document["runs"][0]["set"])

    def number(value: float | None) -> str:
        return "–" if value is None else f"{-value:.4f}" if document["select"] == "train_loss" else f"{100 * value:.1f}"

    rows = [
        [row["method"], *(str(row["set"][key]) for key in keys), number(row["score"]), percent(row["average"]),
         "chosen" if row["chosen"] else ""]
        for row in document["runs"]
    ]  # fmt: skip
    return ["method", *keys, document["select"], "test average", ""], rows
