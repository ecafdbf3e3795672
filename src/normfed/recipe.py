"""A recipe is a flat TOML file: what to train on what, by which method, and, for a paper's table, what was printed.

`find` gives one by name (`demo`, `fedbn/table11`, `fedbn/table11/fedbn`) or by path; `resolve` makes of it the config
of a run: every key with its value, checked, nothing left to a default that a later version could change.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from normfed import models
from normfed.errors import Problems, Refused, nearest
from normfed.expression import parse
from normfed.settings import Settings
from normfed.text import literal

Config = dict[str, Any]  # resolved keys of a run; none is None

# Keys beside `simulate`'s arguments, with their defaults. Every seed plays on the same partition, the one of
# `partition_seed`, so that methods and seeds are compared on the same data.
OWN: dict[str, Any] = {
    "data": None,
    "partition": None,
    "partition_seed": 0,
    "model": None,
    "weights": None,
    "method": "fedavg",
    "seeds": [0],
    "threads": 1,  # of a process that trains: on a CPU another number of threads is another order of summation
}
# What a file says about itself. `facts` are those of a run that a resolved config was written by.
ABOUT = (
    "about", "paper", "item", "dataset", "columns", "unit", "metric", "view", "cost", "tolerance", "compares", "why",
    "missing", "command", "quick", "rows", "facts",
)  # fmt: skip
ROW = ("name", "label", "quick", "expected", "view")
AVERAGE = "average"  # the column of the mean over clients


@dataclass(frozen=True)
class Row:
    """One line of a paper's table: what differs from the table's keys, and what was printed, in the table's unit."""

    name: str
    label: str
    keys: Mapping[str, Any]
    quick: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)  # column -> (mean, std)
    view: str | None = None  # None: the table's


@dataclass(frozen=True)
class Recipe:
    """A setting by name; a paper's table has rows."""

    name: str
    keys: Mapping[str, Any]
    quick: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    about: str = ""
    paper: str = ""
    item: str = ""
    dataset: str = ""
    columns: tuple[str, ...] = ()  # as printed: clients, or "average"
    unit: str = "percent"
    metric: str = "accuracy"
    view: str = ""  # whose number it is, where it is not the method's own view
    cost: float = 0.0  # rough hours on one GPU, at full size, all rows and seeds
    tolerance: float = 1.0  # points by which an average may differ from the paper's and still agree
    compares: bool = True
    why: str = ""  # where the numbers cannot be compared: the reason
    missing: str = ""  # what the full form needs and nobody has: it cannot run, the short form can
    command: str = ""  # what to type for a table that is counted or timed, not trained
    facts: Mapping[str, Any] = field(default_factory=dict)


def _settings() -> dict[str, Any]:
    """`simulate`'s arguments that a recipe may set, with their defaults; `seeds` stands for `seed`."""
    return {f.name: None if f.default is MISSING else f.default for f in fields(Settings) if f.name != "seed"}


def key_names() -> tuple[str, ...]:
    return (*OWN, *_settings())


def names() -> tuple[str, ...]:
    """Every recipe that comes with the package; of a paper's table the table alone."""
    return tuple(sorted(_files()))


@cache
def _files() -> dict[str, Any]:
    def walk(folder: Any, prefix: str) -> Iterable[tuple[str, Any]]:
        for item in folder.iterdir():
            if item.is_dir():
                yield from walk(item, f"{prefix}{item.name}/")
            elif item.name.endswith(".toml"):
                yield prefix + item.name.removesuffix(".toml"), item

    return dict(walk(resources.files("normfed").joinpath("recipes"), ""))


def tables(name: str = "") -> list[Recipe]:
    """The papers' tables and figures: all, a paper's ("fedbn"), or those of one table ("fedbn/table1" is
    table1-office, table1-domainnet, …)."""
    every = [name for name in _files() if "/" in name]
    chosen = [t for t in every if not name or t == name] or [t for t in every if t.startswith((f"{name}/", f"{name}-"))]
    if not chosen:
        papers = {t.partition("/")[0] for t in every}
        raise Refused(f"unknown table '{name}'; {nearest(name, [*papers, *every])}")
    return [find(t) for t in sorted(chosen, key=_in_print)]


def _in_print(name: str) -> list[Any]:
    """Sorts table2 before table11."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def find(name: str) -> Recipe:
    """A recipe by name, a row of one (`fedbn/table11/fedbn`), or the path of a TOML file."""
    known = _files()
    if name in known:
        return read(known[name].read_text(encoding="utf-8"), name)
    table, _, row = name.rpartition("/")
    if table in known:
        recipe = read(known[table].read_text(encoding="utf-8"), table)
        return _row_of(recipe, row)
    if name.endswith(".toml") or Path(name).is_file():
        try:
            return read(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"recipe '{name}' cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if Path(name).is_dir():
        raise Refused(f"'{name}' is a folder, not a recipe; to train on it: normfed run RECIPE --set data={name}")
    raise Refused(f"unknown recipe '{name}'; {nearest(name, known)}; or the path of a .toml file")


def rows_of(table: Recipe) -> list[Recipe]:
    """Each line of a table as a recipe of its own."""
    return [_row_of(table, row.name) for row in table.rows]


def _row_of(recipe: Recipe, name: str) -> Recipe:
    for row in recipe.rows:
        if row.name == name:
            keys, quick = {**recipe.keys, **row.keys}, {**recipe.quick, **row.quick}
            alone = replace(row, keys={}, quick={}, view=row.view or recipe.view or None)
            return replace(recipe, name=f"{recipe.name}/{name}", keys=keys, quick=quick, rows=(alone,))
    rows = [row.name for row in recipe.rows]
    raise Refused(f"recipe '{recipe.name}' has no row '{name}'; {nearest(name, rows) if rows else 'it has no rows'}")


def read(text: str, name: str) -> Recipe:
    """A recipe from its text. Raises `Refused` for everything in it that cannot be."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Refused(f"recipe '{name}' is not TOML: {error}") from None
    about = {key: value for key, value in document.items() if key in ABOUT}
    keys = {key: value for key, value in document.items() if key not in ABOUT}
    quick, rows = about.pop("quick", {}), about.pop("rows", [])
    problems = [*_unknown(name, keys, ABOUT), *_mistyped(name, about)]
    if not isinstance(quick, dict):
        problems.append(f"recipe '{name}': quick must be a table of keys")
    else:
        problems += _unknown(f"{name}, quick", quick)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        problems.append(f"recipe '{name}': rows must be tables, [[rows]]")
        rows = []
    named = about.get("columns", ())
    columns = about["columns"] = tuple(named) if isinstance(named, list) else ()
    made = [_row(name, number, row, columns, problems) for number, row in enumerate(rows)]
    twice = {row.name for row in made if [r.name for r in made].count(row.name) > 1}
    problems += [f"recipe '{name}': two rows are called '{row}'" for row in sorted(twice)]
    if problems:
        raise Refused(*problems)
    return Recipe(name, keys, quick, tuple(made), **about)


def _unknown(where: str, keys: Mapping[str, Any], more: Iterable[str] = ()) -> list[str]:
    allowed = (*key_names(), *more)
    return [f"recipe '{where}': unknown key '{key}'; {nearest(key, allowed)}" for key in keys if key not in key_names()]


def _mistyped(name: str, about: Mapping[str, Any]) -> list[str]:
    kinds: dict[str, tuple[Any, str]] = {
        "cost": ((int, float), "a number"), "tolerance": ((int, float), "a number"), "facts": (dict, "a dict"),
        "compares": (bool, "true or false"), "columns": (list, "a list of texts"),
    }  # fmt: skip
    problems = []
    for key, value in about.items():
        kind, said = kinds.get(key, (str, "a str"))
        good = isinstance(value, kind) and (key == "compares" or not isinstance(value, bool))
        if not good or (key == "columns" and not all(isinstance(part, str) for part in value)):
            problems.append(f"recipe '{name}': {key}={value!r} must be {said}")
    return problems


def _row(recipe: str, number: int, row: Mapping[str, Any], columns: tuple[str, ...], problems: list[str]) -> Row:
    name = str(row.get("name", ""))
    where = f"{recipe}/{name}" if name else f"{recipe}, row {number + 1}"
    if not name or name.strip("abcdefghijklmnopqrstuvwxyz0123456789-"):
        problems.append(f"recipe '{where}': a row needs a name of letters a to z, digits and hyphens")
    keys = {key: value for key, value in row.items() if key not in ROW}
    problems += [*_unknown(where, keys, ROW), *_unknown(f"{where}, quick", row.get("quick", {}))]
    expected, given = {}, row.get("expected", {})
    if isinstance(given, list):
        if len(given) != len(columns):
            problems.append(f"recipe '{where}': expected has {len(given)} numbers for {len(columns)} columns")
        given = dict(zip(columns, given, strict=False))
    for client, printed in given.items():
        pair = printed if isinstance(printed, list) else [printed]
        if len(pair) not in (1, 2) or not all(isinstance(v, int | float) and not isinstance(v, bool) for v in pair):
            problems.append(f"recipe '{where}': expected {client}={printed!r} must be a number or [mean, std]")
            continue
        expected[client] = (float(pair[0]), float(pair[1]) if len(pair) == 2 else None)
    return Row(name, str(row.get("label", name)), keys, row.get("quick", {}), expected, row.get("view"))


def overrides(texts: Iterable[str]) -> dict[str, Any]:
    """`key=value` of `--set`, the value a TOML literal; a plain word stands for itself where a text is wanted."""
    given: dict[str, Any] = {}
    problems = Problems()
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        with problems:
            if not equals:
                raise Refused(f"--set {text}: write key=value")
            if key in given:
                raise Refused(f"--set {key}: given twice")
            given[key] = value_of(key, value)
    problems.say()
    return given


def value_of(key: str, text: str, option: str = "--set") -> Any:
    """A key's value from its text."""
    try:
        return literal(text, f"{option} {key}")
    except Refused:
        # Quotes are a nuisance in a shell, and where a text is wanted there is nothing else it could mean.
        usual = {**OWN, **_settings()}.get(key, "")
        schedule = key == "lr" and "(" in text
        if text.strip() and (usual is None or isinstance(usual, str | tuple) or schedule):
            return text.strip()
        raise


def resolve(recipe: Recipe, overrides: Mapping[str, Any] | None = None, quick: bool = False) -> Config:
    """The config of a run: the recipe's keys under `overrides`, every other key at its default, all of them checked.

    Keys without a value are left out. `seed=3` is short for `seeds=[3]`. An empty text in the short form takes a key
    away: it has no pretrained weights, say.
    """
    if recipe.command:
        raise Refused(f"recipe '{recipe.name}' trains nothing; its numbers come from: {recipe.command}")
    short = recipe.quick if quick else {}
    given = {key: v for key, v in {**recipe.keys, **short}.items() if short.get(key) != ""} | dict(overrides or {})
    if "seed" in given:
        given["seeds"] = [given.pop("seed")]
    known = key_names()
    problems = Problems()
    problems.found += [f"unknown key '{key}'; {nearest(key, known)}" for key in given if key not in known]
    own = {key: given.get(key, default) for key, default in OWN.items()}
    problems.found += _own_problems(own)
    settings = {key: value for key, value in given.items() if key in _settings()}
    checked = None
    with problems:
        checked = Settings.of(**settings)
    if isinstance(own["model"], str):
        with problems:
            models.find(own["model"])
    if isinstance(own["method"], str):
        with problems:
            own["method"] = str(parse(own["method"]))
    problems.say()
    assert checked is not None
    values = {**own, **{key: _plain(getattr(checked, key), default) for key, default in _settings().items()}}
    return {key: value for key, value in values.items() if value is not None}


def _own_problems(own: Mapping[str, Any]) -> list[str]:
    problems = [f"{key}: missing" for key in ("data", "model") if own[key] is None]
    for key in ("data", "partition", "model", "weights", "method"):
        if own[key] is not None and not isinstance(own[key], str):
            problems.append(f"{key}={own[key]!r}: must be a text")
    seeds = own["seeds"]
    if not isinstance(seeds, list) or not seeds or not all(_whole(seed) for seed in seeds):
        problems.append(f"seeds={seeds!r}: must be a list of whole numbers, [0, 1, 2]")
    elif len(set(seeds)) < len(seeds):
        problems.append(f"seeds={seeds!r}: one is there twice")
    if not _whole(own["partition_seed"]):
        problems.append(f"partition_seed={own['partition_seed']!r}: must be a whole number")
    if not _whole(own["threads"]) or own["threads"] < 1:
        problems.append(f"threads={own['threads']!r}: must be a whole number, 1 or more")
    return problems


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any, default: Any) -> Any:
    """As TOML can hold it, and 1 as 1.0 where a number may have a fraction: the same run has the same text."""
    if isinstance(value, tuple):
        return [_plain(part, None) for part in value]
    return float(value) if isinstance(default, float) and _whole(value) else value
