"""A federation of a source and a partition: clients by name, their samples read when they are looked at."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normfed.data.partition import Called, apply, parse, text_of
from normfed.data.source import SPLITS, WHOLE, Source
from normfed.data.steps import EMPTY, Part, Parts, World
from normfed.data.store import ClientData
from normfed.errors import Refused
from normfed.keys import fold

FORMAT, VERSION = "normfed-partition", 1
HOLD_OUT = 0.2  # of what nobody has split, for testing


class Lazy(Sequence[Tensor]):
    """A pair (x, y) that is read when it is looked at, and not kept."""

    def __init__(self, x: Callable[[], Tensor], y: Callable[[], Tensor]) -> None:
        self._parts = (x, y)

    def __getitem__(self, i: Any) -> Any:
        return self._parts[i]()

    def __iter__(self) -> Iterator[Tensor]:
        return (part() for part in self._parts)

    def __len__(self) -> int:
        return 2


class Federation(Mapping[str, ClientData]):
    """Named clients with their samples, roles and a hash of who has which."""

    def __init__(self, source: Source, parts: Parts, partition: str, seed: int = 0) -> None:
        self.source, self.parts = source, parts
        self.name, self.classes, self.about = source.name, source.classes, source.about
        self.partition, self.seed = partition, seed
        self._read: weakref.WeakValueDictionary[bytes, Tensor] = weakref.WeakValueDictionary()

    def __getitem__(self, client: str) -> ClientData:
        part = self.parts[client]
        pairs = {which: self._pair(part.rows(which)) for which in SPLITS if len(part.rows(which))}
        return ClientData(**pairs, role=part.role)

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        return f"<Federation {self.name}: {len(self)} clients, {self.partition}>"

    def _pair(self, rows: np.ndarray) -> Lazy:
        return Lazy(lambda: self._samples(rows), lambda: torch.from_numpy(self.source.labels[rows]))

    def _samples(self, rows: np.ndarray) -> Tensor:
        """Of these rows; clients who hold the same rows are given the same tensor."""
        key = hashlib.blake2b(rows.tobytes(), digest_size=16).digest()
        held = self._read.get(key)
        if held is None:
            held = self._read[key] = torch.from_numpy(np.ascontiguousarray(self.source.take(rows)))
        return held

    @property
    def nbytes(self) -> int:
        """Of all samples, as they are stored; what several clients hold counts once."""
        rows = np.unique(np.concatenate([part.everything for part in self.parts.values()]))
        return sum(len(inside) * self.source.blocks[i].sample_bytes for i, _, inside in self.source.by_block(rows))

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        """client -> split -> samples"""
        return {name: {s: len(part.rows(s)) for s in SPLITS} for name, part in self.parts.items()}

    @property
    def hash(self) -> str:
        """SHA-256 over clients, roles and rows (by block, so that further blocks in a folder change nothing)."""
        digest = hashlib.sha256()
        for client, facts in self._listing().items():
            digest.update(f"{client}\0{facts['role']}\0".encode())
            for split in SPLITS:
                for block, rows in facts.get(split, {}).items():
                    digest.update(f"{split}\0{block}\0".encode() + np.asarray(rows, "<i8").tobytes())
        return digest.hexdigest()

    def _listing(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for client, part in self.parts.items():
            found[client] = {"role": part.role}
            for split in SPLITS:
                touched = self.source.by_block(part.rows(split))
                if touched:
                    found[client][split] = {self.source.blocks[i].name: inside.tolist() for i, _, inside in touched}
        return found

    def save(self, path: Path) -> None:
        """Writes the partition: rows of every client, with a hash of them and of the labels they were drawn from."""
        used = {block for client in self._listing().values() for s in SPLITS for block in client.get(s, {})}
        document = {
            "format": FORMAT, "version": VERSION, "data": self.name, "partition": self.partition, "seed": self.seed,
            "hash": self.hash,
            "blocks": {b.name: [len(b.labels), labels_hash(b.labels)] for b in self.source.blocks if b.name in used},
            "clients": self._listing(),
        }  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        temporary.replace(path)


def labels_hash(labels: np.ndarray) -> str:
    return hashlib.sha256(np.asarray(labels, "<i8").tobytes()).hexdigest()[:16]


def federate(source: Source, partition: str | None = None, seed: int = 0) -> Federation:
    """The source's samples as clients: by a partition's text, or by a file of one."""
    for note in source.notes:
        warnings.warn(f"{source.name}: {note}", stacklevel=3)
    text = source.partition if partition is None else partition
    if text.endswith(".json"):
        return _from_file(source, Path(text))
    steps = parse(text)
    start = _start(source)
    if _unsplit(source) and not {s.name for s in steps} & {"hold_out", "split"}:
        steps = _with_hold_out(steps)
    numbers = {name: i for i, name in enumerate(source.domains)}
    domain_of = np.repeat([numbers[b.domain] for b in source.blocks], [len(b.labels) for b in source.blocks])
    world = World(source.labels, source.domains, domain_of, lambda: source.twins)
    parts = apply(steps, {"": start}, world, int(fold(seed, "data")))
    return Federation(source, parts, text_of(steps), seed)


def _start(source: Source) -> Part:
    rows: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    for i, block in enumerate(source.blocks):
        rows["train" if block.split == WHOLE else block.split].append(source.rows_of(i))
    joined: dict[str, Any] = {split: np.concatenate([EMPTY, *found]) for split, found in rows.items()}
    return Part(**joined)


def _unsplit(source: Source) -> bool:
    tested = {block.domain for block in source.blocks if block.split == "test"}
    return any(block.domain not in tested for block in source.blocks)


def _with_hold_out(steps: tuple[Called, ...]) -> tuple[Called, ...]:
    """A test set of a fifth, by domain where there are clients by domain, for whoever has none."""
    place = 1 if steps and steps[0].name == "domain" else 0
    return (*steps[:place], Called("hold_out", (HOLD_OUT,), {}), *steps[place:])


def _from_file(source: Source, path: Path) -> Federation:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"partition '{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except json.JSONDecodeError as error:
        raise Refused(f"partition '{path}' is not JSON: {error}") from None
    if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise Refused(f"partition '{path}' is not a partition file of this version")
    try:
        _check_blocks(source, document, path)
        parts = {client: _part(source, facts, path) for client, facts in document["clients"].items()}
        federation = Federation(source, parts, document["partition"], document["seed"])
        same = federation.hash == document["hash"]
    except Refused:
        raise
    except (KeyError, TypeError, ValueError, AttributeError):
        same = False
    if not same:
        raise Refused(f"partition '{path}' was changed after it was written: its hash does not match")
    return federation


def _check_blocks(source: Source, document: Mapping[str, Any], path: Path) -> None:
    """The samples must be those that the partition was drawn from."""
    known = {block.name: [len(block.labels), labels_hash(block.labels)] for block in source.blocks}
    problems = []
    for name, drawn_from in document.get("blocks", {}).items():
        if name not in known:
            problems.append(f"partition '{path}' needs {document['data']}'s {name}, which is not there")
        elif drawn_from != known[name]:
            problems.append(f"partition '{path}' was drawn from other samples of {name}: their number or labels differ")
    if problems:
        raise Refused(*problems)


def _part(source: Source, facts: Mapping[str, Any], path: Path) -> Part:
    first = {block.name: int(start) for block, start in zip(source.blocks, source.starts, strict=False)}
    count = {block.name: len(block.labels) for block in source.blocks}
    part = Part(role=facts["role"])
    for split in SPLITS:
        pieces = [EMPTY]
        for block, rows in facts.get(split, {}).items():
            if rows and not 0 <= min(rows) <= max(rows) < count[block]:
                raise Refused(f"partition '{path}': row {max(rows)} of {block}, which has {count[block]}")
            pieces.append(np.asarray(rows, np.int64) + first[block])
        part = part.with_rows(split, np.concatenate(pieces))
    return part
