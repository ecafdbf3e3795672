"""The first minute: what normalization does to a federation whose sites see the same digits differently."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normfed.compare import summary, table
from normfed.data.embedded import embedded
from normfed.experiment import Result, simulate
from normfed.expression import parse

METHODS = ("singleset", "fedavg", "fedprox", "groupnorm(groups=4)", "silobn", "fedbn")


def demo_cnn(classes: int = 10) -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer, for 16x16 pictures."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


def run(method: str, seed: int, rounds: int = 30) -> Result:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = demo_cnn()
    return simulate(model, embedded(), parse(method), rounds=rounds, batch_size=16, lr=0.1, seed=seed)


def demo(
    out: Path, seeds: Sequence[int] = (0, 1, 2), rounds: int = 30, on_done: Callable[[str], None] = lambda method: None
) -> dict[str, Any]:
    """Runs every method over the seeds and writes `comparison.json` and `report.html` into `out`."""
    documents = []
    for method in METHODS:
        documents.append(summary([run(method, seed, rounds).to_dict("demo") for seed in seeds]))
        on_done(method)
    comparison = {"schema": 1, "results": documents}
    out.mkdir(parents=True, exist_ok=True)
    (out / "comparison.json").write_text(json.dumps(comparison, indent=1))
    (out / "report.html").write_text(_page(*table(documents)))
    return comparison


def _page(header: list[str], rows: list[list[str]]) -> str:
    def line(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = line(header, "th") + "".join(line(row, "td") for row in rows)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>normfed demo</title>'
        "<style>body{font:16px system-ui;margin:3rem}td,th{padding:.3rem .8rem;text-align:right}"
        "td:first-child,th:first-child{text-align:left}</style><h1>normfed demo</h1>"
        "<p>Accuracy in percent on each site's own test images, mean and standard deviation over seeds.</p>"
        f"<table>{body}</table></html>\n"
    )
