"""docs/tables.md: every table and figure of the papers by what it needs, from the recipes alone."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from normfed.data import DATASETS
from normfed.recipe import Recipe, rows_of, tables
from normfed.reproduce.obstacles import needed

HEADER = """# Every table and figure

What each recipe is, what it needs, how long it takes in full on one GPU (a rough guess: all lines, all seeds), and by
how many points an average may differ from the printed one and still agree. Every recipe has a short form that runs in
minutes on two cores; it needs the same data and no weights. [How to reproduce a table](reproduce.md) says what to do
with them. The page is made by `python -m normfed.tables recipes`.
"""
COLUMNS = ("Recipe", "In the paper", "Needs", "Lines", "Hours", "Agrees within", "What it is")


def page(results: Path) -> Mapping[str, str]:
    """One section to a paper."""
    text = [HEADER]
    for paper, recipes in groupby(tables(), key=lambda recipe: recipe.paper):
        text += [f"\n## {paper}\n", _line(COLUMNS), _line(["---"] * len(COLUMNS)), *map(_row, recipes)]
    return {"docs/tables.md": "\n".join(text) + "\n"}


def _row(table: Recipe) -> str:
    trained = not table.command
    within = f"{table.tolerance:g}" if table.compares and any(row.expected for row in table.rows) else "–"
    hours = f"{table.cost:g}" if trained else "0"
    about = table.about + (f". Not compared: {table.why}" if table.why else "")
    return _line([f"`{table.name}`", table.item, needs(table), str(len(table.rows)), hours, within, about])


def needs(table: Recipe) -> str:
    """Datasets, weights, and what nobody has."""
    if table.command:
        return f"nothing: `{table.command}`"
    rows = rows_of(table)
    found = [data for data in dict.fromkeys(needed(row, False) for row in rows) if data in DATASETS]
    found += list(dict.fromkeys(f"`weights/{row.keys['weights']}`" for row in rows if "weights" in row.keys))
    if any(str(row.keys.get("model", "")).startswith("zoo:") for row in rows):
        found.append("the `zoo` extra")
    if table.missing:
        found.append(table.missing.removeprefix("no data: ").partition(" (")[0])
    return ", ".join(found) or "nothing"


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
