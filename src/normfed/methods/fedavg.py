"""FedAvg: McMahan et al., AISTATS 2017, Algorithm 1.

Everything is shared and averaged with weights N_k / N: parameters, running means and running variances alike, as the
papers on BatchNorm in federated learning do. Counters take the maximum.

Deviations: none. (The between-client spread of the means is not in the averaged variance: `pooled()` puts it there.)
"""

from normfed.method import Expression, Method, factory


@factory
def fedavg() -> Expression:
    """Averages every entry of the clients' states; the unit of composition.

    Use it when clients' data look alike, and as the line every other method is measured against.
    It cannot serve sites whose inputs differ (averaged statistics fit none of them), and under few classes per client
    its statistics and gradients are those of no common distribution.
    Identities: fedavg+fedavg = fedavg
    """
    return Method("fedavg")
