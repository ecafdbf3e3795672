"""PN, population normalization: CVPR 2025 (abstract-level information).

x <- (x - mean) / std, with mean and std *trained parameters*: the same in training and evaluation, a batch of one will
do, nothing to average but parameters.

Deviations: the parametrisation is ours: std = exp(log_std). Both start at the layer's running statistics, so a fresh
network starts at (0, 1) and a pretrained one keeps its function. The optional noise of the paper is left out.
"""

import torch
from torch import nn

from normfed.method import Expression, Method, factory
from normfed.needs import has_layers
from normfed.state import NormLayer
from normfed.surgery import replace_norms


class PopulationNorm(NormLayer):
    """Normalises with trained moments, then scales and shifts."""

    def __init__(self, layer):
        super().__init__()
        like = layer.weight if layer.weight is not None else next(layer.buffers(), torch.zeros(()))
        zero = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
        tracked = layer.running_mean is not None
        self.mean = nn.Parameter(layer.running_mean.clone() if tracked else zero.clone())
        self.log_std = nn.Parameter((layer.running_var + layer.eps).log() / 2 if tracked else zero.clone())
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x):
        shape = (1, -1, *[1] * (x.dim() - 2))
        y = (x - self.mean.view(shape)) * (-self.log_std).exp().view(shape)
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)


@factory
def popnorm() -> Expression:
    """Replaces batch statistics by trained parameters.

    Use it when batches may be of one sample and statistics should be learnt like weights.
    It cannot adapt to a site: its moments are the federation's, and they are only as good as training makes them.
    """
    return Method(
        "popnorm",
        needs=(has_layers("PopulationNorm"),),
        transform=(lambda model, x: replace_norms(model, PopulationNorm),),
    )
