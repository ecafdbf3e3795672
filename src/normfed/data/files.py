"""Files of the folder layout: Parquet with encoded images, npz with arrays."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from normfed.data import cache, images
from normfed.data.source import SPLITS, WHOLE, Block
from normfed.errors import Refused, first_line

SUFFIXES = (".parquet", ".npz")


def found_in(folder: Path) -> dict[str, Path]:
    """split -> file: train, test and val, or the whole where nobody has split."""
    found: dict[str, Path] = {}
    for split in (*SPLITS, WHOLE):
        for suffix in SUFFIXES:
            path = folder / f"{split}{suffix}"
            if split not in found and path.is_file():
                found[split] = path
    whole = found.pop(WHOLE, None)
    return {WHOLE: whole} if whole is not None and "train" not in found else found


@dataclass(frozen=True)
class File:
    """A file that was opened: its labels are read, its samples are not."""

    path: Path
    domain: str
    split: str
    labels: np.ndarray
    classes: tuple[str, ...] = ()  # where the file names them
    shape: tuple[int, ...] = ()  # of a decoded image
    arrays: np.ndarray | None = None  # of an npz, which is read at once

    def block(self, rows: np.ndarray | None = None, renumber: np.ndarray | None = None) -> Block:
        """Its samples, or some rows of them with their labels renumbered."""
        labels = self.labels if rows is None else self.labels[rows]
        labels = labels if renumber is None else renumber[labels]
        if self.arrays is not None:
            values = self.arrays if rows is None else self.arrays[rows]
            return Block(self.domain, self.split, labels, values.shape[1:], values.dtype, lambda: values)
        pictures = cache.Decoded(
            lambda: cache.name_of(self.path, self.shape, rows),
            self.shape, len(labels), lambda: _images(self.path, self.shape, rows),
        )  # fmt: skip
        return Block(
            self.domain, self.split, labels, self.shape, np.dtype(np.uint8), pictures.samples, pictures.digests
        )  # fmt: skip


def open_file(path: Path, domain: str, split: str, side: int, channels: int) -> File:
    if path.suffix == ".npz":
        return _npz(path, domain, split)
    return _parquet(path, domain, split, (channels, side, side))


def _npz(path: Path, domain: str, split: str) -> File:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            x, labels = arrays["x"], arrays["label"]
            scale = arrays.get("scale", None)
    except KeyError as error:
        raise Refused(f"{path}: it needs the arrays 'x' and 'label'; there is no {error}") from None
    except Exception as error:  # zip and npy readers raise what they like on damaged files
        raise Refused(f"{path} cannot be read as npz: {str(error) or type(error).__name__}") from None
    if len(x) != len(labels):
        raise Refused(f"{path}: {len(x)} samples but {len(labels)} labels")
    return File(path, domain, split, labels.astype(np.int64), arrays=as_samples(x, scale))


def as_samples(x: np.ndarray, scale: Any = None) -> np.ndarray:
    """Bytes and floats as they are, times the scale where there is one; other numbers as floats."""
    if scale is not None:
        return x.astype(np.float32) * np.float32(scale)
    return x if x.dtype in (np.uint8, np.float32, np.float64) else x.astype(np.float32)


def _parquet(path: Path, domain: str, split: str, shape: tuple[int, ...]) -> File:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            missing = [f"'{name}'" for name in ("image", "label") if name not in names]
            if missing:
                raise Refused(f"{path} has no column {' and none '.join(missing)}; it has {', '.join(names)}")
            labels = file.read(["label"])["label"].to_numpy()
            classes = class_names(file.schema_arrow.metadata)
    except (OSError, pa.ArrowException) as error:
        raise Refused(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    if not np.issubdtype(labels.dtype, np.integer):
        raise Refused(f"{path}: labels must be whole numbers, not {labels.dtype}")
    return File(path, domain, split, labels.astype(np.int64), classes, shape)


def class_names(metadata: Any, label: str = "label") -> tuple[str, ...]:
    """As Hugging Face `datasets` writes them into a file's schema."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return ()


def encoded(path: Path) -> Iterator[Any]:
    """The images of a Parquet, as they are stored, one after another."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(256, columns=["image"]):
            for image in batch.column(0):
                yield image["bytes"].as_py()


def _images(path: Path, shape: tuple[int, ...], rows: np.ndarray | None) -> Iterator[tuple[np.ndarray, int]]:
    """The images of a file, or of some of its rows, decoded; with a number that tells their pixels apart."""
    wanted = None if rows is None else set(rows.tolist())
    for row, data in enumerate(encoded(path)):
        if wanted is None or row in wanted:
            try:
                yield decode(data, *shape[:2])
            except images.decoding_faults() as error:
                raise Refused(f"{path}, row {row}: the image cannot be decoded: {error}") from None


def decode(data: bytes, channels: int, side: int) -> tuple[np.ndarray, int]:
    """An encoded image as [channels, side, side] bytes."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        return images.pixels(image, channels, (side, side))
