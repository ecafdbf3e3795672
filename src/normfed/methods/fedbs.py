"""FedBS: Algorithm 1 and its text ("<=", r consecutive rounds).

Phase 1 weighs every client by its training loss, parameters and statistics alike: p_k = F_k / sum_j F_j. When the
losses have agreed (population std over the round's participants <= eps) `patience` rounds in a row, phase 2 begins with
the next round, for good: FedProx with equal weights.

Deviations: the algorithm box compares once, with "<"; its text is followed. F_k is the mean task loss over all local
steps. mu is not given in the paper.
"""

import torch

from normfed.method import Expression, Holder, Method, Slot, factory, require, switch
from normfed.methods.fedprox import fedprox


@factory
def fedbs(mu: float = 0.01, eps: float = 0.1, patience: int = 5) -> Expression:
    """Weighs clients by their loss until the losses agree, then turns to FedProx with equal weights.

    Use it when some clients are harder than others and their losses, not their sizes, should count.
    It cannot tell a hard client from a noisy one, reveals each client's loss to the server, and does not treat
    BatchNorm otherwise than FedAvg.
    Identities: fedbs(eps=0.0) = fedbs(eps=0.0, patience=9)
    """
    require(eps >= 0 and patience >= 1, f"fedbs: eps={eps} must not be negative, patience={patience} at least 1")

    def count(end):
        agree = end.losses.std(correction=0) <= eps
        return torch.where(agree, end.slots["calm"] + 1, 0)

    calm = Slot("calm", Holder.SERVER, init=lambda beginning: torch.tensor(0), after=count, to_clients=False)
    by_loss = Method("fedbs", slots=(calm,), weigh=lambda reply: reply.mean_loss)
    equal = Method("fedbs", weigh=lambda reply: torch.ones_like(reply.mean_loss))
    return switch("fedbs", lambda server: bool(server.slots["calm"] >= patience), by_loss, fedprox(mu) | equal)
