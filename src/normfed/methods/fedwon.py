"""FedWon: Zhuang and Lyu, ICLR 2024, equation 3 and its listing.

Every norm layer is deleted and every convolution standardises its weight, per output channel i with fan-in n:

    W_i <- gain_i (W_i - mean_i) / sqrt(max(n var_i, 1e-4))

Deviations: initial weights are the model's own, where the listing draws Xavier normal ones; else none from the listing
(unbiased variance, a trained gain, a bias everywhere). `unbiased=False` and `gain=False` are equation 3 read literally
(biased variance, no gain). A kernel of a single value has no variance and stays a plain convolution. Residual networks
get no further scaling, as in the paper.

Pretrained weights: where a norm layer has seen data, its scale and shift as of evaluation are folded into gain and bias
of the convolution before it, so the function survives up to the means of the filters, which standardisation removes.
"""

import torch
from torch import nn

from normfed.errors import Refused
from normfed.method import Expression, Method, factory, require
from normfed.methods.agc import agc as clipping
from normfed.surgery import delete_norms, evaluated_affine

FLOOR = 1e-4


def standardise(weight, gain=None, unbiased=True):
    """The standardised weight; `gain` is [out, 1, …] or None."""
    dims = list(range(1, weight.dim()))
    var, mean = torch.var_mean(weight, dims, correction=int(unbiased), keepdim=True)
    fan_in = weight[0].numel()
    scaled = (weight - mean) * torch.rsqrt((var * fan_in).clamp(min=FLOOR))
    return scaled if gain is None else scaled * gain


class WSConv:
    """Mixed in before a convolution class: the same layer with its weight standardised."""

    def forward(self, x):
        return self._conv_forward(x, standardise(self.weight, self.gain, self.unbiased), self.bias)


_PLAIN = {nn.Conv1d: nn.Conv1d.forward, nn.Conv2d: nn.Conv2d.forward, nn.Conv3d: nn.Conv3d.forward}


def _convolutions(model):
    found = {path: m for path, m in model.named_modules() if isinstance(m, tuple(_PLAIN))}
    odd = [f"'{p}' ({type(m).__name__})" for p, m in found.items() if type(m).forward not in _PLAIN.values()]
    if odd:
        raise Refused(f"it standardises convolutions, and {', '.join(odd)} has a forward of its own")
    if not found:
        raise Refused("it standardises convolutions, and the model has none")
    return {path: m for path, m in found.items() if m.weight[0].numel() > 1}


def _standardised(model, x, unbiased, gain):
    convolutions = _convolutions(model)
    folded = evaluated_affine(model, x)
    for path, layer in convolutions.items():
        weight = layer.weight.detach()
        shape = (len(weight), *[1] * (weight.dim() - 1))
        scale, shift = folded.get(path, (weight.new_ones(len(weight)), None))
        if layer.bias is None:
            layer.bias = nn.Parameter(weight.new_zeros(len(weight)))
        if shift is not None:
            with torch.no_grad():
                layer.bias.mul_(scale).add_(shift)
            scale = scale * (weight.flatten(1).var(1, correction=int(unbiased)) * weight[0].numel()).sqrt()
        layer.gain = nn.Parameter(scale.reshape(shape)) if gain else None
        layer.unbiased = unbiased
        layer.__class__ = type(f"WS{type(layer).__name__}", (WSConv, type(layer)), {})
    return delete_norms(model)


@factory
def fedwon(agc: float | None = None, unbiased: bool = True, gain: bool = True) -> Expression:
    """Norm layers out, weight-standardised convolutions in; `agc` adds adaptive gradient clipping at that threshold.

    Use it when batches are tiny, down to a single sample, or statistics should not exist at all: nothing to keep,
    average or leak.
    It cannot keep a pretrained network's function exactly, wants a larger learning rate than BatchNorm, and does
    nothing for linear layers.
    """
    require(agc is None or agc > 0, f"fedwon: agc={agc} must be above 0")
    without_norms = Method("fedwon", transform=(lambda model, x: _standardised(model, x, unbiased, gain),))
    return without_norms if agc is None else without_norms | clipping(agc)
