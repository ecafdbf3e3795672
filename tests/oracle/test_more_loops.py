"""The methods against the loops of `plain_loops`: a norm layer used twice, several epochs, momentum, weight decay, clients
of different sizes, batches of one sample."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.testing import largest_difference, seeded, toy_federation

from plain_loops import (
    NORMS,
    Client,
    averaged,
    channels,
    course,
    fedtan,
    known,
    local,
    mean_of,
    moments,
    network,
    pooled,
    scaled,
    symmetric_kl,
)  # fmt: skip


class Twice(nn.Module):
    """`plain_loops.network` as a module: n2 is used twice, n4 stands in a shortcut."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.c1, self.n1 = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.c2, self.n2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.c3 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.c4, self.n3 = nn.Conv2d(4, 6, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(6)
        self.c5, self.n4 = nn.Conv2d(4, 6, 1, stride=2, bias=False), nn.BatchNorm2d(6)
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(6, 4)

    def forward(self, x):
        x = F.relu(self.n1(self.c1(x)))
        x = F.relu(x + self.n2(self.c3(F.relu(self.n2(self.c2(x))))))
        x = F.relu(self.n3(self.c4(x)) + self.n4(self.c5(x)))
        return self.head(self.drop(x.mean((2, 3))))


CLIENTS = toy_federation((9, 16, 14))
DATA = [c.train for c in CLIENTS.values()]
SIZES = [9, 16, 14]
SETTINGS = {"batch_size": 4, "epochs": 2, "lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "shuffle": False}
LOOP = {"batch": 4, "epochs": 2, "lr": 0.05, "momentum": 0.9, "decay": 1e-3}


def start():
    state = seeded(Twice).state_dict()
    w = {n: t.clone() for n, t in state.items() if "running" not in n and "num_batches" not in n}
    return {"w": w, "s": {n: (state[f"{n}.running_mean"], state[f"{n}.running_var"]) for n in NORMS}}


def compare(method, server, rounds, engines=("serial", "stacked"), model=Twice, **settings):
    for engine in engines:
        result = nf.simulate(seeded(model), CLIENTS, method, rounds=rounds, engine=engine, **{**SETTINGS, **settings})
        for name, tensor in server["w"].items():
            assert largest_difference(result.global_state[name], tensor) < 1e-11, name
        for name, (mean, var) in server["s"].items():
            assert largest_difference(result.global_state[f"{name}.running_mean"], mean) < 1e-11, name
            assert largest_difference(result.global_state[f"{name}.running_var"], var) < 1e-11, name
    return result


def cross_entropy(client, x, y, server, r):
    return F.cross_entropy(client.logits(x), y)


@pytest.mark.parametrize(
    ("method", "how"),
    [
        (m.fedtan(), {}),
        (m.feddna(), {"average": False}),
        (m.fedtan_ii(2), {"until": 2}),
        (m.fedtan_ii(), {"until": 1}),
    ],
    ids=["fedtan", "feddna", "fedtan_ii", "half"],
)
def test_lockstep(method, how):
    """The first step together, the others alone, one optimizer a round; FedTAN-II across its switch."""
    compare(method, fedtan(start(), DATA, rounds=3, **LOOP, **how), 3)


def test_steps_instead_of_epochs():
    """Batch 0 for the common step, then batches 1, 2, …, starting again when they end."""
    server = fedtan(start(), DATA, rounds=2, **{**LOOP, "epochs": 1})
    whole = nf.simulate(seeded(Twice), CLIENTS, m.fedtan(), rounds=2, **{**SETTINGS, "epochs": 1})
    assert largest_difference(whole.global_state["head.weight"], server["w"]["head.weight"]) < 1e-11
    one = {"a": CLIENTS["a"]}
    a = nf.simulate(seeded(Twice), one, m.fedtan(), rounds=2, **{**SETTINGS, "epochs": 1, "steps": 6})
    b = nf.simulate(seeded(Twice), one, m.fedtan(), rounds=2, **SETTINGS)
    assert largest_difference(a.global_state, b.global_state) == 0  # 3 batches, twice


@pytest.mark.parametrize("detach", [False, True])
def test_greg(detach):
    def loss(client, x, y, server, r):
        logits = client.logits(x)
        if r == 0:
            return F.cross_entropy(logits, y)
        broadcast = client.logits(x, known(server["s"]))
        return F.cross_entropy(logits, y) + 1.5 * symmetric_kl(logits, broadcast.detach() if detach else broadcast)

    compare(m.greg(1.5, 0.2, detach), local(start(), DATA, rounds=3, loss=loss, smoothing=0.2, **LOOP), 3)


def test_greg_with_dropout_and_fedprox():
    """Both passes drop the same units; the masks are read from a run and replayed."""
    masks = []

    def note(module, inputs, output):
        if output.requires_grad:
            tells = inputs[0] != 0  # of a unit that is zero anyway one cannot see whether it was dropped
            masks.append((tells, torch.where(tells, output / inputs[0], 0.0).detach()))

    def noted():
        model = Twice(0.4)
        model.drop.register_forward_hook(note)
        return model

    def run(make, engine):
        method = m.greg(rho=0.2) | m.fedprox(0.3)
        run = nf.Run(seeded(make), CLIENTS, method, rounds=2, engine=engine, **SETTINGS)
        masks.clear()  # those of the look at the model
        while not run.done:
            run.play()
        return run.result().global_state

    ours = run(noted, "serial")
    kept = iter(list(masks))

    def loss(client, x, y, server, r):
        tells, mask = next(kept)
        main = client.logits(x, drop=lambda zs: [zs[0] * mask])
        pull = 0.3 / 2 * sum((p - server["w"][n]).square().sum() for n, p in client.w.items())
        if r == 0:
            return F.cross_entropy(main, y) + pull
        tells_too, again = next(kept)
        torch.testing.assert_close(again[tells & tells_too], mask[tells & tells_too])
        second = client.logits(x, known(server["s"]), lambda zs: [zs[0] * torch.where(tells, mask, again)])
        return F.cross_entropy(main, y) + pull + symmetric_kl(main, second)

    server = local(start(), DATA, rounds=2, loss=loss, smoothing=0.2, **LOOP)
    assert next(kept, None) is None
    for name, tensor in server["w"].items():
        assert largest_difference(ours[name], tensor) < 1e-10, name
    assert largest_difference(ours, run(lambda: Twice(0.4), "stacked")) < 1e-11


@pytest.mark.parametrize("kind", ["global", "mix", "learnt", "ensemble"])
def test_the_four_alternatives_of_table_9(kind):
    server = start()
    if kind == "learnt":
        server["w"] |= {f"{n}.mix": torch.tensor(0.5, dtype=torch.float64) for n in NORMS}
    method = {
        "global": m.globalstats(), "mix": m.mixstats(0.3), "learnt": m.mixstats(learn=True), "ensemble": m.ensemblestats()
    }[kind]  # fmt: skip

    def loss(client, x, y, server, r):
        def norm(name, zs):
            (z,), (own,), (mean, var) = zs, client.batch_norm(name, zs), server["s"][name]
            if r == 0:
                return [own]
            if kind == "ensemble":
                return [(own + scaled(z, mean, var)) / 2]
            share = {"global": 1.0, "mix": 0.3}.get(kind) if kind != "learnt" else client.w[f"{name}.mix"].clamp(0, 1)
            return [scaled(z, *((1 - share) * a + share * b for a, b in zip(moments(z), (mean, var), strict=True)))]

        return F.cross_entropy(client.logits(x, norm), y)

    compare(method, local(server, DATA, rounds=3, loss=loss, **LOOP), 3)


def test_fixbn_leaves_dropout_on():
    """In its second stage norm layers are frozen; dropout goes on dropping, unlike in the HBN repository's port."""
    seen = []

    def note(module, inputs, output):
        if output.requires_grad:
            seen.append(not torch.equal(inputs[0], output))

    def make():
        model = Twice(0.5)
        model.drop.register_forward_hook(note)
        return model

    run = nf.Run(seeded(make), CLIENTS, m.fixbn(1), rounds=3, engine="serial", **SETTINGS)
    seen.clear()  # what the look at the model drew
    while not run.done:
        run.play()
    assert len(seen) == 3 * 2 * (3 + 4 + 4) and sum(seen) > 0.9 * len(seen)

    def loss(client, x, y, server, r):
        return F.cross_entropy(client.logits(x, None if r < 1 else known(server["s"])), y)

    compare(m.fixbn(), local(start(), DATA, rounds=3, loss=loss, **LOOP), 3)


def measured(w, statistics, x, batch):
    """Exact moments of every layer's values over one pass in batches, normalised by `norm(w, …)` of HBN."""
    found = {n: [] for n in NORMS}

    def norm(name, zs):
        (z,) = zs
        found[name].append((z.numel() // z.shape[1], *moments(z)))
        return hybrid(w, statistics)(name, zs)

    with torch.no_grad():
        for part in x.split(batch):
            network([w], [part], norm)
    out = {}
    for name, values in found.items():
        total = sum(n for n, _, _ in values)
        mean = sum(n * a for n, a, _ in values) / total
        out[name] = (mean, sum(n * (v + (a - mean) ** 2) for n, a, v in values) / total)
    return out


def hybrid(w, statistics):
    def norm(name, zs):
        a = torch.sigmoid(w[f"{name}.distribution_factor"])
        return [
            scaled(z, *((1 - a) * g + a * b for g, b in zip(statistics[name], moments(z), strict=True))) for z in zs
        ]

    return norm


def test_hbn():
    """A layer used twice is measured over the values of both calls; each value counts once."""
    server = start()
    names = [f"{n}.distribution_factor" for n in NORMS]
    server["w"] |= {f"{n}.distribution_factor": torch.zeros_like(server["w"][f"{n}.bias"]) for n in NORMS}
    own = [{n: server["w"][n] for n in names} for _ in DATA]
    for _ in range(3):
        clients = [Client(server, 0.05, 0.9, 1e-3) for _ in DATA]
        seen = []
        for k, (client, (x, y)) in enumerate(zip(clients, DATA, strict=True)):
            client.w |= {n: t.clone().requires_grad_() for n, t in own[k].items()}
            seen.append(measured(client.trained(), server["s"], x, 4))
            for a, b in course(x, y, 4, 2):
                client.step(client.gradients(F.cross_entropy(client.logits(a, hybrid(client.w, server["s"])), b)))
            own[k] = {n: client.w[n].detach() for n in names}
        new = {n: pooled([(size, *one[n]) for size, one in zip(SIZES, seen, strict=True)]) for n in NORMS}
        moved = {n: tuple(0.75 * a + 0.25 * b for a, b in zip(server["s"][n], new[n], strict=True)) for n in NORMS}
        server = {"w": mean_of([c.trained() for c in clients], SIZES), "s": moved}
    result = compare(m.hbn(smoothing=0.25), server, 3)
    fresh = [measured({**server["w"], **own[k]}, server["s"], x, 4) for k, (x, _) in enumerate(DATA)]
    for n in NORMS:
        mean, var = pooled([(size, *one[n]) for size, one in zip(SIZES, fresh, strict=True)])
        for k, state in enumerate(result.client_states.values()):
            assert largest_difference(state[f"{n}.running_mean"], mean) < 1e-11
            assert largest_difference(state[f"{n}.running_var"], var) < 1e-11
            assert largest_difference(state[f"{n}.distribution_factor"], own[k][f"{n}.distribution_factor"]) < 1e-11


def test_fbn():
    """The port in HBN's repository: the plain average over batches and calls; variance about the smoothed mean, N - 1."""
    server = start()
    for _ in range(3):
        clients = [Client(server, 0.05, 0.9, 1e-3) for _ in DATA]
        seen = [{n: [] for n in NORMS} for _ in DATA]
        for client, (x, y), found in zip(clients, DATA, seen, strict=True):

            def norm(name, zs, found=found, s=server["s"]):
                found[name].append(tuple(t.detach() for t in moments(zs[0])))
                return known(s)(name, zs)

            for a, b in course(x, y, 4, 2):
                client.step(client.gradients(F.cross_entropy(client.logits(a, norm), b)))
        new = {}
        for n in NORMS:
            old_mean, old_var = server["s"][n]
            values = [
                (size, *(torch.stack(part).mean(0) for part in zip(*one[n], strict=True)))
                for size, one in zip(SIZES, seen, strict=True)
            ]
            mean, var = pooled(values, about=lambda a, old=old_mean: 0.1 * a + 0.9 * old)
            new[n] = (mean, 0.1 * var + 0.9 * old_var)
        server = {"w": mean_of([c.trained() for c in clients], SIZES), "s": new}
    compare(m.fbn(), server, 3)


@pytest.mark.parametrize("counter", [0, 15_000])
def test_batchrenorm(counter):
    """Its counter opens the clips and is carried by the global model; the server averages squares."""
    run = nf.Run(seeded(Twice), CLIENTS, m.batchrenorm(), rounds=2, engine="stacked", **SETTINGS)
    model = {n: t + counter if n.endswith("num_batches_tracked") else t for n, t in run.state.model.items()}
    run.state = dataclasses.replace(run.state, model=model)
    run.play()
    run.play()
    server, count = start(), dict.fromkeys(NORMS, counter)
    for _ in range(2):
        clients = [Client(server, 0.05, 0.9, 1e-3) for _ in DATA]
        counts = []
        for client, (x, y) in zip(clients, DATA, strict=True):
            seen = dict(count)

            def norm(name, zs, client=client, seen=seen):
                (z,), (mean, std) = zs, client.s[name]
                mean_b, var_b = moments(z)
                std_b = var_b.sqrt() + 1e-3
                rmax = min(max(2 / 35000 * seen[name] + 25 / 35, 1.0), 3.0)
                dmax = min(max(5 / 20000 * seen[name] - 25 / 20, 0.0), 5.0)
                r = (std_b / std).detach().clamp(1 / rmax, rmax)
                d = ((mean_b - mean) / std).detach().clamp(-dmax, dmax)
                client.s[name] = (mean + 0.01 * (mean_b - mean).detach(), std + 0.01 * (std_b - std).detach())
                seen[name] += 1
                return [(z - channels(mean_b)) / channels(std_b) * channels(r) + channels(d)]

            for a, b in course(x, y, 4, 2):
                client.step(client.gradients(F.cross_entropy(client.logits(a, norm), b)))
            counts.append(seen)
        count = {n: max(c[n] for c in counts) for n in NORMS}
        server = averaged(clients, SIZES)
        for n in NORMS:
            squares = mean_of([c.s[n][1].square() for c in clients], SIZES)
            server["s"][n] = (server["s"][n][0], squares.sqrt())
    ours = run.result().global_state
    for name, tensor in server["w"].items():
        assert largest_difference(ours[name], tensor) < 1e-10, name
    for name, (mean, std) in server["s"].items():
        assert largest_difference(ours[f"{name}.running_mean"], mean) < 1e-10
        assert largest_difference(ours[f"{name}.running_std"], std) < 1e-10
        assert ours[f"{name}.num_batches_tracked"] == count[name]


@pytest.mark.parametrize("threshold", [None, 0.03])
def test_fedwon(threshold):
    """No norm layers; standardised weights with a gain; rows of gradients clipped, classifier and its bias left alone."""
    server = start()
    w = {n: t for n, t in server["w"].items() if not n.startswith("n")}
    convolutions = [f"c{i}" for i in range(1, 6)]
    for c in convolutions:
        out = len(w[f"{c}.weight"])
        w |= {f"{c}.gain": torch.ones(out, 1, 1, 1, dtype=torch.float64)}
        w.setdefault(f"{c}.bias", torch.zeros(out, dtype=torch.float64))
    server = {"w": w, "s": {}}

    def standardised(w):
        found = dict(w)
        for c in convolutions:
            rows = w[f"{c}.weight"].flatten(1)
            n = rows.shape[1]
            var = rows.var(1, keepdim=True, correction=1)
            hat = (rows - rows.mean(1, keepdim=True)) / (var * n).clamp(min=1e-4).sqrt()
            found[f"{c}.weight"] = hat.view_as(w[f"{c}.weight"]) * w[f"{c}.gain"]
        return found

    def clipped(name, g, p):
        if threshold is None or name.startswith("head"):
            return g
        rows, weights = (t.flatten(1) if t.squeeze().dim() > 1 else t.reshape(1, -1) for t in (g, p))
        norm, limit = rows.norm(dim=1, keepdim=True), threshold * weights.norm(dim=1, keepdim=True).clamp(min=1e-3)
        return torch.where(norm > limit, rows * limit / norm.clamp(min=1e-6), rows).view_as(g)

    for _ in range(2):
        clients = [Client(server, 0.05, 0.9, 1e-3) for _ in DATA]
        for client, (x, y) in zip(clients, DATA, strict=True):
            for a, b in course(x, y, 4, 2):
                loss = F.cross_entropy(network([standardised(client.w)], [a], lambda name, zs: zs)[0], b)
                grads = client.gradients(loss)
                client.step({n: clipped(n, g, client.w[n].detach()) for n, g in grads.items()})
        server = averaged(clients, SIZES)
    compare(m.fedwon(agc=threshold), server, 2)


def test_fedprox_draws_what_stays_at_home_to_where_the_round_began():
    """Under FedBN no one sends gamma and beta: the client's own are the ones it began with."""
    own = [start() for _ in DATA]
    server = start()
    at_home = [n for n in server["w"] if n.startswith("n")]
    for _ in range(2):
        clients = []
        for home, (x, y) in zip(own, DATA, strict=True):
            begun = {"w": {**server["w"], **{n: home["w"][n] for n in at_home}}, "s": home["s"]}
            client = Client(begun, 0.05, 0.9, 1e-3)
            for a, b in course(x, y, 4, 2):
                pull = 0.5 * sum((p - begun["w"][n]).square().sum() for n, p in client.w.items())
                client.step(client.gradients(F.cross_entropy(client.logits(a), b) + pull))
            clients.append(client)
        own = [{"w": c.trained(), "s": c.s} for c in clients]
        server = {"w": mean_of([c.trained() for c in clients], SIZES), "s": server["s"]}
    result = nf.simulate(seeded(Twice), CLIENTS, m.fedbn() | m.fedprox(1.0), rounds=2, **SETTINGS)
    for home, state in zip(own, result.client_states.values(), strict=True):
        for name, tensor in server["w"].items():
            expected = home["w"][name] if name in at_home else tensor
            assert largest_difference(state[name], expected) < 1e-11, name


@pytest.mark.parametrize("name", ["fedbn", "silobn", "singleset"])
def test_what_stays_at_home(name):
    """FedBN: norm layers; SiloBN: their statistics; SingleSet: everything."""
    home = [start() for _ in DATA]
    server = start()
    kept = {"fedbn": lambda n: n.startswith("n"), "silobn": lambda n: False, "singleset": lambda n: True}[name]
    for _ in range(2):
        clients = []
        for own, (x, y) in zip(home, DATA, strict=True):
            mixed = {n: own["w"][n] if kept(n) else t for n, t in server["w"].items()}
            client = Client({"w": mixed, "s": own["s"]}, 0.05, 0.9, 1e-3)
            for a, b in course(x, y, 4, 2):
                client.step(client.gradients(cross_entropy(client, a, b, server, 0)))
            clients.append(client)
        home = [{"w": c.trained(), "s": c.s} for c in clients]
        server = averaged(clients, SIZES)
    result = nf.simulate(seeded(Twice), CLIENTS, getattr(m, name)(), rounds=2, **SETTINGS)
    for own, state in zip(home, result.client_states.values(), strict=True):
        for n in server["w"]:
            assert largest_difference(state[n], (own if kept(n) else server)["w"][n]) < 1e-11, n
        for n in NORMS:
            assert largest_difference(state[f"{n}.running_var"], own["s"][n][1]) < 1e-11
    initial = start()  # what stays at home keeps its first value on the server
    assert all(torch.equal(result.global_state[n], t) for n, t in initial["w"].items() if kept(n))


def test_partialfed():
    """Everything is averaged; each client goes on, and evaluates, with its own of what it keeps."""
    server, own = start(), [None] * 3
    for _ in range(3):
        clients = []
        for k, (x, y) in enumerate(DATA):
            begun = {"w": {**server["w"], **(own[k] or {})}, "s": server["s"]}
            client = Client(begun, 0.05, 0.9, 1e-3)
            for a, b in course(x, y, 4, 2):
                client.step(client.gradients(F.cross_entropy(client.logits(a), b)))
            own[k] = {n: t for n, t in client.trained().items() if n.startswith("head")}
            clients.append(client)
        server = averaged(clients, SIZES)
    result = compare(m.partialfed("under('head')"), server, 3)
    for k, state in enumerate(result.client_states.values()):
        assert largest_difference(state["head.weight"], own[k]["head.weight"]) < 1e-11
        assert largest_difference(state["c1.weight"], server["w"]["c1.weight"]) < 1e-11


def test_partialfed_adaptive():
    """The choice has the value of the chosen weights and the gradient of the relaxed one."""
    layers = {"c1": 0, "n1": 1, "c2": 2, "n2": 3, "c3": 4, "c4": 5, "n3": 6, "c5": 7, "n4": 8, "head": 9}
    server = start()
    gates = [torch.zeros(10, dtype=torch.float64) for _ in DATA]
    mine = [{"w": dict(server["w"]), "s": dict(server["s"])} for _ in DATA]
    for _ in range(4):
        clients = []
        for k, (x, y) in enumerate(DATA):
            open_ = {name: bool(gates[k][i] >= 0) for name, i in layers.items()}
            begun = {
                "w": {n: (server if open_[n.split(".")[0]] else mine[k])["w"][n] for n in server["w"]},
                "s": {n: (server if open_[n] else mine[k])["s"][n] for n in NORMS},
            }
            client = Client(begun, 0.05, 0.9, 1e-3)
            client.w["gates"] = gates[k].clone().requires_grad_()
            client.velocity["gates"] = torch.zeros_like(gates[k])
            for a, b in course(x, y, 4, 2):
                soft = torch.sigmoid(client.w["gates"])
                relaxed = {
                    n: p + (soft - soft.detach())[layers[n.split(".")[0]]] * (server["w"][n] - mine[k]["w"][n])
                    for n, p in client.w.items()
                    if n != "gates"
                }
                loss = F.cross_entropy(network([relaxed], [a], client.batch_norm)[0], b)
                client.step(client.gradients(loss))
            gates[k] = client.w.pop("gates").detach()
            mine[k] = {"w": client.trained(), "s": client.s}
            clients.append(client)
        server = averaged(clients, SIZES)
    result = compare(m.partialfed_adaptive(), server, 4)
    for k, state in enumerate(result.client_states.values()):
        assert largest_difference(state["partialfed_gates"], gates[k]) < 1e-11
    assert any((g < 0).any() for g in gates)  # someone has kept a layer


def test_fedrdn_draws_mean_and_std_apart_and_once_per_batch():
    made, seen = m.fedrdn(), []
    (inject,) = made.batch

    def noted(x, y, step):
        changed, y = inject(x, y, step)
        bank = step.slots["bank"]
        drawn = [
            (j, k)
            for j, k in itertools.product(range(3), repeat=2)
            if torch.allclose((x - channels(bank["mean"][j])) / channels(bank["std"][k]), changed)
        ]
        seen.append(drawn)
        return changed, y

    method = dataclasses.replace(made, batch=(noted,))
    run = nf.Run(seeded(Twice), CLIENTS, method, rounds=4, engine="serial", **SETTINGS)
    while not run.done:
        run.play()
    assert all(len(drawn) == 1 for drawn in seen)  # one pair for the whole batch
    assert {drawn[0] for drawn in seen} == set(itertools.product(range(3), repeat=2))  # the two may differ
    for k, (x, _) in enumerate(DATA):
        images = [(image.mean((1, 2)), image.flatten(1).std(1, correction=1)) for image in x]
        for name, part in zip(("mean", "std"), zip(*images, strict=True), strict=True):
            torch.testing.assert_close(run.state.slots["fedrdn"]["bank"][name][k], torch.stack(part).mean(0))


def test_fedplvm_prototypes():
    """Clustered by scikit-learn's distances and SciPy's components: features of the trained model in evaluation mode,
    class by class, on the client and again on the server; the coarsest partition that is not one cluster."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components
    from sklearn.metrics import pairwise_distances

    def level(points):
        distance = pairwise_distances(points.numpy(), metric="cosine")
        distance[range(len(points)), range(len(points))] = torch.inf
        links = coo_matrix(([1] * len(points), (range(len(points)), distance.argmin(1))), shape=distance.shape)
        return torch.as_tensor(connected_components(links, directed=False)[1])

    def means(points, labels):
        return torch.stack([points[labels == c].mean(0) for c in labels.unique()])

    def coarsest(points):
        labels = level(points) if len(points) > 1 else torch.zeros(1, dtype=torch.long)
        while len(labels.unique()) > 1:
            _, labels = labels.unique(return_inverse=True)
            coarser = level(means(points, labels))[labels]
            if len(coarser.unique()) in (1, len(labels.unique())):
                break
            labels = coarser
        return means(points, labels)

    run = nf.Run(seeded(Twice), CLIENTS, m.fedplvm(), rounds=1, **SETTINGS)
    run.play()
    clients = [Client(start(), 0.05, 0.9, 1e-3) for _ in DATA]
    collected = {}
    for client, (x, y) in zip(clients, DATA, strict=True):
        for a, b in course(x, y, 4, 2):
            client.step(client.gradients(cross_entropy(client, a, b, None, 0)))
        seen = []
        client.logits(x, known(client.s), lambda zs, seen=seen: seen.append(zs[0].detach()) or zs)
        for c in y.unique().tolist():
            collected.setdefault(c, []).append(coarsest(seen[0][y == c]))
    found = run.state.slots["fedplvm"]["prototypes"]
    for c, parts in collected.items():
        expected, ours = coarsest(torch.cat(parts)), found["vectors"][found["labels"] == c]
        assert len(ours) == len(expected)
        nearest = torch.cdist(expected, ours).min(1).values
        assert nearest.max() < 1e-11
    assert set(found["labels"].tolist()) == set(collected)


def test_fedplvm_sees_what_evaluation_sees_under_fedrdn():
    """Its features are those of samples normalised as in evaluation, with the client's own statistics."""
    seen = []
    made = m.fedplvm()
    (gather,) = made.gather
    noted = dataclasses.replace(gather, make=lambda alone: seen.append(alone.x) or gather.make(alone))
    nf.simulate(seeded(Twice), CLIENTS, dataclasses.replace(made, gather=(noted,)) | m.fedrdn(), rounds=1, **SETTINGS)
    for x, (raw, _) in zip(seen, DATA, strict=True):
        std = raw.flatten(2).std(2, correction=1).mean(0)
        torch.testing.assert_close(x, (raw - channels(raw.mean((0, 2, 3)))) / channels(std))
