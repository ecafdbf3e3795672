"""Batch renormalization: Ioffe, NeurIPS 2017, with the constants of FedBS's code.

x <- (x - mean_b) / std_b r + d, with r = std_b / std and d = (mean_b - mean) / std clipped and without gradient, then
gamma and beta. eps = 1e-3 is added to the batch's standard deviation, the running state is a standard deviation moved
by 0.01, and the clips open with the number n of batches seen: r in [1/rmax, rmax], |d| <= dmax,

    rmax = clip(2 n / 35000 + 25 / 35, 1, 3)        dmax = clip(5 n / 20000 - 25 / 20, 0, 5)

so the counter matters here, and is carried by the global model (maximum). The server averages squares of the standard
deviations and takes the root. Evaluation divides by the running one, with no eps.

Deviations: the text of FedBS prints r = sigma_b / mu, a misprint.
"""

from dataclasses import dataclass

import torch

from normfed.method import Expression, Method, factory
from normfed.needs import has_layers
from normfed.norm import BATCH, Driveable, moments
from normfed.reducers import WeightedMean
from normfed.state import Select, StatisticsLayer
from normfed.surgery import replace_norms

EPS, MOMENTUM = 1e-3, 0.01


class BatchRenorm(Driveable, StatisticsLayer):
    """Batch renormalization over all but the channel axis."""

    def __init__(self, layer):
        super().__init__()
        like = layer.weight if layer.weight is not None else next(layer.buffers(), torch.zeros(()))
        zero = torch.zeros(layer.num_features, dtype=like.dtype, device=like.device)
        tracked = layer.running_mean is not None
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer("running_mean", layer.running_mean.clone() if tracked else zero)
        self.register_buffer("running_std", layer.running_var.sqrt() if tracked else zero + 1)
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=zero.device))

    def forward(self, x):
        shape = (1, -1, *[1] * (x.dim() - 2))
        self.now.note(self._name, x)
        mean, std = self.latest("running_mean"), self.latest("running_std")
        if self.now.mode is BATCH:
            y = self._renormalised(x, shape, mean, std)
        else:
            y = (x - mean.view(shape)) / std.view(shape)
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)

    def _renormalised(self, x, shape, mean, std):
        dims = [0, *range(2, x.dim())]
        mean_b, var_b = moments(x, dims)
        std_b = var_b.clamp(min=1e-24).sqrt() + EPS  # the root has no slope at 0
        counter = self.latest("num_batches_tracked")
        n = counter.to(torch.float64)
        rmax = (2 / 35000 * n + 25 / 35).clamp(1, 3)
        dmax = (5 / 20000 * n - 25 / 20).clamp(0, 5)
        r = torch.minimum(torch.maximum(std_b.detach() / std, 1 / rmax), rmax).to(x.dtype)
        d = torch.minimum(torch.maximum((mean_b.detach() - mean) / std, -dmax), dmax).to(x.dtype)
        self.emit("running_mean", mean + MOMENTUM * (mean_b.detach() - mean))
        self.emit("running_std", std + MOMENTUM * (std_b.detach() - std))
        self.emit("num_batches_tracked", counter + 1)
        return (x - mean_b.view(shape)) / std_b.view(shape) * r.view(shape) + d.view(shape)


@dataclass(frozen=True)
class RootMeanSquare(WeightedMean):
    """sqrt(sum_k p_k std_k^2)."""

    name: str = "root_mean_square"

    def add(self, acc, values, weights):
        return super().add(acc, {name: value.square() for name, value in values.items()}, weights)

    def finish(self, acc):
        return {name: value.sqrt() for name, value in super().finish(acc).items()}


stds = Select("running_std", lambda e: issubclass(e.kind, BatchRenorm) and e.attribute == "running_std")


@factory
def batchrenorm() -> Expression:
    """Replaces every BatchNorm by batch renormalization, whose training and evaluation agree.

    Use it when batches are small or one-sided, and training should see what evaluation sees.
    It cannot act in short runs: its clips are shut, and it trains as BatchNorm does, for the first 5,000 batches.
    """
    change = (lambda model, x: replace_norms(model, BatchRenorm),)
    return Method(
        "batchrenorm", needs=(has_layers("BatchRenorm"),), transform=change, reduce=((stds, RootMeanSquare()),)
    )
