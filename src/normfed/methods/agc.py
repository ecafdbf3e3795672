"""Adaptive gradient clipping: Brock et al., ICML 2021 (NFNets), equation 3; FedWon uses it at batch size 32.

Row i of a weight, all entries of output unit i (PyTorch's first axis, linear layers too), has its gradient scaled to at
most `threshold` x max(|W_i|, 1e-3). Vectors (biases, gains) are clipped by their whole norm, and the classifier is left
alone, both as NFNets' code does.

Deviations: FedWon does not say which entries it clips; `classifier=True` clips that layer as well.
"""

import torch

from normfed.method import Expression, Method, factory, require

EPS = 1e-3


def unit_norm(x: torch.Tensor) -> torch.Tensor:
    """Norm of each output unit, [units, 1, …]; of the whole where there is one axis in earnest (vectors, gains)."""
    if x.squeeze().dim() <= 1:
        return torch.linalg.vector_norm(x)
    return torch.linalg.vector_norm(x, dim=list(range(1, x.dim())), keepdim=True)


def clip_unitwise(grad: torch.Tensor, weight: torch.Tensor, threshold: float) -> torch.Tensor:
    """The gradient, each row at most `threshold` times its weight's norm."""
    limit = threshold * unit_norm(weight).clamp(min=EPS)
    norm = unit_norm(grad)
    return torch.where(norm > limit, grad * (limit / norm.clamp(min=1e-6)), grad)


@factory
def agc(threshold: float = 1.28, classifier: bool = False) -> Expression:
    """Clips each unit's gradient relative to its weight's norm.

    Use it when a network has no norm layers to keep gradients in proportion (`nonorm`, `fedwon`) and batches or
    learning rates are large.
    It cannot do without a threshold found by trial, and adds little where BatchNorm already scales gradients.
    Identities: agc(threshold=1e9) = fedavg
    """
    require(threshold > 0, f"agc: threshold={threshold} must be above 0")

    def clip(grads, step):
        spared = frozenset() if classifier else step.head
        return {n: g if n in spared else clip_unitwise(g, step.params[n], threshold) for n, g in grads.items()}

    return Method("agc", grad=(clip,))
