"""SingleSet (also Standalone, SingleNet): the baseline in which nothing is shared.

Every client trains alone, rounds x epochs long, and is evaluated on its own test set. Deviations: none.
"""

from normfed.method import Expression, Method, factory
from normfed.state import Scope, everything


@factory
def singleset() -> Expression:
    """Every client trains its own model; nothing crosses the wire.

    Use it when a study asks what federation brings at all.
    It cannot learn from others.
    Identities: singleset+silobn = singleset
    """
    return Method("singleset", scope=((everything, Scope.LOCAL),))
