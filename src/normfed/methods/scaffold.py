"""SCAFFOLD: Karimireddy et al., ICML 2020, Algorithm 1, option II.

Local step: w <- w - lr (g - c_k + c). After H steps: c_k+ = c_k - c + (w_global - w_k) / (H lr); the server adds
sum_k (c_k+ - c_k) / K to c, K clients in the federation. Variates cover the trainable, shared entries; running
statistics are averaged.

Deviations: the server's step size is 1. With momentum or weight decay, option II is not the mean gradient; it is taken
as written. H counts steps really taken.
"""

from normfed.method import Expression, Holder, Method, Report, Slot, factory, zeros_of_trained
from normfed.reducers import total
from normfed.state import add, pick, scale, sub


@factory
def scaffold() -> Expression:
    """Corrects each local gradient by how far the client's usually is from the federation's.

    Use it when clients' gradients point different ways and the same clients come back.
    It cannot mend normalization, doubles the traffic, and its memory of a client that comes rarely is out of date.
    """

    def drift(end):  # c_k+ - c_k
        moved = sub(pick(end.start, end.slots["c"]), end.final)
        return sub(scale(moved, 1 / (end.steps * end.lr)), end.slots["c"])

    def correct(grads, step):
        c, own = step.slots["c"], step.slots["own"]
        return {name: grad - own[name] + c[name] if name in c else grad for name, grad in grads.items()}

    def move(end):
        return add(end.slots["c"], end.reports["drift"], 1 / end.n_clients)

    own = Slot("own", Holder.CLIENT, init=zeros_of_trained, after=lambda end: add(end.slots["own"], drift(end)))
    c = Slot("c", Holder.SERVER, init=zeros_of_trained, after=move)
    return Method("scaffold", slots=(own, c), grad=(correct,), report=(Report("drift", drift, total),))
