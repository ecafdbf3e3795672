"""FedAvg without BatchNorm: the layers deleted, nothing in their place (Zhuang and Lyu, FedWon, ICLR 2024, Table 4).

Deviations: none. Gamma and beta go with the layer.
"""

from torch import nn

from normfed.method import Expression, Method, factory
from normfed.surgery import replace_norms


@factory
def nonorm() -> Expression:
    """Deletes every BatchNorm layer.

    Use it when a study asks what normalization brings at all.
    It cannot train deep networks at the learning rates that normalization allows.
    """
    return Method("nonorm", transform=(lambda model, x: replace_norms(model, lambda layer: nn.Identity()),))
