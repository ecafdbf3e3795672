"""All tables and figures and their state: what is in the way, what can run, what has run and agrees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normfed.data import DATASETS
from normfed.data.catalogue import present
from normfed.data.copies import differences
from normfed.recipe import Recipe, rows_of, tables
from normfed.reproduce.beside import AGREES, outcome
from normfed.reproduce.obstacles import brief, needed, obstacle
from normfed.reproduce.table import FOLDER, form
from normfed.runs.config import read_config
from normfed.runs.trial import RESULT, read_result


def overview(name: str = "", out: Path = FOLDER, root: Path | None = None) -> list[dict[str, Any]]:
    """One entry for each table: its state in full and in the short form."""
    return [
        {
            "name": table.name, "paper": table.paper, "item": table.item, "dataset": table.dataset,
            "rows": len(table.rows), "cost_hours": table.cost, "full": state(table, False, out, root),
            "quick": state(table, True, out, root),
        }
        for table in tables(name)
    ]  # fmt: skip


def state(table: Recipe, quick: bool, out: Path = FOLDER, root: Path | None = None) -> str:
    """In a few words."""
    if table.command:
        return "counted at once" if table.compares else f"timed by: {table.command}"
    rows = rows_of(table)
    ran = [row for row in rows if (out / form(quick) / row.name / RESULT).exists()]
    if ran:
        return f"ran: {len(ran)} of {len(rows)} rows, agrees {sum(_agrees(row, quick, out, root) for row in ran)}"
    return _prospect(rows, quick, root)


def _agrees(row: Recipe, quick: bool, out: Path, root: Path | None) -> bool:
    folder = out / form(quick) / row.name
    config, _ = read_config(folder)
    return outcome(row, config, read_result(folder), root)["verdict"] == AGREES


def _prospect(rows: Sequence[Recipe], quick: bool, root: Path | None) -> str:
    reasons = [obstacle(row, quick, root) for row in rows]
    free = [row for row, reason in zip(rows, reasons, strict=True) if not reason]
    if not free:
        return brief(reasons)
    said = "can run" if len(free) == len(rows) else f"can run: {len(free)} of {len(rows)} rows"
    notes = {n: None for row in free for n in differences(needed(row, quick), root)} if not quick else {}
    notes |= {row.why: None for row in free if not row.compares and not quick}
    return f"{said}, not comparable: {'; '.join(notes)}" if notes else said


def hindrance(recipe: Recipe, root: Path | None = None) -> str:
    """What keeps lines of a recipe from being played in full, in a few words."""
    rows = rows_of(recipe) if recipe.rows and not recipe.command else []
    return brief(reason for row in rows if (reason := obstacle(row, False, root)))


def listing(root: Path | None = None) -> list[dict[str, Any]]:
    """For `normfed list recipes`: every recipe, whether its data are there, whether it has a short form."""
    from normfed import recipe as recipes

    found = [recipes.find(name) for name in recipes.names() if "/" not in name] + tables()
    return [
        {
            "name": r.name, "paper": r.paper, "item": r.item, "dataset": r.dataset, "data_present": _present(r, root),
            "quick": bool(r.quick) or any(row.quick for row in r.rows) or bool(r.command),
        }
        for r in found
    ]  # fmt: skip


def _present(recipe: Recipe, root: Path | None) -> bool:
    """Of all that its full form is played on."""
    rows = rows_of(recipe) if recipe.rows and not recipe.command else [recipe]
    return not recipe.missing and all(present(data, root) for row in rows if (data := needed(row, False)) in DATASETS)
