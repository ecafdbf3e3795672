"""FixUp: Zhang, Dauphin, Ma, ICLR 2019: residual networks trained without normalization, by initialisation.

Of L residual branches with m convolutions each, all but the last start ~ N(0, 2 / (C_out k^2)) L^(-1 / (2m - 2)), the
last one at 0; the classifier starts at 0. Norm layers go; where they stood there is a scalar bias, and at the end of a
branch a scalar multiplier too; every convolution gets a scalar bias in front.

Deviations: the initial weights of branches and classifier are the method's, drawn by the layer's name, and pretrained
ones do not survive (they are not used as they are: initialisation *is* the method). Shortcuts stay as they are, where
FedBS's code subsamples. Branches are found in the network's graph (torch.fx).
"""

from torch import nn

from normfed.errors import Refused
from normfed.keys import named, normal
from normfed.method import Expression, Method, factory
from normfed.state import NormLayer
from normfed.surgery import CONVOLUTIONS, branches, convolution_before, delete_norms


class Scalar(NormLayer):
    """x * multiplier + bias, one number each; a multiplier only at the end of a branch."""

    def __init__(self, like, multiplier):
        super().__init__()
        self.multiplier = nn.Parameter(like.new_ones(())) if multiplier else None
        self.bias = nn.Parameter(like.new_zeros(()))

    def forward(self, x):
        return (x if self.multiplier is None else x * self.multiplier) + self.bias


class BiasedConv:
    """Mixed in before a convolution class: a scalar is added to its input."""

    def forward(self, x):
        return super().forward(x + self.input_bias)


def _fixup(model, x):
    found = branches(model)
    if not found:
        raise Refused("it initialises residual branches, and the model has none")
    modules = dict(model.named_modules())
    convolutions = {path: m for path, m in modules.items() if isinstance(m, CONVOLUTIONS)}
    odd = [
        f"'{p}' ({type(m).__name__})" for p, m in convolutions.items() if not type(m).__module__.startswith("torch.")
    ]
    if odd:
        raise Refused(
            f"it starts convolutions at weights of its own, and {', '.join(odd)} may not use them as they are"
        )
    for branch in found:
        for path in branch[:-1]:
            weight = modules[path].weight
            fan = weight.shape[0] * weight[0, 0].numel()
            scale = (2 / fan) ** 0.5 * len(found) ** (-1 / (2 * len(branch) - 2))
            weight.data = normal(named(path), weight.shape, weight.dtype) * scale
        nn.init.zeros_(modules[branch[-1]].weight)
    last = {norm for norm, conv in convolution_before(model, x).items() if conv in {b[-1] for b in found}}
    ends = {modules[path] for path in last}
    like = next(model.parameters())
    for module in convolutions.values():
        module.input_bias = nn.Parameter(like.new_zeros(()))
        module.__class__ = type(f"Biased{type(module).__name__}", (BiasedConv, type(module)), {})
    head = [m for m in modules.values() if isinstance(m, nn.Linear)][-1:]
    for layer in head:
        nn.init.zeros_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return delete_norms(model, lambda layer: Scalar(like, layer in ends))


@factory
def fixup() -> Expression:
    """Deletes norm layers and starts residual branches so that training is stable without them.

    Use it when a residual network should do without normalization.
    It cannot start from pretrained weights, nor act on a network without residual branches.
    """
    return Method("fixup", transform=(_fixup,))
