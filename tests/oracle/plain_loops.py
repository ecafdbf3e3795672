"""Federated loops written from the papers with torch alone: a residual network that uses one norm layer twice.

Everything is over lists of clients, so that a lock-step is a list longer than one. `norm(name, zs)` normalises; gamma
and beta are applied here.
"""

import torch
import torch.nn.functional as F

EPS, RHO = 1e-5, 0.1
NORMS = ("n1", "n2", "n3", "n4")


def network(ws, xs, norm, drop=lambda zs: zs):
    def conv(name, zs, **how):
        return [F.conv2d(z, w[f"{name}.weight"], w.get(f"{name}.bias"), **how) for w, z in zip(ws, zs, strict=True)]

    def bn(name, zs):
        normed = norm(name, zs)
        if f"{name}.weight" not in ws[0]:
            return normed
        return [
            z * channels(w[f"{name}.weight"]) + channels(w[f"{name}.bias"]) for w, z in zip(ws, normed, strict=True)
        ]

    def relu(zs):
        return [F.relu(z) for z in zs]

    def plus(one, other):
        return [a + b for a, b in zip(one, other, strict=True)]

    x = relu(bn("n1", conv("c1", xs, padding=1)))
    y = bn("n2", conv("c3", relu(bn("n2", conv("c2", x, padding=1))), padding=1))
    x = relu(plus(x, y))
    x = relu(plus(bn("n3", conv("c4", x, stride=2, padding=1)), bn("n4", conv("c5", x, stride=2))))
    x = drop([z.mean((2, 3)) for z in x])
    return [F.linear(z, w["head.weight"], w["head.bias"]) for w, z in zip(ws, x, strict=True)]


def channels(v):
    return v.view(1, -1, 1, 1)


def moments(z):
    return z.mean((0, 2, 3)), z.var((0, 2, 3), correction=0)


def scaled(z, mean, var):
    return (z - channels(mean)) / (channels(var) + EPS).sqrt()


def known(statistics):
    """A norm that takes given statistics as they are."""
    return lambda name, zs: [scaled(z, *statistics[name]) for z in zs]


class Client:
    """A client's round: own copies of weights and statistics, a new optimizer."""

    def __init__(self, server, lr, momentum=0.0, decay=0.0):
        self.w = {n: t.clone().requires_grad_() for n, t in server["w"].items()}
        self.s = {n: tuple(t.clone() for t in pair) for n, pair in server["s"].items()}
        self.lr, self.momentum, self.decay = lr, momentum, decay
        self.velocity = {n: torch.zeros_like(t) for n, t in self.w.items()}

    def move(self, name, mean, unbiased):
        self.s[name] = tuple(
            (1 - RHO) * old + RHO * new.detach() for old, new in zip(self.s[name], (mean, unbiased), strict=True)
        )

    def batch_norm(self, name, zs):
        (z,) = zs
        mean, var = moments(z)
        n = z.numel() // z.shape[1]
        self.move(name, mean, var * n / (n - 1))
        return [scaled(z, mean, var)]

    def logits(self, x, norm=None, drop=lambda zs: zs):
        return network([self.w], [x], norm or self.batch_norm, drop)[0]

    def gradients(self, loss, **how):
        grads = torch.autograd.grad(loss, list(self.w.values()), allow_unused=True, **how)
        return {n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(self.w.items(), grads, strict=True)}

    def step(self, grads):
        with torch.no_grad():
            for n, p in self.w.items():
                self.velocity[n] = self.momentum * self.velocity[n] + grads[n] + self.decay * p
                p -= self.lr * self.velocity[n]

    def trained(self):
        return {n: p.detach().clone() for n, p in self.w.items()}


def course(x, y, batch, epochs):
    return [pair for _ in range(epochs) for pair in zip(x.split(batch), y.split(batch), strict=True)]


def mean_of(values, p):
    if isinstance(values[0], dict):
        return {n: mean_of([v[n] for v in values], p) for n in values[0]}
    if isinstance(values[0], tuple):
        return tuple(mean_of(list(part), p) for part in zip(*values, strict=True))
    return sum(q * v for q, v in zip(p, values, strict=True)) / sum(p)


def averaged(clients, p):
    return {"w": mean_of([c.trained() for c in clients], p), "s": mean_of([c.s for c in clients], p)}


def lockstep(clients, pairs, p, average):
    """Algorithms 2 and 3. With weights p_i, the gradient of sum_j p_j F_j by client i's copy, over p_i; without
    Algorithm 3 each client has the gradient of its own loss, through its own statistics about the common mean."""
    moved = []

    def common(name, zs):
        mean = sum(q * z.mean((0, 2, 3)) for q, z in zip(p, zs, strict=True))
        var = sum(q * (z - channels(mean)).square().mean((0, 2, 3)) for q, z in zip(p, zs, strict=True))
        values = sum(z.numel() // z.shape[1] for z in zs)
        moved.append((name, mean, var * values / (values - 1)))
        if average:
            return [scaled(z, mean, var) for z in zs]
        out = []
        for z in zs:
            own = z.mean((0, 2, 3))
            spread = (z - channels(mean.detach())).square().mean((0, 2, 3))
            out.append(scaled(z, own + (mean - own).detach(), spread + (var - spread).detach()))
        return out

    logits = network([c.w for c in clients], [x for x, _ in pairs], common)
    losses = [F.cross_entropy(z, y) for z, (_, y) in zip(logits, pairs, strict=True)]
    total = sum(q * loss for q, loss in zip(p, losses, strict=True))
    grads = [
        {n: g / q for n, g in c.gradients(total, retain_graph=True).items()} if average
        else c.gradients(loss, retain_graph=True)
        for c, q, loss in zip(clients, p, losses, strict=True)
    ]  # fmt: skip
    for client, g in zip(clients, grads, strict=True):
        client.step(g)
        for name, mean, unbiased in moved:
            client.move(name, mean, unbiased)


def fedtan(server, data, batch, rounds, epochs, lr, momentum, decay, average=True, until=None):
    """FedTAN; with average=False FedAvg + Algorithm 2; with `until` FedTAN-II."""
    sizes = [len(x) for x, _ in data]
    p = [n / sum(sizes) for n in sizes]
    for r in range(rounds):
        clients = [Client(server, lr, momentum, decay) for _ in data]
        paths = [course(x, y, batch, epochs) for x, y in data]
        frozen = until is not None and r >= until
        if not frozen:
            lockstep(clients, [path[0] for path in paths], p, average)
        for client, path in zip(clients, paths, strict=True):
            for x, y in path if frozen else path[1:]:
                logits = client.logits(x, known(server["s"]) if frozen else None)
                client.step(client.gradients(F.cross_entropy(logits, y)))
        server = averaged(clients, p)
    return server


def local(server, data, batch, rounds, epochs, lr, momentum, decay, loss, smoothing=1.0):
    """FedAvg with `loss(client, x, y, server, round)`; statistics S <- (1 - smoothing) S + smoothing S_new."""
    for r in range(rounds):
        clients = [Client(server, lr, momentum, decay) for _ in data]
        for client, (x, y) in zip(clients, data, strict=True):
            for pair in course(x, y, batch, epochs):
                client.step(client.gradients(loss(client, *pair, server, r)))
        new = averaged(clients, [len(x) for x, _ in data])
        old = server["s"]
        new["s"] = {
            n: tuple((1 - smoothing) * a + smoothing * b for a, b in zip(old[n], new["s"][n], strict=True)) for n in old
        }
        server = new
    return server


def symmetric_kl(a, b):
    a, b = F.log_softmax(a, 1), F.log_softmax(b, 1)
    return sum((one.exp() * (one - other)).sum(1).mean() for one, other in ((a, b), (b, a))) / 2


def pooled(values, about=None):
    """[(n, mean, var)] -> mean, and variance about it (or what `about` makes of it) over N - 1."""
    total = sum(n for n, _, _ in values)
    mean = sum(n * m for n, m, _ in values) / total
    centre = mean if about is None else about(mean)
    return centre, sum(n * (v + (m - centre) ** 2) for n, m, v in values) / (total - 1)
