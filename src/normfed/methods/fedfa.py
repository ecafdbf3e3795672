"""FedFA: Zhou and Konukoglu, ICLR 2023; its code is tfzhou/FedFA.

After each stage of the network a layer augments features in training, with probability 1/2 per layer and batch: the
channel means m and standard deviations s of each sample are redrawn around themselves,

    m' = m + n1 sqrt((g_m + 1) V_m)      s' = s + n2 sqrt((g_s + 1) V_s)      y = s' (x - m) / s + m'

with V the variance of m (s) over the batch, n standard normal, and g = C t / sum(t), t = 1 / (1 + 1 / (R + eps)), where
R is the variance *over clients* of their running means of m (s). Identity in evaluation.

Deviations: R is one variance per channel; the code reduces over channels too and broadcasts one scalar, which makes
every g equal to 1 (the quirk is kept in the parity tests). A stage of a plain network is a convolution and what follows
it; of a network made of blocks, the blocks of one resolution. The optimizer is new every round.
"""

import torch
from torch import nn

from normfed.errors import Refused
from normfed.keys import fold, normal, uniform
from normfed.method import Expression, Method, factory
from normfed.norm import Driveable, moments
from normfed.reducers import SpreadOverClients
from normfed.state import Select
from normfed.surgery import insert_after, stages

EPS, KEEP, PROBABILITY = 1e-6, 0.99, 0.5


def redraw(x, spread_mean, spread_std, noise_mean, noise_std):
    """The augmented features, and the batch's average channel means and standard deviations."""
    dims = list(range(2, x.dim()))
    shape = (*x.shape[:2], *[1] * len(dims))
    m, var = moments(x, dims)
    pixels = x[0, 0].numel()
    s = (var * (pixels / max(pixels - 1, 1)) + EPS).sqrt()

    def moved(value, spread, noise):
        variance = (value.var(0, correction=1) if len(value) > 1 else 0 * value[0]) + EPS
        t = 1 / (1 + 1 / (spread + EPS))
        return value + noise * ((len(t) * t / t.sum() + 1) * variance).sqrt()

    new_m, new_s = moved(m, spread_mean, noise_mean), moved(s, spread_std, noise_std)
    y = new_s.view(shape) * (x - m.view(shape)) / s.view(shape) + new_m.view(shape)
    return y, m.mean(0), s.mean(0)


class FeatureAugmentation(Driveable, nn.Module):
    """Redraws channel statistics; keeps running means of them, which the server compares between clients."""

    def __init__(self, channels, like):
        super().__init__()
        self.register_buffer("mean", like.new_zeros(channels))
        self.register_buffer("std", like.new_ones(channels))
        self.register_buffer("spread_of_mean", like.new_ones(channels))
        self.register_buffer("spread_of_std", like.new_ones(channels))

    def forward(self, x):
        if not self.now.training:
            return x
        key = self.now.site_key(self._name)
        on = uniform(fold(key, "on"), (), torch.float32, x.device) < PROBABILITY
        noise = [normal(fold(key, part), x.shape[:2], x.dtype, x.device) for part in ("mean", "std")]
        y, m, s = redraw(x, self.spread_of_mean, self.spread_of_std, *noise)
        for name, old, new in (("mean", self.mean, m), ("std", self.std, s)):
            self.emit(name, torch.where(on, KEEP * old + (1 - KEEP) * new.detach(), old))
        return torch.where(on, y, x)


augmented = Select("augmentation", lambda e: issubclass(e.kind, FeatureAugmentation))


def _augment(model, x):
    ends = stages(model, x)
    if not ends:
        raise Refused("it augments the features of convolutional stages, and the model has none")
    for end in ends:
        insert_after(model, end, FeatureAugmentation(end.channels, next(model.parameters())), "fedfa")
    return model


@factory
def fedfa() -> Expression:
    """Augments features with noise as wide as channel statistics vary, within a batch and between clients.

    Use it when sites look different and the model should serve all of them, or one not yet seen.
    It cannot act on networks without convolutional stages, and makes training noisier: short runs gain little.
    """
    return Method("fedfa", transform=(_augment,), reduce=((augmented, SpreadOverClients("spread_of_")),))
