"""FBN: Guerraoui et al., 2024 (arXiv 2405.14670), as ported in the repository of HBN.

Activations are normalised with the global statistics, constants during the round, in training as in evaluation; each
client averages mean and biased variance of its batches; the server combines them by the law of total variance about the
*smoothed* mean (N - 1 below, N = samples), and smooths: S <- 0.9 S + 0.1 S_new.

Deviations: the authors' own code is not public; the port is followed.
"""

from dataclasses import dataclass
from typing import ClassVar

from normfed.method import Expression, Method, Segment, factory, require
from normfed.methods.greg import smooth
from normfed.needs import SHARES_STATISTICS
from normfed.reducers import pooled_moments
from normfed.state import moments


@dataclass(frozen=True)
class Global:
    """The broadcast statistics as constants; emits the plain average of the batches' statistics."""

    emits: ClassVar[bool] = True

    def __call__(self, layer, x):
        mean, var = layer.moments(x)
        # 1 for the first batch of the round: what was there before is forgotten. A layer used twice counts both.
        share = 1 / (layer.now.step * len(layer.values) + layer.call + 1)
        layer.emit(layer.mean + share * (mean - layer.mean).detach(), layer.var + share * (var - layer.var).detach())
        return layer.normalise(x, layer.given("running_mean"), layer.given("running_var"))


@factory
def fbn(smoothing: float = 0.1) -> Expression:
    """Normalises with global statistics that follow the federation's, between-client variance included.

    Use it when training must see exactly what evaluation sees, and the means of the clients lie far apart.
    It cannot let gradients flow through statistics, and starts from (0, 1): deep fresh networks train slowly at first.
    """
    require(0 < smoothing <= 1, f"fbn: smoothing={smoothing} must be above 0 and at most 1")

    def move(end, new):
        n = float(end.n_samples.sum())
        moved = smooth(smoothing)(end, new)
        variances = {}
        for name in (name for name in new if name.endswith("running_var")):
            mean = name.removesuffix("running_var") + "running_mean"
            # sum_k n_k [v_k + (m_k - mean)^2] = N (pooled variance + (pooled mean - mean)^2)
            variances[name] = (new[name] + (new[mean] - moved[mean]).square()) * n / (n - 1)
        return {**moved, **smooth(smoothing)(end, variances)}

    return Method(
        "fbn", needs=(SHARES_STATISTICS,), plan=(Segment(norm=Global()),), reduce=((moments, pooled_moments),),
        server=((moments, move),),
    )  # fmt: skip
