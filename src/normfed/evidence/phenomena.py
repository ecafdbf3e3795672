"""What each paper saw, on small real data: `python -m normfed.evidence.phenomena` plays it into results/phenomena.json.

The data come with the package: digits written by hand, seen through five instruments. By site they are a federation
under feature shift; pooled and dealt out by class, one under label skew. Five minutes on two cores; the page and the
figure are made from the results by `make results`.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normfed.data import federation
from normfed.data.embedded import embedded
from normfed.demo import demo_cnn
from normfed.experiment import simulate
from normfed.expression import parse
from normfed.testing import seeded

FILE = Path("results/phenomena.json")
SEEDS = range(5)
EVALUATIONS = 20  # of a run
WORKERS = 2

Curve = dict[int, float]  # round -> value


def hidden_cnn() -> nn.Module:
    """The network of the demo with a hidden layer, and BatchNorm on that too."""
    network = demo_cnn()
    assert isinstance(network, nn.Sequential)
    return nn.Sequential(*list(network)[:-1], nn.Linear(512, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


@dataclass(frozen=True)
class Arm:
    """A line of a figure, or a point of one: a method, and in what its run differs from the others'."""

    method: str
    partition: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in their arm and seed alone."""

    partition: str
    train: int  # training images of a site
    model: Callable[[], nn.Module]
    settings: Mapping[str, Any]
    arms: Mapping[str, Arm]


LABELS = 'clients(5, test="whole")'
RATES = {1: 0.03, 2: 0.05, 16: 0.2}  # batch size -> learning rate, for all methods

EXPERIMENTS = {
    "shift": Experiment(
        "domain", 100, demo_cnn, {"rounds": 60, "batch_size": 16, "lr": 0.05, "pictures": "gap"},
        {"FedAvg": Arm("fedavg"), "FedBN": Arm("fedbn"), "GReg": Arm("greg")},
    ),
    "classes": Experiment(
        f"{LABELS} / classes(2)", 159, hidden_cnn,
        {"rounds": 40, "steps": 5, "batch_size": 32, "lr": 0.2, "momentum": 0.9},
        {
            "FedAvg, IID": Arm("fedavg", f"{LABELS} / iid"), "FedAvg": Arm("fedavg"), "FedTAN": Arm("fedtan"),
            "FedBN": Arm("fedbn"),
        },
    ),
    "batch": Experiment(
        "domain", 100, demo_cnn, {"rounds": 20},
        {
            f"{name}, batches of {size}": Arm(method, settings={"batch_size": size, "lr": lr})
            for name, method in (("FedAvg", "fedavg"), ("FedWon", "fedwon"))
            for size, lr in RATES.items()
        },
    ),
}  # fmt: skip


def play(name: str, arm: str, seed: int) -> tuple[dict[str, Curve], float]:
    """One run: test accuracy, mean over the clients, and the gap where it is taken; and its seconds of CPU time."""
    started = time.process_time()
    experiment = EXPERIMENTS[name]
    chosen = experiment.arms[arm]
    clients = federation(embedded(experiment.train, seed), chosen.partition or experiment.partition, seed=seed)
    settings = {**experiment.settings, **chosen.settings}
    every = max(1, settings["rounds"] // EVALUATIONS)
    model = seeded(experiment.model, seed, torch.float32)
    result = simulate(model, clients, parse(chosen.method), seed=seed, evaluate_every=every, **settings)
    curves: dict[str, Curve] = {"accuracy": {}, "gap": {}}
    for row in result.history:
        gaps = [fact["value"] for fact in row.get("pictures", ()) if fact["metric"] == "gap/test"]
        for measure, values in (("accuracy", list(row["test_accuracy"].values())), ("gap", gaps)):
            if values:
                curves[measure][row["round"] + 1] = round(statistics.fmean(values), 4)
    return {measure: curve for measure, curve in curves.items() if curve}, time.process_time() - started


def jobs() -> Iterator[tuple[str, str, int]]:
    """Every run."""
    for seed in SEEDS:
        yield from ((name, arm, seed) for name in EXPERIMENTS for arm in EXPERIMENTS[name].arms)


def main(path: Path = FILE) -> None:
    """Plays every run, seed by seed, and writes the results as they come."""
    todo, seconds = list(jobs()), 0.0
    runs: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in EXPERIMENTS}
    path.parent.mkdir(parents=True, exist_ok=True)
    one_thread = functools.partial(torch.set_num_threads, 1)
    with ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn"), one_thread) as pool:
        for (name, arm, seed), (curves, spent) in zip(todo, pool.map(play, *zip(*todo, strict=True)), strict=True):
            seconds += spent
            for measure, curve in curves.items():
                runs[name].setdefault(arm, {}).setdefault(measure, {})[seed] = curve
            last = ", ".join(f"{measure} {list(curve.values())[-1]:.3f}" for measure, curve in curves.items())
            print(f"{name}: {arm}, seed {seed}: {last}", flush=True)
            document = {"torch": torch.__version__, "cpu_seconds": round(seconds), "runs": runs}
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {seconds:.0f} seconds of CPU time; `make results` makes page and figure of it")


if __name__ == "__main__":
    main()
