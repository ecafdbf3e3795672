"""Centralized: one model on the pooled data, the usual upper bound.

The clients' training sets are joined in the clients' order; a round is `epochs` passes (or `steps` batches) over them.
Deviations: none. Nothing crosses the wire here because the data already did.
"""

from normfed.method import Expression, Method, factory


@factory
def centralized() -> Expression:
    """Trains one model on all clients' data together.

    Use it when a study needs the bound that pooling all data would reach.
    It cannot be had in a federation: the data lie in one place.
    Identities: centralized+fedprox(mu=0.0) = centralized
    """
    return Method("centralized", pool=True)
