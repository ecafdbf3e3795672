"""GReg: local-global consistency regularisation, 2024 (no code was released), Algorithm 2, equations 5 and 6.

L = CE(q_b, y) + alpha [KL(q_b || q_g) + KL(q_g || q_b)] / 2, with q_b under batch statistics and q_g under the
broadcast global statistics, both with the current weights; from round 1 on. The server smooths statistics in every
round, 0 included: S <- (1 - rho) S + rho S_new.

Deviations: none where the paper speaks. Where it is silent: gradients flow through both branches (`detach=True` is the
other reading), KL is averaged over the batch, the second pass moves no statistics and draws the same dropout and
augmentation noise, and the broadcast statistics are used after the first local step too.
"""

from torch.nn.functional import log_softmax

from normfed.method import Expression, Method, factory, require
from normfed.needs import SHARES_STATISTICS
from normfed.norm import RUNNING
from normfed.state import add, norm, pick, scale, stats


def smooth(rho: float):
    """Server piece: S <- (1 - rho) S + rho S_new."""
    return lambda end, new: add(scale(pick(end.anchor, new), 1 - rho), new, rho)


def symmetric_kl(a, b):
    """[KL(a || b) + KL(b || a)] / 2 of log-probabilities, averaged over the batch."""
    return 0.5 * ((a.exp() - b.exp()) * (a - b)).sum(1).mean()


@factory
def greg(alpha: float = 1.0, rho: float = 0.1, detach: bool = False) -> Expression:
    """Ties predictions under batch statistics to predictions under the broadcast global statistics.

    Use it when one global model must serve sites that look different, and what it does under batch statistics is better
    than what it does under global ones.
    It cannot give sites statistics of their own (it needs them shared), and pays a second forward and backward pass per
    step.
    Identities: greg(alpha=0.0, rho=1.0) = fedavg
    """
    require(alpha >= 0, f"greg: alpha={alpha} must not be negative")
    require(0 < rho <= 1, f"greg: rho={rho} must be above 0 and at most 1")

    def consistency(step):
        if step.round == 0 or alpha == 0:  # eq. 6
            return None
        known = step.forward(norm=RUNNING, rest=step.anchor)
        return alpha * symmetric_kl(log_softmax(step.logits, 1), log_softmax(known.detach() if detach else known, 1))

    server = ((norm & stats, smooth(rho)),)
    return Method("greg", needs=(SHARES_STATISTICS,), loss=(consistency,), server=server)
