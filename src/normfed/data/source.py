"""Where samples come from: blocks of them that lie together, their labels at hand, their values read when needed.

Every kind of data (a dataset of the catalogue, a folder of images, a table) becomes a `Source`; what happens to it from
there on, partitions and federations, does not know which it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

SPLITS = ("train", "test", "val")
WHOLE = "all"  # of a block that nobody has split


@dataclass(frozen=True)
class Block:
    """One domain's training set, say. `read()` gives [n, *shape]; it may be a memory map, so take rows of it."""

    domain: str
    split: str  # train, test, val; "all" where nobody has split
    labels: np.ndarray  # [n]
    shape: tuple[int, ...]  # of one sample
    dtype: np.dtype  # uint8 for images, which stay bytes until a batch is made of them
    read: Callable[[], np.ndarray]
    twins: Callable[[], np.ndarray] | None = None  # [n]: samples with equal numbers are copies of one another

    @property
    def name(self) -> str:
        return f"{self.domain}/{self.split}" if self.domain else self.split

    @property
    def sample_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Source:
    """Samples with labels, in blocks; a *row* is a sample's place in all blocks one after another."""

    name: str
    classes: tuple[str, ...]
    blocks: tuple[Block, ...]
    about: str = ""
    partition: str = "domain"  # where the user asks for none
    notes: tuple[str, ...] = ()  # what may be meant, and is worth a word

    @cached_property
    def starts(self) -> np.ndarray:
        """Row of the first sample of each block, and the end."""
        return np.cumsum([0, *(len(block.labels) for block in self.blocks)])

    @cached_property
    def labels(self) -> np.ndarray:
        return np.concatenate([block.labels for block in self.blocks]).astype(np.int64)

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(block.domain for block in self.blocks))

    @cached_property
    def twins(self) -> np.ndarray:
        """A number for each row; copies of one sample have the same. Images have to be decoded for it."""
        known = [i for i, block in enumerate(self.blocks) if block.twins is not None]
        numbers = -1 - np.arange(self.starts[-1])  # nobody's copy
        if known:
            rows = np.concatenate([self.rows_of(i) for i in known])
            digests = np.concatenate([twins() for i in known if (twins := self.blocks[i].twins) is not None])
            numbers[rows] = np.unique(digests, return_inverse=True)[1]
        return numbers

    def rows_of(self, block: int) -> np.ndarray:
        return np.arange(self.starts[block], self.starts[block + 1])

    def by_block(self, rows: np.ndarray) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """(block, positions in `rows`, rows inside the block), for each block that `rows` touch."""
        owner = np.searchsorted(self.starts, rows, side="right") - 1
        touched = [(int(i), np.flatnonzero(owner == i)) for i in np.unique(owner)]
        return [(i, places, rows[places] - self.starts[i]) for i, places in touched]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Samples of these rows, in their order."""
        if not len(rows):
            block = self.blocks[0]
            return np.empty((0, *block.shape), block.dtype)
        parts = self.by_block(rows)
        if len(parts) == 1:
            i, _, inside = parts[0]
            return self.blocks[i].read()[inside]
        shape, dtype = self.blocks[parts[0][0]].shape, self.blocks[parts[0][0]].dtype
        taken = np.empty((len(rows), *shape), dtype)
        for i, places, inside in parts:
            taken[places] = self.blocks[i].read()[inside]
        return taken
