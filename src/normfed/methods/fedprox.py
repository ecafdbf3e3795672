"""FedProx: Li et al., MLSys 2020, Algorithm 2.

Deviations: none; the term is there in every round and step. An entry that stays at home (under FedBN, say) is drawn to
what the client began the round with. (The code of FedBN's authors leaves it out of round 0 and
of the first batch of each epoch, and two of its scripts use the unsquared norm: see tests/parity.)
"""

from normfed.method import Expression, Method, factory, require
from normfed.state import squared_distance


@factory
def fedprox(mu: float = 0.01) -> Expression:
    """Adds mu/2 ||w - w_global||^2 over all trainable entries to the local loss.

    Use it when clients take many local steps and drift apart.
    It cannot mend normalization: statistics are averaged as in FedAvg.
    Identities: fedprox(mu=0.0) = fedavg
    """
    require(mu >= 0, f"fedprox: mu={mu} must not be negative")
    return Method("fedprox", loss=(lambda step: mu / 2 * squared_distance(step.params, step.received),))
