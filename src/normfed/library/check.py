"""Whether a dataset's files are what they should be: every one is read to its last image."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from normfed.data import DATASETS, cache, files, images, source_of
from normfed.data.catalogue import Dataset, root_of
from normfed.data.source import WHOLE
from normfed.errors import Refused
from normfed.library.fetch import OnRows
from normfed.library.shelf import Shelf
from normfed.runs import disk


@dataclass
class Counted:
    """A file: how many samples of each class it has."""

    domain: str
    split: str
    file: str
    samples: int = 0
    classes: dict[str, int] = field(default_factory=dict)


@dataclass
class Checked:
    """What was found; good where there are no problems."""

    dataset: str
    folder: Path
    files: list[Counted] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # domains of the catalogue that are not there
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Classes in columns where there are not too many of them."""
        names = list(dict.fromkeys(name for file in self.files for name in file.classes))
        names = names if len(names) <= 20 else []
        rows = [
            [file.file, str(file.samples), *(str(file.classes.get(name, 0)) for name in names)] for file in self.files
        ]
        return ["file", "samples", *names], rows


def check(name: str, root: Path | None = None, on_rows: OnRows = lambda what, done, total: None) -> Checked:
    """Reads every file of a dataset that is there: labels, every image, SHA-256 where the manifest has one, and whether
    a test image is a training image too. Everything wrong is in `problems`. Your own data, by their path, are refused
    with all that is wrong with them, as in a run."""
    if name not in DATASETS:
        return _own(name, root)
    dataset = DATASETS[name]
    shelf = Shelf(dataset, root)
    there = dataset.files(root_of(root))
    if not there:
        home = root_of(root)
        raise Refused(f"{name} is not under {home}: `normfed data fetch {name}` gets it, or says how to obtain it")
    found = Checked(name, shelf.folder)
    found.missing = [d for d in dataset.domains if d not in there and d not in dataset.stand_ins]
    found.problems += [f"{shelf.folder / one}: {fault}" for one in shelf.entries if (fault := shelf.fault(one))]
    parts = sorted(shelf.folder.rglob(f"*{disk.PART}"))
    found.problems += [
        f"{part}: was not written to its end; `normfed data fetch {name}` begins it anew" for part in parts
    ]
    for domain, splits in there.items():
        if WHOLE not in splits:
            found.problems += [
                f"{shelf.folder / domain}: there is no {s} file" for s in ("train", "test") if s not in splits
            ]
        seen: dict[str, dict[int, int]] = {}
        for split, path in splits.items():
            file = Counted(domain, split, path.relative_to(shelf.folder).as_posix())
            found.files.append(file)
            seen[split] = _read(dataset, path, file, found.problems, on_rows)
        found.problems += _leaks(shelf.folder / domain, seen)
    return found


def _own(name: str, root: Path | None) -> Checked:
    source = source_of(name, root)
    for note in source.notes:
        warnings.warn(note, stacklevel=3)
    found = Checked(name, Path(name))
    for block in source.blocks:
        counts = Counter(block.labels.tolist())
        classes = {label: counts[i] for i, label in enumerate(source.classes)}
        found.files.append(Counted(block.domain, block.split, block.name, len(block.labels), classes))
    return found


def _read(dataset: Dataset, path: Path, counted: Counted, problems: list[str], on_rows: OnRows) -> dict[int, int]:
    """Counts a file's samples; returns the number of each image, with its first row."""
    try:
        opened = files.open_file(path, counted.domain, counted.split, dataset.side, dataset.channels)
    except Refused as refusal:
        problems += refusal.problems
        return {}
    names = opened.classes or dataset.classes or tuple(map(str, range(int(opened.labels.max(initial=0)) + 1)))
    counted.samples = len(opened.labels)
    counts = Counter(opened.labels.tolist())
    counted.classes = {name: counts[i] for i, name in enumerate(names)}
    problems += [
        f"{path}, row {row}: label {opened.labels[row]}; labels are 0 to {len(names) - 1}"
        for row in np.flatnonzero((opened.labels < 0) | (opened.labels >= len(names)))
    ]
    seen: dict[int, int] = {}
    numbers = _arrays(opened, problems) if opened.arrays is not None else _pictures(dataset, path, problems)
    for row, number in numbers:
        seen.setdefault(number, row)
        on_rows(counted.file, row + 1, len(opened.labels))
    return seen


def _arrays(opened: files.File, problems: list[str]) -> Iterator[tuple[int, int]]:
    assert opened.arrays is not None
    for row, x in enumerate(opened.arrays):
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            problems.append(f"{opened.path}, row {row}: NaN or infinity")
        yield row, cache.number(np.ascontiguousarray(x).tobytes())


def _pictures(dataset: Dataset, path: Path, problems: list[str]) -> Iterator[tuple[int, int]]:
    for row, data in enumerate(files.encoded(path)):
        try:
            yield row, files.decode(data, dataset.channels, 1)[1]
        except images.decoding_faults() as error:
            problems.append(f"{path}, row {row}: the image cannot be decoded: {images.said(error)}")


def _leaks(folder: Path, seen: dict[str, dict[int, int]]) -> list[str]:
    """Test images that are training or validation images too."""
    return [
        f"{folder}: row {row} of test is the same image as row {seen[other][number]} of {other}"
        for number, row in seen.get("test", {}).items()
        for other in ("train", "val")
        if number in seen.get(other, {})
    ]
