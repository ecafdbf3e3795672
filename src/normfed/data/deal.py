"""Ways to deal the samples of a pool to n clients: labels and a key in, positions of each client's samples out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Concatenate

import numpy as np
import torch

from normfed.errors import Refused
from normfed.keys import Key, fold, integers, normal, permutation, uniform

Dealt = list[np.ndarray]  # of each client: positions in the pool
Deal = Callable[Concatenate[np.ndarray, int, int, ...], Dealt]  # (labels, clients, key, arguments) -> positions

ATTEMPTS = 200  # draws of a skewed partition until every client has enough


def subkey(key: int, *data: Key | str) -> int:
    """`keys.fold` of plain numbers."""
    return int(fold(key, *data))


def shuffled(key: Key, n: int) -> np.ndarray:
    return permutation(key, n).numpy()


def cut(order: np.ndarray, weights: np.ndarray) -> Dealt:
    """Consecutive pieces of `order` in proportion to `weights`: every boundary rounded, nothing lost."""
    ends = np.floor(np.cumsum(weights) / weights.sum() * len(order) + 1e-9).astype(int)
    ends[-1] = len(order)
    return np.split(order, ends[:-1])


def by_class(labels: np.ndarray) -> dict[int, np.ndarray]:
    """Positions of each label, in order."""
    return {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}


def log_gamma_draws(key: Key, shape: tuple[int, ...], alpha: float) -> np.ndarray:
    """Logarithms of Gamma(alpha, 1) draws (Marsaglia and Tsang, 2000; for alpha < 1 by their boost from alpha + 1)."""
    d = alpha + 1 - 1 / 3
    c = 1 / np.sqrt(9 * d)
    drawn = np.full(shape, np.nan)
    attempt = 0
    while np.isnan(drawn).any():
        x = normal(fold(key, "x", attempt), shape, torch.float64).numpy()
        u = uniform(fold(key, "u", attempt), shape, torch.float64).numpy()
        v = np.maximum((1 + c * x) ** 3, 1e-300)
        good = (v > 1e-300) & (np.log(u + 1e-300) < 0.5 * x * x + d - d * v + d * np.log(v))
        drawn = np.where(np.isnan(drawn) & good, np.log(d * v), drawn)
        attempt += 1
    boost = uniform(fold(key, "boost"), shape, torch.float64).numpy()
    return drawn + np.log(boost + 1e-300) / alpha


def dirichlet_draws(key: Key, alpha: float, rows: int, size: int) -> np.ndarray:
    """[rows, size]: each row from a symmetric Dirichlet distribution."""
    logs = log_gamma_draws(key, (rows, size), alpha)
    shares = np.exp(logs - logs.max(1, keepdims=True))
    return shares / shares.sum(1, keepdims=True)


def iid(labels: np.ndarray, clients: int, key: int) -> Dealt:
    """At random, in parts as equal as can be."""
    return cut(shuffled(fold(key, "order"), len(labels)), np.ones(clients))


def dirichlet(
    labels: np.ndarray, clients: int, key: int, alpha: float, size: int | None = None, least: int = 10
) -> Dealt:
    """Label skew. Each class is dealt in proportions drawn from Dirichlet(alpha) over the clients, again until every
    client has `least` samples (Hsu et al., 2019; Yurochkin et al., 2019). With `size`, each client draws its own
    proportions of the classes and takes that many samples, from what is left of a class where it runs out."""
    _above_zero("dirichlet", alpha)
    if size is not None:
        return _dirichlet_of_size(labels, clients, key, alpha, size)
    classes = by_class(labels)
    for attempt in range(ATTEMPTS if clients * least <= len(labels) else 0):
        shares = dirichlet_draws(fold(key, "shares", attempt), alpha, len(classes), clients)
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for (label, positions), share in zip(classes.items(), shares, strict=True):
            order = positions[shuffled(fold(key, "class", label), len(positions))]
            for part, piece in zip(parts, cut(order, share), strict=True):
                part.append(piece)
        dealt = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, dealt)) >= least:
            return dealt
    raise Refused(
        f"dirichlet({alpha:g}) over {clients} clients: no draw leaves every client {least} samples of "
        f"{len(labels)}; take fewer clients, a larger alpha or a smaller `least`"
    )


def _above_zero(name: str, alpha: float) -> None:
    if alpha <= 0:
        raise Refused(f"{name}({alpha:g}): alpha must be above 0")


def _dirichlet_of_size(labels: np.ndarray, clients: int, key: int, alpha: float, size: int) -> Dealt:
    if size < 1:
        raise Refused(f"dirichlet: size={size} must be 1 or more")
    if clients * size > len(labels):
        raise Refused(f"dirichlet: {clients} clients of {size} samples need {clients * size}; there are {len(labels)}")
    left = {c: list(p[shuffled(fold(key, "class", c), len(p))]) for c, p in by_class(labels).items()}
    shares = dirichlet_draws(fold(key, "shares"), alpha, clients, len(left))
    dealt = []
    for share in shares:
        wanted = np.diff(np.floor(np.cumsum([0.0, *share]) * size + 1e-9)).astype(int)
        wanted[-1] += size - wanted.sum()
        taken: list[int] = []
        for pile, count in zip(left.values(), wanted, strict=True):
            taken += [pile.pop() for _ in range(min(count, len(pile)))]
        while len(taken) < size:  # a class ran out: the class with most left fills up
            pile = max(left.values(), key=len)
            taken.append(pile.pop())
        dealt.append(np.sort(np.asarray(taken, dtype=np.int64)))
    return dealt


def shards(
    labels: np.ndarray,
    clients: int,
    key: int,
    per_client: int | list = 2,  # type: ignore[type-arg]
    size: int | None = None,
) -> Dealt:
    """Sorted by label, cut into shards, some of them to each client (McMahan et al., 2017). `per_client` is a number,
    or [least, most]: numbers drawn between the two. Shards have `size` samples, or share all samples equally."""
    low, high = _bounds(per_client)
    order = np.argsort(labels, kind="stable")
    if size is not None and size < 1:
        raise Refused(f"shards: size={size} must be 1 or more")
    if low != high and size is None:
        raise Refused("shards: a number drawn between two bounds needs the size of a shard")
    available = len(order) // size if size is not None else clients * low
    if size is not None:
        pieces = np.split(order[: available * size], available) if available else []
    else:
        pieces = cut(order, np.ones(available))
    if clients * low > available:
        raise Refused(
            f"shards: {clients} clients need at least {clients * low} shards; {len(order)} samples make {available}"
        )
    counts = [low] * clients if low == high else _counts(key, clients, low, high, min(available, clients * high))
    drawn = shuffled(fold(key, "shards"), available)
    ends = np.cumsum([0, *counts])
    return [np.concatenate([pieces[i] for i in drawn[a:b]]) for a, b in itertools.pairwise(ends)]


def _bounds(per_client: int | list) -> tuple[int, int]:  # type: ignore[type-arg]
    pair = per_client if isinstance(per_client, list) else [per_client, per_client]
    if len(pair) != 2 or not all(isinstance(v, int) for v in pair) or not 1 <= pair[0] <= pair[1]:
        raise Refused(f"shards({per_client}): shards per client are a number, 1 or more, or [least, most]")
    return pair[0], pair[1]


def _counts(key: int, clients: int, low: int, high: int, total: int) -> list[int]:
    """Whole numbers in [low, high], drawn at random, moved by ones at random clients until they make the total."""
    counts = (integers(fold(key, "counts"), (clients,), high - low + 1) + low).tolist()
    step = 0
    while (gap := total - sum(counts)) != 0:
        for i in shuffled(fold(key, "level", step), clients):
            move = (gap > 0) - (gap < 0)
            if gap and low <= counts[i] + move <= high:
                counts[i] += move
                gap -= move
        step += 1
    return counts


def classes(labels: np.ndarray, clients: int, key: int, k: int) -> Dealt:
    """Each client holds `k` classes: of C, client i of n those from i C / n on, around the circle; a class is shared
    equally by its holders (the class tables of FedTAN: 5 clients, client i holds 2i, 2i + 1, …)."""
    groups = by_class(labels)
    count = int(labels.max()) + 1 if len(labels) else 0
    if k > count:
        raise Refused(f"classes({k}): there are {count} classes")
    holders: dict[int, list[int]] = {}
    for i in range(clients):
        for step in range(k):
            holders.setdefault((i * count // clients + step) % count, []).append(i)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, positions in groups.items():
        order = positions[shuffled(fold(key, "class", label), len(positions))]
        if label in holders:
            for i, piece in zip(holders[label], cut(order, np.ones(len(holders[label]))), strict=True):
                parts[i].append(piece)
    return [np.sort(np.concatenate([*part, np.empty(0, np.int64)])).astype(np.int64) for part in parts]


def blocks(labels: np.ndarray, clients: int, key: int) -> Dealt:
    """Sorted by label and cut into as many equal blocks as there are clients (the code of FedTAN)."""
    return cut(np.argsort(labels, kind="stable"), np.ones(clients))


def quantity(labels: np.ndarray, clients: int, key: int, alpha: float, least: int = 10) -> Dealt:
    """Quantity skew: sizes in proportions drawn from Dirichlet(alpha), labels at random; no client below `least`."""
    _above_zero("quantity", alpha)
    if clients * least > len(labels):
        raise Refused(
            f"quantity: {clients} clients with at least {least} samples need {clients * least}; there are {len(labels)}"
        )
    share = dirichlet_draws(fold(key, "shares"), alpha, 1, clients)[0]
    free = len(labels) - clients * least
    sizes = np.diff(np.floor(np.cumsum([0.0, *share]) * free + 1e-9)).astype(int) + least
    sizes[-1] += len(labels) - sizes.sum()
    return np.split(shuffled(fold(key, "order"), len(labels)), np.cumsum(sizes)[:-1])


DEALS: dict[str, Deal] = {
    "iid": iid, "dirichlet": dirichlet, "shards": shards, "classes": classes, "blocks": blocks, "quantity": quantity,
}  # fmt: skip


def alike(dealt: Dealt, labels: np.ndarray, others: np.ndarray, key: int) -> Dealt:
    """Deals other samples as these were dealt: of each class, every client gets its share. What rounding takes from a
    client in one class it is given in another."""
    parts: list[list[np.ndarray]] = [[] for _ in dealt]
    owed = np.zeros(len(dealt))
    for label, positions in by_class(others).items():
        held = np.array([(labels[part] == label).sum() for part in dealt], dtype=float)
        if not held.sum():
            continue
        order = positions[shuffled(fold(key, "alike", label), len(positions))]
        wanted = len(order) * held / held.sum()
        counts = np.floor(wanted).astype(int)
        owed += wanted - counts
        luck = uniform(fold(key, "luck", label), (len(dealt),), torch.float64).numpy() * 1e-6
        for i in np.argsort(np.where(held > 0, -owed - luck, np.inf))[: len(order) - counts.sum()]:
            counts[i] += 1
            owed[i] -= 1
        for part, piece in zip(parts, np.split(order, np.cumsum(counts)[:-1]), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate([*part, np.empty(0, np.int64)])).astype(np.int64) for part in parts]
