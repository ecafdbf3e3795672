"""Which samples make which batch: a pure function of the client's size, the settings and a key."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normfed.keys import fold, permutation


@dataclass(frozen=True)
class Batch:
    """One local step's samples: a slice of the epoch's order."""

    epoch: int
    position: int  # number of the batch in its epoch
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Course:
    """A sequence of batches that a client takes."""

    batches: tuple[Batch, ...]
    orders: tuple[Tensor, ...] = ()  # one permutation per epoch; empty: stored order
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.batches)

    def samples(self, i: int) -> slice | Tensor:
        """Samples of batch i."""
        batch = self.batches[i]
        taken = slice(batch.start, batch.stop)
        return self.orders[batch.epoch][taken] if self.orders else taken

    def indices(self, i: int) -> Tensor:
        """The same as a tensor."""
        batch = self.batches[i]
        taken = self.samples(i)
        return taken if isinstance(taken, Tensor) else torch.arange(batch.start, batch.stop)


def one_epoch(n: int, batch_size: int, drop_last: bool, smallest: int) -> tuple[list[tuple[int, int]], int]:
    """(start, stop) of the usable batches, and how many were skipped: consecutive slices, the short last one kept
    unless `drop_last`, none smaller than `smallest` (a norm layer would see one value per channel)."""
    slices = [(start, min(start + batch_size, n)) for start in range(0, n, batch_size)]
    if drop_last and slices and slices[-1][1] - slices[-1][0] < batch_size:
        slices.pop()
    usable = [(a, b) for a, b in slices if b - a >= smallest]
    return usable, len(slices) - len(usable)


def course(
    n: int, batch_size: int, epochs: int, steps: int | None, drop_last: bool, smallest: int, key: int | None
) -> Course:
    """The batches a client trains on in a round. `steps=S` takes the first S usable batches, starting again when they
    end. `key=None`: stored order."""
    slices, skipped = one_epoch(n, batch_size, drop_last, smallest)
    if not slices:
        return Course((), skipped=skipped)
    passes = epochs if steps is None else -(-steps // len(slices))
    passed = epochs if steps is None else passes - 1  # how often the last batch, the short one, was come to
    batches = [Batch(e, i, a, b) for e in range(passes) for i, (a, b) in enumerate(slices)]
    if steps is not None:
        batches = batches[:steps]
    orders = () if key is None else tuple(permutation(fold(key, "shuffle", e), n) for e in range(passes))
    return Course(tuple(batches), orders, skipped * passed)


def full_pass(n: int, batch_size: int, smallest: int) -> Course:
    """Every sample once, in stored order: the batches of a segment that measures."""
    slices, skipped = one_epoch(n, batch_size, False, smallest)
    return Course(tuple(Batch(0, i, a, b) for i, (a, b) in enumerate(slices)), skipped=skipped)
