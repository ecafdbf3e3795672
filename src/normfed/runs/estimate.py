"""What a run would cost, measured on a little of it: a round of one step and one of three, and an evaluation."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from normfed.checks import first_samples
from normfed.experiment import Run
from normfed.explain import Explanation, explain, render
from normfed.recipe import Config
from normfed.runs.inputs import model, open_run, seen
from normfed.runs.trial import limited_threads
from normfed.schedule import course
from normfed.text import toml


@dataclass(frozen=True)
class Estimate:
    """Of one seed: seconds of training and of evaluating, and the most memory seen, in bytes."""

    train_s: float
    evaluate_s: float
    memory: int
    engine: str
    reason: str

    def lines(self, seeds: int) -> list[str]:
        total = seeds * (self.train_s + self.evaluate_s)
        each = f" ({seeds} seeds, each {_duration(total / seeds)})" if seeds > 1 else ""
        return [
            f"time: about {_duration(total)}{each}, of it evaluating {_duration(seeds * self.evaluate_s)}; "
            f"engine {self.engine} ({self.reason})",
            f"memory: about {self.memory / 2**20:,.0f} MiB a process",
        ]


def estimate(config: Config, root: Path | None = None) -> tuple[Estimate, Run]:
    """Measured here and now; another machine, or this one when it is busy, takes another time."""
    views, views_every = len(config["views"]), config["views_every"]
    config = {**config, "seeds": config["seeds"][:1], "pictures": [], "views": []}
    with limited_threads(config["threads"]):
        run = open_run(config, root)
        few, more = (_seconds(config, root, steps) for steps in (1, 3))
        steps, rounds = _steps(run), run.settings.rounds
        step = max(0.0, more - few) / 2
        train = rounds * (max(0.0, few - step) + step * steps)
        started = time.perf_counter()
        list(run.evaluation().view("own"))
        every = run.settings.evaluate_every
        looks = -(-rounds // every) + views * -(-rounds // max(every, views_every))
        evaluate = looks * (time.perf_counter() - started)
    return Estimate(train, evaluate, _memory(run), run.engine.name, run.engine_reason), run


@dataclass(frozen=True)
class Prospect:
    """What `--dry-run` says of a config."""

    config: Config
    explanation: Explanation
    estimate: Estimate
    clients: int

    @property
    def text(self) -> str:
        lines = [toml(self.config), render(self.explanation, self.clients), ""]
        return "\n".join(lines + self.estimate.lines(len(self.config["seeds"])))

    def to_dict(self) -> dict[str, Any]:
        return {"config": self.config, "explain": self.explanation.to_dict(), "estimate": asdict(self.estimate)}


def prospect(config: Config, root: Path | None = None) -> Prospect:
    measured, run = estimate(config, root)
    shape = seen(config, first_samples(run.clients)[0]).shape[1:]
    (seed, *_) = config["seeds"]
    network = model(config, seed, run.plan.facts.classes, shape, root)
    found = explain(run.plan.method, network, config["model"], shape)
    return Prospect(config, found, measured, len(run.federation.names))


def _seconds(config: Config, root: Path | None, steps: int) -> float:
    """Of a round with this many local steps: the faster of two, the first round of a run not counted."""
    short = {k: v for k, v in config.items() if k != "stop"} | {"steps": steps, "rounds": 4, "evaluate_every": 4}
    run = open_run(short, root)
    ends = []
    for _ in range(3):
        run.play()
        ends.append(run.timing["train_s"])
    return min(ends[1] - ends[0], ends[2] - ends[1])


def _steps(run: Run) -> float:
    """Local steps of a round, mean over clients."""
    given, smallest = run.rules, run.plan.facts.smallest_batch
    one = (given.batch_size, given.epochs, given.steps, given.drop_last, smallest, None)
    return fmean(len(course(n, *one)) for n in run.sizes.values())


def _memory(run: Run) -> int:
    if run.device.type == "cuda":
        return torch.cuda.max_memory_allocated(run.device)
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
