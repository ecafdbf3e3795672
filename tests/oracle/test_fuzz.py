"""Random networks, sizes, settings and compositions against `any_net`, on both engines."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.testing import largest_difference

from any_net import Federation


class Perceptron(nn.Module):
    """Unlike eps and momentum."""

    shape = (7,)

    def __init__(self):
        super().__init__()
        self.a, self.one = nn.Linear(7, 6), nn.BatchNorm1d(6)
        self.b, self.two = nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=0.3, eps=1e-3)
        self.c = nn.Linear(5, 4)

    def forward(self, x):
        return self.c(F.relu(self.two(self.b(F.relu(self.one(self.a(x)))))))


class Shortcut(nn.Module):
    """A norm layer in the shortcut; none is called bn."""

    shape = (2, 6, 6)

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.body = nn.Sequential(
            nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6), nn.Tanh(), nn.Conv2d(6, 6, 3, 1, 1), nn.BatchNorm2d(6)
        )  # fmt: skip
        self.down = nn.Sequential(nn.Conv2d(4, 6, 1, 2), nn.BatchNorm2d(6))
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = F.relu(self.stem(x))
        return self.head(F.relu(self.body(x) + self.down(x)).mean((2, 3)))


class Shared(nn.Module):
    """One norm layer under two names, used three times."""

    shape = (5,)

    def __init__(self):
        super().__init__()
        norm = nn.BatchNorm1d(6)
        self.norms = nn.ModuleList([norm, norm])
        self.i, self.m, self.o = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = torch.tanh(self.norms[1](self.m(torch.tanh(self.norms[0](self.i(x))))))
        return self.o(torch.tanh(self.norms[0](self.m(x))))


class Volume(nn.Module):
    """Three dimensions; a norm layer without gamma and beta."""

    shape = (1, 3, 4, 4)

    def __init__(self):
        super().__init__()
        self.c, self.n, self.d = nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3, affine=False), nn.Linear(3, 4)

    def forward(self, x):
        return self.d(torch.tanh(self.n(self.c(x))).mean((2, 3, 4)))


class Mixture(nn.Module):
    """A cumulative average, beside norm layers of other kinds; weights that do not train, weights that are tied."""

    shape = (3, 8)

    def __init__(self):
        super().__init__()
        self.c, self.n = nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, momentum=None)
        self.g, self.l = nn.GroupNorm(2, 4), nn.LayerNorm(4)
        self.d, self.e, self.o = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.e.weight = self.d.weight
        self.g.bias.requires_grad_(False)

    def forward(self, x):
        x = self.l(torch.tanh(self.g(torch.tanh(self.n(self.c(x))))).mean(2))
        return self.o(torch.tanh(self.e(torch.tanh(self.d(x)))))


class NoStatistics(nn.Module):
    """A norm layer that keeps none."""

    shape = (6,)

    def __init__(self):
        super().__init__()
        self.e, self.n = nn.Linear(6, 6), nn.BatchNorm1d(6, track_running_stats=False)
        self.f, self.k, self.o = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x):
        return self.o(torch.tanh(self.k(self.f(F.relu(self.n(self.e(x)))))))


NETS = [Perceptron, Shortcut, Shared, Volume, Mixture, NoStatistics]


def half(rounds):
    return rounds // 2


# name -> (rng, rounds) -> (method, what the loop is told)
METHODS = {
    "fedavg": lambda rng, rounds: (m.fedavg(), {}),
    "singleset": lambda rng, rounds: (m.singleset(), {"home": "all"}),
    "fedbn": lambda rng, rounds: (m.fedbn(), {"home": "norm"}),
    "silobn": lambda rng, rounds: (m.silobn(), {"home": "stats"}),
    "partialfed": lambda rng, rounds: (m.partialfed(), {"keep": True}),
    "fedbs": lambda rng, rounds: fedbs(rng.choice([0.05, 0.3, 10.0]), rng.choice([1, 2])),
    "fixbn": lambda rng, rounds: rng.choice([(m.fixbn(), {"frozen": half(rounds)}), (m.fixbn(1), {"frozen": 1})]),
    "fedtan": lambda rng, rounds: (m.fedtan(), {"together": "tan"}),
    "fedtan_ii": lambda rng, rounds: (m.fedtan_ii(), {"together": "tan", "until": half(rounds)}),
    "feddna": lambda rng, rounds: (m.feddna(), {"together": "dna"}),
    "greg": lambda rng, rounds: greg(rng.choice([1.0, 0.3]), rng.choice([0.1, 1.0]), rng.choice([False, True])),
    "globalstats": lambda rng, rounds: (m.globalstats(), {"table9": ("global", 1.0)}),
    "mixstats": lambda rng, rounds: (m.mixstats(0.2), {"table9": ("mix", 0.2)}),
    "ensemblestats": lambda rng, rounds: (m.ensemblestats(), {"table9": ("ensemble", 0.0)}),
    "fbn": lambda rng, rounds: (m.fbn(0.3), {"fbn": 0.3}),
    "hbn": lambda rng, rounds: (m.hbn(0.3), {"hbn": 0.3}),
}
WITH = {
    "fedprox": lambda: (m.fedprox(1.0), {"prox": 1.0}),
    "scaffold": lambda: (m.scaffold(), {"scaffold": True}),
    "agc": lambda: (m.agc(0.05), {"agc": 0.05}),
    "pooled": lambda: (m.pooled(), {"pooled": True}),
    "fedavgm": lambda: (m.fedavgm(), {"server": "avgm"}),
    "fedadam": lambda: (m.fedadam(), {"server": "adam"}),
    "fedyogi": lambda: (m.fedyogi(), {"server": "yogi"}),
}


def fedbs(eps, patience):
    return m.fedbs(0.5, eps, patience), {"bs": (0.5, eps, patience)}


def greg(*how):
    return m.greg(*how), {"greg": how}


def case(seed):
    """A network, data, a method, settings, what the loop is told."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = rng.choice(NETS)
    model = net().double()
    for p in model.parameters():
        p.data += 0.1 * torch.randn_like(p) * p.requires_grad
    sizes = [rng.choice([3, 5, 8, 9, 12, 16, 17, 20]) for _ in range(rng.randint(1, 5))]
    data = {
        f"client {k}": (
            torch.randn(n, *net.shape, dtype=torch.float64) * (1 + 0.3 * k) + 0.2 * k,
            torch.randint(4, (n,)),
        )
        for k, n in enumerate(sizes)
    }
    settings = {
        "rounds": rng.randint(1, 4), "batch_size": rng.choice([4, 8, 64]), "lr": 0.05,
        "weight_decay": rng.choice([0.0, 0.01]), "clip_norm": rng.choice([None, None, 1.0]),
        "weighting": rng.choice(["samples", "equal"]), "momentum": rng.choice([0.0, 0.0, 0.5, 0.9]),
        rng.choice(["epochs", "steps"]): rng.randint(1, 3),
    }  # fmt: skip
    settings["drop_last"] = min(sizes) >= settings["batch_size"] and rng.random() < 0.5
    method, how = METHODS[rng.choice(list(METHODS))](rng, settings["rounds"])
    for name in rng.sample(list(WITH), rng.choice([0, 0, 1, 2])):
        also, told = WITH[name]()
        method, how = method | also, {**how, **told}
    return model, data, method, settings, how, rng.choice([1.0, 0.5])


def check(seed, tolerance):
    """Compares one case; False where the methods cannot be combined."""
    model, data, method, settings, how, participation = case(seed)
    clients = {name: nf.ClientData(train=pair) for name, pair in data.items()}
    for engine in ("serial", "stacked"):
        try:
            result = nf.simulate(
                model, clients, method, shuffle=False, participation=participation, engine=engine, **settings
            )
        except nf.Refused:
            return False
        loop = Federation(model, data, **settings, **how)
        for row in result.history:
            loop.play(list(row["train_loss"]))
            for client, loss in loop.losses[-1].items():
                assert abs(row["train_loss"][client] - loss) < tolerance, (seed, engine, row["round"])
        expected = {"global": loop.global_state, **(loop.fresh() if "hbn" in how else loop.client_states())}
        for owner, found in (("global", result.global_state), *result.client_states.items()):
            assert set(found) == set(expected[owner])
            for name, tensor in expected[owner].items():
                assert found[name].dtype == tensor.dtype
                if name.endswith("num_batches_tracked") and ("fbn" in how or "hbn" in how):
                    continue  # these count what they measure
                assert largest_difference(found[name], tensor) < tolerance, (seed, engine, owner, name)
    return True


@pytest.mark.parametrize("seed", range(8))
def test_a_sample(seed):
    assert sum(check(10 * seed + i, 1e-10) for i in range(4)) >= 2


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1000, 2000, 50))
def test_many(seed):
    assert sum(check(seed + i, 1e-8) for i in range(50)) > 25  # a norm layer over three samples magnifies rounding
