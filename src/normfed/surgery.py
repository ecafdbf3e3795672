"""Changing the layers of a model: norm layers out, others in. Layers are found by type; what finds nothing refuses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normfed.errors import Refused
from normfed.norm import Intercept, stock_forward
from normfed.state import batchnorms, census


class Dressed(nn.Module):
    """A norm layer in the place of a BatchNorm that did more than normalise (a fused activation, say): the foreign
    layer's forward runs, and its call of batch_norm is answered by the new layer."""

    def __init__(self, foreign: _BatchNorm, norm: nn.Module) -> None:
        super().__init__()
        for name in ("weight", "bias"):
            foreign._parameters[name] = None
        for name in ("running_mean", "running_var"):
            foreign._buffers[name] = None
        foreign.register_buffer("num_batches_tracked", torch.tensor(0), persistent=False)  # it may count; nobody reads
        foreign.__dict__["is_shell"] = True
        self.norm, self.foreign = norm, foreign

    def forward(self, x: Tensor) -> Tensor:
        with Intercept(self.foreign, lambda input, *rest, **more: self.norm(input)):
            y: Tensor = self.foreign(x)
        return y


def replace_norms(model: nn.Module, make: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    """`model` (changed in place) with every BatchNorm replaced by `make(layer)`, wherever it is used."""
    layers = batchnorms(model).values()
    if not layers:
        raise Refused(f"it replaces BatchNorm layers and the model has none; it has {census(model) or 'no norm layer'}")
    new: dict[nn.Module, nn.Module] = {}
    for layer in layers:
        made = make(layer)
        new[layer] = made if stock_forward(type(layer)) else Dressed(layer, made)
        new[layer].train(layer.training)
    return swap(model, new)


def swap(model: nn.Module, new: dict[nn.Module, nn.Module]) -> nn.Module:
    """`model` with each module that is a key of `new` replaced by its value, under every name it has."""
    if model in new:
        return new[model]
    inside = {id(m) for made in new.values() for m in made.modules()}
    for parent in list(model.modules()):
        if id(parent) in inside:
            continue
        for name, child in parent.named_children():
            if child in new:
                parent._modules[name] = new[child]
    return model


def as_groupnorm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    """GroupNorm with gamma and beta of `layer`; the largest divisor of its channels that is not above `groups`."""
    channels = layer.num_features
    divisor = next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
    made = nn.GroupNorm(divisor, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made
