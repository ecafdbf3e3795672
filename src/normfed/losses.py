"""Losses beyond cross-entropy, for classes that are not alike.

A loss is a function of (logits, labels). By name, as `simulate(loss=...)` and the command line take it:
`cross_entropy`, `focal`, `focal(gamma=1.0)`, `weighted(weights=[1.0, 5.0])`, `focal(weights=[1.0, 5.0])`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from normfed.errors import Refused, nearest
from normfed.text import call

Loss = Callable[[Tensor, Tensor], Tensor]


def _weights(weights: Sequence[float] | None, logits: Tensor) -> Tensor | None:
    return None if weights is None else torch.tensor(weights, dtype=logits.dtype, device=logits.device)


def weighted(weights: Sequence[float]) -> Loss:
    """Cross-entropy with a weight per class; the mean is over weights, as torch's."""

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, weight=_weights(weights, logits))

    return loss


def focal(gamma: float = 2.0, weights: Sequence[float] | None = None) -> Loss:
    """Focal loss (Lin et al., ICCV 2017): (1 - p_y)^gamma times the cross-entropy, optionally a weight per class;
    averaged over samples, as Fed-ISIC2019's baseline has it."""

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        log_p = F.log_softmax(logits, 1)
        log_p_y = log_p.gather(1, y[:, None])[:, 0]
        terms = -((1 - log_p_y.exp()) ** gamma) * log_p_y
        scale = _weights(weights, logits)
        return (terms if scale is None else terms * scale[y]).mean()

    return loss


LOSSES: dict[str, Callable[..., Loss]] = {
    "cross_entropy": lambda: F.cross_entropy,
    "focal": focal,
    "weighted": weighted,
}


def balanced_weights(labels: Tensor, classes: int) -> list[float]:
    """n / (classes x n_c): weights under which every class counts alike; 0 for a class that is absent."""
    counts = torch.bincount(labels, minlength=classes).double()
    return torch.where(counts > 0, counts.sum() / (classes * counts.clamp(min=1)), 0.0).tolist()


def parse(text: str) -> Loss:
    """The loss a text means: 'focal(gamma=1.0)'."""
    name, positional, named = call(text, "focal(gamma=1.0)")
    if name not in LOSSES:
        raise Refused(f"unknown loss '{name}'; {nearest(name, LOSSES)}")
    try:
        return LOSSES[name](*positional, **named)
    except TypeError as error:
        raise Refused(f"loss {text}: {error}") from None
