"""Talking during a step: one differentiable operator, the weighted mean over the clients of a lock-step.

    cohort_mean(x)_i = sum_k w_k x_k / sum_k w_k      on every client i

In the inner product weighted by w it is its own adjoint, so its backward *is* itself: the gradients that clients hold
of the common value are averaged with the same weights. That is all FedTAN needs (Wang et al., 2023, Algorithms 2, 3).

Which clients sit together is the engine's business. A *group* of clients reduces its own values to a partial sum;
partial sums of several groups meet in `lockstep`, which re-runs each group with the answers found so far (replay). One
group needs no replay, and a group of one client is the serial case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Suspend(Exception):
    """A group asked for a common value whose answer needs the other groups."""

    def __init__(self, partial: Partial) -> None:
        super().__init__("a lock-step collective was called outside of lockstep()")
        self.partial = partial


@dataclass(frozen=True)
class Partial:
    """A weighted mean under construction: a commutative monoid, so groups may meet in any order."""

    weight: Tensor
    total: Tensor  # sum_k w_k x_k

    @classmethod
    def of(cls, values: Tensor, weights: Tensor) -> Partial:  # [clients, ...], [clients]
        weights = weights.to(values.dtype)
        return cls(weights.sum(), torch.tensordot(weights, values, dims=1))

    def merge(self, other: Partial) -> Partial:
        return Partial(self.weight + other.weight, self.total + other.total)

    def finish(self) -> Tensor:
        return self.total / self.weight


@dataclass(frozen=True)
class PartialMoments(Partial):
    """Mean and variance together, in one message: [clients, 2, channels] holds each client's mean and its variance
    about that mean. The cohort's variance is sum_k p_k (var_k + (mean_k - mean)^2); merged as Chan, Golub, LeVeque
    (1983) do, without subtracting large numbers. `total` holds the mean so far and the summed squares about it."""

    @classmethod
    def of(cls, values: Tensor, weights: Tensor) -> PartialMoments:
        weights = weights.to(values.dtype)
        weight = weights.sum()
        mean = torch.tensordot(weights, values[:, 0], dims=1) / weight
        spread = torch.tensordot(weights, values[:, 1] + (values[:, 0] - mean).square(), dims=1)
        return cls(weight, torch.stack([mean, spread]))

    def merge(self, other: Partial) -> PartialMoments:
        weight = self.weight + other.weight
        (mean, spread), (other_mean, other_spread) = self.total, other.total
        gap = other_mean - mean
        merged = mean + gap * (other.weight / weight)
        spread = spread + other_spread + gap.square() * (self.weight * other.weight / weight)
        return PartialMoments(weight, torch.stack([merged, spread]))

    def finish(self) -> Tensor:
        return torch.stack([self.total[0], self.total[1] / self.weight])


@dataclass
class Cohort:
    """The clients of a lock-step, as a group of them sees it."""

    samples: int  # in the common batch, all clients together
    own_samples: int  # in the batch of each client of this group
    answers: list[Tensor] = field(default_factory=list)  # what earlier runs of this step have been told
    alone: bool = True  # the only group: partial sums are final
    asked: int = 0

    def ask(self, partial: Partial) -> Tensor:
        if self.asked == len(self.answers):
            if not self.alone:
                raise Suspend(partial)
            self.answers.append(partial.finish())
        self.asked += 1
        return self.answers[self.asked - 1]


def _flat(tensors: tuple[Tensor, ...], dims: Sequence[int | None], size: int) -> list[Tensor]:
    """vmap's axis of clients merged with the clients' own axis: [size, n, ...] -> [size * n, ...]."""
    whole = [t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=False)]
    return [t.flatten(0, 1) for t in whole]


class _Mean(torch.autograd.Function):
    """values [clients, ...], weights [clients] -> their mean, for each client. A client alone has an axis of one; under
    vmap the clients' axis is what vmap maps over. Differentiating inside vmap or around it gives the same."""

    @staticmethod
    def forward(values: Tensor, weights: Tensor, cohort: Cohort) -> Tensor:
        return cohort.ask(Partial.of(values, weights)).expand_as(values).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, weights, ctx.cohort = inputs
        ctx.save_for_backward(weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (weights,) = ctx.saved_tensors
        return _Mean.apply(grads[0], weights, ctx.cohort), None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, values: Tensor, weights: Tensor, cohort: Cohort) -> Any:
        values, weights = _flat((values, weights), in_dims, info.batch_size)
        return _Mean.apply(values, weights, cohort).unflatten(0, (info.batch_size, -1)), 0


class _Moments(torch.autograd.Function):
    """means, variances [clients, channels] -> the cohort's, for each client: one message forward, one backward."""

    @staticmethod
    def forward(mean: Tensor, var: Tensor, weights: Tensor, cohort: Cohort, average_gradients: bool) -> Any:
        pooled = cohort.ask(PartialMoments.of(torch.stack([mean, var], dim=1), weights))
        return pooled[0].expand_as(mean).clone(), pooled[1].expand_as(var).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        mean, _, weights, ctx.cohort, ctx.average_gradients = inputs
        ctx.save_for_backward(mean, output[0], weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        mean, pooled_mean, weights = ctx.saved_tensors
        both = torch.stack(grads, dim=1)
        if ctx.average_gradients:  # Algorithm 3: dF/dmean and dF/dvar are averaged over the clients
            both = _Mean.apply(both, weights, ctx.cohort)
        # d var / d mean_i = 2 p_i (mean_i - mean); the part through the common mean sums to zero over the cohort.
        return both[:, 0] + 2 * (mean - pooled_mean) * both[:, 1], both[:, 1], None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, mean: Tensor, var: Tensor, weights: Tensor, cohort: Cohort, average_gradients: bool
    ) -> Any:
        mean, var, weights = _flat((mean, var, weights), in_dims, info.batch_size)
        pooled = _Moments.apply(mean, var, weights, cohort, average_gradients)
        return tuple(part.unflatten(0, (info.batch_size, -1)) for part in pooled), (0, 0)


def cohort_mean(x: Tensor, weight: Tensor, cohort: Cohort) -> Tensor:
    """The weighted mean of x over the clients of the lock-step; differentiable, self-adjoint."""
    mean: Tensor = _Mean.apply(x[None], weight[None], cohort)
    return mean[0]


def cohort_moments(
    mean: Tensor, var: Tensor, weight: Tensor, cohort: Cohort, average_gradients: bool = True
) -> tuple[Tensor, Tensor]:
    """Mean and biased variance over all values of all clients, from each client's own mean and biased variance.

    Two messages per layer and lock-step (forward, backward) where the paper's protocol takes three. With
    `average_gradients=False` the gradients stay the client's own (FedAvg + Algorithm 2), and only one is needed.
    """
    pooled = _Moments.apply(mean[None], var[None], weight[None], cohort, average_gradients)
    return pooled[0][0], pooled[1][0]


def lockstep(
    run: Sequence[Callable[[Cohort], T]], sizes: Sequence[int], counts: Sequence[int]
) -> tuple[list[T], list[int]]:
    """Runs one step of every group in lock-step. Returns the results and the bytes of each message, per client.

    `run[g]` computes the step of group g, of `counts[g]` clients with `sizes[g]` samples each. Where there are several
    groups, each runs until it asks for a common value it has not been told, then all run again with the answer:
    no threads, any device, the same numbers; the price is one more forward pass per message.
    """
    samples = sum(size * count for size, count in zip(sizes, counts, strict=True))
    alone = len(run) == 1
    answers: list[Tensor] = []
    while True:
        results: list[T] = []
        partials: list[Partial] = []
        for step, size in zip(run, sizes, strict=True):
            try:
                results.append(step(Cohort(samples, size, answers, alone)))
            except Suspend as ask:
                partials.append(ask.partial)
        if len(results) == len(run):
            return results, [answer.nbytes for answer in answers]
        if len(partials) != len(run):
            raise AssertionError("clients of a lock-step asked for different numbers of common values")
        merged = partials[0]
        for partial in partials[1:]:
            merged = merged.merge(partial)
        answers.append(merged.finish())
