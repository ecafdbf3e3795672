"""What a user brings, row by row, and whether a federation can be made of it: all that is wrong is said at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from normfed.data import cache
from normfed.data.images import Images, decoded, form_of
from normfed.data.source import SPLITS, WHOLE, Block, Source
from normfed.errors import Problems, Refused, nearest

ALIASES = {"validation": "val", "valid": "val"}
NO_SITES = (
    'nothing says which site a sample is from: all are one client\'s, unless a partition deals them: "clients(10)"'
)


@dataclass(frozen=True)
class Table:
    """Rows: whose each is, its split, its label, its sample, and what to call it when something is wrong with it."""

    sites: Sequence[str]  # "" everywhere where nobody says
    splits: Sequence[str]  # "all" everywhere where nobody has split
    labels: Sequence[Any]
    samples: Images | np.ndarray
    where: Callable[[int], str]
    names: tuple[str, ...] = ()  # of the classes, where the data say
    ids: Sequence[Any] | None = None  # of patients, say: nobody may be in a training and in a test set

    def __len__(self) -> int:
        return len(self.labels)

    def in_order(self) -> Table:
        """Sorted by site, then split; else as it was."""
        first = {site: i for i, site in enumerate(dict.fromkeys(self.sites))}
        place = {split: i for i, split in enumerate((*SPLITS, WHOLE))}
        order = np.lexsort(([place[s] for s in self.splits], [first[s] for s in self.sites]))
        if (order == np.arange(len(self))).all():
            return self
        where, samples = self.where, self.samples
        return replace(
            self,
            sites=[self.sites[i] for i in order],
            splits=[self.splits[i] for i in order],
            labels=[self.labels[i] for i in order],
            samples=samples.taken(order) if isinstance(samples, Images) else samples[order],
            where=lambda i: where(int(order[i])),
            ids=None if self.ids is None else [self.ids[i] for i in order],
        )


def source_of(
    name: str, tables: Sequence[Table], *, classes: int | list[str] | None = None, side: int | None = None,
    channels: int | None = None, duplicates: str = "refuse", about: str = "",
) -> Source:  # fmt: skip
    """The rows as a source. Raises `Refused` with everything that is wrong with any of them."""
    _settings(side, channels, duplicates)
    tables = [replace(t, splits=[ALIASES.get(s, s) for s in t.splits]) for t in tables if len(t)]
    if not tables:
        raise Refused(f"{name}: there are no samples")
    problems = Problems()
    names: tuple[str, ...] = ()
    samples: list[tuple[np.ndarray, np.ndarray]] = []
    notes: list[str] = []
    with problems:
        _sites(tables)
    with problems:
        _ids(tables)
    with problems:
        numbers, names = _classes(tables, classes)
        tables = [replace(t, labels=n.tolist()) for t, n in zip(tables, numbers, strict=True)]
    if not problems.found:
        tables = [t.in_order() for t in tables]
    with problems:
        samples, notes = _samples(tables, side, channels)
    if not problems.found and duplicates == "refuse":
        with problems:
            _leaks(tables, [digests for _, digests in samples])
    problems.say()
    blocks = [b for table, (x, d) in zip(tables, samples, strict=True) for b in _blocks(table, x, d)]
    notes += _notes(blocks, names)
    return Source(name, names, tuple(blocks), about, notes=tuple(notes))


def _settings(side: int | None, channels: int | None, duplicates: str) -> None:
    problems = []
    if side is not None and side < 1:
        problems.append(f"side={side}: must be 1 or more")
    if channels not in (None, 1, 3):
        problems.append(f"channels={channels}: must be 1 (grey) or 3 (RGB)")
    if duplicates not in ("refuse", "keep"):
        problems.append(f"duplicates='{duplicates}': {nearest(duplicates, ('refuse', 'keep'))}")
    if problems:
        raise Refused(*problems)


def _sites(tables: Sequence[Table]) -> None:
    """Every row has a site and a known split; every site has the splits that the others have."""
    problems = []
    found: dict[str, set[str]] = {}
    anyone = any(site for t in tables for site in t.sites)
    for t in tables:
        for i, (site, split) in enumerate(zip(t.sites, t.splits, strict=True)):
            if anyone and not site:
                problems.append(f"{t.where(i)}: no site")
            if split not in (*SPLITS, WHOLE):
                problems.append(f"{t.where(i)}: unknown split '{split}'; {nearest(split, SPLITS)}")
            found.setdefault(site, set()).add(split)
    given = set().union(*found.values()) - {WHOLE}
    for site, splits in found.items():
        said = f"site '{site}'" if site else "the data"
        if given and WHOLE in splits:
            problems.append(f"{said}: samples without a split, where others have one")
        elif given and "train" not in splits:
            problems.append(f"{said}: no training samples")
        missing = [s for s in ("test", "val") if s in given and s not in splits and WHOLE not in splits]
        problems += [f"{said}: no {s} samples, where other sites have some" for s in missing]
    if problems:
        raise Refused(*problems)


def _plain(label: Any) -> int | str | float | None:
    """A label as a whole number or a name; None where there is none; a number with a fraction as it is."""
    value = label.item() if isinstance(label, np.generic) else label
    if isinstance(value, str):
        value = value.strip()
        try:
            value = float(value) if value else None
        except ValueError:
            return value
        if value is None or math.isinf(value):
            return None
    if isinstance(value, float):
        return None if math.isnan(value) else int(value) if value.is_integer() else value
    return value if value is None or isinstance(value, int) else str(value)


def _classes(tables: Sequence[Table], classes: int | list[str] | None) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes: given, as the data say, the labels' own, or their numbers."""
    said = {t.names for t in tables if t.names}
    if len(said) > 1:
        raise Refused("files name their classes differently: " + "; ".join(", ".join(names) for names in said))
    names: tuple[str, ...] = next(iter(said), ())
    if classes is not None:
        names = tuple(map(str, range(classes))) if isinstance(classes, int) else tuple(classes)
    problems: list[str] = []
    plain = [[_plain(label) for label in t.labels] for t in tables]
    distinct = set().union(*map(set, plain)) - {None}
    if not names:
        if all(isinstance(v, int | float) for v in distinct):
            names = tuple(map(str, range(max((v for v in distinct if isinstance(v, int)), default=0) + 1)))
        else:
            names = tuple(sorted(str(v) for v in distinct))
    number = {name: i for i, name in enumerate(names)}
    coded = []
    for t, labels in zip(tables, plain, strict=True):
        codes = np.full(len(labels), -1, np.int64)
        for i, (label, raw) in enumerate(zip(labels, t.labels, strict=True)):
            code = number.get(str(raw), number.get(str(label)))
            if label is None:
                problems.append(f"{t.where(i)}: no label")
            elif code is not None:
                codes[i] = code
            elif isinstance(label, str):
                problems.append(f"{t.where(i)}: unknown class '{label}'; {nearest(label, names)}")
            elif isinstance(label, int) and 0 <= label < len(names):
                codes[i] = label
            else:
                problems.append(f"{t.where(i)}: label {label}; labels are whole numbers from 0 to {len(names) - 1}")
        coded.append(codes)
    if problems:
        raise Refused(*problems)
    return coded, names


def _samples(
    tables: Sequence[Table], side: int | None, channels: int | None
) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[str]]:
    """(samples, a number for each that tells it from others) of every table, and what there is to say about it."""
    pictures = [t.samples for t in tables if isinstance(t.samples, Images)]
    form = form_of(pictures, side, channels) if pictures else None
    problems = Problems()
    read: list[tuple[np.ndarray, np.ndarray]] = []
    shapes: dict[tuple[int, ...], str] = {}
    for t in tables:
        with problems:
            if isinstance(t.samples, Images):
                assert form is not None
                made = decoded(t.samples, form)
                read.append((made.samples(), made.digests()))
            else:
                read.append((_finite(t), _digests(t.samples)))
            shapes.setdefault(read[-1][0].shape[1:], t.where(0))
    if len(shapes) > 1:
        problems.found.append("samples differ in shape: " + ", ".join(f"{s} ({where})" for s, where in shapes.items()))
    problems.say()
    return read, [form.note] if form is not None and form.note else []


def _finite(table: Table) -> np.ndarray:
    x = table.samples
    assert isinstance(x, np.ndarray)
    if x.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))
        if len(bad):
            raise Refused(*(f"{table.where(int(i))}: NaN or infinity" for i in bad))
    return x


def _digests(x: np.ndarray) -> np.ndarray:
    return np.array([cache.number(np.ascontiguousarray(row).tobytes()) for row in x], np.uint64)


def _ids(tables: Sequence[Table]) -> None:
    """Nobody is in a training and in a test set."""
    seen: dict[str, dict[Any, str]] = {"train": {}, "test": {}}
    for t in tables:
        for i, one in enumerate(t.ids or ()):
            side = "test" if t.splits[i] == "test" else "train"
            if one not in (None, "") and t.splits[i] != WHOLE:
                seen[side].setdefault(one, t.where(i))
    both = [f"id '{one}' is in training and test data: {seen['train'][one]} and {where}"
            for one, where in seen["test"].items() if one in seen["train"]]  # fmt: skip
    if both:
        raise Refused(*both)


def _leaks(tables: Sequence[Table], digests: Sequence[np.ndarray]) -> None:
    """No sample of a site's test set is among its others."""
    trained: dict[tuple[str, int], str] = {}
    problems = []
    for test in (False, True):
        for t, numbers in zip(tables, digests, strict=True):
            for i, (site, split) in enumerate(zip(t.sites, t.splits, strict=True)):
                if (split == "test") is not test or split == WHOLE:
                    continue
                key = (site, int(numbers[i]))
                if not test:
                    trained.setdefault(key, t.where(i))
                elif key in trained:
                    problems.append(f"{t.where(i)} (test) is the same sample as {trained[key]}")
    if problems:
        raise Refused(*problems, 'duplicates="keep" takes them as they are')


def _blocks(table: Table, x: np.ndarray, digests: np.ndarray) -> list[Block]:
    labels = np.asarray(table.labels, np.int64)
    owners = list(zip(table.sites, table.splits, strict=True))
    ends = [i for i in range(1, len(owners)) if owners[i] != owners[i - 1]]
    blocks = []
    for a, b in zip([0, *ends], [*ends, len(owners)], strict=True):

        def read(a: int = a, b: int = b) -> np.ndarray:
            return x[a:b]

        def twins(a: int = a, b: int = b) -> np.ndarray:
            return digests[a:b]

        blocks.append(Block(*owners[a], labels[a:b], x.shape[1:], x.dtype, read, twins))
    return blocks


def _notes(blocks: Sequence[Block], names: Sequence[str]) -> list[str]:
    """What may be meant, and is worth a word."""
    sites = dict.fromkeys(b.domain for b in blocks)
    holders = [
        [site for site in sites if any(b.domain == site and (b.labels == c).any() for b in blocks)]
        for c in range(len(names))
    ]
    notes = [] if any(sites) else [NO_SITES]
    notes += [f"class '{names[c]}' has no samples" for c, held in enumerate(holders) if not held]
    if len(sites) > 1:
        notes += [f"class '{names[c]}' is at site '{held[0]}' only" for c, held in enumerate(holders) if len(held) == 1]
    seen: dict[int, str] = {}
    shared = 0
    for b in blocks:
        for number in b.twins().tolist() if b.twins is not None else ():
            shared += seen.setdefault(number, b.domain) != b.domain
    return notes + ([f"{shared} samples are at several sites"] if shared else [])
