"""Networks by name: the papers', a zoo's, or your own factory."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from normfed.errors import Refused, nearest
from normfed.models import cnn, resnet


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
}


def find(name: str) -> Known:
    """`digits_cnn`, `zoo:NAME`, or `package.module:factory` for your own."""
    if name in MODELS:
        return MODELS[name]
    kind, colon, rest = name.partition(":")
    if colon and kind == "zoo":
        return _zoo(rest)
    if colon and rest:
        return _own(kind, rest)
    raise Refused(f"unknown model '{name}'; {nearest(name, MODELS)}; or package.module:factory for your own")


def make(name: str, classes: int | None = None) -> nn.Module:
    """A new network of that name."""
    known = find(name)
    model = known.make() if classes is None else known.make(classes)
    if not isinstance(model, nn.Module):
        raise Refused(f"model '{name}': the factory returned {type(model).__name__}, not a torch.nn.Module")
    return model


def _own(module: str, factory: str) -> Known:
    try:
        made = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise Refused(f"model '{module}:{factory}': {error}") from None
    if not callable(made):
        raise Refused(f"model '{module}:{factory}' is not a function that makes a model")
    return Known(made, getattr(made, "input_shape", (3, 224, 224)), getattr(made, "classes", 10))


def _zoo(name: str) -> Known:
    try:
        import timm
    except ImportError:
        raise Refused(f"model 'zoo:{name}' needs timm: pip install 'normfed[zoo]'") from None
    if name not in timm.list_models():
        raise Refused(f"unknown model 'zoo:{name}'; {nearest(name, timm.list_models())}")
    return Known(lambda classes=10: timm.create_model(name, num_classes=classes), (3, 224, 224))
