"""A reproduction as text: for each line of the paper's table the paper's numbers, and ours under them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from normfed.compare import Document
from normfed.recipe import AVERAGE
from normfed.reproduce.beside import AGREES, DIFFERS, SHORT_FORM


def heading(document: Document) -> str:
    form = {"quick": f", {SHORT_FORM}", "full": "", "runs": ", from finished runs"}[document["form"]]
    return f"{document['recipe']}: {document['item']} of {document['paper']}{form}, {document['unit']}"


def grid(document: Document) -> tuple[list[str], list[list[str]]]:
    """Header and rows: two rows to a line of the table."""
    rows = document["rows"]
    columns = list(dict.fromkeys((*document["columns"], *(c for row in rows for c in (*row["paper"], *row["ours"])))))
    averaged = any(row["average"] for row in rows) and AVERAGE not in columns
    header = ["", "", *columns, *([AVERAGE] if averaged else []), "difference", "", ""]
    found = []
    for row in rows:
        mean = row["average"].get(AVERAGE, {})
        several = len(row.get("seeds", ())) != 1
        paper = [_number(row["paper"].get(c), document["unit"]) for c in columns]
        ours = [_number(row["ours"].get(c), document["unit"], several) for c in columns]
        if averaged:
            given = mean.get("paper")
            paper.append(_number(None if given is None else {"mean": given, "std": None}, document["unit"]))
            ours.append(_number(mean.get("ours"), document["unit"], several))
        found.append([row["label"], "paper", *paper, "", "", ""])
        found.append(["", "ours", *ours, _signed(mean.get("difference")), row["verdict"], _facts(row)])
    return header, found


def _number(value: Mapping[str, float | None] | None, unit: str, several: bool = True) -> str:
    """65.2 ± 1.1 in percent, 65.2 of one seed; what is counted, with the digits it is printed with."""
    if value is None or value["mean"] is None:
        return "–"
    if unit != "percent":
        return f"{value['mean']:g}"
    return f"{value['mean']:.1f}" + (f" ± {value['std']:.1f}" if several and value["std"] is not None else "")


def _signed(gap: float | None) -> str:
    return "" if gap is None else f"{round(gap, 1) + 0.0:+.1f}"  # no -0.0


def _facts(row: Mapping[str, Any]) -> str:
    """A number carries its seeds, its rounds, its view."""
    if "seeds" not in row:
        return ""
    seeds = len(row["seeds"])
    return f"{seeds} seed{'s' * (seeds != 1)}, {row['rounds']} rounds, {row['view']}"


def notes(document: Document) -> list[str]:
    """Why numbers are not comparable or missing, each reason once; and how agreement is judged."""
    why: dict[tuple[str, str], list[str]] = {}
    for row in document["rows"]:
        for reason in row["why"]:
            why.setdefault((row["verdict"], reason), []).append(row["label"])
    every = len(document["rows"])
    lines = [
        f"{verdict}{'' if len(labels) == every else ' (' + ', '.join(labels) + ')'}: {reason}"
        for (verdict, reason), labels in why.items()
    ]
    if any(row["verdict"] in (AGREES, DIFFERS) for row in document["rows"]) and not document["command"]:
        lines.append(f"agrees: the average differs by {document['tolerance']:g} points or less")
    return lines + ([f"ours come from: {document['command']}"] if document["command"] else [])
