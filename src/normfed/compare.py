"""Several seeds of one method as one document; several methods as one table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from normfed.experiment import Result


def summary(results: Sequence[Result], recipe: str = "") -> dict[str, Any]:
    """The document of `result.json` for the seeds of one method: means, and standard deviations with n - 1."""
    first = results[0]
    document = first.to_dict(recipe)
    finals = [result.final for result in results]
    clients = finals[0]["test_accuracy"]
    averages = [final["average"]["mean"] for final in finals]
    document |= {
        "seeds": [result.seed for result in results],
        "history": [row for result in results for row in result.history],
        "final": {
            "test_accuracy": {c: spread([f["test_accuracy"][c]["mean"] for f in finals]) for c in clients},
            "average": spread(averages) if None not in averages else {"mean": None, "std": 0.0},
            "view": first.view,
            "selected_round": {str(seed): r for final in finals for seed, r in final["selected_round"].items()},
        },
        "timing": {name: sum(result.timing[name] for result in results) for name in first.timing},
    }
    return document


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0}


def table(documents: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a method a row, a client a column, mean and standard deviation over seeds, in percent."""
    clients = documents[0]["clients"]

    def cell(value: dict[str, float]) -> str:
        return f"{100 * value['mean']:.1f} ± {100 * value['std']:.1f}"

    rows = [
        [d["method"], *(cell(d["final"]["test_accuracy"][c]) for c in clients), cell(d["final"]["average"])]
        for d in documents
    ]
    return ["method", *clients, "average"], rows
