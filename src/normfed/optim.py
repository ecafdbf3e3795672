"""Local optimizers on states. SGD does the operations of `torch.optim.SGD` in the same order and gives the same numbers
to the bit; AdamW to rounding. They write into the client's own working copy, which nobody else sees before the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normfed.state import State, zeros

OptimState = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Optimizer:
    """`start(params)` gives the memory of a new optimizer; `update` moves the parameters in place."""

    start: Callable[[State], OptimState]
    update: Callable[[State, State, OptimState, float, Any], None]


def sgd(momentum: float, weight_decay: float) -> Optimizer:
    def start(params: State) -> OptimState:
        return {"momentum": zeros(params)} if momentum else {}

    def update(params: State, grads: State, memory: OptimState, lr: float, step: Any) -> None:
        for name, param in params.items():
            grad = grads[name]
            if weight_decay:
                grad = grad.add(param, alpha=weight_decay)
            if momentum:
                grad = memory["momentum"][name].mul_(momentum).add_(grad)
            param.add_(grad, alpha=-lr)

    return Optimizer(start, update)


def adamw(weight_decay: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Optimizer:
    """Loshchilov and Hutter, ICLR 2019."""

    def start(params: State) -> OptimState:
        return {"mean": zeros(params), "square": zeros(params)}

    def update(params: State, grads: State, memory: OptimState, lr: float, step: Any) -> None:
        count = step.to(torch.float64) + 1 if isinstance(step, Tensor) else step + 1  # differs among stacked clients
        bias1, bias2 = 1 - beta1**count, 1 - beta2**count
        root2 = bias2**0.5
        for name, param in params.items():
            grad, mean, square = grads[name], memory["mean"][name], memory["square"][name]
            param.mul_(1 - lr * weight_decay)
            mean.mul_(beta1).add_(grad, alpha=1 - beta1)
            square.mul_(beta2).add_(grad * grad, alpha=1 - beta2)
            param.sub_(mean / (square.sqrt() / root2 + eps) * (lr / bias1))

    return Optimizer(start, update)


def clip(grads: State, max_norm: float) -> dict[str, Tensor]:
    """Scales all gradients so that their joint norm is at most `max_norm`, as torch's clip_grad_norm_."""
    total = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads.values()]))
    factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
    return {name: grad * factor for name, grad in grads.items()}
