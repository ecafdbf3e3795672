"""Several seeds of one method as one document; several methods as one table."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

Document = dict[str, Any]  # of a result.json

MANY = 1000  # clients; above, a document holds summaries
ASIDE = ("method", "seeds", "engine", "device", "threads", "stack")  # keys that say how a run was played, not what


def comparison(results: Sequence[tuple[Mapping[str, Any], Document]]) -> Document:
    """The document of comparison.json, from (config, document) of each run. Where runs differ in more than their
    method, `settings` says in what, run by run."""
    configs = [config for config, _ in results]
    keys = dict.fromkeys(key for config in configs for key in config if key not in ASIDE)
    differing = [key for key in keys if any(config.get(key) != configs[0].get(key) for config in configs)]
    settings = [{key: config.get(key) for key in differing} for config in configs]
    return {"schema": 1, "results": [d for _, d in results], **({"settings": settings} if differing else {})}


def names(comparison: Document) -> list[str]:
    """What each run is called: its method, and the settings that not all have."""
    settings = comparison.get("settings") or [{}] * len(comparison["results"])
    return [
        d["method"] + (f" [{', '.join(f'{key}={value}' for key, value in own.items())}]" if own else "")
        for d, own in zip(comparison["results"], settings, strict=True)
    ]


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


def percent(value: Mapping[str, float | None] | None) -> str:
    """91.2 ± 0.4; without a deviation where there is none, of one seed above all: 91.2"""
    if value is None or value["mean"] is None:
        return "–"
    deviation = f" ± {100 * value['std']:.1f}" if value["std"] else ""
    return f"{100 * value['mean']:.1f}{deviation}"


def table(comparison: Document) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a run a row, a client a column, mean and standard deviation over seeds, in percent."""
    finals = [d["final"] for d in comparison["results"]]
    clients = list(dict.fromkeys(client for final in finals for client in final["test_accuracy"]))
    rows = [
        [name, *(percent(final["test_accuracy"].get(c)) for c in clients), percent(final["average"])]
        for name, final in zip(names(comparison), finals, strict=True)
    ]
    return ["method", *clients, "average"], rows


def caption(comparison: Document) -> str:
    """What the numbers of a table are: a number carries its view, its rounds, its seeds."""
    documents = comparison["results"]
    seeds = dict.fromkeys(len(d["seeds"]) for d in documents)
    rounds = dict.fromkeys(d["rounds"] for d in documents)
    views = dict.fromkeys(d["final"]["view"] for d in documents)
    by_view = [
        f"{view}: "
        + ", ".join(name for name, d in zip(names(comparison), documents, strict=True) if d["final"]["view"] == view)
        if len(views) > 1
        else view
        for view in views
    ]
    return (
        f"Test accuracy in percent, mean ± standard deviation over {_or(seeds)} seed{'s' * (seeds != {1: None})}, "
        f"{_or(rounds)} round{'s' * (rounds != {1: None})}; model evaluated: {'; '.join(by_view)}"
    )


def _or(values: Mapping[Any, Any]) -> str:
    return " or ".join(map(str, values))


FORMATS = ("csv", "md", "tex")


def export(comparison: Document, kind: str) -> str:
    """The table as CSV (fractions, means and deviations apart), Markdown or LaTeX (percent)."""
    if kind == "csv":
        return _csv(comparison)
    header, rows = table(comparison)
    if kind == "md":
        lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
    body = [" & ".join(_tex(cell) for cell in line) + r" \\" for line in (header, *rows)]
    return "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}", r"\hline", body[0], r"\hline", *body[1:], r"\hline",
         r"\end{tabular}", f"% {caption(comparison)}", ""]
    )  # fmt: skip


def _tex(cell: str) -> str:
    special = {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--",
    }  # fmt: skip
    return "".join(special.get(c, "\\" + c if c in "&%$#_{}" else c) for c in cell)


def _csv(comparison: Document) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("method", "view", "rounds", "seeds", "client", "mean", "std"))
    for name, d in zip(names(comparison), comparison["results"], strict=True):
        final = d["final"]
        where = (name, final["view"], d["rounds"], " ".join(map(str, d["seeds"])))
        for client, score in (*final["test_accuracy"].items(), ("average", final["average"])):
            writer.writerow((*where, client, score["mean"], score["std"]))
    return text.getvalue()
