"""The state of a model is flat and typed: a mapping from name to tensor, and for each name a *role* read from the
type of the layer that owns it. Names are never looked at to find out what a tensor is."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from normfed.errors import Refused, nearest

State = Mapping[str, Tensor]


class Role(StrEnum):
    """What an entry is. A fact about the model, whatever a method does with it."""

    WEIGHT = "weight"  # every parameter that is not a norm layer's
    NORM_AFFINE = "norm_affine"  # gamma, beta and other parameters of a norm layer
    NORM_STAT = "norm_stat"  # running mean, running variance
    COUNTER = "counter"  # integers: how many batches were seen
    BUFFER = "buffer"  # a buffer of a layer that is not a norm layer


class Scope(StrEnum):
    """Who owns an entry. A decision of the method."""

    SHARED = "shared"
    LOCAL = "local"  # never crosses the wire


class NormLayer(nn.Module):
    """Base of norm layers written for normfed."""


class StatisticsLayer(NormLayer):
    """Base of those that keep statistics over batches, as BatchNorm does."""


# The layers whose statistics differ among clients: those FedBN is about.
BATCH_NORMS: tuple[type[nn.Module], ...] = (_BatchNorm, StatisticsLayer)
# Every normalization layer: their parameters have the role NORM_AFFINE.
NORMS: tuple[type[nn.Module], ...] = (
    *BATCH_NORMS,
    NormLayer,
    _InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.LocalResponseNorm,
    nn.CrossMapLRN2d,
)


@dataclass(frozen=True)
class Entry:
    """One named tensor of a model: what it is and who holds it in the network."""

    name: str
    role: Role
    layer: str  # the module's path; '' for the root
    kind: type[nn.Module]  # the module's type
    shape: tuple[int, ...]
    dtype: torch.dtype
    trainable: bool
    aliases: tuple[str, ...] = ()  # further names of the same tensor (tied weights)

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize

    @property
    def attribute(self) -> str:
        return self.name.removeprefix(self.layer + ".") if self.layer else self.name


def _role(module: nn.Module, tensor: Tensor) -> Role:
    is_norm = isinstance(module, NORMS)
    if isinstance(tensor, nn.Parameter):
        return Role.NORM_AFFINE if is_norm else Role.WEIGHT
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return Role.COUNTER if is_norm else Role.BUFFER
    return Role.NORM_STAT if is_norm else Role.BUFFER


def describe(model: nn.Module) -> tuple[Entry, ...]:
    """Every entry of `model.state_dict()`, in its order, tied names folded into one entry."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise Refused(f"the model's state has '{name}', a {type(tensor).__name__}: only tensors can be federated")
        names.setdefault(id(tensor), []).append(name)
    owners: dict[str, tuple[str, nn.Module, Tensor]] = {}
    for path, module in model.named_modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                name = f"{path}.{attribute}" if path else attribute
                owners[name] = (path, module, tensor)
    entries = []
    for first, *aliases in names.values():
        if first not in owners:  # TorchScript, or an extra state
            raise Refused(f"the model's state has '{first}', which none of its modules holds as parameter or buffer")
        path, module, tensor = owners[first]
        entries.append(
            Entry(
                name=first,
                role=_role(module, tensor),
                layer=path,
                kind=type(module),
                shape=tuple(tensor.shape),
                dtype=tensor.dtype,
                trainable=tensor.requires_grad,
                aliases=tuple(aliases),
            )
        )
    return tuple(entries)


def batchnorms(model: nn.Module) -> dict[str, _BatchNorm]:
    """Every BatchNorm layer by path, subclasses included."""
    # `surgery` leaves the shell of a foreign layer behind when it replaces only what normalises in it.
    return {
        path: m for path, m in model.named_modules() if isinstance(m, _BatchNorm) and not getattr(m, "is_shell", False)
    }


def norm_layers(model: nn.Module) -> Counter[str]:
    """Type of norm layer -> how many of them a model has."""
    return Counter(
        type(m).__name__ for m in model.modules() if isinstance(m, NORMS) and not getattr(m, "is_shell", False)
    )


def census(layers: Mapping[str, int]) -> str:
    """'3 GroupNorm, 1 LayerNorm', for messages."""
    return ", ".join(f"{n} {kind}" for kind, n in sorted(layers.items())) or "no norm layer"


# ---------------------------------------------------------------------------------------------------------------
# Selectors: predicates over entries, with & | ~ and a text that reads back.


@dataclass(frozen=True)
class Select:
    """A set of entries, given by what they are. `norm & ~stats`, `under("layer4") | of("Linear")`."""

    text: str
    test: Callable[[Entry], bool]

    def __call__(self, entry: Entry) -> bool:
        return self.test(entry)

    def __and__(self, other: Select) -> Select:
        return Select(f"({self.text} & {other.text})", lambda e: self.test(e) and other.test(e))

    def __or__(self, other: Select) -> Select:
        return Select(f"({self.text} | {other.text})", lambda e: self.test(e) or other.test(e))

    def __invert__(self) -> Select:
        return Select(f"~{self.text}", lambda e: not self.test(e))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Select) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return self.text


everything = Select("everything", lambda e: True)
norm = Select("norm", lambda e: issubclass(e.kind, BATCH_NORMS))
stats = Select("stats", lambda e: e.role is Role.NORM_STAT)
# Statistics without those that a foreign BatchNorm has beside its mean and variance.
_PAIR = ("running_mean", "running_var")
moments = norm & stats & Select("moments", lambda e: e.attribute in _PAIR or not issubclass(e.kind, _BatchNorm))
affine = Select("affine", lambda e: e.role is Role.NORM_AFFINE)
counters = Select("counters", lambda e: not e.dtype.is_floating_point)
weights = Select("weights", lambda e: e.role is Role.WEIGHT)
trainable = Select("trainable", lambda e: e.trainable)


def under(path: str) -> Select:
    """Entries of the module at `path` and of everything inside it."""
    return Select(f"under({path!r})", lambda e: e.layer == path or e.layer.startswith(path + "."))


def of(kind: str) -> Select:
    """Entries of layers whose type, or a base of it, has this name: of("Linear")."""
    return Select(f"of({kind!r})", lambda e: any(base.__name__ == kind for base in e.kind.__mro__))


_ATOMS = {s.text: s for s in (everything, norm, stats, affine, counters, weights, trainable)}
_MAKERS: dict[str, Callable[[str], Select]] = {"under": under, "of": of}


def select(text: str | Select) -> Select:
    """Reads a selector back from its text: select("norm & ~stats")."""
    if isinstance(text, Select):
        return text
    try:
        return _parse(ast.parse(text, mode="eval").body, text)
    except SyntaxError:
        raise Refused(f"selector {text!r} cannot be read; write for example \"norm | under('fc')\"") from None


def _parse(node: ast.expr, text: str) -> Select:
    match node:
        case ast.BinOp(left=left, op=ast.BitAnd(), right=right):
            return _parse(left, text) & _parse(right, text)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _parse(left, text) | _parse(right, text)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return ~_parse(operand, text)
        case ast.Name(id=name):
            if name not in _ATOMS:
                raise Refused(f"selector {text!r}: unknown name '{name}'; {nearest(name, [*_ATOMS, *_MAKERS])}")
            return _ATOMS[name]
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(value))], keywords=[]) if name in _MAKERS:
            return _MAKERS[name](value)
    raise Refused(f"selector {text!r} cannot be read; write for example \"norm | under('fc')\"")


# ---------------------------------------------------------------------------------------------------------------
# Arithmetic on states.


def pick(state: State, names: Iterable[str]) -> dict[str, Tensor]:
    return {name: state[name] for name in names}


def clone(state: State) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def zeros(state: State) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in state.items()}


def add(a: State, b: State, alpha: Any = 1.0) -> dict[str, Tensor]:
    """a + alpha * b over the names of a."""
    return {name: tensor + alpha * b[name] for name, tensor in a.items()}


def sub(a: State, b: State) -> dict[str, Tensor]:
    """a - b over the names of a."""
    return {name: tensor - b[name] for name, tensor in a.items()}


def scale(a: State, factor: Any) -> dict[str, Tensor]:
    return {name: tensor * factor for name, tensor in a.items()}


def squared_distance(a: State, b: State) -> Tensor:
    """sum ||a - b||^2 over the names of a."""
    return torch.stack([(tensor - b[name]).square().sum() for name, tensor in a.items()]).sum()
