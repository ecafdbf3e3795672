"""FedBN: Li et al., ICLR 2021, Algorithm 1.

Every entry of every BatchNorm stays at home: gamma, beta, running statistics, counter. Found by type, in shortcuts and
sequential models alike. Deviations: none. (The authors' filter is the substring "bn" in a name.)
"""

from normfed.method import Expression, Method, factory
from normfed.needs import HAS_BATCHNORM
from normfed.state import Scope, norm


@factory
def fedbn() -> Expression:
    """Keeps the BatchNorm layers at home and averages the rest."""
    return Method("fedbn", needs=(HAS_BATCHNORM,), scope=((norm, Scope.LOCAL),))
