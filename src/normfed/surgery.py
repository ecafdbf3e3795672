"""Changing the layers of a model: norm layers out, others in. Layers are found by type; what finds nothing refuses."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from normfed.errors import Refused, first_line
from normfed.norm import RUNNING, Driveable, Intercept, Pass, Wire, stock_forward
from normfed.state import NORMS, NormLayer, batchnorms, census, norm_layers


class Dressed(nn.Module):
    """A norm layer in the place of a BatchNorm that did more than normalise (a fused activation, say): the foreign
    layer's forward runs, and its call of batch_norm is answered by the new layer."""

    def __init__(self, foreign: _BatchNorm, norm: nn.Module) -> None:
        super().__init__()
        for name in ("weight", "bias"):
            foreign._parameters[name] = None
        for name in ("running_mean", "running_var"):
            foreign._buffers[name] = None
        foreign.register_buffer("num_batches_tracked", torch.tensor(0), persistent=False)  # it may count; nobody reads
        foreign.__dict__["is_shell"] = True
        self.norm, self.foreign = norm, foreign

    def forward(self, x: Tensor) -> Tensor:
        with Intercept(self.foreign, lambda input, *rest, **more: self.norm(input)):
            y: Tensor = self.foreign(x)
        return y


def replace_norms(model: nn.Module, make: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    """`model` (changed in place) with every BatchNorm replaced by `make(layer)`, wherever it is used."""
    layers = batchnorms(model).values()
    if not layers:
        raise Refused(f"it replaces BatchNorm layers and the model has none; it has {census(norm_layers(model))}")
    return swap(model, {layer: _in_its_place(layer, make(layer)) for layer in layers})


def delete_norms(model: nn.Module, make: Callable[[nn.Module], nn.Module] = lambda layer: nn.Identity()) -> nn.Module:
    """`model` (changed in place) without norm layers of any kind: `make(layer)` in their place."""
    layers = {p: m for p, m in model.named_modules() if isinstance(m, NORMS) and not getattr(m, "is_shell", False)}
    own = (_BatchNorm, NormLayer)
    odd = [
        f"'{path}' ({type(m).__name__})"
        for path, m in layers.items()
        if not isinstance(m, own) and not type(m).__module__.startswith("torch.nn.")
    ]
    if odd:
        raise Refused(f"it deletes norm layers, and {', '.join(odd)} may do more than normalise")
    return swap(model, {layer: _in_its_place(layer, make(layer)) for layer in layers.values()})


def _in_its_place(layer: nn.Module, made: nn.Module) -> nn.Module:
    foreign = isinstance(layer, _BatchNorm) and not stock_forward(type(layer))
    return (Dressed(layer, made) if foreign else made).train(layer.training)  # type: ignore[arg-type]


def swap(model: nn.Module, new: dict[nn.Module, nn.Module]) -> nn.Module:
    """`model` with each module that is a key of `new` replaced by its value, under every name it has."""
    if model in new:
        return new[model]
    inside = {id(m) for made in new.values() for m in made.modules()}
    for parent in list(model.modules()):
        if id(parent) in inside:
            continue
        for name, child in parent.named_children():
            if child in new:
                parent._modules[name] = new[child]
    return model


def add_parameter(model: nn.Module, name: str, value: float, per_channel: bool = False) -> nn.Module:
    """`model` with one more parameter in every BatchNorm layer, a number or one for each channel."""
    layers = batchnorms(model)
    if not layers:
        raise Refused(
            f"it gives BatchNorm layers a parameter and the model has none; it has {census(norm_layers(model))}"
        )
    for layer in layers.values():
        like = next(layer.parameters(), next(model.parameters()))
        shape = (layer.num_features,) if per_channel else ()
        tensor = torch.full(shape, value, dtype=like.dtype, device=like.device)
        layer.register_parameter(name, nn.Parameter(tensor))
    return model


def as_groupnorm(layer: _BatchNorm, groups: int) -> nn.GroupNorm:
    """GroupNorm with gamma and beta of `layer`; the largest divisor of its channels that is not above `groups`."""
    channels = layer.num_features
    divisor = next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
    made = nn.GroupNorm(divisor, channels, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        made.weight, made.bias = layer.weight, layer.bias
    return made


# ---------------------------------------------------------------------------------------------------------------
# What follows what, found out by running the model.


@dataclass(frozen=True)
class Reached:
    """A call of a layer during a forward pass."""

    path: str
    module: nn.Module
    call: int  # 0 for the first call of this layer
    input: Tensor
    output: Tensor


def trace(model: nn.Module, x: Tensor, watch: Callable[[nn.Module], bool]) -> list[Reached]:
    """The calls of watched layers, in order, in one evaluation pass over `x`."""
    calls: list[Reached] = []

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            before = sum(c.path == path for c in calls)
            calls.append(Reached(path, module, before, inputs[0], output))

        return hook

    hooks = [m.register_forward_hook(note(path)) for path, m in model.named_modules() if watch(m)]
    wire, training = Wire(), model.training
    wire.now = Pass(RUNNING, training=False, emit=False)
    for path, module in model.named_modules():
        if isinstance(module, Driveable):  # a layer that an earlier transform has put there
            module._wire, module._name = wire, path
    dtype = next((p.dtype for p in model.parameters()), x.dtype)
    try:
        with torch.no_grad():
            model.eval()(x[:2].to(dtype) if x.is_floating_point() else x[:2])
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    return calls


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def convolution_before(model: nn.Module, x: Tensor) -> dict[str, str]:
    """Path of each norm layer whose input is the output of a convolution -> path of that convolution."""
    norms = {m for m in model.modules() if isinstance(m, NORMS)}
    calls = trace(model, x, lambda m: m in norms or isinstance(m, CONVOLUTIONS))
    made = [(c.output, c.path) for c in calls if isinstance(c.module, CONVOLUTIONS)]
    return {c.path: path for c in calls if c.module in norms for output, path in made if output is c.input}


def evaluated_affine(model: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """For each convolution with a BatchNorm behind it that has seen data: scale and shift per channel which the two
    together apply in evaluation. A fresh norm layer, mean 0 and variance 1, has nothing to say."""
    found = {}
    layers = batchnorms(model)
    for norm, path in convolution_before(model, x).items() if layers else ():
        if norm not in layers:
            continue
        layer, conv = layers[norm], model.get_submodule(path)
        mean, var = layer.running_mean, layer.running_var
        if mean is None or var is None or bool((mean == 0).all() and (var == 1).all()):
            continue
        scale = torch.rsqrt(var + layer.eps)
        shift = -mean * scale
        if layer.affine:
            scale, shift = scale * layer.weight.detach(), shift * layer.weight.detach() + layer.bias.detach()
        found[path] = (scale, shift)
        assert isinstance(conv, CONVOLUTIONS)
    return found


_ADDS = {operator.add, operator.iadd, torch.add}


class _Tracer(fx.Tracer):
    """Does not look into convolutions and norm layers, whatever an earlier transform has made of them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (*CONVOLUTIONS, *NORMS)) or super().is_leaf_module(m, module_qualified_name)


def branches(model: nn.Module) -> list[list[str]]:
    """The convolutions of each residual branch, first to last, found in the network's graph: where two paths that part
    are added, the one with more convolutions of its own is the branch."""
    try:
        nodes = list(_Tracer().trace(model).nodes)
    except Exception as error:
        raise Refused(
            f"it looks for residual branches, and the network's graph cannot be traced: {first_line(error)}"
        ) from None
    convolves = {n for n in nodes if n.op == "call_module" and isinstance(model.get_submodule(n.target), CONVOLUTIONS)}
    before: dict[fx.Node, set[fx.Node]] = {}
    found = []
    for node in nodes:
        sizes = node.target is getattr or (node.op == "call_method" and node.target in ("size", "dim"))
        before[node] = set() if sizes else {m for i in node.all_input_nodes for m in (i, *before[i])}
        adds = node.target in _ADDS or (node.op == "call_method" and node.target in ("add", "add_"))
        if adds and len(node.all_input_nodes) == 2:
            one, other = ({i, *before[i]} for i in node.all_input_nodes)
            sides = [[n.target for n in nodes if n in side and n in convolves] for side in (one - other, other - one)]
            found.append(max(sides, key=len))
    return [branch for branch in found if branch]


@dataclass(frozen=True)
class Stage:
    """The end of a stage of a convolutional trunk: which call of which layer gives its output."""

    path: str
    call: int
    channels: int


def stages(model: nn.Module, x: Tensor) -> list[Stage]:
    """Where the stages of a convolutional network end.

    A trunk of plain layers has one stage per convolution, with all that follows until the next. Blocks (modules with
    a forward of their own that hold convolutions) are not looked into; consecutive ones of one resolution are a stage.
    """

    def is_block(module: nn.Module) -> bool:
        custom = not isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        inner = any(isinstance(m, CONVOLUTIONS) for m in module.modules() if m is not module)
        return custom and inner and module is not model

    blocks = [path for path, m in model.named_modules() if is_block(m)]
    inside = {path for path, _ in model.named_modules() for block in blocks if path.startswith(block + ".")}
    outermost = {m for path, m in model.named_modules() if is_block(m) and path not in inside}
    leaves = {m for path, m in model.named_modules() if not list(m.children()) and path not in inside}
    ends: list[Stage] = []
    resolution: tuple[int, ...] | None = None  # of the block before, None after a plain convolution
    for call in trace(model, x, lambda m: m in outermost or m in leaves):
        if call.output.dim() < 3:
            continue
        shape, stage = tuple(call.output.shape[2:]), Stage(call.path, call.call, call.output.shape[1])
        if call.module in outermost:
            if resolution == shape and ends:
                ends[-1] = stage
            else:
                ends.append(stage)
            resolution = shape
        elif isinstance(call.module, CONVOLUTIONS):
            ends.append(stage)
            resolution = None
        elif ends and call.output.shape[1] == ends[-1].channels:
            if isinstance(call.module, nn.AdaptiveAvgPool2d | nn.AdaptiveAvgPool1d | nn.AdaptiveAvgPool3d):
                break  # the trunk is over
            ends[-1] = stage
    return ends


def insert_after(model: nn.Module, stage: Stage, layer: nn.Module, name: str) -> None:
    """Puts `layer` behind the end of a stage: a child of the module whose output it takes, so no other name changes."""
    module = model.get_submodule(stage.path)
    module.add_module(f"{name}{stage.call}", layer)
    module.register_forward_hook(_Behind(stage.call, layer))


class _Behind:
    """A forward hook: one call of a module, which may be used several times in a pass, is followed by a layer."""

    def __init__(self, call: int, layer: nn.Module) -> None:
        self.call, self.layer = call, layer
        self.calls, self.during = 0, object()  # calls so far, and the pass they are counted in

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        now = self.layer.now
        if self.during is not now:
            self.during, self.calls = now, 0
        self.calls += 1
        return self.layer(output) if self.calls == self.call + 1 else None
