"""Which model is evaluated for which client, and how well it does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normfed.net import Net
from normfed.state import State

BATCH = 1024  # samples per forward pass of an evaluation; changes no number, statistics being fixed


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Fraction of samples whose largest logit is the label's."""
    return float((logits.argmax(1) == y).double().mean())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": accuracy}


def predict(net: Net, state: State, x: Tensor) -> Tensor:
    """Logits of all samples, under the state's running statistics."""
    return torch.cat([net.predict(state, part) for part in x.split(BATCH)])


def score(
    net: Net, state: State, x: Tensor, y: Tensor, metrics: tuple[str, ...], loss: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, float]:
    """The metrics and the loss of one model on one set."""
    logits = predict(net, state, x)
    return {**{name: METRICS[name](logits, y) for name in metrics}, "loss": float(loss(logits, y))}
