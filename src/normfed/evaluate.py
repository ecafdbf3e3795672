"""Which model is evaluated for which client, and how well it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from normfed.net import Net
from normfed.state import State


@dataclass(frozen=True)
class Viewer:
    """Who is looking, for views that prepare samples client by client."""

    client: str
    index: int | None  # in the federation's order; None for a client that is not in it
    slots: Mapping[str, Any]  # of the method whose view it is
    x: Tensor | None  # the client's training samples, where it has any


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Fraction of samples whose largest logit is the label's."""
    return float((logits.argmax(1) == y).double().mean())


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {"accuracy": accuracy}


def score(
    net: Net, state: State, x: Tensor, y: Tensor, metrics: tuple[str, ...], loss: Callable[[Tensor, Tensor], Tensor]
) -> dict[str, float]:
    """The metrics and the loss of one model on one set."""
    logits = net.predict(state, x)
    return {**{name: METRICS[name](logits, y) for name in metrics}, "loss": float(loss(logits, y))}
