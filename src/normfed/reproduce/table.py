"""A table's lines: which can be played, playing them, and the document that sets them beside the paper."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normfed.compare import Document
from normfed.errors import Refused
from normfed.recipe import Config, Recipe, find, resolve, rows_of
from normfed.reproduce.beside import outcome, row_for
from normfed.reproduce.counted import counted
from normfed.reproduce.obstacles import obstacle, refusal
from normfed.runs import OnRound, disk
from normfed.runs.config import CONFIG, read_config
from normfed.runs.join import results
from normfed.runs.play import Task, play_tasks
from normfed.runs.trial import RESULT, read_result

FOLDER, REPRODUCTION = Path("runs/reproduce"), "reproduction.json"
CANNOT, NOT_YET = "cannot run", "not run yet"


def form(quick: bool) -> str:
    return "quick" if quick else "full"


@dataclass(frozen=True)
class Line:
    """A line of a table: its recipe, where its run lies, and what is in its way."""

    row: Recipe
    folder: Path
    config: Config | None = None  # None: something is in its way
    obstacle: str = ""

    @property
    def finished(self) -> bool:
        return (self.folder / RESULT).exists()


def lines(
    table: Recipe, quick: bool = False, given: Mapping[str, Any] | None = None, out: Path = FOLDER,
    root: Path | None = None,
) -> list[Line]:  # fmt: skip
    """The lines of a table in one of its forms, `given` going before the recipe."""
    found = []
    for row in rows_of(table) if not table.command else []:
        folder = out / form(quick) / row.name
        reason = "" if (folder / RESULT).exists() else obstacle(row, quick, root)
        config = None if reason else resolve(row, given, quick)
        if config is not None and not (folder / RESULT).exists():
            reason = refusal(config, root)
        found.append(Line(row, folder, None if reason else config, reason))
    return found


def check(found: Sequence[Line], counted: bool = False) -> None:
    """Refuses where there is nothing to play and nothing to show."""
    if found and not counted and not any(line.config is not None or line.finished for line in found):
        raise Refused(*skipped(found))


def skipped(found: Sequence[Line]) -> list[str]:
    """What is not played and why; a reason that all lines of a table share is said once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in found:
        table, _, row = line.row.name.rpartition("/")
        if line.obstacle:
            reasons.setdefault((table, line.obstacle), []).append(row)
    count = Counter(line.row.name.rpartition("/")[0] for line in found)
    return [
        f"{table}{'' if len(rows) == count[table] else ' (' + ', '.join(rows) + ')'}: {reason}"
        for (table, reason), rows in reasons.items()
    ]


def play(
    found: Sequence[Line], *, resume: bool = False, root: Path | None = None, jobs: int | None = None,
    on_round: OnRound | None = None,
) -> None:  # fmt: skip
    """Plays every line that nothing is in the way of."""
    tasks = [Task(line.config, line.folder, line.row.name, root) for line in found if line.config is not None]
    play_tasks(tasks, resume, jobs, on_round)


def report(
    table: Recipe, found: Sequence[Line], quick: bool, root: Path | None = None, out: Path | None = None
) -> Document:
    """The table as it stands, every line with its verdict; kept in `out`, where that is given."""
    if table.command:
        return _document(table, form(quick), counted(table))
    outcomes = []
    for line in found:
        if line.finished:
            config, _ = read_config(line.folder)
            outcomes.append(outcome(line.row, config, read_result(line.folder), root))
        else:
            outcomes.append(_empty(line.row, CANNOT if line.obstacle else NOT_YET, line.obstacle))
    document = _document(table, form(quick), outcomes)
    if out is not None and any(line.finished for line in found):
        disk.write_json(out / form(quick) / table.name / REPRODUCTION, document)
    return document


def _document(table: Recipe, of: str, outcomes: list[dict[str, Any]]) -> Document:
    return {
        "schema": 1, "recipe": table.name, "paper": table.paper, "item": table.item, "form": of, "unit": table.unit,
        "tolerance": table.tolerance, "columns": list(table.columns), "command": table.command, "rows": outcomes,
    }  # fmt: skip


def _empty(row: Recipe, verdict: str, reason: str) -> dict[str, Any]:
    (line,) = row.rows
    paper = {column: {"mean": mean, "std": std} for column, (mean, std) in line.expected.items()}
    return {
        "row": line.name, "label": line.label, "paper": paper, "ours": {}, "average": {}, "verdict": verdict,
        "why": [reason] if reason else [],
    }  # fmt: skip


def from_folder(folder: Path, root: Path | None = None) -> list[Document]:
    """Finished runs of papers' recipes in a folder, set beside the paper: a run's, a comparison's, or a folder of
    such. What else there is, is left out with a warning."""
    found: dict[str, list[dict[str, Any]]] = {}
    others: list[str] = []
    for inside in _folders(folder):
        try:
            rows = [(_row(str(document["recipe"]), config), config, document) for config, document in results(inside)]
        except Refused as refusal:
            others += refusal.problems
            continue
        for row, config, document in rows:
            found.setdefault(row.name.rpartition("/")[0], []).append(outcome(row, config, document, root))
    if not found:
        raise Refused(*(others or [f"{folder} holds no finished run"]))
    for line in others:
        warnings.warn(f"left out: {line}", stacklevel=2)
    return [_document(find(name), "runs", outcomes) for name, outcomes in found.items()]


def _folders(folder: Path) -> list[Path]:
    """Of runs and comparisons, however deep."""
    if (folder / CONFIG).exists():
        return [folder]
    return [found for path in sorted(folder.iterdir()) if path.is_dir() for found in _folders(path)]


def _row(name: str, config: Config) -> Recipe:
    try:
        recipe = find(name)
    except Refused:
        recipe = None
    if recipe is None or not recipe.paper or name.endswith(".toml"):
        raise Refused(f"a run of recipe '{name}' has no paper's table to be set beside")
    return recipe if "/" in name and name.count("/") == 2 else row_for(recipe, config, rows_of(recipe))
