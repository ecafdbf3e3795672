"""Tables that are counted, not trained: their numbers come out of our accounting at once."""

from __future__ import annotations

from typing import Any

from normfed.evidence import traffic
from normfed.recipe import Recipe
from normfed.reproduce.beside import AGREES, DIFFERS, NOT_COMPARABLE

DIGITS = {"volume": 4, "extra rounds %": 2, "extra bits %": 4}  # as printed


def counted(table: Recipe) -> list[dict[str, Any]]:
    """Every line of the table with its verdict. One that is timed has the paper's numbers and a command for ours."""
    number = table.item.removeprefix("Table ")
    known = {(str(row.table), row.what): row for row in traffic.rows()} if "traffic" in table.command else {}
    outcomes = []
    for row in table.rows:
        paper = {column: mean for column, (mean, _) in row.expected.items()}
        line = known.get((number, row.label))
        ours = {} if line is None else _numbers(line, table.columns)
        same = ours == paper
        outcomes.append({
            "row": row.name, "label": row.label,
            "paper": {column: {"mean": value, "std": None} for column, value in paper.items()},
            "ours": {column: {"mean": value, "std": None} for column, value in ours.items()},
            "average": {}, "verdict": (AGREES if same else DIFFERS) if table.compares else NOT_COMPARABLE,
            "why": [] if table.compares else [table.why],
        })  # fmt: skip
    return outcomes


def _numbers(line: traffic.Row, columns: tuple[str, ...]) -> dict[str, float]:
    """Rounded as the paper prints them."""
    values = {"volume": line.volume, "extra rounds %": line.rounds, "extra bits %": line.bits}
    return {c: float(traffic.shown(value, DIGITS[c])) for c in columns if (value := values[c]) is not None}
