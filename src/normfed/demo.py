"""The first minute: what normalization does to a federation whose sites see the same digits differently."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from normfed import runs
from normfed.compare import Document
from normfed.recipe import find, resolve
from normfed.runs import OnRound

METHODS = ("singleset", "fedavg", "groupnorm(groups=4)", "fedwon", "silobn", "fedbn", "fedtan", "greg")
FOLDER = Path("runs/demo")


def demo_cnn(classes: int = 10) -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer, for 16x16 pictures."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


def demo(
    out: Path = FOLDER, seeds: tuple[int, ...] = (0, 1, 2), jobs: int | None = None, on_round: OnRound | None = None
) -> Document:
    """Every method of the demo over the seeds, as a comparison in `out`; what is there already is not played again."""
    recipe = find("demo")
    configs = [resolve(recipe, {"method": method, "seeds": list(seeds)}) for method in METHODS]
    return runs.compare(configs, out, resume=True, recipe="demo", jobs=jobs, on_round=on_round)
