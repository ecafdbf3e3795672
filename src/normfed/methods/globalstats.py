"""The four alternatives to GReg in its Table 9 (2024): ways to let global statistics into the local forward pass.

All normalise from round 1 on (after the first aggregation) and keep accumulating running statistics batch by batch:

    globalstats     the broadcast statistics alone
    mixstats        (1 - l) batch + l broadcast, mean and variance alike; l = `weight`, or learnt
    ensemblestats   the average of the two normalised activations, before gamma and beta

Deviations: the paper does not say how a learnt l is shared (here: one number per layer, clamped to [0, 1], averaged
like a weight) nor whether the server smooths (here: it does not).
"""

from dataclasses import dataclass
from typing import ClassVar

from normfed.method import Expression, Method, Segment, factory, from_round, require, switch
from normfed.needs import SHARES_STATISTICS
from normfed.surgery import add_parameter


def _broadcast(layer):
    return layer.given("running_mean"), layer.given("running_var")


@dataclass(frozen=True)
class Mix:
    """Statistics between the batch's and the broadcast ones; gradients through the batch's."""

    weight: float | None  # None: the layer's own parameter `mix`
    emits: ClassVar[bool] = True

    def __call__(self, layer, x):
        own, known = layer.moments(x), _broadcast(layer)
        layer.emit_batch(x, *own)
        share = layer.module.mix.clamp(0, 1) if self.weight is None else self.weight
        mean, var = ((1 - share) * a + share * b for a, b in zip(own, known, strict=True))
        return layer.normalise(x, mean, var)


@dataclass(frozen=True)
class Ensemble:
    """Both normalised activations, averaged."""

    emits: ClassVar[bool] = True

    def __call__(self, layer, x):
        own, known = layer.moments(x), _broadcast(layer)
        layer.emit_batch(x, *own)
        return (layer.normalise(x, *own) + layer.normalise(x, *known)) / 2  # affine maps and averages commute


def _from_second_round(name, mode, transform=()):
    before = Method(name, needs=(SHARES_STATISTICS,), transform=transform)
    after = Method(name, needs=(SHARES_STATISTICS,), transform=transform, plan=(Segment(norm=mode),))
    return switch(name, from_round(1), before, after)


@factory
def globalstats() -> Expression:
    """Normalises with the broadcast statistics, in training too.

    Use it when GReg is to be compared with its simplest alternative.
    It cannot train well where weights move faster than the broadcast statistics follow.
    """
    return _from_second_round("globalstats", Mix(1.0))


@factory
def mixstats(weight: float = 0.5, learn: bool = False) -> Expression:
    """Normalises with a mixture of batch and broadcast statistics, its weight given or learnt.

    Use it when GReg is to be compared with statistics mixed by hand (`weight`) or by training (`learn`).
    It cannot close the gap between training and evaluation, only narrow it: a share of the batch's statistics stays.
    Identities: mixstats(weight=1.0) = globalstats
    """
    require(0 <= weight <= 1, f"mixstats: weight={weight} must be between 0 and 1")

    def with_weights(model, x):
        return add_parameter(model, "mix", weight)

    return _from_second_round("mixstats", Mix(None if learn else weight), (with_weights,) if learn else ())


@factory
def ensemblestats() -> Expression:
    """Averages the activations normalised with batch and with broadcast statistics.

    Use it when GReg is to be compared with averaging activations instead of predictions.
    It cannot close the gap between training and evaluation: half of every activation is the batch's.
    """
    return _from_second_round("ensemblestats", Ensemble())
