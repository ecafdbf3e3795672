"""For those who write methods: small federations and nets, and `check_method`, the contract of a method as code.

from normfed.testing import check_method
check_method(my_method(0.1))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normfed.data.store import ClientData
from normfed.experiment import Result, Run, simulate
from normfed.keys import fold, integers, normal
from normfed.method import Expression
from normfed.state import Scope

TOLERANCE = 1e-12  # between engines, in float64


def toy_federation(
    sizes: Sequence[int] = (9, 16, 13),
    shape: Sequence[int] = (3, 6, 6),
    classes: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, ClientData]:
    """Clients named 'a', 'b', … whose inputs differ in scale and offset, and whose labels can be learnt."""
    clients = {}
    for k, n in enumerate(sizes):
        key = fold(seed, "toy", k)
        pairs = []
        for split, count in (("train", n), ("test", 8)):
            y = integers(fold(key, split, "y"), (count,), classes)
            x = normal(fold(key, split, "x"), (count, *shape), torch.float64)
            prototype = normal(fold(seed, "prototype"), (classes, *shape), torch.float64)
            pairs.append((((x + 2 * prototype[y]) * (0.5 + 0.5 * k) + 0.4 * k).to(dtype), y))
        clients[chr(ord("a") + k)] = ClientData(train=pairs[0], test=pairs[1])
    return clients


class ResidualNet(nn.Module):
    """Three norm layers, none with a telling name, one of them in the shortcut of a residual block."""

    def __init__(self, channels: int = 3, classes: int = 4, width: int = 4) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.main = nn.Sequential(nn.Conv2d(width, 6, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.shortcut = nn.Sequential(nn.Conv2d(width, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6))
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.relu(self.main(x) + self.shortcut(x)).mean((2, 3)))


def toy_mlp(features: int = 6, classes: int = 4, dropout: float = 0.0) -> nn.Module:
    """BatchNorm on vectors: a batch of one sample cannot be normalised here."""
    return nn.Sequential(
        nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 5), nn.BatchNorm1d(5),
        nn.ReLU(), nn.Linear(5, classes),
    )  # fmt: skip


def seeded(make: Callable[[], nn.Module], seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model whose weights depend on the seed alone; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().to(dtype)


def largest_difference(a: Any, b: Any) -> float:
    """Between two nested mappings of tensors or numbers; raises where their structure differs."""
    if isinstance(a, Mapping):
        if set(a) != set(b):
            raise AssertionError(f"different names: {sorted(set(a) ^ set(b))}")
        return max((largest_difference(a[name], b[name]) for name in a), default=0.0)
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise AssertionError(f"{tuple(a.shape)} of {a.dtype} against {tuple(b.shape)} of {b.dtype}")
    if torch.equal(a, b):
        return 0.0
    return float((a.double() - b.double()).abs().max())


def difference(a: Result, b: Result) -> float:
    """Between two results: global state, every client's state, training losses."""
    return max(
        largest_difference(a.global_state, b.global_state),
        largest_difference(a.client_states, b.client_states),
        *(largest_difference(x["train_loss"], y["train_loss"]) for x, y in zip(a.history, b.history, strict=True)),
    )


def same_bits(a: Result, b: Result) -> bool:
    return difference(a, b) == 0.0


def check_method(
    method: Expression,
    model: Callable[[], nn.Module] = ResidualNet,
    clients: Mapping[str, ClientData] | None = None,
    rounds: int = 4,
    tolerance: float = TOLERANCE,
    engines: Sequence[str] = ("serial", "stacked"),
    **settings: Any,
) -> Result:
    """Asserts what every method owes its users; returns the serial run.

    Rebuilt from its text it is equal, where its factories have a line in the registry; it changes neither model nor
    data; it draws nothing from global generators; what it declares LOCAL never reaches the global state; every engine
    gives the same numbers; cut at any round and resumed from bytes, it ends in the same bits.
    """
    from normfed.expression import parse
    from normfed.methods import METHODS

    clients = toy_federation() if clients is None else clients
    chosen: dict[str, Any] = {"rounds": rounds, "batch_size": 4, "lr": 0.05, "seed": 7, **settings}
    net = seeded(model)
    before = copy.deepcopy(net.state_dict())
    data = {name: (c.train[0].clone(), c.train[1].clone()) for name, c in clients.items()}

    if all(call.identity is None and call.factory in METHODS for call in method.calls):
        assert parse(str(method)) == method, f"{method} does not read back from its text"

    generator = torch.get_rng_state()
    reference = simulate(net, clients, method, engine="serial", **chosen)
    assert torch.equal(generator, torch.get_rng_state()), f"{method} draws from torch's global generator"
    assert largest_difference(before, net.state_dict()) == 0, f"{method} changes the model it is given"
    for name, (x, y) in data.items():
        assert torch.equal(x, clients[name].train[0]) and torch.equal(y, clients[name].train[1]), (
            f"{method} changes data"
        )

    run = Run(net, clients, method, engine="serial", **chosen)
    for name in run.plan.first.local:
        if all(phase.scope[name] is Scope.LOCAL for phase in run.plan.phases.values()):
            unmoved = torch.equal(reference.global_state[name], run.plan.net.initial[name])
            assert unmoved, f"{method} declares '{name}' local and it reached the server"

    for engine in engines:
        other = simulate(net, clients, method, engine=engine, **chosen)
        gap = difference(reference, other)
        assert gap <= tolerance, f"{method}: engine '{engine}' is {gap:.1e} away from serial"

    saved = [run.save()]
    while not run.done:
        run.play()
        saved.append(run.save())
    for cut, data_so_far in enumerate(saved):
        again = Run(net, clients, method, engine="serial", resume=data_so_far, **chosen)
        while not again.done:
            again.play()
        assert again.save() == saved[-1], f"{method}: cut after round {cut} and resumed, it ends elsewhere"
    return reference
