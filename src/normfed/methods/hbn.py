"""HBN, hybrid batch normalization: ICML 2025; its code is Hongyao-Chen/HybridBN.

Training normalises with (1 - a) global + a batch, a = sigmoid(factor) learnt per channel (0.5 at first), gradients
through the batch's statistics and a; evaluation with the global statistics. A round: one full pass over the local data
with the received weights measures its statistics; local training; the server combines them by the law of total
variance (N - 1 below, N = samples) and moves the global ones by `smoothing`. Clients restore their own factors although
they are averaged too. An evaluation first measures afresh with the new weights: an exchange of its own, counted.

Deviations: the code measures on the first batch of 64 only and accumulates the hybrid statistics; here it is one full
pass, and the batch's (the quirk is kept in the parity tests). A client with few samples is not left out.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from normfed.method import Expression, Holder, Method, Segment, Slot, View, factory, require
from normfed.methods.greg import smooth
from normfed.needs import SHARES_STATISTICS
from normfed.norm import Measure
from normfed.reducers import pooled_moments
from normfed.state import Select, moments, pick
from normfed.surgery import add_parameter

factors = Select("hybrid_factors", lambda e: e.attribute == "distribution_factor")


def hybrid(layer, mean, var):
    """(1 - a) global + a batch."""
    a = torch.sigmoid(layer.module.distribution_factor)
    return (1 - a) * layer.given("running_mean") + a * mean, (1 - a) * layer.given("running_var") + a * var


@dataclass(frozen=True)
class Hybrid:
    """Statistics between the broadcast and the batch's."""

    emits: ClassVar[bool] = False

    def __call__(self, layer, x):
        return layer.normalise(x, *hybrid(layer, *layer.moments(x)))


@dataclass(frozen=True)
class MeasureHybrid(Measure):
    """The same pass, with the moments of the batches seen so far as its emission."""

    def normalise(self, layer, x, mean, var):
        return layer.normalise(x, *hybrid(layer, mean, var))


def unbiased(end, new):
    """Server piece: variances over N - 1 instead of N samples."""
    n = float(end.n_samples.sum())
    return {name: value * n / (n - 1) if name.endswith("running_var") else value for name, value in new.items()}


def _own_factors(context):
    names = [e.name for e in context.entries if factors(e)]
    return {**context.received, **pick(context.slots["own"], names)}


@factory
def hbn(smoothing: float = 0.002) -> Expression:
    """Normalises with a learnt mixture of global and batch statistics, measured in a pass of their own.

    Use it when batches are small and clients differ, and a pass over the data before training is affordable.
    It cannot evaluate without one more exchange with all clients, and each client keeps factors of its own.
    """
    require(0 < smoothing <= 1, f"hbn: smoothing={smoothing} must be above 0 and at most 1")
    own = Slot(
        "own", Holder.CLIENT,
        init=lambda b: pick(b.model, [e.name for e in b.entries if factors(e)]),
        after=lambda end: pick(end.final, end.slots["own"]),
    )  # fmt: skip
    measure = Segment(norm=MeasureHybrid(), train=False)

    def with_factors(model, x):
        return add_parameter(model, "distribution_factor", 0.0, per_channel=True)

    combined = ((moments, pooled_moments),)

    def move(end, new):
        return smooth(smoothing)(end, unbiased(end, new))

    afresh = Method("hbn", load=_own_factors, plan=(measure,), reduce=combined, server=((moments, unbiased),))
    return Method(
        "hbn", needs=(SHARES_STATISTICS,), transform=(with_factors,), slots=(own,), load=_own_factors,
        plan=(measure, Segment(norm=Hybrid())), reduce=combined, server=((moments, move),),
        view=View(refresh=afresh),
    )  # fmt: skip
