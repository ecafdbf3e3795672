"""The whole of FedAvg, FedProx and FedBN in one file: the textbook loop, importing nothing of normfed.

    python examples/one_file.py

Read it first. The package does the same and gives the same numbers, to the bit: tests/oracle holds it to that, and
`make bench` measures the package against it.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batches(x, y, size):
    """Consecutive slices in stored order; the short last one is kept."""
    for start in range(0, len(x), size):
        yield x[start : start + size], y[start : start + size]


def train_locally(model, global_model, x, y, *, epochs, batch_size, lr, mu=0.0):
    """Local SGD; with mu > 0, FedProx's term mu/2 ||w - w_global||^2. Returns the mean task loss over all steps."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)  # new every round
    losses = []
    for _ in range(epochs):
        for xb, yb in batches(x, y, batch_size):
            optimizer.zero_grad()
            task = F.cross_entropy(model(xb), yb)
            loss = task
            if mu:
                pairs = zip(model.parameters(), global_model.parameters(), strict=True)
                loss = task + mu / 2 * sum((w - w_global.detach()).square().sum() for w, w_global in pairs)
            loss.backward()
            optimizer.step()
            losses.append(task.item())
    return sum(losses) / len(losses)


def norm_names(model):
    """The entries of BatchNorm layers, found by type, never by name."""
    return {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    }


def average(states, sizes, names):
    """sum_k n_k x_k / sum_k n_k, running statistics like parameters; integer counters take the maximum."""
    mean = {}
    for name in names:
        values = [state[name] for state in states]
        if values[0].is_floating_point():
            total = values[0] * sizes[0]
            for value, size in zip(values[1:], sizes[1:], strict=True):
                total = total + value * size
            mean[name] = total / sum(sizes)
        else:
            mean[name] = torch.stack(values).amax(0)
    return mean


@torch.no_grad()
def accuracy(model, x, y):
    return (model.eval()(x).argmax(1) == y).double().mean().item()


def federate(model, clients, *, rounds, method="fedavg", mu=0.01, epochs=1, batch_size=32, lr=0.01):
    """`clients`: a list of (x, y). Returns the global state, the clients' states and the losses of every round."""
    server = copy.deepcopy(model)
    local = norm_names(server) if method == "fedbn" else set()
    shared = [name for name in server.state_dict() if name not in local]
    kept = [{name: server.state_dict()[name].clone() for name in local} for _ in clients]
    history = []
    worker = copy.deepcopy(model)
    for _ in range(rounds):
        uploads, losses = [], []
        for k, (x, y) in enumerate(clients):
            worker.load_state_dict({**server.state_dict(), **kept[k]})
            mu_now = mu if method == "fedprox" else 0.0
            losses.append(train_locally(worker, server, x, y, epochs=epochs, batch_size=batch_size, lr=lr, mu=mu_now))
            state = {name: tensor.clone() for name, tensor in worker.state_dict().items()}
            uploads.append(state)
            kept[k] = {name: state[name] for name in local}
        server.load_state_dict({**server.state_dict(), **average(uploads, [float(len(x)) for x, _ in clients], shared)})
        history.append(losses)
    return server.state_dict(), [{**server.state_dict(), **mine} for mine in kept], history


if __name__ == "__main__":
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    prototypes = torch.randn(4, 8)
    data = []
    for k in range(4):  # the same classes, seen through another instrument at each client
        y = torch.randint(0, 4, (200,))
        data.append(((prototypes[y] + torch.randn(200, 8)) * (0.2 + k) + 3 * k, y))
    for name in ("fedavg", "fedprox", "fedbn"):
        _, states, losses = federate(net, [(x[:100], y[:100]) for x, y in data], rounds=20, method=name, lr=0.1)
        scores = []
        for state, (x, y) in zip(states, data, strict=True):
            net.load_state_dict(state)
            scores.append(accuracy(net, x[100:], y[100:]))
        print(f"{name:8} last loss {sum(losses[-1]) / 4:.3f}   accuracy of each client {[round(s, 2) for s in scores]}")
