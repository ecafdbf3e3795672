"""A finished run beside the line of a paper's table: ours, the paper's, and whether the two can be compared at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from normfed.compare import Document, spread
from normfed.data.catalogue import DATASETS
from normfed.data.copies import differences
from normfed.errors import Refused
from normfed.recipe import AVERAGE, Config, Recipe, resolve

AGREES, DIFFERS, NOT_COMPARABLE, UNPRINTED = "agrees", "differs", "not comparable", "nothing printed"
SHORT_FORM = "short form"
# What a run may have otherwise than its recipe and still be the same experiment.
FREE = ("seeds", "engine", "device", "threads", "stack", "views", "pictures", "metrics", "partition_hash")

FEW = 10  # clients shown where the paper names none

Score = dict[str, float | None]  # mean and std
Outcome = dict[str, Any]  # one line of reproduction.json


def outcome(row: Recipe, config: Config, document: Document, root: Path | None = None) -> Outcome:
    """`row` is a recipe of one row (`find("fedbn/table11/fedbn")`), the document that of a run of it."""
    (line,) = row.rows
    columns = row.columns
    numbers = {column: ours(document, column, row) for column in columns}
    if not any(numbers.values()):  # other clients than the paper's, or none named there
        numbers |= {client: ours(document, client, row) for client in _clients(document, row)[:FEW]}
    printed = {column: {"mean": mean, "std": std} for column, (mean, std) in line.expected.items()}
    judged = _judged(line.expected)
    averages = {name: (value, _average(document, name, columns, line.expected, row)) for name, value in judged.items()}
    why = reasons(row, config, root) + [f"no number for {c}" for c in line.expected if numbers.get(c) is None]
    whole = all(numbers.get(column) is not None for column in line.expected)  # else means are over other clients
    gaps = {
        n: b["mean"] - a if whole and b is not None and b["mean"] is not None else None
        for n, (a, b) in averages.items()
    }
    return {
        "row": line.name, "label": line.label, "method": document["method"], "seeds": document["seeds"],
        "rounds": document["rounds"], "view": line.view or document["final"]["view"], "metric": row.metric,
        "paper": printed, "ours": numbers,
        "average": {
            name: {"paper": a, "ours": b, "difference": gaps[name]} for name, (a, b) in averages.items()
        } or {AVERAGE: {"paper": None, "ours": _mean(document, row), "difference": None}},
        "verdict": _verdict(gaps, row.tolerance, why), "why": why,
    }  # fmt: skip


def _verdict(gaps: Mapping[str, float | None], tolerance: float, why: Sequence[str]) -> str:
    if why:
        return NOT_COMPARABLE
    if not gaps:
        return UNPRINTED
    return AGREES if all(gap is not None and abs(gap) <= tolerance for gap in gaps.values()) else DIFFERS


def _judged(expected: Mapping[str, tuple[float, float | None]]) -> dict[str, float]:
    """The averages that are printed; else the mean of what is printed for the clients."""
    printed = {column: mean for column, (mean, _) in expected.items() if column.partition("@")[0] == AVERAGE}
    if printed or not expected:
        return printed
    return {AVERAGE: fmean(mean for mean, _ in expected.values())}


def _average(
    document: Document, name: str, columns: Sequence[str], expected: Mapping[str, Any], row: Recipe
) -> Score | None:
    """Ours, over the same columns as the paper's where there are any; over all clients otherwise."""
    parts = [c for c in columns if c in expected and c.partition("@")[0] != AVERAGE]
    values = [_values(document, column, row) for column in parts]
    known = [v for v in values if v is not None]
    if name == AVERAGE and parts and len(known) == len(values):
        return _percent([None if None in seed else fmean(seed) for seed in zip(*known, strict=True)])
    return ours(document, name, row)


def _mean(document: Document, row: Recipe) -> Score | None:
    return ours(document, AVERAGE, row)


def ours(document: Document, column: str, row: Recipe) -> Score | None:
    """Mean and standard deviation over seeds, in percent; None where the run has no such number."""
    values = _values(document, column, row)
    return None if values is None else _percent(values)


def _percent(values: Sequence[float | None]) -> Score:
    return spread([None if value is None else 100 * value for value in values])


def _values(document: Document, column: str, row: Recipe) -> list[float | None] | None:
    """A column's number of each seed. `CLIENT@VIEW` names a view; `average` is over clients; a domain that was dealt
    to several clients is their mean."""
    client, _, view = column.partition("@")
    found: list[float | None] = []
    for seed in document["seeds"]:
        chosen = document["final"]["selected_round"].get(str(seed), document["final"]["selected_round"].get(seed))
        played = [r for r in document["history"] if r["seed"] == seed and r["round"] == chosen]
        scores = _scores(played[0], view or row.rows[0].view or "", row.metric) if played else {}
        mine = _of(scores, client, row.dataset)
        if not mine:
            return None
        known = [value for value in mine if value is not None]
        found.append(fmean(known) if len(known) == len(mine) else None)
    return found


def _clients(document: Document, row: Recipe) -> list[str]:
    """Those with numbers in the row's view, in the last round that was evaluated."""
    evaluated = [played for played in document["history"] if played.get(f"test_{row.metric}")]
    if not evaluated:
        return []
    unseen = evaluated[-1].get("views", {}).get(row.rows[0].view, {})
    return list(unseen or _scores(evaluated[-1], "", row.metric))


def _scores(played: Mapping[str, Any], view: str, metric: str) -> Mapping[str, float | None]:
    own: Mapping[str, float | None] = played.get(f"test_{metric}", {})
    if view in ("", played.get("view")):
        return own
    found = {client: scores.get(metric) for client, scores in played.get("views", {}).get(view, {}).items()}
    return {**own, **found} if view.startswith("unseen/") else found


def _of(scores: Mapping[str, float | None], client: str, dataset: str) -> list[float | None]:
    if client in scores:
        return [scores[client]]
    if client == AVERAGE:
        return list(scores.values())
    known = DATASETS.get(dataset)
    names = [client, *(stand_in for stand_in, real in known.stand_ins.items() if real == client)] if known else [client]
    exact = [scores[name] for name in names if name in scores]
    return exact or [value for name, value in scores.items() if name.startswith(tuple(f"{n}-" for n in names))]


def reasons(row: Recipe, config: Config, root: Path | None = None) -> list[str]:
    """Why a run's numbers cannot be held against the paper's; none where they can."""
    full, short = (changes(config, written(row, quick)) for quick in (False, True))
    quick = bool(full) and len(short) < len(full)
    found = [SHORT_FORM] if quick else []
    if not row.compares:
        found.append(row.why or "the recipe says so")
    whose = "the short form's" if quick else "the recipe's"
    found += [f"{key} is {config.get(key)!r}, {whose} {was!r}" for key, was in (short if quick else full).items()]
    return found + differences(config["data"].partition("(")[0], root)


def written(row: Recipe, quick: bool) -> Config:
    """A row's config. Its network is not looked for: the extra that has it is not needed to compare."""
    model = {**row.keys, **(row.quick if quick else {})}["model"]
    return {**resolve(row, {"model": "mnist_mlp"}, quick), "model": model}


def changes(config: Config, recipe: Config) -> dict[str, Any]:
    """Keys in which a run is another experiment than the recipe, with the recipe's values."""
    keys = dict.fromkeys(key for key in (*config, *recipe) if key not in FREE)
    return {key: recipe.get(key) for key in keys if config.get(key) != recipe.get(key)}


def row_for(table: Recipe, config: Config, rows: Sequence[Recipe]) -> Recipe:
    """The line of a table that a run is nearest to: of its method, and with the fewest changes."""
    same = [row for row in rows if written(row, False)["method"] == config["method"]]
    if not same:
        raise Refused(f"recipe '{table.name}' has no row of method {config['method']}")
    return min(same, key=lambda row: min(len(changes(config, written(row, q))) for q in (False, True)))
