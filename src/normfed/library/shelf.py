"""A dataset's folder as it is written: each file whole or not at all, and a manifest that says what each must be.

manifest.json    {"schema": 1, "dataset": …, "files": {"mnist/train.parquet": {"sha256", "bytes", "samples", "from"}}}
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from normfed.data import MADE, cache
from normfed.data.catalogue import Dataset, find, root_of
from normfed.errors import Refused
from normfed.runs import disk

MANIFEST = "manifest.json"
FACTS = {"sha256", "bytes", "samples", "from"}  # about each file


def dataset_of(name: str) -> Dataset:
    """A dataset that has files."""
    if name in MADE:
        raise Refused(f"{name} needs no files: it is made where it is used")
    return find(name)


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() >= FACTS


class Shelf:
    """Where a dataset's files lie, or will lie."""

    def __init__(self, dataset: Dataset, root: Path | None = None) -> None:
        self.dataset = dataset
        self.folder = root_of(root) / dataset.name
        self.entries = self._read()

    def _read(self) -> dict[str, dict[str, Any]]:
        path = self.folder / MANIFEST
        if not path.exists():
            return {}
        document = disk.read_json(path)
        found = document.get("files") if isinstance(document, dict) else None
        if not isinstance(found, dict) or not found or not all(map(_is_entry, found.values())):
            raise Refused(f"{path} is damaged: it does not say what each file must be")
        return found

    @contextlib.contextmanager
    def mine(self) -> Iterator[None]:
        """The folder, made where there is none, for this process alone; taken away again if nothing came into it."""
        disk.make_folder(self.folder)
        try:
            with disk.alone(self.folder):
                self.entries = self._read()  # another process may have written since
                yield
        finally:
            for folder in (*sorted(p for p in self.folder.iterdir() if p.is_dir()), self.folder):
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def name(self, domain: str, split: str) -> str:
        """Of a file, as the manifest has it."""
        return f"{domain}/{split}.parquet" if domain else f"{split}.parquet"

    def fault(self, name: str) -> str | None:
        """What is wrong with a file of the manifest; None where it is whole."""
        path, entry = self.folder / name, self.entries[name]
        if not path.is_file():
            return "is missing; the manifest has it"
        if path.stat().st_size != entry["bytes"]:
            return f"has {path.stat().st_size:,} bytes; it was written with {entry['bytes']:,}"
        return None if cache.hash_of(path) == entry["sha256"] else "was changed after it was written: SHA-256 differs"

    def whole(self, domain: str, split: str) -> bool:
        name = self.name(domain, split)
        return name in self.entries and self.fault(name) is None

    def others(self, domain: str, splits: Iterable[str]) -> list[str]:
        """Files of a domain that stand in the way of these: of other splits, or not written by us."""
        found = self.dataset.files(self.folder.parent).get(domain, {})
        names = [path.relative_to(self.folder).as_posix() for path in found.values()]
        ours = {self.name(domain, split) for split in splits} & self.entries.keys()
        return [name for name in names if name not in ours]

    def enter(self, name: str, samples: int, origin: str) -> None:
        """A file that was written, into the manifest."""
        path = self.folder / name
        facts = {"sha256": cache.hash_of(path), "bytes": path.stat().st_size, "samples": samples, "from": origin}
        self.entries = dict(sorted({**self.entries, name: facts}.items()))
        disk.write_json(
            self.folder / MANIFEST, {"schema": 1, "dataset": self.dataset.name, "files": self.entries}
        )  # fmt: skip


@dataclass
class Drafts:
    """Files of a dataset that are being written, one for each domain. Leaving without an error makes all of them whole;
    with one, none."""

    shelf: Shelf
    split: str
    names: tuple[str, ...]  # of the classes
    origin: str

    def __enter__(self) -> Drafts:
        self._files: dict[str, BinaryIO] = {}  # ours, so that a failure to write keeps its number
        self._writers: dict[str, Any] = {}
        self.samples: dict[str, int] = {}
        return self

    def add(self, domain: str, images: Sequence[Mapping[str, Any]], labels: np.ndarray) -> None:
        """Encoded images, {bytes, path}, and their labels."""
        import pyarrow as pa

        path = self._part(domain)
        with disk.telling(path):
            if domain not in self._files:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files[domain] = path.open("wb")
                self._writers[domain] = _writer(self._files[domain], self.names)
            rows = {"image": pa.array(images, _image()), "label": pa.array(labels, pa.int64())}
            self._writers[domain].write_table(pa.table(rows, schema=self._writers[domain].schema))
        self.samples[domain] = self.samples.get(domain, 0) + len(labels)

    def _part(self, domain: str) -> Path:
        path = self.shelf.folder / self.shelf.name(domain, self.split)
        return path.with_name(path.name + disk.PART)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for domain in self._files:
                    self._close(domain)
                for domain in self._files:
                    self._put(domain)
        finally:
            for opened in (*self._writers.values(), *self._files.values()):
                with contextlib.suppress(OSError, ValueError):
                    opened.close()
            for domain in self._files:
                self._part(domain).unlink(missing_ok=True)

    def _close(self, domain: str) -> None:
        with disk.telling(self._part(domain)):
            self._writers[domain].close()
            self._files[domain].flush()
            os.fsync(self._files[domain].fileno())

    def _put(self, domain: str) -> None:
        part, name = self._part(domain), self.shelf.name(domain, self.split)
        with disk.telling(part):
            part.replace(self.shelf.folder / name)
            disk.sync(part.parent)
        self.shelf.enter(name, self.samples[domain], self.origin)


def _image() -> Any:
    import pyarrow as pa

    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _writer(file: BinaryIO, names: tuple[str, ...]) -> Any:
    """As Hugging Face `datasets` writes images: class names in the schema's metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    label = {"_type": "ClassLabel", "names": list(names)} if names else {"_type": "Value", "dtype": "int64"}
    said = json.dumps({"info": {"features": {"image": {"_type": "Image"}, "label": label}}})
    columns = [("image", _image()), ("label", pa.int64())]
    return pq.ParquetWriter(file, pa.schema(columns, metadata={"huggingface": said}))
