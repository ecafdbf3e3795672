"""Norm layers that never mutate: they are *driven* by a forward pass and emit what would have been written.

A `Pass` says how statistics are obtained (its mode) and collects what the layers emit. A second forward pass therefore
cannot disturb the first, clients can be stacked, and freezing, sharing or mixing statistics is a mode, not a new net.

`drive` takes the wheel of every BatchNorm of a model, found by type, subclasses included: the layer keeps its class's
place in the hierarchy, its name, its parameters and its hooks. A subclass with a forward of its own (a fused
activation, say) runs that forward, and only its call of `batch_norm` is answered by the mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from normfed.cohort import Cohort, cohort_moments
from normfed.dropout import keyed
from normfed.errors import Refused
from normfed.keys import Key, fold
from normfed.state import State, batchnorms


class Mode(Protocol):
    """How a norm layer normalises during a pass. Adding a mode is adding one class."""

    @property
    def emits(self) -> bool:
        """Whether running statistics move. Where none move, they need not be sent back."""
        ...

    def __call__(self, layer: Layer, x: Tensor) -> Tensor: ...


@dataclass
class Pass:
    """One forward pass: what the layers are told, and what they tell back."""

    mode: Mode
    training: bool = True  # dropout and other noise on
    emit: bool = True
    key: Callable[[], Key] | None = None  # of this client and step; asked for where noise is drawn
    given: State | None = None  # the state broadcast this round, for modes that read it
    step: Any = 0  # number of this local step in the round; a tensor where clients are stacked
    seen: Any = 0  # samples of earlier batches, in a segment that measures
    features: Tensor | None = None  # what entered the classifier
    cohort: Cohort | None = None
    weight: Tensor | None = None  # of this client in the cohort
    emitted: dict[str, Tensor] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)  # how often each layer was reached
    probe: dict[str, list[int]] | None = None  # values per channel at each call, where someone wants to know

    def site_key(self, site: str) -> Key:
        """A key of its own for each noisy layer, and for each time it is reached."""
        if self.key is None:
            raise AssertionError(f"'{site}' draws noise in a pass without a key")
        return fold(self.key(), site, self.reach(site) + 1)

    def reach(self, site: str) -> int:
        """How often this layer was reached before in this pass."""
        before = self.calls.get(site, 0)
        self.calls[site] = before + 1
        return before

    def note(self, site: str, x: Tensor) -> None:
        """Where someone wants to know: a layer that keeps statistics was reached with this input."""
        if self.probe is not None:
            self.probe.setdefault(site, []).append(x.numel() // x.shape[1] if x.dim() > 1 else 1)


class Wire:
    """What all layers of one model hold a reference to: the pass under way."""

    def __init__(self) -> None:
        self.now: Pass | None = None
        self.values: dict[str, list[int]] = {}  # layer -> values per channel and sample at each call; set by the probe

    def __deepcopy__(self, memo: dict[int, Any]) -> Wire:
        copy = memo[id(self)] = Wire()
        return copy


def moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance. torch's own variance is one kernel on an accelerator; on a CPU it takes ten times as
    long as the mean of the squared distances."""
    if x.device.type != "cpu":
        var, mean = torch.var_mean(x, dims, correction=0)
        return mean, var
    return x.mean(dims), (x - x.mean(dims, keepdim=True)).square().mean(dims)


class Layer:
    """One call of a BatchNorm layer, as a mode sees it."""

    __slots__ = ("bias", "call", "mean", "module", "name", "now", "values", "var", "weight")

    def __init__(
        self,
        module: _BatchNorm,
        now: Pass,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
    ) -> None:
        driven: Any = module
        self.module, self.now, self.name = module, now, driven._name
        self.call = now.reach(self.name)  # 0 for the first time this layer is reached in this pass
        known = driven._wire.values.get(self.name, [])
        self.values = known if self.call < len(known) else [1] * (self.call + 1)  # per sample, at each call of a pass
        # A layer used twice in one forward continues from what its first call emitted, as the stock layer does.
        self.mean = mean if mean is None else now.emitted.get(self._entry("running_mean"), mean)
        self.var = var if var is None else now.emitted.get(self._entry("running_var"), var)
        self.weight, self.bias = weight, bias

    def _entry(self, attribute: str) -> str:
        return f"{self.name}.{attribute}" if self.name else attribute

    @property
    def eps(self) -> float:
        return self.module.eps

    @property
    def counter(self) -> Tensor | None:
        counter = self.module.num_batches_tracked
        return counter if counter is None else self.now.emitted.get(self._entry("num_batches_tracked"), counter)

    @property
    def factor(self) -> Any:
        """Weight of the new batch in the running statistics: `momentum`, or 1/n for a cumulative average."""
        if self.module.momentum is not None:
            return self.module.momentum
        assert self.counter is not None
        return 1.0 / (self.counter + 1).to(torch.float64)

    def given(self, attribute: str) -> Tensor:
        """This layer's entry in the state broadcast at the start of the round."""
        assert self.now.given is not None, "this mode reads the broadcast state, and the pass was not given one"
        return self.now.given[self._entry(attribute)]

    def emit_batch(self, x: Tensor, mean: Tensor, var: Tensor) -> None:
        """What stock BatchNorm would write for a batch with this mean and biased variance."""
        if self.mean is None or self.var is None:
            return
        n = x.numel() // x.shape[1]
        factor, unbiased = self.factor, n / (n - 1)
        self.emit(
            (1 - factor) * self.mean + factor * mean.detach(),
            (1 - factor) * self.var + factor * unbiased * var.detach(),
        )

    def emit(self, mean: Tensor, var: Tensor) -> None:
        """New running statistics; the counter goes up by one."""
        if not self.now.emit:
            return
        self.now.emitted[self._entry("running_mean")] = mean
        self.now.emitted[self._entry("running_var")] = var
        counter = self.counter
        if counter is not None:
            self.now.emitted[self._entry("num_batches_tracked")] = counter + 1

    def normalise(self, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        """(x - mean) / sqrt(var + eps) * weight + bias, per channel; gradients through mean and var."""
        shape = [1, -1] + [1] * (x.dim() - 2)
        scale = torch.rsqrt(var + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        y = (x - mean.view(shape)) * scale.view(shape)
        return y if self.bias is None else y + self.bias.view(shape)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and biased variance per channel of this client's batch."""
        return moments(x, [0, *range(2, x.dim())])


@dataclass(frozen=True)
class _Batch:
    """Statistics of the client's own batch, as stock BatchNorm in training; the fused kernel, on scratch buffers."""

    emits: ClassVar[bool] = True

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        if layer.mean is None or layer.var is None or not layer.now.emit:
            return F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
        mean, var = layer.mean.clone(), layer.var.clone()
        if layer.module.momentum is not None:
            y = F.batch_norm(x, mean, var, layer.weight, layer.bias, True, layer.module.momentum, layer.eps)
        else:  # the kernel wants a number; 1/n may differ among stacked clients
            y = F.batch_norm(x, mean, var, layer.weight, layer.bias, True, 1.0, layer.eps)
            factor = layer.factor.to(mean.dtype)
            mean, var = factor * mean + (1 - factor) * layer.mean, factor * var + (1 - factor) * layer.var
        layer.emit(mean, var)
        return y


@dataclass(frozen=True)
class _Running:
    """The running statistics of the state at hand, constant: evaluation, frozen statistics, GReg's second pass."""

    emits: ClassVar[bool] = False

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        if layer.mean is None or layer.var is None:  # track_running_stats=False: always its own batch
            return F.batch_norm(x, None, None, layer.weight, layer.bias, True, 0.0, layer.eps)
        return F.batch_norm(x, layer.mean, layer.var, layer.weight, layer.bias, False, 0.0, layer.eps)


@dataclass(frozen=True)
class CohortMode:
    """Statistics over the batches of all clients of the lock-step, differentiably (FedTAN, Algorithms 2 and 3).

    The running variance moves to the pooled biased variance x M / (M - 1), M = values pooled over the cohort.
    """

    average_gradients: bool = True
    emits: ClassVar[bool] = True

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        now, cohort = layer.now, layer.now.cohort
        assert cohort is not None and now.weight is not None, "statistics of the cohort exist in a lock-step only"
        mean, var = cohort_moments(*layer.moments(x), now.weight, cohort, self.average_gradients)
        if layer.mean is not None and layer.var is not None:
            own = x.numel() // x.shape[1]
            pooled = own * cohort.samples / cohort.own_samples
            factor, unbiased = layer.factor, self.bessel(pooled, cohort)
            layer.emit(
                (1 - factor) * layer.mean + factor * mean.detach(),
                (1 - factor) * layer.var + factor * unbiased * var.detach(),
            )
        return layer.normalise(x, mean, var)

    def bessel(self, pooled: float, cohort: Cohort) -> float:
        """What the biased variance of `pooled` values is multiplied by on its way into the running variance."""
        return pooled / (pooled - 1)


@dataclass(frozen=True)
class Measure:
    """Own batch, and as emission the exact moments of all batches seen in this segment: one pass gives a client's mean
    and biased variance over all its data, under the weights it holds. Merged as Chan, Golub, LeVeque (1983) do."""

    emits: ClassVar[bool] = True

    def __call__(self, layer: Layer, x: Tensor) -> Tensor:
        mean, var = layer.moments(x)
        self.merge(layer, len(x), mean.detach(), var.detach())  # every value counts once, whichever call it came by
        return self.normalise(layer, x, mean, var)

    def normalise(self, layer: Layer, x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return layer.normalise(x, mean, var)

    @staticmethod
    def merge(layer: Layer, n: int, mean: Tensor, var: Tensor) -> None:
        if layer.mean is None or layer.var is None:
            return
        before = layer.now.seen * sum(layer.values) + n * sum(layer.values[: layer.call])
        new = n * layer.values[layer.call]
        share = new / (before + new)  # 1 for the first batch: what was there before is forgotten
        gap = mean - layer.mean
        layer.emit(layer.mean + share * gap, layer.var + share * (var - layer.var) + share * (1 - share) * gap.square())


BATCH: Mode = _Batch()
RUNNING: Mode = _Running()
COHORT: Mode = CohortMode()
MEASURE: Mode = Measure()


def _normalise(
    module: Any, x: Tensor, mean: Tensor | None, var: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    own_mode: Mode | None = None,
) -> Tensor:  # fmt: skip
    now = module._wire.now
    if now is None:
        raise RuntimeError(f"norm layer '{module._name}' is driven by normfed: call the model through a Net")
    now.note(module._name, x)
    mode = own_mode or now.mode
    if mean is None and not isinstance(mode, CohortMode):  # track_running_stats=False: nothing to read or to write
        mode = BATCH
    y: Tensor = mode(Layer(module, now, mean, var, weight, bias), x)
    return y


class _Driven:
    """Mixed in before a stock BatchNorm class: the forward is the mode's."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self._check_input_dim(x)
        return _normalise(self, x, self.running_mean, self.running_var, self.weight, self.bias)


class Intercept(TorchFunctionMode):
    """Runs a foreign norm layer's own forward with its call of batch_norm answered by `answer` (same arguments), and
    without counting batches in place."""

    def __init__(self, layer: nn.Module, answer: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.answer, self.answered = layer, answer, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            self.answered += 1
            return self.answer(*args, **kwargs)
        if func is Tensor.add_ and args[0] is self.layer.num_batches_tracked:
            return args[0]
        return func(*args, **kwargs)


class _DrivenForeign:
    """Mixed in before a subclass with a forward of its own: that forward runs, its `batch_norm` is the mode's."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with Intercept(self, self._answer) as intercept:
            y: Tensor = super().forward(x)  # type: ignore[misc]
        if intercept.answered != 1:
            raise Refused(
                f"norm layer '{self._name}' ({self._original.__name__}) cannot be driven: its forward calls torch's "
                f"batch_norm {intercept.answered} times, not once; let it call super().forward(x)"
            )
        return y

    def _answer(
        self: Any, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
        weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False, momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:  # fmt: skip
        # A layer that asks for running statistics while training is frozen by its author: that is respected.
        frozen = not training and self.training and running_mean is not None
        mode = RUNNING if frozen else None
        return _normalise(self, input, self.running_mean, self.running_var, weight, bias, mode)


_STOCK_FORWARDS = {_BatchNorm.forward, nn.SyncBatchNorm.forward}


def stock_forward(kind: type[nn.Module]) -> bool:
    """Whether a BatchNorm class only normalises, as torch's own do."""
    return kind.forward in _STOCK_FORWARDS


@functools.cache
def _driven(kind: type[nn.Module]) -> type[nn.Module]:
    mixin = _Driven if stock_forward(kind) else _DrivenForeign
    return type(f"Driven{kind.__name__}", (mixin, kind), {"_original": kind})


def drive(model: nn.Module) -> Wire:
    """Takes the wheel of every norm layer with statistics in `model` (in place), and of every layer that draws noise
    from keys. Raises `Refused` naming each layer that cannot be driven."""
    wire = Wire()
    layers = batchnorms(model)
    problems = []
    for name, module in model.named_modules():
        if name in layers:
            module.__class__ = _driven(type(module))  # type: ignore[arg-type]
        elif isinstance(module, _InstanceNorm) and module.track_running_stats:
            problems.append(
                f"norm layer '{name}' ({type(module).__name__} with track_running_stats) cannot be driven: "
                "use track_running_stats=False or BatchNorm"
            )
        elif (kind := keyed(type(module))) is not None:  # type: ignore[arg-type]
            module.__class__ = kind
        elif not isinstance(module, Driveable):
            continue
        object.__setattr__(module, "_wire", wire)
        object.__setattr__(module, "_name", name)
    if problems:
        raise Refused(*problems)
    return wire


class Driveable:
    """Base of layers written for normfed: they read the pass under way and may emit."""

    _wire: Wire
    _name: str

    @property
    def now(self) -> Pass:
        if self._wire.now is None:
            raise RuntimeError(f"layer '{self._name}' is driven by normfed: call the model through a Net")
        return self._wire.now

    def _entry(self, attribute: str) -> str:
        return f"{self._name}.{attribute}" if self._name else attribute

    def latest(self, attribute: str) -> Tensor:
        """A buffer as an earlier call of this layer in the same pass has left it."""
        latest: Tensor = self.now.emitted.get(self._entry(attribute), getattr(self, attribute))
        return latest

    def emit(self, attribute: str, value: Tensor) -> None:
        if self.now.emit:
            self.now.emitted[self._entry(attribute)] = value
