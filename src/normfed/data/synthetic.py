"""Synthetic federations after FedBN (Li et al., ICLR 2021): labels mean the same everywhere, inputs are shifted.

`gaussians` (appendix F): classes are Gaussians around -1 and +1 in every coordinate; the first client's coordinates are
independent, the second's correlated. `cosine` (the toy of its section 3): what is to be learnt is a cosine, and each
client sees x on a scale of its own; here the label is the cosine's sign, so that it trains like any classifier.

What the paper leaves open, the covariance of the second client, sizes and scales, is said in the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from normfed.data.source import Block, Source
from normfed.errors import Refused
from normfed.keys import Key, fold, normal

DIMENSIONS = 10
NOISE = 0.05  # of the cosine


def gaussians(samples: int = 1000, correlation: float = 0.5) -> Source:
    """Two clients with `samples` training and as many test samples each. The second's coordinates are correlated, with
    signs that alternate, so that the classes can be told apart there as well."""
    if not 0 <= correlation < 1:
        raise Refused(f"fedbn_gaussians: correlation={correlation:g} must be at least 0 and below 1")
    signs = 1 - 2 * (torch.arange(DIMENSIONS) % 2).float()
    shared = correlation * signs[:, None] * signs + (1 - correlation) * torch.eye(DIMENSIONS)
    spreads = {"independent": torch.eye(DIMENSIONS), "correlated": torch.linalg.cholesky(shared)}

    def draw(client: str, key: Key) -> tuple[Tensor, Tensor]:
        y = torch.arange(samples) % 2
        return (2 * y - 1)[:, None] + normal(key, (samples, DIMENSIONS)) @ spreads[client].T, y

    return _source("fedbn_gaussians", "Gaussian classes with covariances of their own", samples, spreads, draw)


def cosine(samples: int = 500, scales: list[float] | None = None, frequency: float = 1.5) -> Source:
    """Clients that see the same x times a scale of their own; the label says whether cos(frequency x), with a little
    noise, is above 0."""
    scales = [0.25, 4.0] if scales is None else scales
    if len(scales) < 2 or not all(isinstance(s, int | float) and s > 0 for s in scales):
        raise Refused(f"fedbn_cosine: scales={scales} must be two numbers or more, all above 0")
    widths = {f"x{scale:g}": float(scale) for scale in scales}

    def draw(client: str, key: Key) -> tuple[Tensor, Tensor]:
        x = normal(fold(key, "x"), (samples, 1))
        value = torch.cos(frequency * x[:, 0]) + NOISE * normal(fold(key, "noise"), (samples,))
        return widths[client] * x, (value > 0).long()

    return _source(
        "fedbn_cosine", "The sign of a cosine, its argument on another scale everywhere", samples, widths, draw
    )


def _source(
    name: str, about: str, samples: int, clients: Iterable[str], draw: Callable[[str, Key], tuple[Tensor, Tensor]]
) -> Source:
    if samples < 2:
        raise Refused(f"{name}: samples={samples} must be 2 or more")
    blocks = []
    for client in clients:
        for split in ("train", "test"):
            x, y = draw(client, fold(0, name, client, split))
            values = x.float().numpy()
            block = Block(client, split, y.numpy(), values.shape[1:], values.dtype, lambda v=values: v)  # type: ignore[misc]
            blocks.append(block)
    return Source(name, ("0", "1"), tuple(blocks), about)
