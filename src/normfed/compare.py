"""Several seeds of one method as one document; several methods as one table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]  # of a result.json

MANY = 1000  # clients; above, a document holds summaries


def summary(documents: Sequence[Document]) -> Document:
    """One document for the seeds of one method: means, and standard deviations with n - 1."""
    first = documents[0]
    finals = [document["final"] for document in documents]
    scores = [final["test_accuracy"] for final in finals]
    averages = [final["average"]["mean"] for final in finals]
    return first | {
        "seeds": [seed for document in documents for seed in document["seeds"]],
        "rounds": max(document["rounds"] for document in documents),
        "history": [row for document in documents for row in document["history"]],
        "final": {
            "test_accuracy": {client: spread([s[client]["mean"] for s in scores]) for client in scores[0]},
            "average": spread(averages),
            "view": first["final"]["view"],
            "selected_round": {seed: r for final in finals for seed, r in final["selected_round"].items()},
        },
        "timing": {name: sum(document["timing"][name] for document in documents) for name in first["timing"]},
    }


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean, and standard deviation with n - 1; no mean where a value is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return {"mean": None, "std": 0.0}
    return {"mean": statistics.fmean(known), "std": statistics.stdev(known) if len(known) > 1 else 0.0}


def condensed(document: Document) -> Document:
    """The document with summaries in place of more than `MANY` clients' values."""
    if len(document["clients"]) <= MANY:
        return document
    scores = {client: score["mean"] for client, score in document["final"]["test_accuracy"].items()}
    accuracy = {name: spread([value]) for name, value in _deciles(scores).items()}
    return document | {
        "history": [_condensed_row(row) for row in document["history"]],
        "final": document["final"] | {"test_accuracy": accuracy},
    }


def _condensed_row(row: Mapping[str, Any]) -> dict[str, Any]:
    def small(key: str, value: Any) -> Any:
        if key == "views":
            return {view: _by_metric(scores) for view, scores in value.items()}
        per_client = isinstance(value, Mapping) and key != "latched" and len(value) > MANY
        return _deciles(value, worst=max if key.endswith("loss") else min) if per_client else value

    return {key: small(key, value) for key, value in row.items()}


def _by_metric(scores: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """client -> metric -> value as summary -> metric -> value."""
    if len(scores) <= MANY:
        return dict(scores)
    metrics = next(iter(scores.values()))
    found = {
        metric: _deciles({client: s[metric] for client, s in scores.items()}, max if metric == "loss" else min)
        for metric in metrics
    }
    names = next(iter(found.values()))
    return {name: {metric: found[metric][name] for metric in metrics} for name in names}


def _deciles(values: Mapping[str, float], worst: Any = min) -> dict[str, float]:
    known = list(values.values())
    if len(known) < 2:
        return dict(values)
    cuts = statistics.quantiles(known, n=10, method="inclusive")
    return {
        "mean": statistics.fmean(known),
        "worst": worst(known),
        **{f"decile {i}": cut for i, cut in enumerate(cuts, start=1)},
    }


def table(documents: Sequence[Document]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a method a row, a client a column, mean and standard deviation over seeds, in percent."""
    clients = list(dict.fromkeys(client for d in documents for client in d["final"]["test_accuracy"]))

    def cell(value: Mapping[str, float | None] | None) -> str:
        if value is None or value["mean"] is None:
            return "–"
        return f"{100 * value['mean']:.1f} ± {100 * (value['std'] or 0.0):.1f}"

    rows = [
        [d["method"], *(cell(d["final"]["test_accuracy"].get(c)) for c in clients), cell(d["final"]["average"])]
        for d in documents
    ]
    return ["method", *clients, "average"], rows
