"""FedTAN, FedTAN-II and FedAvg + Algorithm 2: Wang et al., 2023 (arXiv 2301.02982), Algorithms 1 to 3.

The first local step of a round is taken in lock-step: every BatchNorm normalises with the mean and variance over the
batches of all clients, and the gradients through those two are averaged as well, layer by layer. Steps 2, 3, … are
ordinary. With equal batches and one step a round equals one centralised step (Remark 3).

Any network: the talking is one differentiable operator inside the norm layers, not a hand-unrolled network.

Deviations: mean and variance travel together, 2L + 1 messages a round where the paper's protocol has 3L + 1, the same
numbers and the same bytes. The running variance moves to the pooled biased variance x M / (M - 1), M = values pooled.
FedAvg + Algorithm 2 (simplified FedDNA) is not public: here values are global and gradients through them the client's
own.
"""

from normfed.method import FROZEN_STATISTICS, Expression, Method, Segment, factory, from_round, require, switch
from normfed.needs import SHARES_STATISTICS
from normfed.norm import COHORT, CohortMode


def _lockstep(name, mode):
    plan = (Segment(steps=1, norm=mode, lockstep=True), Segment())
    return Method(name, needs=(SHARES_STATISTICS,), plan=plan)


@factory
def fedtan() -> Expression:
    """First local step with statistics, and gradients through them, averaged over all clients, layer by layer.

    Use it when clients hold few classes each and all are online at once (cross-silo, fast links).
    It cannot tolerate a client that drops out within a round, nor give each site statistics of its own; steps after the
    first are ordinary, so with many local steps the clients drift as in FedAvg.
    """
    return _lockstep("fedtan", COHORT)


@factory
def fedtan_ii(m: int | None = None) -> Expression:
    """FedTAN for `m` rounds (half of them where none is given), then FedAvg with the statistics frozen.

    Use it when FedTAN is wanted and its messages are too many for the whole run.
    It cannot switch well too early: statistics frozen before they are good stay bad, and the second half wants a
    smaller learning rate.
    Identities: fedtan_ii(m=99) = fedtan; fedtan_ii(m=0) = fixbn(t=0)
    """
    require(m is None or m >= 0, f"fedtan_ii: m={m} must not be negative")
    frozen = Method("fedtan_ii", needs=(SHARES_STATISTICS,), plan=FROZEN_STATISTICS)
    return switch("fedtan_ii", from_round(m), _lockstep("fedtan_ii", COHORT), frozen)


@factory
def feddna() -> Expression:
    """FedAvg + Algorithm 2: global statistics in the first step's forward, own gradients in its backward.

    Use it when clients hold few classes each and a message less per norm layer matters.
    It cannot equal centralised training: values are the federation's, gradients the client's own.
    """
    return _lockstep("feddna", CohortMode(average_gradients=False))
