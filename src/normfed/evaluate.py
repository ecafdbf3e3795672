"""Which model is evaluated for which client, under which statistics. A number is recorded with its view.

    own             a client's own model on its own data (shared entries, its LOCAL ones, what its method loads)
    own/pooled      a client's own model on all clients' data together: what it knows beyond its own
    global          the global model on each client's data; entries that stay home averaged over the clients
    pooled          the global model on all clients' data together
    batch           the global model on each client's data, normalised with the statistics of the test batches

and for a client that is not in the federation (role 'unseen'), the global model with

    unseen/averaged      averaged statistics
    unseen/reestimated   statistics re-estimated from its own unlabelled data, in one pass
    unseen/batch         the statistics of the test batches
    unseen/nearest       the norm layers, or the statistics, of the client whose statistics are nearest to its own
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from normfed.client import viewed
from normfed.data.store import Store
from normfed.metrics import METRICS
from normfed.net import Net
from normfed.norm import BATCH, MEASURE, RUNNING, Mode, Pass
from normfed.plan import Phase, Plan
from normfed.reducers import maximum, weighted_mean
from normfed.server import Rules, RunState, evaluated
from normfed.state import Role, State, pick

VIEWS = ("own", "own/pooled", "global", "pooled", "batch", "unseen")
POOLED = "all"  # the name under which the pooled view records its one number

Scores = dict[str, dict[str, float]]  # client -> metric -> value


@dataclass(frozen=True)
class Evaluation:
    """Everything an evaluation of one state needs."""

    plan: Plan
    state: RunState
    model: State  # the global model, or what an exchange before the evaluation made of it
    federation: Store
    sizes: Mapping[str, int]
    rules: Rules
    metrics: tuple[str, ...]

    @property
    def net(self) -> Net:
        return self.plan.net

    @property
    def phase(self) -> Phase:
        return self.plan.phase(self.state.latched)

    def own_state(self, client: str) -> State:
        if client not in self.sizes and not self.plan.pool:  # takes part in evaluations only
            return self.averaged()
        size = self.sizes.get(client, 0)
        return evaluated(self.plan, self.state, client, self.model, size, self.federation, self.rules)

    def averaged(self) -> State:
        """The global model; entries that stay home are averaged over the clients that have any."""
        local = self.phase.local
        clients = {n: c for n, c in self.state.clients.items() if all(name in c.kept for name in local)}
        if not local or not clients:
            return self.model
        weights = torch.tensor([float(self.sizes[name]) for name in clients], dtype=torch.float64)
        model = dict(self.model)
        for reducer in (weighted_mean, maximum):
            names = [n for n in local if (reducer is weighted_mean) == self.model[n].is_floating_point()]
            stacked = {n: torch.stack([c.kept[n] for c in clients.values()]) for n in names}
            model.update(reducer.finish(reducer.add(reducer.start(), stacked, weights)) if names else {})
        return model

    @cached_property
    def references(self) -> dict[str, dict[str, Tensor]]:
        """The statistics of each client's training data under the averaged model: what a new site is compared with."""
        model, size = self.averaged(), self.rules.batch_size
        pairs = {client: self.split(client, "train") for client in self.federation.names}
        return {c: measured(self.net, model, pair[0], size) for c, pair in pairs.items() if pair is not None}

    def inputs(self, client: str, x: Tensor) -> Tensor:
        """Samples as the method has them enter the model; as they are stored where it says nothing. The client may be
        none of the federation's."""
        if self.phase.view is None or self.phase.view[1].inputs is None:
            return x
        train = self.federation.split(client, "train") if client in self.federation.roles else None
        own = None if train is None else self.net.cast(train[0])
        return viewed(self.phase, self.net.cast(x), client, list(self.sizes), self.state.slots, own)

    def split(self, client: str, which: str) -> tuple[Tensor, Tensor] | None:
        """Samples for `predict`, and labels."""
        pair = self.federation.split(client, which)
        return None if pair is None else (self.inputs(client, pair[0]), pair[1])

    def sample(self, client: str, which: str, count: int) -> tuple[Tensor, Tensor] | None:
        """Up to `count` samples of a split, evenly spaced (data often lie sorted), as the model is to see them."""
        pair = self.federation.split(client, which)
        if pair is None or not len(pair[0]):
            return None
        n = min(count, len(pair[0]))
        chosen = (torch.arange(n) * len(pair[0]) // n).to(pair[0].device)
        return self.net.cast(self.inputs(client, pair[0][chosen])), pair[1][chosen]

    def scores(self, logits: Tensor, y: Tensor) -> dict[str, float]:
        return {**{name: METRICS[name](logits, y) for name in self.metrics}, "loss": float(self.rules.loss(logits, y))}

    def score(self, state: State, x: Tensor, y: Tensor, mode: Mode = RUNNING) -> dict[str, float]:
        return self.scores(predict(self.net, state, x, mode, self.batch_size(mode)), y)

    def batch_size(self, mode: Mode) -> int | None:
        return None if mode is RUNNING else self.rules.batch_size

    def view(self, name: str, which: str = "test") -> Iterator[tuple[str, Scores]]:
        """(view, scores) pairs: one, or four for unseen clients."""
        clients = self.federation.of("train", "evaluate")
        if name == "unseen":
            yield from _unseen(self, which)
        elif name in ("pooled", "own/pooled"):
            yield name, self._on_all(name, [pair for c in clients if (pair := self.split(c, which)) is not None])
        else:
            mode = BATCH if name == "batch" else RUNNING
            state = self.averaged() if name != "own" else {}
            scores = {
                client: self.score(self.own_state(client) if name == "own" else state, *pair, mode)
                for client in clients
                if (pair := self.split(client, which)) is not None
            }
            yield name, scores

    def _on_all(self, name: str, parts: list[tuple[Tensor, Tensor]]) -> Scores:
        """Scores on all clients' samples together: of the global model, or of each client's own."""
        if not parts:
            return {}
        y = torch.cat([y for _, y in parts])
        clients = self.federation.of("train", "evaluate")
        states = {POOLED: self.averaged()} if name == "pooled" else {c: self.own_state(c) for c in clients}
        return {
            who: self.scores(torch.cat([predict(self.net, state, x) for x, _ in parts]), y)
            for who, state in states.items()
        }


def predict(net: Net, state: State, x: Tensor, mode: Mode = RUNNING, batch_size: int | None = None) -> Tensor:
    """Logits of all samples. Under batch statistics the batches are consecutive slices of `batch_size`; a last one of a
    single sample joins the one before."""
    if mode is RUNNING:
        return net.predict(state, x)
    parts = list(x.split(batch_size or len(x)))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    with torch.no_grad():
        return torch.cat(
            [net(*net.split(state), net.cast(part), Pass(mode, training=False, emit=False)) for part in parts]
        )


def tracked(net: Net) -> list[str]:
    """Names of the running means and variances of BatchNorm layers."""
    return [e.name for e in net.entries if e.role is Role.NORM_STAT and issubclass(e.kind, _BatchNorm)]


def measured(net: Net, state: State, x: Tensor, batch_size: int) -> dict[str, Tensor]:
    """Running means and variances as one pass over `x` finds them: no labels, no training."""
    params, rest = net.split(state)
    seen = 0
    with torch.no_grad():
        for part in x.split(batch_size):
            if len(part) == 1 and seen:
                continue
            now = Pass(MEASURE, training=False, seen=seen)
            net(params, rest, net.cast(part), now)
            rest = {**rest, **now.emitted}
            seen += len(part)
    return pick(rest, tracked(net))


def divergence(a: State, b: State) -> float:
    """Between two sets of statistics: symmetric KL of the channels' Gaussians, averaged over channels of all layers."""
    terms = []
    for mean in (n for n in a if n.endswith("running_mean")):
        var = mean.removesuffix("running_mean") + "running_var"
        terms.append(symmetric_kl(a[mean], a[var], b[mean], b[var]))
    return float(torch.cat(terms).mean())


def symmetric_kl(mean: Tensor, var: Tensor, other_mean: Tensor, other_var: Tensor) -> Tensor:
    """[KL(a||b) + KL(b||a)] / 2 of Gaussians, channel by channel."""
    gap = (mean - other_mean).square()
    a, b = var + 1e-5, other_var + 1e-5
    return 0.25 * ((a + gap) / b + (b + gap) / a - 2)


def _unseen(evaluation: Evaluation, which: str) -> Iterator[tuple[str, Scores]]:
    found: dict[str, Scores] = {}
    for client in evaluation.federation.of("unseen"):
        pair = evaluation.split(client, which)
        if pair is not None:
            for strategy, state, mode in strategies(evaluation, client, which):
                found.setdefault(strategy, {})[client] = evaluation.score(state, *pair, mode)
    yield from found.items()


def strategies(evaluation: Evaluation, client: str, which: str = "test") -> Iterator[tuple[str, State, Mode]]:
    """(view, state, mode) for each way to serve a client that the federation does not know."""
    net, model = evaluation.net, evaluation.averaged()
    names, size = tracked(net), evaluation.rules.batch_size
    yield "unseen/averaged", model, RUNNING
    unlabelled = evaluation.split(client, "train") or evaluation.split(client, which)
    if not names or unlabelled is None:  # no running statistics: nothing to choose from
        return
    own = measured(net, model, unlabelled[0], size)
    yield "unseen/reestimated", {**model, **own}, RUNNING
    yield "unseen/batch", model, BATCH
    known = evaluation.references
    if not known:
        return
    nearest = min(known, key=lambda c: (divergence(own, known[c]), c))
    local = evaluation.phase.local
    chosen = pick(evaluation.own_state(nearest), local) if set(names) & set(local) else known[nearest]
    yield "unseen/nearest", {**model, **chosen}, RUNNING
