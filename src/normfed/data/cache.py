"""Images are decoded once: into a memory-mapped array in the user's cache folder, named by what it was made from."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

VERSION = 1  # of how images are decoded


def folder() -> Path:
    """Of the user: NORMFED_CACHE, or normfed in the usual place."""
    given = os.environ.get("NORMFED_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normfed"


def number(data: bytes) -> int:
    """64 bits of a hash."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@functools.cache
def _hash_of(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of(path: Path) -> str:
    """SHA-256 of a file; computed once in a process as long as the file does not change."""
    facts = path.stat()
    return _hash_of(path, facts.st_size, facts.st_mtime_ns)


def name_of(path: Path, shape: tuple[int, ...], rows: np.ndarray | None) -> str:
    """Of the images of a file, or of some of its rows, in this shape."""
    chosen = "" if rows is None else f"-{number(rows.tobytes()):016x}"
    return f"{hash_of(path)[:32]}-{'x'.join(map(str, shape))}{chosen}"


@dataclass
class Decoded:
    """Images as [n, channels, height, width] bytes. Nothing is decoded before it is asked for."""

    name: Callable[[], str]  # says what they were made from; "": not kept
    shape: tuple[int, ...]
    count: int
    images: Callable[[], Iterator[tuple[np.ndarray, int]]]  # pixels, and a number that tells images apart
    _held: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False)

    def samples(self) -> np.ndarray:
        return self._both()[0]

    def digests(self) -> np.ndarray:
        """[n]: a number for the pixels of each image, before any resizing."""
        return self._both()[1]

    def _both(self) -> tuple[np.ndarray, np.ndarray]:
        if self._held is None:
            self._held = self._mapped() or self._in_memory()
        return self._held

    def _mapped(self) -> tuple[np.ndarray, np.ndarray] | None:
        """From the cache folder, decoded into it first where it is not there; None where it cannot be written to."""
        name = self.name()
        if not name:
            return None
        home = folder() / "decoded" / f"{name}-v{VERSION}"
        if not home.is_dir() and not self._written(home):
            return None
        return np.load(home / "samples.npy", mmap_mode="r"), np.load(home / "digests.npy")

    def _written(self, home: Path) -> bool:
        """Decodes into a folder that gets its name when it is complete. Another process may have been first."""
        draft = home.with_name(f".{home.name}.{os.getpid()}")
        try:
            draft.mkdir(parents=True, exist_ok=True)
            digests = np.empty(self.count, np.uint64)
            with (draft / "samples.npy").open("wb") as file:
                head = {"descr": "|u1", "fortran_order": False, "shape": (self.count, *self.shape)}
                np.lib.format.write_array_header_1_0(file, head)
                for i, (pixels, own) in enumerate(self.images()):
                    file.write(np.ascontiguousarray(pixels).data)
                    digests[i] = own
            np.save(draft / "digests.npy", digests)
            draft.rename(home)
        except OSError:  # read-only, full, or there by now
            return home.is_dir()
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        return True

    def _in_memory(self) -> tuple[np.ndarray, np.ndarray]:
        samples, digests = np.empty((self.count, *self.shape), np.uint8), np.empty(self.count, np.uint64)
        for i, (pixels, own) in enumerate(self.images()):
            samples[i], digests[i] = pixels, own
        return samples, digests
