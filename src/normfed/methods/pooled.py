"""Statistics by the law of total variance, to compose with anything that shares them.

    mean = sum_k p_k mean_k        var = sum_k p_k (var_k + (mean_k - mean)^2)

FedAvg averages variances and forgets how far the clients' means lie apart; this reducer remembers.
"""

from normfed.method import Expression, Method, factory
from normfed.needs import SHARES_STATISTICS
from normfed.reducers import pooled_moments
from normfed.state import moments


@factory
def pooled() -> Expression:
    """Pools running means and variances as if the clients' samples had been seen together.

    Use it when clients' means lie apart and the averaged variance should say so; add it to any method that shares
    statistics.
    It cannot mend what a mean and a variance cannot say: two sites far apart get one wide bell between them.
    """
    return Method("pooled", needs=(SHARES_STATISTICS,), reduce=((moments, pooled_moments),))
