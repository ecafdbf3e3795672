"""Centralized: one model on the pooled data, the usual upper bound.

The clients' training sets are joined in the clients' order; a round is `epochs` passes (or `steps` batches) over them.
Deviations: none. Nothing crosses the wire here because the data already did.
"""

from normfed.method import Expression, Method, factory


@factory
def centralized() -> Expression:
    """Trains one model on all clients' data together."""
    return Method("centralized", pool=True)
