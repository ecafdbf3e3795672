"""One loop for (nearly) all methods, on any network: stock layers of torch, in-place statistics, `torch.optim`, written
from the papers and the contract alone. What a composition of methods comes to is said by keywords:

    home        "norm", "stats" or "all": what stays with the clients        keep    norm layers are not loaded (PartialFed)
    prox        mu of the proximal term                                      scaffold, pooled
    agc         threshold of adaptive clipping                               greg    (alpha, rho, detach)
    frozen      the round from which statistics are frozen                   table9  ("global", "mix" or "ensemble", weight)
    together    "tan" or "dna": the first step in lock-step                  until   the round in which that ends
    fbn, hbn    smoothing                                                    bs      (mu, eps, patience)
    server      "avgm", "adam" or "yogi"
"""

import copy
import functools

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def norms(model):
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]


def entries(model, wanted):
    """Names of the state of the norm layers, aliases too."""
    layers = model.named_modules(remove_duplicate=False)
    return {f"{n}.{k}" for n, layer in layers if isinstance(layer, _BatchNorm) for k in layer.state_dict() if wanted(k)}


def statistic(attribute):
    return attribute in ("running_mean", "running_var", "num_batches_tracked")


def drive(model, norm):
    """From now on `norm(layer, name, x)` is what its norm layers do."""
    for name, layer in norms(model):
        layer.forward = functools.partial(norm, layer, name)


def moments(x):
    dims = [d for d in range(x.dim()) if d != 1]
    return x.mean(dims), x.var(dims, correction=0)


def values(x):
    return x.numel() // x.shape[1]


def scaled(layer, x, mean, var):
    shape = (1, -1, *[1] * (x.dim() - 2))
    y = (x - mean.view(shape)) / torch.sqrt(var.view(shape) + layer.eps)
    return y if layer.weight is None else y * layer.weight.view(shape) + layer.bias.view(shape)


def move(layer, mean, unbiased):
    """What stock BatchNorm writes."""
    layer.num_batches_tracked += 1
    factor = layer.momentum if layer.momentum is not None else 1 / layer.num_batches_tracked.item()
    for buffer, new in ((layer.running_mean, mean), (layer.running_var, unbiased)):
        buffer.copy_((1 - factor) * buffer + factor * new.detach())


def one_value(model, x):
    """Whether a norm layer of the model sees one value per channel of this batch."""
    seen, probe = [], copy.deepcopy(model)
    drive(probe, lambda layer, name, z: seen.append(values(z)) or z)
    with torch.no_grad():
        probe(x)
    return 1 in seen


def batches(model, pair, how):
    """The batches of a round: consecutive slices, the short last one kept or dropped, unusable ones left out."""
    size = how["batch_size"]
    parts = list(zip(pair[0].split(size), pair[1].split(size), strict=True))
    if how.get("drop_last"):
        parts = [p for p in parts if len(p[1]) == size]
    parts = [p for p in parts if not one_value(model, p[0])]
    if how.get("steps"):
        return [parts[i % len(parts)] for i in range(how["steps"])]
    return parts * how.get("epochs", 1)


def optimizer(model, how):
    chosen = [p for p in model.parameters() if p.requires_grad]
    if how.get("optimizer") == "adamw":
        return torch.optim.AdamW(chosen, how["lr"], weight_decay=how.get("weight_decay", 0.0))
    return torch.optim.SGD(chosen, how["lr"], how.get("momentum", 0.0), weight_decay=how.get("weight_decay", 0.0))


def distance(model, anchor):
    return sum((p - anchor[n]).square().sum() for n, p in model.named_parameters() if p.requires_grad)


def consistency(model, sent, logits, x, alpha, rho, detach):
    """GReg: the same weights under the statistics that were sent."""
    drive(model, lambda layer, name, z: scaled(layer, z, *given(sent, name, layer, z)))
    known = model(x)
    release(model)
    a, b = F.log_softmax(logits, 1), F.log_softmax(known.detach() if detach else known, 1)
    return alpha * sum((p.exp() * (p - q)).sum(1).mean() for p, q in ((a, b), (b, a))) / 2


def release(model):
    for _, layer in norms(model):
        layer.__dict__.pop("forward", None)


def given(state, name, layer, x):
    """A layer without statistics has its batch's always."""
    return moments(x) if layer.running_mean is None else (state[f"{name}.running_mean"], state[f"{name}.running_var"])


def alternative(sent, kind, weight, layer, name, x):
    """Table 9 of GReg."""
    own, known = moments(x), given(sent, name, layer, x)
    if layer.running_mean is not None:
        move(layer, own[0], own[1] * values(x) / (values(x) - 1))
    if kind == "ensemble":
        return (scaled(layer, x, *own) + scaled(layer, x, *known)) / 2
    return scaled(layer, x, *((1 - weight) * a + weight * b for a, b in zip(own, known, strict=True)))


def hybrid(sent, found, layer, name, x):
    """HBN; `found` collects what a pass measures."""
    own, share = moments(x), torch.sigmoid(layer.distribution_factor)
    found.setdefault(name, []).append((values(x), *(m.detach() for m in own)))
    return scaled(
        layer, x, *((1 - share) * a + share * b for a, b in zip(given(sent, name, layer, x), own, strict=True))
    )


def constant(sent, found, layer, name, x):
    """FBN; `found` collects the statistics of batches."""
    found.setdefault(name, []).append((1, *(m.detach() for m in moments(x))))
    return scaled(layer, x, *given(sent, name, layer, x))


def whole(parts):
    """[(values, mean, var)] -> mean and variance of all values together."""
    n = sum(count for count, _, _ in parts)
    mean = sum(count * m for count, m, _ in parts) / n
    return mean, sum(count * (v + (m - mean).square()) for count, m, v in parts) / n


def measured(model, sent, pair, how):
    found = {}
    parts = [x for x in pair[0].split(how["batch_size"]) if not one_value(model, x)]
    drive(model, functools.partial(hybrid, sent, found))
    with torch.no_grad():
        for x in parts:
            model(x)
    release(model)
    return {name: whole(parts) for name, parts in found.items()}


def clip_units(model, threshold):
    """AGC on everything but the last layer."""
    head = list(model.named_parameters())[-1][0].rpartition(".")[0]
    for name, p in model.named_parameters():
        if p.grad is None or name.startswith(f"{head}."):
            continue
        w, g = (t.detach().flatten(1) if t.squeeze().dim() > 1 else t.detach().reshape(1, -1) for t in (p, p.grad))
        limit = threshold * w.norm(dim=1, keepdim=True).clamp(min=1e-3)
        norm = g.norm(dim=1, keepdim=True)
        p.grad.copy_(torch.where(norm > limit, g * limit / norm.clamp(min=1e-6), g).view_as(p))


def together(clients, first, p, kind):
    """The common step: forward passes stop at each call of a norm layer until all clients have reached it. Returns the
    losses; gradients are those of sum_j p_j F_j over p_i (FedTAN) or of F_i through statistics of its own (dna)."""

    class Reached(Exception):
        pass

    answers, moved = [], []  # one entry for each call: (mean, var) of each client; (layers, mean, unbiased)

    def forward(k):
        calls = []

        def norm(layer, name, x):
            calls.append(layer)
            if len(calls) > len(answers):
                raise Reached(layer, x)
            return scaled(layer, x, *answers[len(calls) - 1][k])

        drive(clients[k], norm)
        try:
            return clients[k](first[k][0])
        except Reached as reached:
            return reached.args

    while True:
        results = [forward(k) for k in range(len(clients))]
        if isinstance(results[0], torch.Tensor):
            break
        own = [moments(x) for _, x in results]
        mean = sum(q * m for q, (m, _) in zip(p, own, strict=True))
        var = sum(q * (v + (m - mean).square()) for q, (m, v) in zip(p, own, strict=True))
        n = sum(values(x) for _, x in results)
        moved.append(([layer for layer, _ in results], mean, var * n / (n - 1)))
        if kind == "dna":  # values of the cohort; gradients of the client's own mean, and spread about the common mean
            own = [(m, v + (m - mean.detach()).square()) for m, v in own]
            answers.append([(m + (mean - m).detach(), v + (var - v).detach()) for m, v in own])
        else:
            answers.append([(mean, var)] * len(clients))
    losses = [F.cross_entropy(z, y) for z, (_, y) in zip(results, first, strict=True)]
    total = sum(q * loss for q, loss in zip(p, losses, strict=True))
    for q, model, loss in zip(p, clients, losses, strict=True):
        chosen = [w for w in model.parameters() if w.requires_grad]
        grads = torch.autograd.grad(loss if kind == "dna" else total, chosen, retain_graph=True, allow_unused=True)
        for w, g in zip(chosen, grads, strict=True):
            w.grad = None if g is None else g if kind == "dna" else g / q
        release(model)
    for layers, mean, unbiased in moved:
        for layer in layers:
            if layer.running_mean is not None:
                move(layer, mean.detach(), unbiased)
    return [loss.item() for loss in losses]


def mean_of(states, p):
    return {
        n: sum(q * s[n] for q, s in zip(p, states, strict=True))
        if t.is_floating_point()
        else torch.stack([s[n] for s in states]).amax(0)
        for n, t in states[0].items()
    }


def state_of(model):
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


class Federation:
    """A run: `global_state`, `client_states()`, and the losses of each round."""

    def __init__(self, model, data, **how):
        self.how, self.data = how, data
        self.model = copy.deepcopy(model)
        if "hbn" in how:
            for _, layer in norms(self.model):
                layer.distribution_factor = nn.Parameter(torch.zeros(layer.num_features, dtype=torch.float64))
        self.global_state = state_of(self.model)
        everything = set(self.global_state)
        home = {"norm": entries(self.model, lambda k: True), "stats": entries(self.model, statistic), "all": everything}
        self.home = home.get(how.get("home"), set())
        trained = [n for n, p in self.model.named_parameters() if p.requires_grad]
        self.trained = [n for n in trained if n not in self.home]  # and shared
        self.own = {k: {n: self.global_state[n] for n in self.home} for k in data}
        kept = {"norm": lambda k: True, "factors": lambda k: k == "distribution_factor"}
        self.kept_back = entries(self.model, kept["factors" if "hbn" in how else "norm"]) if self.keeps else set()
        self.kept = {k: {} for k in data}
        self.c = dict.fromkeys(self.trained, 0.0)
        self.drifts = {k: dict.fromkeys(self.trained, 0.0) for k in data}
        self.v = {n: 0.0 if how.get("server") == "avgm" else 1e-6 for n in self.trained}
        self.m = dict.fromkeys(self.trained, 0.0)
        self.round, self.calm, self.losses = 0, 0, []

    @property
    def keeps(self):
        return self.how.get("keep") or "hbn" in self.how

    def client_states(self):
        return {k: {**self.global_state, **self.own[k], **self.kept[k]} for k in self.data}

    def fresh(self):
        """HBN's evaluation: statistics measured with the new weights."""
        found = []
        for k, state in self.client_states().items():
            model = copy.deepcopy(self.model)
            model.load_state_dict(state)
            found.append(measured(model, self.global_state, self.data[k], self.how))
        sizes = [len(pair[1]) for pair in self.data.values()]
        p = sizes if self.how.get("weighting", "samples") == "samples" else [1] * len(sizes)
        new = self.combined(found, [q / sum(p) for q in p], sum(sizes))
        names = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            first = names.setdefault(id(tensor), name)  # the names of a shared layer are one
            new |= {name: new[first]} if first in new else {}
        return {
            k: {**state, **{n: t for n, t in new.items() if n in state}} for k, state in self.client_states().items()
        }

    def combined(self, found, p, n):
        """The law of total variance over N - 1 samples."""
        new = {}
        for name in found[0]:
            mean, var = whole([(q, *one[name]) for q, one in zip(p, found, strict=True)])
            new |= {f"{name}.running_mean": mean, f"{name}.running_var": var * n / (n - 1)}
        return new

    def play(self, cohort):
        how, sent, r = self.how, self.global_state, self.round
        sizes = [len(self.data[k][1]) for k in cohort]
        p = (
            [n / sum(sizes) for n in sizes]
            if how.get("weighting", "samples") == "samples"
            else [1 / len(sizes)] * len(sizes)
        )
        clients = []
        for k in cohort:
            model = copy.deepcopy(self.model).train()
            model.load_state_dict({**sent, **self.own[k], **self.kept[k]})
            clients.append(model)
        begun = [state_of(model) for model in clients]
        received = [{**sent, **self.own[k]} for k in cohort]
        paths = [batches(self.model, self.data[k], how) for k in cohort]
        tools = [optimizer(model, how) for model in clients]
        losses = [[] for _ in cohort]
        found = [{} for _ in cohort]
        if "hbn" in how:
            found = [measured(model, sent, self.data[k], how) for model, k in zip(clients, cohort, strict=True)]
        locked = "together" in how and r < how.get("until", r + 1)
        if locked:
            first = together(clients, [path[0] for path in paths], p, how["together"])
            for i, k in enumerate(cohort):
                losses[i].append(first[i])
                self.step(clients[i], tools[i], k)
        for i, k in enumerate(cohort):
            self.prepare(clients[i], sent, found[i])
            for x, y in paths[i][1 if locked else 0 :]:
                losses[i].append(self.local(clients[i], tools[i], k, received[i], x, y))
            release(clients[i])
        self.losses.append({k: sum(ls) / len(ls) for k, ls in zip(cohort, losses, strict=True)})
        self.commit(cohort, clients, begun, [len(ls) for ls in losses], found, p, sum(sizes))
        self.round += 1

    @property
    def second_phase(self):
        return "bs" in self.how and self.calm >= self.how["bs"][2]

    def prepare(self, model, sent, found):
        """How norm layers behave in the local steps."""
        how, r = self.how, self.round
        frozen = r >= how.get("frozen", r + 1) or ("together" in how and r >= how.get("until", r + 1))
        if frozen:
            for _, layer in norms(model):
                layer.eval()
        elif "fbn" in how:
            drive(model, functools.partial(constant, sent, found))
        elif "hbn" in how:
            drive(model, functools.partial(hybrid, sent, {}))
        elif "table9" in how and r >= 1:
            drive(model, functools.partial(alternative, sent, *how["table9"]))

    def local(self, model, tool, k, received, x, y):
        how = self.how
        tool.zero_grad()
        logits = model(x)
        task = F.cross_entropy(logits, y)
        total = task
        mu = how.get("prox", 0.0) + (how["bs"][0] if self.second_phase else 0.0)
        if mu:
            total = total + mu / 2 * distance(model, received)
        if "greg" in how and self.round >= 1:
            total = total + consistency(model, self.global_state, logits, x, *how["greg"])
        total.backward()
        self.step(model, tool, k)
        return task.item()

    def step(self, model, tool, k):
        for piece in self.how:  # gradients are changed in the order of the composition
            if piece == "scaffold":
                for n, p in model.named_parameters():
                    if p.grad is not None and n in self.c:
                        p.grad += self.c[n] - self.drifts[k][n]
            elif piece == "agc":
                clip_units(model, self.how["agc"])
        if self.how.get("clip_norm"):
            nn.utils.clip_grad_norm_(model.parameters(), self.how["clip_norm"])
        tool.step()

    def commit(self, cohort, clients, begun, steps, found, p, n):
        how, old = self.how, self.global_state
        ends = [state_of(model) for model in clients]
        if "bs" in how:
            losses = torch.tensor(list(self.losses[-1].values()), dtype=torch.float64)
            second = self.second_phase
            p = [1 / len(cohort)] * len(cohort) if second else (losses / losses.sum()).tolist()
            if not second:
                self.calm = self.calm + 1 if losses.std(correction=0) <= how["bs"][1] else 0
        new = mean_of(ends, p)
        statistics = {x for x in entries(self.model, statistic) if old[x].is_floating_point()}
        if how.get("pooled"):
            for name, layer in norms(self.model):
                if layer.running_mean is not None:
                    pairs = [
                        (q, s[f"{name}.running_mean"], s[f"{name}.running_var"]) for q, s in zip(p, ends, strict=True)
                    ]
                    new[f"{name}.running_mean"], new[f"{name}.running_var"] = whole(pairs)
        if "greg" in how:
            rho = how["greg"][1]
            new |= {x: (1 - rho) * old[x] + rho * new[x] for x in statistics}
        if "hbn" in how:
            fresh = self.combined(found, p, n)
            new |= {x: (1 - how["hbn"]) * old[x] + how["hbn"] * t for x, t in fresh.items() if x in old}
        if "fbn" in how:
            self.smoothed(new, found, p, n)
        if how.get("scaffold"):
            self.drift(cohort, begun, ends, steps)
        if "server" in how:
            self.serve(new)
        names = {}
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            new[name] = new[names.setdefault(id(tensor), name)]  # the names of a shared layer are one
        for k, end in zip(cohort, ends, strict=True):
            self.own[k] = {x: end[x] for x in self.home}
            self.kept[k] = {x: end[x] for x in self.kept_back}
        self.global_state = {x: old[x] if x in self.home else t for x, t in new.items()}

    def smoothed(self, new, found, p, n):
        """FBN: the plain average over batches; variance about the smoothed mean, over N - 1."""
        q = self.how["fbn"]
        for name, layer in norms(self.model):
            if layer.running_mean is None:
                continue
            m, v = f"{name}.running_mean", f"{name}.running_var"
            own = [tuple(torch.stack(part).mean(0) for part in list(zip(*one[name], strict=True))[1:]) for one in found]
            mean = q * sum(w * a for w, (a, _) in zip(p, own, strict=True)) + (1 - q) * self.global_state[m]
            var = sum(w * (b + (a - mean).square()) for w, (a, b) in zip(p, own, strict=True)) * n / (n - 1)
            new[m], new[v] = mean, q * var + (1 - q) * self.global_state[v]

    def drift(self, cohort, begun, ends, steps):
        """SCAFFOLD, option II."""
        moved = dict.fromkeys(self.trained, 0.0)
        for k, start, end, h in zip(cohort, begun, ends, steps, strict=True):
            for n in self.trained:
                plus = self.drifts[k][n] - self.c[n] + (start[n] - end[n]) / (h * self.how["lr"])
                moved[n] = moved[n] + plus - self.drifts[k][n]
                self.drifts[k][n] = plus
        self.c = {n: self.c[n] + moved[n] / len(self.data) for n in self.trained}

    def serve(self, new):
        kind = self.how["server"]
        for n in self.trained:
            change = new[n] - self.global_state[n]
            if kind == "avgm":
                self.v[n] = 0.9 * self.v[n] + change
                new[n] = self.global_state[n] + self.v[n]
                continue
            square = change.square()
            self.m[n] = 0.9 * self.m[n] + 0.1 * change
            if kind == "adam":
                self.v[n] = 0.99 * self.v[n] + 0.01 * square
            else:
                self.v[n] = self.v[n] - 0.01 * square * (self.v[n] - square).sign()
            new[n] = self.global_state[n] + 0.1 * self.m[n] / (self.v[n].sqrt() + 1e-3)
