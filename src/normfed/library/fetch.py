"""From the Hugging Face hub into the folder layout: image bytes as they are, one file for each domain and split."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from normfed.data.catalogue import Dataset, Home
from normfed.errors import Problems, Refused, first_line
from normfed.library.shelf import Drafts, Shelf, dataset_of
from normfed.runs import disk

Load = Callable[[str, str | None, str], Any]  # (id, config, split) -> a `datasets.Dataset`
OnRows = Callable[[str, int, int], None]  # (what, rows done, rows in all)
ROWS = 1000  # handled at once


def hub(id: str, config: str | None, split: str) -> Any:
    """A table of the hub; `datasets` downloads it, resumes where it was cut off, and verifies it."""
    try:
        import datasets
    except ImportError:
        raise Refused("datasets of the Hugging Face hub need an extra: pip install 'normfed[hub]'") from None
    datasets.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(id, config, split=split)
    except Exception as error:  # whatever a network, a hub or a disk may do
        reason = disk.REASONS.get(getattr(error, "errno", None) or 0) or first_line(error)
        raise Refused(f"{id} cannot be had from the Hugging Face hub: {reason}") from None


@dataclass
class Fetched:
    """What a fetch did: file -> samples."""

    folder: Path
    written: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)  # whole already
    left: list[str] = field(default_factory=list)  # somebody else's
    missing: list[str] = field(default_factory=list)  # domains that no home has
    obtain: tuple[str, ...] = ()


def fetch(
    name: str, root: Path | None = None, load: Load | None = None,
    on_rows: OnRows = lambda what, done, total: None,
) -> Fetched:  # fmt: skip
    """Gets a dataset; what is whole already stays. A home that fails does not keep the others from being fetched; what
    failed is said in the end."""
    dataset = dataset_of(name)
    if not dataset.homes:
        raise Refused(f"{name} has no home on the hub. To obtain it:", *(f"  {line}" for line in dataset.obtain))
    shelf, problems = Shelf(dataset, root), Problems()
    found = Fetched(shelf.folder)
    with shelf.mine():
        for home in dataset.homes:
            with problems:
                _home(shelf, home, load or hub, found, on_rows)
    problems.say()
    there = dataset.files(shelf.folder.parent)
    found.missing = [d for d in dataset.domains if d not in there and d not in dataset.stand_ins]
    found.obtain = dataset.obtain if found.missing else ()
    return found


def _home(shelf: Shelf, home: Home, load: Load, found: Fetched, on_rows: OnRows) -> None:
    for ours, theirs in home.splits.items():
        wanted = set()
        for domain in [home.domain] if not home.column else shelf.dataset.domains:
            name, others = shelf.name(domain, ours), shelf.others(domain, home.splits)
            if others:
                found.left += [other for other in others if other not in found.left]
            elif shelf.whole(domain, ours):
                found.kept[name] = shelf.entries[name]["samples"]
            else:
                wanted.add(domain)
        if wanted:
            tables = [Rows(shelf.dataset, home, split, load(home.id, home.config, split)) for split in theirs]
            found.written |= _written(shelf, home, ours, tables, wanted, on_rows)


def _written(
    shelf: Shelf, home: Home, split: str, tables: Sequence[Rows], wanted: set[str], on_rows: OnRows
) -> dict[str, int]:
    names, total = tables[0].names, sum(len(table) for table in tables)
    if any(table.names != names for table in tables):
        raise Refused(f"{home.id} names the classes of its splits differently")
    done = 0
    with Drafts(shelf, split, names, " ".join(filter(None, (home.id, home.config, *home.splits[split])))) as drafts:
        for table in tables:
            for domains, images, labels in table:
                for domain in dict.fromkeys(domains):
                    rows = [i for i, one in enumerate(domains) if one == domain]
                    if domain in wanted:
                        drafts.add(domain, [images[i] for i in rows], labels[rows])
                done += len(labels)
                on_rows(f"{home.id}, {split}", done, total)
    return {shelf.name(domain, split): samples for domain, samples in drafts.samples.items()}


@dataclass
class Rows:
    """A table of the hub as (domains, encoded images, labels), some rows at a time."""

    dataset: Dataset
    home: Home
    split: str
    table: Any

    def __post_init__(self) -> None:
        wanted = [self.home.image, self.home.label, *([self.home.column] if self.home.column else [])]
        missing = [f"'{name}'" for name in wanted if name not in self.table.column_names]
        if missing:
            has = ", ".join(self.table.column_names)
            raise Refused(f"{self.where} has no column {' and none '.join(missing)}; it has {has}")

    @property
    def where(self) -> str:
        return f"{self.home.id}, {self.split}"

    def __len__(self) -> int:
        return len(self.table)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes, as the hub counts them, in our spelling; our own where it only numbers them."""
        theirs = getattr(self.table.features[self.home.label], "names", None)
        return tuple(map(self.dataset.ours, theirs)) if theirs else self.dataset.classes

    def __iter__(self) -> Iterator[tuple[list[str], list[Mapping[str, Any]], np.ndarray]]:
        for batch in self.table.with_format("arrow").iter(ROWS):
            labels = self._labels(batch[self.home.label].to_pylist())
            images = [self._image(value) for value in batch[self.home.image].to_pylist()]
            owners = batch[self.home.column].to_pylist() if self.home.column else [None] * len(labels)
            yield [self._domain(value) for value in owners], images, labels

    def _labels(self, values: Sequence[Any]) -> np.ndarray:
        count = len(self.names)  # 0 where nobody names the classes: then they are numbers
        wrong = [v for v in values if not isinstance(v, int) or v < 0 or (count and v >= count)]
        if wrong:
            known = f"from 0 to {count - 1}" if count else "from 0 on"
            raise Refused(f"{self.where}: label {wrong[0]}; labels are whole numbers {known}")
        return np.array(values, np.int64)

    def _image(self, value: Any) -> Mapping[str, Any]:
        if not isinstance(value, Mapping) or not value.get("bytes"):
            raise Refused(f"{self.where}: column '{self.home.image}' has no encoded image where one was expected")
        return {"bytes": value["bytes"], "path": value.get("path")}

    def _domain(self, value: Any) -> str:
        if not self.home.column:
            return self.home.domain
        names = getattr(self.table.features[self.home.column], "names", None) or self.home.names
        if isinstance(value, int) and 0 <= value < len(names):
            value = names[value]
        domain = self.dataset.ours(str(value))
        if domain not in self.dataset.domains:
            known = ", ".join(self.dataset.domains)
            raise Refused(f"{self.where}: {self.home.column} '{value}' is none of {self.dataset.name}'s: {known}")
        return domain
