"""FixBN: Zhong et al., 2023 ("Making Batch Normalization Great in Federated Deep Learning").

Until round `t` FedAvg with BatchNorm; from then on the layers normalise with the frozen global statistics, in training
as in evaluation; gamma and beta go on training and averaging.

Deviations: the optimizer is new every round (the paper's option to keep its momentum is not taken). The port in the HBN
repository puts the whole network in evaluation mode, dropout too; here only norm layers are frozen.
"""

from normfed.method import FROZEN_STATISTICS, Expression, Method, factory, from_round, require, switch
from normfed.needs import SHARES_STATISTICS


@factory
def fixbn(t: int | None = None) -> Expression:
    """Freezes the global statistics from round `t` on, counted from 0; half of the rounds where none is given.

    Use it when clients' batches differ but global statistics are good halfway through training.
    It cannot help before the switch, and frozen statistics do not follow what the weights still do.
    Identities: fixbn(t=99) = fedavg; fixbn(t=0) = fedtan_ii(m=0)
    """
    require(t is None or t >= 0, f"fixbn: t={t} must not be negative")
    moving = Method("fixbn", needs=(SHARES_STATISTICS,))
    frozen = Method("fixbn", needs=(SHARES_STATISTICS,), plan=FROZEN_STATISTICS)
    return switch("fixbn", from_round(t), moving, frozen)
