"""FedAvg + GN: every BatchNorm becomes a GroupNorm (Wu and He, ECCV 2018; Hsieh et al., ICML 2020).

`groups` is the wish; a layer of C channels takes the largest divisor of C that is not above it. Gamma and beta are
carried over, so a pretrained scale is not lost. Deviations: the papers list groups layer by layer (FedWon: 32 and 64 on
AlexNet); one number serves here.
"""

from normfed.method import Expression, Method, factory, require
from normfed.needs import has_layers
from normfed.surgery import as_groupnorm, replace_norms


@factory
def groupnorm(groups: int = 32) -> Expression:
    """Replaces every BatchNorm by a GroupNorm, which knows no batch and no statistics.

    Use it when batches are small or label skew spoils batch statistics; it is the usual way out, at no cost in traffic.
    It cannot keep a pretrained BatchNorm network's function, and the number of groups is one more thing to choose.
    Identities: groupnorm(groups=1) = layernorm
    """
    require(groups >= 1, f"groupnorm: groups={groups} must be 1 or more")
    return Method(
        "groupnorm",
        needs=(has_layers("GroupNorm"),),
        transform=(lambda model, x: replace_norms(model, lambda bn: as_groupnorm(bn, groups)),),
    )
