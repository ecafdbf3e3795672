"""Server optimizers: Hsu et al., 2019 (FedAvgM); Reddi et al., ICLR 2021, Algorithm 2 (FedAdam, FedYogi).

The averaged update is taken as a gradient, of *trainable* entries only: running statistics are averaged as in FedAvg,
so that a variance can never turn negative. Deviations: none; the papers have no BatchNorm statistics to speak of.
"""

import math

from normfed.method import Expression, Holder, Method, Slot, factory, require, zeros_of_trained
from normfed.state import add, pick, scale, sub, trainable


def _change(end, names):
    return sub(pick(end.proposal, names), end.anchor)


@factory
def fedavgm(momentum: float = 0.9, lr: float = 1.0) -> Expression:
    """Momentum on the server: v <- momentum v + change; w <- w + lr v.

    Use it when few clients take part in a round and the average jumps about.
    It cannot act on statistics, which are averaged as they are.
    Identities: fedavgm(momentum=0.0) = fedavg
    """
    require(0 <= momentum < 1, f"fedavgm: momentum={momentum} must be at least 0 and below 1")
    require(0 < lr < math.inf, f"fedavgm: lr={lr} must be above 0")

    def push(end):
        return add(scale(end.slots["v"], momentum), _change(end, end.slots["v"]))

    v = Slot("v", Holder.SERVER, init=zeros_of_trained, after=push, to_clients=False)
    return Method(
        "fedavgm", slots=(v,), server=((trainable, lambda end, new: add(pick(end.anchor, new), end.slots["v"], lr)),)
    )


def _adaptive(name, second_moment, lr, beta1, beta2, tau):
    """m <- beta1 m + (1 - beta1) change; v by `second_moment`; w <- w + lr m / (sqrt(v) + tau). v starts at tau^2."""
    require(0 <= beta1 < 1 and 0 <= beta2 < 1, f"{name}: beta1={beta1}, beta2={beta2} must be at least 0 and below 1")
    require(tau > 0 and 0 < lr < math.inf, f"{name}: tau={tau} and lr={lr} must be above 0")

    def first(end):
        m = end.slots["m"]
        return add(scale(m, beta1), _change(end, m), 1 - beta1)

    def second(end):
        squares = {n: d.square() for n, d in _change(end, end.slots["v"]).items()}
        return {n: second_moment(v, squares[n]) for n, v in end.slots["v"].items()}

    def step(end, new):
        m, v = end.slots["m"], end.slots["v"]
        return {n: end.anchor[n] + lr * m[n] / (v[n].sqrt() + tau) for n in new}

    def floor(beginning):
        return {n: t + tau**2 for n, t in zeros_of_trained(beginning).items()}

    m = Slot("m", Holder.SERVER, init=zeros_of_trained, after=first, to_clients=False)
    v = Slot("v", Holder.SERVER, init=floor, after=second, to_clients=False)
    return Method(name, slots=(m, v), server=((trainable, step),))


@factory
def fedadam(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Expression:
    """Adam on the server: v <- beta2 v + (1 - beta2) change^2.

    Use it when entries of the average need steps of different size.
    It cannot keep FedAvg's learning rate: lr and tau have to be found anew, and statistics are averaged as they are.
    """
    return _adaptive("fedadam", lambda v, d2: beta2 * v + (1 - beta2) * d2, lr, beta1, beta2, tau)


@factory
def fedyogi(lr: float = 0.1, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> Expression:
    """Yogi on the server: v <- v - (1 - beta2) change^2 sign(v - change^2).

    Use it when FedAdam's second moment moves too fast for sparse changes.
    It cannot keep FedAvg's learning rate: lr and tau have to be found anew, and statistics are averaged as they are.
    """
    return _adaptive("fedyogi", lambda v, d2: v - (1 - beta2) * d2 * (v - d2).sign(), lr, beta1, beta2, tau)
