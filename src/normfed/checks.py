"""Everything that can be wrong with a run's input, looked for before any work: all problems, one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normfed.data.store import ROLES, ClientData
from normfed.errors import Refused, first_line, nearest
from normfed.plan import Plan
from normfed.schedule import one_epoch


def choice(what: str, value: Any, known: Any) -> list[str]:
    if isinstance(value, str) and value in known:
        return []
    return [f"unknown {what} '{value}'; {nearest(str(value), known)}"]


NO_CLIENTS = "clients must be a non-empty mapping from name to ClientData, with samples"


@dataclass(frozen=True)
class Labels:
    """What the labels of one split are, without keeping them."""

    where: str
    about: str
    whole: bool  # integers in one dimension
    low: int = 0
    high: int = 0


@dataclass(frozen=True)
class Survey:
    """What one pass over a federation's data shows."""

    sizes: Mapping[str, int]  # training samples of each client
    labels: tuple[Labels, ...]
    splits: Mapping[str, frozenset[str]]  # client -> 'train', 'val', 'test'
    roles: Mapping[str, str]


def survey(clients: Any) -> Survey:
    """Looks at all data once; refuses what cannot be trained on."""
    if not isinstance(clients, Mapping) or not clients:
        raise Refused(NO_CLIENTS)
    problems: list[str] = []
    sizes: dict[str, int] = {}
    labels: list[Labels] = []
    splits: dict[str, frozenset[str]] = {}
    roles: dict[str, str] = {}
    shapes: dict[tuple[int, ...], str] = {}
    kinds: dict[str, str] = {}
    for name in clients:
        if not isinstance(name, str) or not name:
            problems.append(f"client name {name!r} must be a non-empty string")
            continue
        client = clients[name]
        if not isinstance(client, ClientData):
            problems.append(f"client '{name}' must be ClientData(train=(x, y), …), not {type(client).__name__}")
            continue
        if client.role not in ROLES:
            problems.append(f"client '{name}': unknown role '{client.role}'; {nearest(str(client.role), ROLES)}")
        present = []
        for which in ("train", "val", "test"):
            where = f"client '{name}', {which}"
            try:
                pair = client.split(which)
                if pair is None:
                    problems += [f"{where}: missing"] if which == client.role == "train" else []
                    continue
                problem = _bad_split(*pair)
            except (ValueError, TypeError, RuntimeError, OverflowError) as error:
                problem = first_line(error)
            if problem is not None:
                problems.append(f"{where}: {problem}")
                continue
            assert pair is not None
            x, y = pair
            present.append(which)
            sizes |= {name: len(x)} if which == "train" and client.role == "train" else {}
            labels.append(_labels(where, y))
            shapes.setdefault(tuple(x.shape[1:]), where)
            kinds.setdefault("floating" if x.is_floating_point() else str(x.dtype), where)
        splits[name], roles[name] = frozenset(present), client.role
        if client.role in ("evaluate", "unseen") and "test" not in present:
            problems.append(f"client '{name}', test: missing; with role '{client.role}' it is there to be tested on")
    if not sizes and not problems:
        problems.append("no client has the role 'train'")
    for what, found in (("shape", shapes), ("type", kinds)):
        if len(found) > 1:
            problems.append(f"samples differ in {what}: " + ", ".join(f"{v} ({where})" for v, where in found.items()))
    if problems:
        raise Refused(*problems)
    return Survey(sizes, tuple(labels), splits, roles)


def first_samples(clients: Any) -> tuple[Tensor, Tensor]:
    """Two samples and labels of the first client that has any: what the model is tried on, in main memory."""
    for client in clients.values() if isinstance(clients, Mapping) else ():
        if getattr(client, "role", "train") != "train":
            continue
        try:
            pair = client.split("train")
        except (AttributeError, TypeError, ValueError, RuntimeError, OverflowError):
            continue
        if pair is not None and pair[0].dim() and len(pair[0]) and not _bad_split(*pair):
            return pair[0][:2].clone().cpu(), pair[1][:2].clone().cpu()
    given = isinstance(clients, Mapping) and len(clients)
    raise Refused("no client has training samples to try the model on" if given else NO_CLIENTS)


def _bad_split(x: Tensor, y: Tensor) -> str | None:
    if x.dim() == 0 or y.dim() == 0 or len(x) != len(y):
        return f"{tuple(x.shape)} samples but {tuple(y.shape)} labels"
    if len(x) == 0:
        return "empty"
    if any(part.layout is not torch.strided or part.is_meta for part in (x, y)):
        return "samples and labels must be dense tensors"
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        bad = int((~torch.isfinite(x)).reshape(len(x), -1).any(1).sum())
        return f"NaN or infinity in {bad} of {len(x)} samples"
    return None


def _labels(where: str, y: Tensor) -> Labels:
    whole = not (y.is_floating_point() or y.is_complex() or y.dtype is torch.bool) and y.dim() == 1
    return Labels(where, _about(y), whole, int(y.min()), int(y.max())) if whole else Labels(where, _about(y), False)


def check_labels(found: Survey, classes: int) -> list[str]:
    """Class labels must be whole numbers from 0 to classes - 1."""
    problems = []
    for labels in found.labels:
        if not labels.whole:
            problems.append(f"{labels.where}: labels must be whole numbers in one dimension, not {labels.about}")
        elif labels.low < 0 or labels.high >= classes:
            problems.append(
                f"{labels.where}: labels from {labels.low} to {labels.high}; the model knows 0 to {classes - 1}"
            )
    return problems


def check_batches(plan: Plan, sizes: Mapping[str, int], batch_size: int, drop_last: bool) -> list[str]:
    """Every client must have a batch it can train on."""
    smallest = plan.facts.smallest_batch
    problems = []
    for name, n in sizes.items():
        slices, _ = one_epoch(n, batch_size, drop_last, smallest)
        if slices:
            continue
        if drop_last and n < batch_size:
            problems.append(f"client '{name}': {n} samples make no batch of {batch_size} under drop_last")
        else:
            problems.append(
                f"client '{name}': no usable batch: a norm layer would see one value per channel "
                f"({n} samples in batches of {min(batch_size, n)})"
            )
    return problems


def check_loss(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, y: Tensor) -> list[str]:
    try:
        value = loss(logits, y)
    except Exception as error:
        return [f"the loss fails on logits {_about(logits)} and labels {_about(y)}: {error}"]
    if not isinstance(value, Tensor) or value.dim() != 0:
        return [f"the loss must return a tensor with one number, not {_about(value)}"]
    return []


def _about(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
