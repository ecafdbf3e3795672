"""Speed as a ratio: a round of ours over a round of the textbook loop (`examples/one_file.py`), in one run.

Scenarios are the sizes people simulate: a large network and few clients, a small one and ten, a tiny one and many. Two
more are about what comes before the network: a round on stored bytes over the same round on floats made beforehand.
"""

from __future__ import annotations

import importlib.util
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from normfed import prepare
from normfed.data.store import ClientData
from normfed.errors import Refused, nearest
from normfed.experiment import Run
from normfed.expression import parse
from normfed.keys import integers, normal
from normfed.models import make


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 8 * 8, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    about: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    samples: int
    batch_size: int
    prepare: str = ""  # of bytes; what we are measured against is then the same training on prepared floats

    @property
    def rival(self) -> str:
        return "of prepared floats" if self.prepare else "of the plain loop"


NORMALIZE = "normalize(0.5, 0.5)"
SCENARIOS = {
    "S1": Scenario("digits CNN, 5 clients x 743 samples", lambda: make("digits_cnn"), (3, 28, 28), 5, 743, 32),
    "S2": Scenario("small CNN, 10 clients x 100 samples", small_cnn, (3, 32, 32), 10, 100, 10),
    "S3": Scenario("MLP 784-30-10, 100 clients x 20 samples", lambda: make("mnist_mlp"), (1, 28, 28), 100, 20, 10),
    "S4": Scenario("MLP 784-30-10, 1,000 clients x 20 samples", lambda: make("mnist_mlp"), (1, 28, 28), 1000, 20, 10),
    "input": Scenario("digits CNN on bytes, normalized on the fly, 5 clients x 96 samples",
                      lambda: make("digits_cnn"), (3, 28, 28), 5, 96, 32, NORMALIZE),
    "augment": Scenario("digits CNN on bytes, flipped, turned, cropped and normalized on the fly",
                        lambda: make("digits_cnn"), (3, 28, 28), 5, 96, 32,
                        f"flip + rotate(30) + crop(28, padding=2) + {NORMALIZE}"),
}  # fmt: skip
PLAIN_METHODS = ("fedavg", "fedprox", "fedbn")  # what the textbook loop has


def textbook() -> ModuleType:
    """The loop we are measured against: beside the sources, or shipped with the package."""
    here = Path(__file__).parent
    for path in (here.parents[1] / "examples" / "one_file.py", here / "_one_file.py"):
        if path.exists():
            spec = importlib.util.spec_from_file_location("one_file", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise Refused("examples/one_file.py is missing: nothing to measure against")


def federation(scenario: Scenario, device: str) -> dict[str, ClientData]:
    clients = {}
    for k in range(scenario.clients):
        shape = (scenario.samples, *scenario.shape)
        x = integers(k, shape, 256).to(torch.uint8) if scenario.prepare else normal(k, shape)
        clients[f"client {k}"] = ClientData(train=(x.to(device), integers(k, (scenario.samples,), 10).to(device)))
    return clients


def prepared(clients: Mapping[str, ClientData]) -> dict[str, ClientData]:
    """The same bytes as floats, normalized once."""
    chain = prepare.parse(NORMALIZE)
    return {name: ClientData(train=(chain(c.train[0], torch.float32), c.train[1])) for name, c in clients.items()}


def seconds(device: str, f: Callable[[], Any]) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    started = time.perf_counter()
    f()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def loop(
    scenario: Scenario, model: nn.Module, clients: Mapping[str, ClientData], method: str
) -> Callable[[], Any]:  # fmt: skip
    """A round of the textbook's."""
    plain = textbook()
    name = method.partition("(")[0]
    return lambda: plain.federate(
        model, [client.train for client in clients.values()], rounds=1,
        method=name if name in PLAIN_METHODS else "fedavg", batch_size=scenario.batch_size, lr=0.01,
    )  # fmt: skip


def measure(
    scenario: Scenario, method: str, engine: str = "auto", device: str = "cpu", repeats: int = 3
) -> dict[str, Any]:
    """Median seconds of a round, ours and its rival's in turns, after one round of each to warm up."""
    clients = federation(scenario, device)
    model = scenario.model()

    def ours_on(clients: Mapping[str, ClientData], chain: str | None) -> Run:
        return Run(
            model, clients, parse(method), rounds=repeats + 1, engine=engine, device=device, evaluate_every=10**9,
            batch_size=scenario.batch_size, lr=0.01, shuffle=False, prepare=chain,
        )  # fmt: skip

    run = ours_on(clients, scenario.prepare or None)
    rival = (
        ours_on(prepared(clients), None).play if scenario.prepare else loop(scenario, model.to(device), clients, method)
    )
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    ours, theirs = [], []
    for i in range(repeats + 1):
        mine, other = seconds(device, run.play), seconds(device, rival)
        if i:
            ours.append(mine)
            theirs.append(other)
    ours_s, theirs_s = statistics.median(ours), statistics.median(theirs)
    return {
        "ratio": ours_s / theirs_s,
        "seconds": ours_s,
        "plain_seconds": theirs_s,
        "peak_mb": peak_mb(device),
        "engine": run.engine.name,
    }


def peak_mb(device: str) -> float:
    """Of the process so far: on a CPU it holds the loop's peak too."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def bench(
    only: list[str] | None = None, device: str = "cpu", methods: tuple[str, ...] = PLAIN_METHODS, repeats: int = 3,
    on_result: Callable[[str, str, dict[str, Any]], None] = lambda scenario, method, found: None,
) -> dict[str, Any]:  # fmt: skip
    """The document of `normfed bench --json`."""
    names = list(SCENARIOS) if only is None else only
    for name in names:
        if name not in SCENARIOS:
            raise Refused(f"unknown scenario '{name}'; {nearest(name, SCENARIOS)}")
    document: dict[str, Any] = {"device": device, "torch": torch.__version__, "scenarios": {}}
    for name in names:
        for method in methods:
            found = measure(SCENARIOS[name], method, device=device, repeats=repeats)
            document["scenarios"].setdefault(name, {})[method] = found
            on_result(name, method, found)
    return document
