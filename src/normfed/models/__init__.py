"""Networks by name: the papers', a zoo's, or your own factory."""

from __future__ import annotations

import importlib
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from normfed.errors import Refused, nearest
from normfed.models import cnn, resnet, zoo
from normfed.text import call

EXAMPLE = "abide_mlp(features=19900)"


@dataclass(frozen=True)
class Known:
    """A network that can be named: how to make it, and an input it takes."""

    make: Callable[..., nn.Module]
    shape: tuple[int, ...]
    classes: int = 10

    @property
    def about(self) -> str:
        return (inspect.getdoc(self.make) or "").split("\n")[0]


MODELS: dict[str, Known] = {
    "abide_mlp": Known(cnn.abide_mlp, (5995,), 2),
    "alexnet": Known(cnn.alexnet, (3, 256, 256)),
    "alexnet_fedwon": Known(cnn.alexnet_fedwon, (3, 256, 256)),
    "digits_cnn": Known(cnn.digits_cnn, (3, 28, 28)),
    "digits_cnn_fedwon": Known(cnn.digits_cnn_fedwon, (3, 28, 28)),
    "fedbs_cifar": Known(cnn.fedbs_cifar, (3, 32, 32)),
    "fedbs_mnist": Known(cnn.fedbs_mnist, (1, 28, 28)),
    "mnist_mlp": Known(cnn.mnist_mlp, (1, 28, 28)),
    "mobilenetv2": Known(resnet.mobilenetv2, (3, 224, 224)),
    "resnet18": Known(resnet.resnet18, (3, 224, 224)),
    "resnet20": Known(resnet.resnet20, (3, 32, 32)),
    "resnet50": Known(resnet.resnet50, (3, 224, 224)),
    "two_layer_mlp": Known(cnn.two_layer_mlp, (10,), 2),
}


def find(name: str) -> Known:
    """`digits_cnn`, `abide_mlp(features=19900)`, `zoo:NAME`, or `package.module:factory` for your own."""
    base, bracket, _ = name.partition("(")
    known = _find(base.strip())
    return _with_arguments(known, name, name[len(base) :]) if bracket else known


def _find(name: str) -> Known:
    if name in MODELS:
        return MODELS[name]
    kind, colon, rest = name.partition(":")
    if colon and kind == "zoo":
        return Known(zoo.find(rest), zoo.SHAPE)
    if colon and rest:
        return _own(kind, rest)
    raise Refused(f"unknown model '{name}'; {nearest(name, MODELS)}; or package.module:factory for your own")


def _with_arguments(known: Known, name: str, arguments: str) -> Known:
    _, positional, named = call(f"model{arguments}", EXAMPLE)
    if positional:
        raise Refused(f"model '{name}': arguments go by name, {EXAMPLE}")
    accepted = _accepted(known.make)
    unknown = [] if accepted is None else [key for key in named if key not in accepted]
    if unknown:
        hint = {key: nearest(key, accepted) if accepted else "it takes none" for key in unknown}
        raise Refused(*(f"model '{name}': unknown argument '{key}'; {hint[key]}" for key in unknown))
    made = partial(known.make, **named)
    made.__doc__ = known.make.__doc__
    return replace(known, make=made, shape=_input(known.shape, named))


def _input(shape: tuple[int, ...], named: Mapping[str, Any]) -> tuple[int, ...]:
    """An input for a network that was told about it."""
    if "features" in named:
        return (named["features"],)
    if len(shape) == 3:
        size = named.get("size", shape[1])
        return (named.get("channels", shape[0]), size, size)
    return shape


def _accepted(make: Callable[..., nn.Module]) -> list[str] | None:
    """Names of the arguments of a factory; None where it takes any."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # it has none to look at
        return []
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def make(name: str, classes: int | None = None, shape: Sequence[int] | None = None) -> nn.Module:
    """A new network of that name, for `classes` classes and samples of `shape`: a factory is told those of `classes`,
    `channels`, `size` and `features` that it takes, unless the name says otherwise."""
    known = find(name)
    said = set(getattr(known.make, "keywords", {}))
    fitting = {} if classes is None else {"classes": classes}
    fitting |= {} if shape is None else _facts(shape)
    accepted = _accepted(known.make)
    accepted = ["classes"] if accepted is None else accepted
    given = {key: value for key, value in fitting.items() if key in accepted and key not in said}
    try:
        model = known.make(**given)
    except (TypeError, ValueError) as error:
        raise Refused(f"model '{name}': {error}") from None
    except Exception as error:
        raise Refused(f"model '{name}': its factory fails: {_told(error)}") from None
    if not isinstance(model, nn.Module):
        raise Refused(f"model '{name}': the factory returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _facts(shape: Sequence[int]) -> dict[str, int]:
    """What a sample's shape says: its channels and side where it is an image, its values in all."""
    facts = {"features": math.prod(shape)}
    if len(shape) == 3:
        facts["channels"] = shape[0]
        if shape[1] == shape[2]:
            facts["size"] = shape[1]
    return facts


def _own(module: str, factory: str) -> Known:
    try:
        made = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise Refused(f"model '{module}:{factory}': {error}") from None
    except Exception as error:
        raise Refused(f"model '{module}:{factory}': its module fails: {_told(error)}") from None
    if not callable(made):
        raise Refused(f"model '{module}:{factory}' is not a function that makes a model")
    return Known(made, getattr(made, "input_shape", (3, 224, 224)), getattr(made, "classes", 10))


def _told(error: Exception) -> str:
    """An error of code that is not ours: what it is, and where."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = "" if isinstance(error, SyntaxError) else f" ({Path(where.filename).name}, line {where.lineno})"
    return f"{type(error).__name__}: {error}{place}"
