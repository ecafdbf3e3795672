"""Networks of timm, and of torchvision where timm has none of that name: `zoo:efficientnet_b0`. An extra, imported
only when a network of it is asked for. They start from random weights; pretrained ones come from a file."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from torch import nn

from normfed.errors import Refused, nearest

SHAPE = (3, 224, 224)


def find(name: str) -> Callable[..., nn.Module]:
    """A function of the number of classes."""
    timm, torchvision = _library("timm"), _library("torchvision.models")
    if timm is None and torchvision is None:
        raise Refused(f"model 'zoo:{name}' needs timm or torchvision: pip install 'normfed[zoo]'")
    known: set[str] = set()
    for library, create in ((timm, _timm), (torchvision, _torchvision)):
        if library is not None:
            if name in (names := set(_names(library))):
                return create(library, name)
            known |= names
    raise Refused(f"unknown model 'zoo:{name}'; {nearest(name, known)}")


def _library(name: str) -> ModuleType | None:
    """The library, or None where it is missing, or broken: a torchvision built for another torch does not import."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, AttributeError):
        return None


def _names(library: Any) -> Iterable[str]:
    return library.list_models()  # both call it that


def _timm(library: Any, name: str) -> Callable[..., nn.Module]:
    def make(classes: int = 10, channels: int = 3) -> nn.Module:
        return library.create_model(name, pretrained=False, num_classes=classes, in_chans=channels)

    return make


def _torchvision(library: Any, name: str) -> Callable[..., nn.Module]:
    def make(classes: int = 10) -> nn.Module:
        return library.get_model(name, weights=None, num_classes=classes)

    return make
