"""The first minute: what normalization does to a federation whose sites see the same digits differently."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from normfed import runs
from normfed.compare import Document
from normfed.recipe import find, resolve
from normfed.runs import OnRound

# Each method at its own learning rate: of 0.02, 0.05, 0.1, 0.2, 0.3 and 0.5 the one that was best after the last round
# on a fifth of the training samples, held out, over six seeds that are not the demo's:
#   normfed compare demo --methods … --sweep lr=0.02,0.05,0.1,0.2,0.3,0.5 --seeds 10,11,12,13,14,15
#       --set "partition=domain / hold_out(0, val=0.2)" --set evaluate_every=30
METHODS = {
    "singleset": 0.05,
    "fedavg": 0.2,
    "groupnorm(groups=4)": 0.1,
    "fedwon": 0.3,
    "silobn": 0.2,
    "fedbn": 0.1,
    "fedtan": 0.2,
    "greg": 0.2,
}
# What the report shows beside accuracy: an unseen site, every view of the last model, pictures of normalization.
LOOK = {"data": "embedded(unseen=true)", "views": ["all"], "views_every": 1000, "pictures": ["all"]}
FOLDER = Path("runs/demo")


def demo_cnn(classes: int = 10) -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer, for 16x16 pictures."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


def demo(
    out: Path = FOLDER, seeds: tuple[int, ...] = (0, 1, 2), jobs: int | None = None, on_round: OnRound | None = None,
    *, quick: bool = False,
) -> Document:  # fmt: skip
    """Every method of the demo over the seeds, as a comparison in `out`; what is there already is not played again."""
    given = [{**LOOK, "method": method, "lr": lr, "seeds": list(seeds)} for method, lr in METHODS.items()]
    configs = [resolve(find("demo"), keys, quick=quick) for keys in given]
    return runs.compare(configs, out, resume=True, recipe="demo", jobs=jobs, on_round=on_round)
