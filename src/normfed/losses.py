"""Losses beyond cross-entropy, for classes that are not alike.

A loss is a function of (logits, labels). By name, as `simulate(loss=...)` and the command line take it:
`cross_entropy`, `focal`, `focal(gamma=1.0)`, `weighted(weights=[1.0, 5.0])`, `focal(weights=[1.0, 5.0])`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from normfed.errors import Refused, nearest
from normfed.text import call

Loss = Callable[[Tensor, Tensor], Tensor]


def _weights(weights: Sequence[float], logits: Tensor) -> Tensor:
    if len(weights) != logits.shape[1]:
        raise ValueError(f"{len(weights)} weights for {logits.shape[1]} classes")
    return torch.tensor(weights, dtype=logits.dtype, device=logits.device)


def _check(weights: Sequence[float] | None) -> None:
    good = weights is None or (all(math.isfinite(w) and w >= 0 for w in weights) and sum(weights) > 0)
    if not good:
        raise Refused(f"weights={weights} must be finite, none negative and not all 0")


def weighted(weights: Sequence[float]) -> Loss:
    """Cross-entropy with a weight per class; the mean is over weights, as torch's. A batch that holds classes of weight
    0 alone has loss 0."""
    _check(weights)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        scale = _weights(weights, logits)[y]
        terms = F.cross_entropy(logits, y, reduction="none") * scale
        return terms.sum() / scale.sum().clamp(min=torch.finfo(scale.dtype).tiny)

    return loss


def focal(gamma: float = 2.0, weights: Sequence[float] | None = None) -> Loss:
    """Focal loss (Lin et al., ICCV 2017): (1 - p_y)^gamma times the cross-entropy, optionally a weight per class;
    averaged over samples, as Fed-ISIC2019's baseline has it."""
    if not gamma >= 0:
        raise Refused(f"focal: gamma={gamma} must not be negative")
    _check(weights)

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        log_p_y = F.log_softmax(logits, 1).gather(1, y[:, None])[:, 0]
        # 1 - p_y; a sample that is right beyond doubt has no slope, whatever gamma
        miss = (-torch.expm1(log_p_y)).clamp(min=torch.finfo(logits.dtype).tiny)
        terms = -(miss**gamma) * log_p_y
        return (terms if weights is None else terms * _weights(weights, logits)[y]).mean()

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
