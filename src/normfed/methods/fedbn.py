"""FedBN: Li et al., ICLR 2021, Algorithm 1.

Every entry of every BatchNorm stays at home: gamma, beta, running statistics, counter. Found by type, in shortcuts and
sequential models alike. Deviations: none. (The authors' filter is the substring "bn" in a name.)
"""

from normfed.method import Expression, Method, factory
from normfed.needs import HAS_BATCHNORM
from normfed.state import Scope, norm


@factory
def fedbn() -> Expression:
    """Keeps the BatchNorm layers at home and averages the rest.

    Use it when sites see the same classes through different instruments (scanners, cameras, stains), are few, and all
    come back.
    It cannot serve a client it has not trained with (what to do then is a choice, see the unseen views), nor classes
    that a client has never seen: its own statistics and gains know only its labels.
    Identities: fedbn+silobn = fedbn; singleset+fedbn = singleset
    """
    return Method("fedbn", needs=(HAS_BATCHNORM,), scope=((norm, Scope.LOCAL),))
