"""Pictures of normalization: what a run shows of its clients' statistics, as facts to record.

divergence                  among clients, layer by layer: how far apart the statistics of their data are
    divergence              symmetric KL of the channels' Gaussians, mean over channels and pairs of clients
    statistic_variance      variance over clients of the channels' means, mean over channels
    mismatch                the same KL between a client's statistics and those it is evaluated with, mean over clients
gap                         what global statistics cost in loss against those of the batch (GReg, figures 2 and 3)
    gap/test                of the global model on a client's test samples
    gap/train               of a client's model at the end of its local training, under the statistics broadcast to it
feature_cosine              between two clients' models at the end of local training, on the same samples: cosine of
                            what a layer puts out, layer by layer, mean over samples and pairs (FedWon, figure 5)
representation_divergence   between what enters the classifier at two clients, each under the model it evaluates with:
                            symmetric KL of the features' Gaussians, mean over features (GReg, figure 6; how a
                            feature without variance is treated is not said there: here see `FLOOR`)

Cheap by construction: at most `TIMES` a run, `SAMPLES` samples of each of at most `CLIENTS` clients, nothing random.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normfed.data.store import Pooled
from normfed.evaluate import Evaluation, divergence, symmetric_kl, tracked
from normfed.norm import BATCH, MEASURE, RUNNING, Mode, Pass
from normfed.state import State, pick

PICTURES = ("divergence", "gap", "feature_cosine", "representation_divergence")
TIMES = 8  # rounds of a run that pictures are taken of
SAMPLES = 32  # of each client: one batch
PROBES = 2  # samples of each client that all clients' models are shown
CLIENTS = 12  # the first ones of the federation: pairs grow with the square
FLOOR = 0.01  # of a feature's variance over all clients, added to each client's: a dead feature has none of its own

Fact = dict[str, Any]  # metric and value, with client, other or layer where they apply


def due(round: int, rounds: int, every: int) -> bool:
    """Whether pictures are taken after this round: of the last one, and of evaluated ones evenly spaced before it."""
    evaluated = [r for r in range(rounds) if (r + 1) % every == 0 or r == rounds - 1]
    spacing = -(-len(evaluated) // TIMES)
    return round in evaluated[::-1][::spacing]


def subjects(names: tuple[str, ...]) -> tuple[str, ...]:
    """The clients that pictures are taken of."""
    return names[:CLIENTS]


@dataclass(frozen=True)
class Scene:
    """What there is to see after a round."""

    evaluation: Evaluation
    broadcast: State  # the global model that the round began with
    trained: Mapping[str, State]  # clients' models at the end of local training
    _seen: dict[Any, Any] = field(default_factory=dict)  # forward passes that more than one picture looks at

    @property
    def clients(self) -> tuple[str, ...]:
        return subjects(self.evaluation.federation.of("train"))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._seen:
            self._seen[key] = make()
        return self._seen[key]

    def samples(self, client: str, *splits: str) -> tuple[Tensor, Tensor] | None:
        """Up to `SAMPLES` of a client's samples, evenly spaced, of the first of these splits that it has."""
        for split in splits:
            pair = self.once((client, split), functools.partial(self.evaluation.sample, client, split, SAMPLES))
            if pair is not None:
                return pair
        return None

    def own(self, client: str) -> State:
        return self.once(("own", client), lambda: self.evaluation.own_state(client))

    def shared(self) -> State:
        return self.once("shared", self.evaluation.averaged)

    def seen(self, state: State, client: str, split: str, mode: Mode) -> tuple[Tensor, Pass] | None:
        """Logits and the pass of one batch of a client's samples; None where there are too few to normalise."""
        pair = self.samples(client, split)
        if pair is None or len(pair[0]) < (1 if mode is RUNNING else self.evaluation.plan.facts.smallest_batch):
            return None
        return self.once((id(state), client, split, mode), lambda: self._forward(state, pair[0], mode))

    def _forward(self, state: State, x: Tensor, mode: Mode) -> tuple[Tensor, Pass]:
        net = self.evaluation.net
        now = Pass(mode, training=False, emit=mode is MEASURE)
        with torch.no_grad():
            return net(*net.split(state), x, now), now

    def loss(self, state: State, client: str, split: str, mode: Mode) -> float | None:
        seen, pair = self.seen(state, client, split, mode), self.samples(client, split)
        return None if seen is None or pair is None else float(self.evaluation.rules.loss(seen[0], pair[1]))


def take(names: tuple[str, ...], scene: Scene) -> list[Fact]:
    """The facts of these pictures; none of a picture that the model or the method leaves nothing to see of."""
    makers = {
        "divergence": _divergence,
        "gap": _gap,
        "feature_cosine": _feature_cosine,
        "representation_divergence": _representation_divergence,
    }
    return [fact for name in names for fact in makers[name](scene)]


def _divergence(scene: Scene) -> Iterator[Fact]:
    net = scene.evaluation.net
    names = tracked(net)
    own: dict[str, State] = {}
    for client in scene.clients if names else ():
        split = "test" if scene.samples(client, "test") is not None else "train"
        if (seen := scene.seen(scene.own(client), client, split, MEASURE)) is not None:
            own[client] = seen[1].emitted
    if len(own) < 2:
        return
    emitted = [e for e in net.entries if e.name in names and all(e.name in state for state in own.values())]
    for layer in dict.fromkeys(e.layer for e in emitted):
        entries = [e.name for e in emitted if e.layer == layer]
        at = {client: pick(state, entries) for client, state in own.items()}
        pairs = [divergence(a, b) for a, b in itertools.combinations(at.values(), 2)]
        means = torch.stack([state[name] for state in at.values() for name in entries if name.endswith("running_mean")])
        used = [divergence(state, pick(scene.own(client), entries)) for client, state in at.items()]
        yield {"metric": "divergence", "layer": layer, "value": sum(pairs) / len(pairs)}
        yield {"metric": "statistic_variance", "layer": layer, "value": float(means.var(0).mean())}
        yield {"metric": "mismatch", "layer": layer, "value": sum(used) / len(used)}


def _gap(scene: Scene) -> Iterator[Fact]:
    names = tracked(scene.evaluation.net)
    if not names:
        return
    for client in scene.clients:
        running, batch = (scene.loss(scene.shared(), client, "test", mode) for mode in (RUNNING, MEASURE))
        if running is not None and batch is not None:
            yield {"metric": "gap/test", "client": client, "value": running - batch}
    if not set(names) <= set(scene.evaluation.phase.shared):
        return  # statistics that stay home are not broadcast
    for client in scene.clients:
        trained = scene.trained.get(client, scene.trained.get(Pooled.name))
        if trained is None:
            continue
        under = {**trained, **pick(scene.broadcast, names)}
        running, batch = scene.loss(under, client, "train", RUNNING), scene.loss(trained, client, "train", BATCH)
        if running is not None and batch is not None:
            yield {"metric": "gap/train", "client": client, "value": running - batch}


def _feature_cosine(scene: Scene) -> Iterator[Fact]:
    models = {client: scene.trained[client] for client in scene.clients if client in scene.trained}
    shown = [
        pair[0][:: max(1, len(pair[0]) // PROBES)][:PROBES]
        for c in models
        if (pair := scene.samples(c, "test", "train"))
    ]
    if len(models) < 2:
        return
    maps = [_maps(scene, state, torch.cat(shown)) for state in models.values()]
    for layer in maps[0]:
        pairs = [F.cosine_similarity(a[layer], b[layer], dim=1).mean() for a, b in itertools.combinations(maps, 2)]
        yield {"metric": "feature_cosine", "layer": layer, "value": float(torch.stack(pairs).mean())}


def _maps(scene: Scene, state: State, x: Tensor) -> dict[str, Tensor]:
    """What every convolution and linear layer before the classifier puts out, one row a sample."""
    net, found = scene.evaluation.net, {}
    layers = {n: m for n, m in net.module.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)}
    layers.pop(net.head or "", None)

    def note(name: str) -> Callable[..., None]:
        return lambda module, args, out: found.update({name: out.reshape(len(x), -1)})

    hooks = [layer.register_forward_hook(note(name)) for name, layer in layers.items()]
    try:
        scene._forward(state, x, RUNNING)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _representation_divergence(scene: Scene) -> Iterator[Fact]:
    moments = {}
    for client in scene.clients:
        seen = scene.seen(scene.own(client), client, "test", RUNNING)
        if seen is not None and seen[1].features is not None and len(seen[1].features) > 1:
            var, mean = torch.var_mean(seen[1].features.flatten(0, -2), 0, correction=0)
            moments[client] = mean, var
    if len(moments) < 2:
        return
    means, variances = (torch.stack(parts) for parts in zip(*moments.values(), strict=True))
    floor = FLOOR * (variances.mean(0) + means.var(0, correction=0))
    for a, b in itertools.combinations(moments, 2):
        (mean_a, var_a), (mean_b, var_b) = moments[a], moments[b]
        value = symmetric_kl(mean_a, var_a + floor, mean_b, var_b + floor).mean()
        yield {"metric": "representation_divergence", "client": a, "other": b, "value": float(value)}
