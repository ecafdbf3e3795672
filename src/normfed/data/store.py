"""A federation: named clients with their own data."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Split = tuple[Tensor, Tensor]

POOL_BYTES = 2**31  # a second copy of the training data is kept up to this size
HELD_BYTES = 2**32  # a lazy federation that says it is no larger is held on a CPU; on an accelerator, half its memory


@dataclass(frozen=True)
class ClientData:
    """One client's samples: `(x, y)` of tensors or NumPy arrays, samples first. `test` and `val` may be missing.
    Labels may be whole numbers of any type.

    Roles: 'train' takes part; 'evaluate' only evaluates the global model; 'unseen' is a site that the federation does
    not know: its training samples, if any, are unlabelled data for re-estimating statistics.
    """

    train: Any = None
    test: Any = None
    val: Any = None
    role: str = "train"

    def split(self, name: str) -> Split | None:
        """The pair as tensors, or None. Raises ValueError where it is not a pair."""
        pair = getattr(self, name)
        if pair is None:
            return None
        if not hasattr(pair, "__len__") or len(pair) != 2:
            raise ValueError(f"{name} must be a pair (x, y)")
        x, y = (_tensor(part) for part in pair)
        whole = not (y.is_floating_point() or y.is_complex() or y.dtype is torch.bool)
        return x, y.long() if whole else y


def _tensor(value: Any) -> Tensor:
    """The same memory where torch can share it."""
    if isinstance(value, np.ndarray) and (min(value.strides, default=0) < 0 or not value.dtype.isnative):
        value = value.astype(value.dtype.newbyteorder("="))  # in C order; torch reads neither of the two
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing here writes
        return torch.as_tensor(value).detach()


ROLES = ("train", "evaluate", "unseen")


class Store:
    """Clients by name, their tensors on the run's device. A plain dict is kept there whole. Any other mapping is taken
    to be lazy, a client being loaded when its turn comes and not held, unless it says by `nbytes` that it is small.

    What is known of lazy clients need not be asked of them: their `roles`, and the `splits` that each of them has."""

    def __init__(
        self, clients: Mapping[str, ClientData], device: torch.device, roles: Mapping[str, str] | None = None,
        splits: Mapping[str, frozenset[str]] | None = None,
    ) -> None:  # fmt: skip
        self.roles = dict(roles or {name: clients[name].role for name in clients})
        self.splits = splits or {}
        self.names = self.of("train")  # those who take part
        self.lazy = not isinstance(clients, dict) and getattr(clients, "nbytes", math.inf) > _room(device)
        self._clients = clients
        self._device = device
        self._held: dict[tuple[str, str], Split | None] = {}
        self._moved: dict[int, tuple[Tensor, Tensor]] = {}  # what clients share is moved to the device once
        self._pool: tuple[tuple[str, ...], Tensor, Tensor, dict[str, int]] | None = None

    def split(self, client: str, which: str) -> Split | None:
        if (client, which) in self._held:
            return self._held[client, which]
        if which not in self.splits.get(client, (which,)):
            return None
        pair = self._clients[client].split(which)
        if pair is not None:
            pair = (self._here(pair[0]), pair[1].to(self._device))
        if not self.lazy:
            self._held[client, which] = pair
        return pair

    def _here(self, x: Tensor) -> Tensor:
        if x.device == self._device or self.lazy:
            return x.to(self._device)
        if id(x) not in self._moved:
            self._moved[id(x)] = x, x.to(self._device)
        return self._moved[id(x)][1]

    def of(self, *roles: str) -> tuple[str, ...]:
        """Names of the clients with one of these roles, in the federation's order."""
        return tuple(name for name, role in self.roles.items() if role in roles)

    def train(self, client: str) -> Split:
        pair = self.split(client, "train")
        assert pair is not None
        return pair

    def pool(self, clients: Sequence[str]) -> tuple[Tensor, Tensor, dict[str, int]]:
        """Training data of these clients in one pair of tensors, with each client's first row. Kept from round to
        round: for the whole federation where it is small, else while the same clients are asked for."""
        wanted = tuple(clients)
        if self._pool is None or not set(wanted) <= self._pool[3].keys():
            self._pool = None
            small = not self.lazy and sum(self.train(c)[0].nbytes for c in self.names) <= POOL_BYTES
            members = self.names if small else wanted
            splits = [self.train(client) for client in members]
            rows = itertools.accumulate((len(x) for x, _ in splits), initial=0)
            first = dict(zip(members, rows, strict=False))
            self._pool = (members, torch.cat([x for x, _ in splits]), torch.cat([y for _, y in splits]), first)
        return self._pool[1:]


def _room(device: torch.device) -> float:
    return HELD_BYTES if device.type == "cpu" else torch.cuda.get_device_properties(device).total_memory / 2


class Pooled(Mapping[str, ClientData]):
    """All clients' training data as one client's, in the clients' order (Centralized)."""

    name = "pooled"

    def __init__(self, clients: Mapping[str, ClientData]) -> None:
        self._clients = clients
        self.nbytes = 0 if isinstance(clients, dict) else getattr(clients, "nbytes", math.inf)  # what is held stays so

    def __getitem__(self, name: str) -> ClientData:
        if name != self.name:
            raise KeyError(name)
        pairs = [p for c in self._clients.values() if c.role == "train" and (p := c.split("train")) is not None]
        return ClientData(train=(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])))

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1
