"""Facts of a run, one JSON object a line, only ever appended to; and the history that they hold.

{"seed": 0, "round": 3, "metric": "accuracy", "split": "test", "view": "own", "client": "ink", "value": 0.915}

metric        of what
loss          split "train": mean over a client's local steps; "test", "val": of the evaluation
accuracy, …   every metric asked for, with split and view; "client" is "all" in the pooled view
bytes_up, bytes_down, messages        what crossed the wire, a round's total
skipped       batches that a norm layer could not have normalised, by client
latched/NAME  1 from the round on in which this switch is thrown
others        pictures of normalization, with "layer" and "other" (the second client of a pair) where they apply
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from normfed.runs.disk import dumps, telling

Fact = dict[str, Any]
Row = dict[str, Any]

WIRE = ("bytes_up", "bytes_down", "messages")
SPLITS = ("test", "val")
OWN_VIEWS = ("own", "global")  # the view of a method itself is one of these, and the first of a round


def facts(row: Row) -> Iterator[Fact]:
    """A row of the history as facts, in an order from which `rows` makes it again."""
    where = {"seed": row["seed"], "round": row["round"]}
    for client, value in row["train_loss"].items():
        yield {**where, "metric": "loss", "split": "train", "client": client, "value": value}
    for name in WIRE:
        yield {**where, "metric": name, "value": row[name]}
    for client, value in row["skipped"].items():
        yield {**where, "metric": "skipped", "client": client, "value": value}
    for name, thrown in row["latched"].items():
        yield {**where, "metric": f"latched/{name}", "value": int(thrown)}
    for split in SPLITS:
        for key in (key for key in row if key.startswith(f"{split}_")):
            for client, value in row[key].items():
                yield {
                    **where, "metric": key.removeprefix(f"{split}_"), "split": split, "view": row["view"],
                    "client": client, "value": value,
                }  # fmt: skip
    for view, scores in row.get("views", {}).items():
        if view == row["view"]:  # the same numbers as above
            continue
        for client, found in scores.items():
            for metric, value in found.items():
                yield {
                    **where, "metric": metric, "split": "test", "view": view, "client": client, "value": value,
                }  # fmt: skip
    for fact in row.get("pictures", ()):
        yield {**where, **fact}


def rows(found: Iterable[Fact], views: Iterable[str] = ()) -> list[Row]:
    """The history that facts hold. `views` are those asked for beside the method's own."""
    wanted = set(views)
    history: dict[int, Row] = {}
    for fact in found:
        row = history.setdefault(fact["round"], _empty(fact["seed"], fact["round"]))
        metric, client = fact["metric"], fact.get("client")
        value = float("nan") if fact["value"] is None else fact["value"]
        split, view = fact.get("split"), fact.get("view")
        if split == "train" and metric == "loss":
            row["train_loss"][client] = value
        elif metric in WIRE:
            row[metric] = value
        elif metric == "skipped":
            row["skipped"][client] = value
        elif metric.startswith("latched/"):
            row["latched"][metric.removeprefix("latched/")] = bool(value)
        elif split in SPLITS and view is not None:
            if view in OWN_VIEWS:
                row.setdefault("view", view)
            if row.get("view") == view:
                row.setdefault(f"{split}_{metric}", {})[client] = value
            if split == "test" and (row.get("view") != view or view in wanted):
                row.setdefault("views", {}).setdefault(view, {}).setdefault(client, {})[metric] = value
        # what is left are pictures: too much for a history, and there in the records
    return list(history.values())


def _empty(seed: int, round: int) -> Row:
    return {
        "seed": seed, "round": round, "train_loss": {}, "test_accuracy": {}, "bytes_up": 0, "bytes_down": 0,
        "messages": 0, "skipped": {}, "latched": {},
    }  # fmt: skip


class Log:
    """A file of facts that grows. `mark` says how far it is good; a file goes on from a mark, and what a killed process
    wrote after it is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._hash = hashlib.sha256()

    @property
    def mark(self) -> dict[str, Any]:
        return {"bytes": self._size, "sha256": self._hash.hexdigest()}

    def holds(self, mark: Mapping[str, Any]) -> bool:
        """Whether the file still begins with what was there at a mark."""
        size = int(mark["bytes"])
        digest, left = hashlib.sha256(), size
        if size and not self.path.is_file():
            return False
        if size:
            with self.path.open("rb") as file:
                while left and (block := file.read(min(left, 1 << 20))):
                    digest.update(block)
                    left -= len(block)
        if left or digest.hexdigest() != mark["sha256"]:
            return False
        self._size, self._hash = size, digest
        return True

    def cut(self, mark: Mapping[str, Any] | None = None) -> None:
        """Goes back to a mark that the file holds; to nothing without one."""
        if mark is None:
            self._size, self._hash = 0, hashlib.sha256()
        elif not self.holds(mark):
            raise AssertionError("the file does not hold this mark")
        with telling(self.path), self.path.open("ab") as file:
            file.truncate(self._size)

    def append(self, found: Iterable[Fact]) -> None:
        data = "".join(dumps(fact) + "\n" for fact in found).encode()
        with telling(self.path), self.path.open("ab") as file:
            file.write(data)
        self._size += len(data)
        self._hash.update(data)

    def sync(self) -> None:
        with telling(self.path), self.path.open("ab") as file:
            os.fsync(file.fileno())

    def read(self) -> Iterator[Fact]:
        """The facts up to where the file is good."""
        left = self._size
        with self.path.open("rb") as file:
            while left > 0:
                line = file.readline()
                left -= len(line)
                yield json.loads(line)
