"""FedAvg + LN: every BatchNorm becomes a layer normalization over all channels (Ba, Kiros, Hinton, 2016).

Written as GroupNorm with one group, as in FedWon's and FedTAN's comparisons: statistics over channels and positions of
a sample, gamma and beta per channel, carried over. Deviations: none.
"""

from normfed.method import Expression, Method, factory
from normfed.needs import has_layers
from normfed.surgery import as_groupnorm, replace_norms


@factory
def layernorm() -> Expression:
    """Replaces every BatchNorm by normalization over all channels of a sample.

    Use it when batches are small and groups are not to be chosen.
    It cannot keep apart channels whose scales carry meaning, nor a pretrained network's function.
    Identities: layernorm = groupnorm(groups=1)
    """
    return Method(
        "layernorm",
        needs=(has_layers("GroupNorm"),),
        transform=(lambda model, x: replace_norms(model, lambda layer: as_groupnorm(layer, 1)),),
    )
