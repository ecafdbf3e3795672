"""Pretrained weights from a file: safetensors, or a torch file that holds tensors and nothing else. Never a pickle."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from normfed.errors import Refused

WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts keep the weights
PREFIX = "module."  # that torch's data-parallel wrappers leave before every name
MANY = 8  # names said before "and N more"


@dataclass(frozen=True)
class Loaded:
    """What became of a model's entries and of a file's."""

    path: str
    loaded: tuple[str, ...]
    head: tuple[str, ...] = ()  # entries of the classifier: other classes in the file, so the model's own start stays
    missing: tuple[str, ...] = ()  # in the model, not in the file; the model's own start stays
    unexpected: tuple[str, ...] = ()  # in the file, not in the model

    def lines(self) -> list[str]:
        said = [f"{self.path}: {len(self.loaded)} entries loaded"]
        for what, names in (
            ("the classifier has other classes and starts anew", self.head),
            ("not in the file, left as they start", self.missing),
            ("in the file, not in the model, ignored", self.unexpected),
        ):
            if names:
                said.append(f"{what}: {_listed(names)}")
        return said


def load(model: nn.Module, path: Path | str) -> Loaded:
    """Loads a file's tensors into `model` (changed in place) by name. A classifier with another number of classes keeps
    its own start; any other difference in shape, or a file that fits nowhere, is refused and changes nothing."""
    given, own = read(path), model.state_dict()
    common = [name for name in own if name in given]
    differing = [name for name in common if own[name].shape != given[name].shape]
    if not _classifier([(own[name].shape, given[name].shape) for name in differing]):
        shapes = [f"{name} is {_shape(given[name])} there and {_shape(own[name])} here" for name in differing]
        raise Refused(f"weights '{path}' are of another network: {_listed(shapes)}")
    if len(differing) == len(common):
        raise Refused(f"weights '{path}' fit nowhere: they have {_listed([*given])}; the model has {_listed([*own])}")
    layers = {name.rpartition(".")[0] for name in differing}
    head = tuple(name for name in common if name.rpartition(".")[0] in layers)
    chosen = tuple(name for name in common if name not in head)
    model.load_state_dict({name: given[name].to(own[name].dtype) for name in chosen}, strict=False)
    missing = tuple(name for name in own if name not in given and not name.endswith("num_batches_tracked"))
    return Loaded(str(path), chosen, head, missing, tuple(name for name in given if name not in own))


def _classifier(shapes: Sequence[tuple[torch.Size, torch.Size]]) -> bool:
    """Whether entries differ as classifiers do: in their first axis alone, all by the same number of classes."""
    alone = all(own[1:] == given[1:] and len(own) and len(given) for own, given in shapes)
    return alone and len({(own[0], given[0]) for own, given in shapes}) <= 1


def read(path: Path | str) -> dict[str, Tensor]:
    """Name -> tensor, of a .safetensors file or of one that torch reads with `weights_only`."""
    path = Path(path)
    if not path.is_file():
        raise Refused(f"weights '{path}': there is no such file")
    try:
        found = _contents(path)
    except pickle.UnpicklingError:
        raise Refused(f"weights '{path}' hold more than tensors; no pickle is read: save state_dict() alone") from None
    except Exception as error:  # a damaged file fails in any way
        raise Refused(f"weights '{path}' cannot be read: {str(error) or type(error).__name__}".split("\n")[0]) from None
    for key in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    tensors = dict(_tensors(found))
    if not tensors:
        raise Refused(f"weights '{path}' hold no named tensors")
    return tensors


def _contents(path: Path) -> Any:
    if path.suffix == ".safetensors":
        return load_file(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about protocols, of a file that is then refused anyway
        return torch.load(path, map_location="cpu", weights_only=True)


def _tensors(found: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(found, Mapping):
        for name, value in found.items():
            if isinstance(name, str) and isinstance(value, Tensor):
                yield name.removeprefix(PREFIX), value


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return ", ".join(names[:MANY]) + more
