"""What a folder holds, as far as it got: methods with their facts, runs that differ in more than method kept apart."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from normfed.compare import summary
from normfed.errors import Refused
from normfed.runs import disk
from normfed.runs.records import facts as facts_of_row

Fact = dict[str, Any]
OWN_VIEWS = ("own", "global")
# Keys that make a number another number, whatever the method: runs that differ here are not put side by side.
SETTING = ("data", "partition", "partition_seed", "rounds")
NEEDED = {"method": str, "history": [dict], "final": {"view": str}}  # of a result
# Keys that say how it was run, not what.
ASIDE = ("method", "seeds", "engine", "device", "threads", "stack")


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) over seeds."""

    mean: float
    std: float
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, by_seed: Mapping[int, float]) -> Spread | None:
        values = list(by_seed.values())
        return cls(fmean(values), stdev(values) if len(values) > 1 else 0.0, dict(by_seed)) if values else None


@dataclass(frozen=True)
class Played:
    """One method, of all its seeds."""

    method: str
    facts: tuple[Fact, ...]
    document: Mapping[str, Any]  # of result.json; empty where the run has not finished
    config: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        return bool(self.document)

    @property
    def seeds(self) -> list[int]:
        return sorted({fact["seed"] for fact in self.facts})

    @property
    def rounds(self) -> int:
        """That it is to have."""
        return int(self.document.get("rounds") or self.config.get("rounds") or self.reached)

    @property
    def reached(self) -> int:
        """Rounds that every seed has records of."""
        last: dict[int, int] = {}
        for fact in self.facts:
            last[fact["seed"]] = max(last.get(fact["seed"], 0), fact["round"] + 1)
        return min(last.values(), default=0)

    @property
    def clients(self) -> list[str]:
        """That are evaluated, in the federation's order; those who train where none is."""
        tested = self._where(split="test", metric="accuracy", view=self.view)
        return list(dict.fromkeys(fact["client"] for fact in tested or self._where(split="train", metric="loss")))

    @property
    def view(self) -> str:
        """Whose model is evaluated: the method's own view, the first that a round records."""
        views = (fact["view"] for fact in self.facts if fact.get("split") == "test")
        return str(self.document.get("final", {}).get("view") or next(views, OWN_VIEWS[0]))

    def _where(self, **wanted: Any) -> list[Fact]:
        return [fact for fact in self.facts if all(fact.get(key) == value for key, value in wanted.items())]

    def over(self, key: Callable[[Fact], Any], **wanted: Any) -> dict[Any, dict[int, dict[int, float]]]:
        """Values of the facts wanted: key -> seed -> round -> mean. Values that are not numbers are left out."""
        found: dict[Any, dict[int, dict[int, list[float]]]] = {}
        for fact in self._where(**wanted):
            if fact["value"] is not None:
                seeds = found.setdefault(key(fact), {}).setdefault(fact["seed"], {})
                seeds.setdefault(fact["round"], []).append(fact["value"])
        return {
            k: {seed: {r: fmean(v) for r, v in sorted(rounds.items())} for seed, rounds in seeds.items()}
            for k, seeds in found.items()
        }

    def selected(self) -> dict[int, int]:
        """seed -> the round whose numbers are the result: as the run has it, else the last that was evaluated."""
        said = {int(seed): r for seed, r in self.document.get("final", {}).get("selected_round", {}).items()}
        found: dict[int, int] = {}
        for fact in self.facts:
            if fact.get("split") == "test":
                found[fact["seed"]] = max(fact["round"], found.get(fact["seed"], 0))
        return {seed: said[seed] if said.get(seed) is not None else r for seed, r in found.items()}

    def final(self, key: Callable[[Fact], Any], **wanted: Any) -> dict[Any, Spread]:
        """The result's numbers: key -> mean and spread over seeds, each at its selected round."""
        chosen = self.selected()
        found = {
            k: Spread.of({seed: rounds[chosen[seed]] for seed, rounds in seeds.items() if chosen.get(seed) in rounds})
            for k, seeds in self.over(key, **wanted).items()
        }
        return {k: spread for k, spread in found.items() if spread is not None}

    def accuracy(self) -> dict[str, Spread]:
        """Of every client, on its own test data, under the method's own view."""
        return self.final(lambda fact: fact["client"], split="test", metric="accuracy", view=self.view)

    def average(self, metric: str = "accuracy", view: str | None = None) -> Spread | None:
        """Over clients."""
        return self.final(lambda fact: None, split="test", metric=metric, view=view or self.view).get(None)


@dataclass(frozen=True)
class Part:
    """Methods that may be compared."""

    number: int
    setting: Mapping[str, Any]
    played: tuple[Played, ...]

    @property
    def clients(self) -> list[str]:
        return list(dict.fromkeys(client for p in self.played for client in p.clients))

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for p in self.played for seed in p.seeds})

    def config(self) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """(what all methods have in common, key -> method -> value where they differ)."""
        keys = dict.fromkeys(key for p in self.played for key in p.config if key not in ("method", "seeds"))
        common, differing = {}, {}
        for key in keys:
            values = {p.method: p.config.get(key) for p in self.played if p.config}
            if all(value == next(iter(values.values())) for value in values.values()):
                common[key] = next(iter(values.values()))
            elif key not in ASIDE:
                differing[key] = values
        return common, differing


def read(folder: Path) -> list[Part]:
    """The parts of a run's or a comparison's folder. Raises `Refused` where there is nothing to report."""
    if not folder.is_dir():
        raise Refused(f"{folder} is not a folder")
    alone = _played(folder)
    played = [alone] if alone is not None else _compared(folder)
    played = [p for p in played if p.facts]
    if not played:
        raise Refused(f"{folder} is not the folder of a run or of a comparison: no records in it, and no result")
    parts: dict[str, list[Played]] = {}
    for p in played:
        parts.setdefault(json.dumps(_setting(p), sort_keys=True), []).append(p)
    return [Part(i, _setting(members[0]), tuple(members)) for i, members in enumerate(parts.values())]


def _setting(p: Played) -> dict[str, Any]:
    held = {key: p.config[key] for key in SETTING if key in p.config}
    partition = {"partition_hash": p.config["facts"]["partition_hash"]} if _hashed(p.config) else {}
    return {**held, **partition, "rounds": p.rounds, "clients": p.clients}


def _hashed(config: Mapping[str, Any]) -> bool:
    return bool(config.get("facts", {}).get("partition_hash"))


def _compared(folder: Path) -> list[Played]:
    inside = {path.name: found for path in sorted(folder.iterdir()) if path.is_dir() and (found := _played(path))}
    order = list(_toml(folder / "config.toml").get("runs", {}))
    played = [inside[name] for name in order if name in inside] or list(inside.values())
    documents = (_json(folder / "comparison.json", {"results": [NEEDED]}) or {}).get("results", [])
    known = {p.method for p in played}
    alone = [_from_document(document) for document in documents if document["method"] not in known]
    rank = {document["method"]: i for i, document in enumerate(documents)}
    return sorted([*played, *alone], key=lambda p: rank.get(p.method, len(rank)))


def _played(folder: Path) -> Played | None:
    """The run in a folder, finished or not; None where there is none."""
    document = _json(folder / "result.json", NEEDED)
    config = _toml(folder / "config.toml")
    seeds = sorted(folder.glob("seed-*/records.jsonl"))
    whole = folder / "records.jsonl"
    files = [whole] if whole.is_file() else seeds
    facts = [fact for path in files for fact in _lines(path)]
    if document is None:
        document = _put_together(folder, config)
    if document is None:
        method = config.get("method")
        return Played(str(method), tuple(facts), {}, config) if facts and method else None
    return Played(document["method"], tuple(facts), document, config) if facts else _from_document(document, config)


def _put_together(folder: Path, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a run whose seeds have all finished, and which was cut before it could say so."""
    documents = [_json(folder / f"seed-{seed}" / "result.json", NEEDED) for seed in config.get("seeds", [])]
    return summary(documents) if documents and None not in documents else None


def _from_document(document: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> Played:
    """What a result says by itself, where the records are not at hand."""
    view = document["final"]["view"]
    rows = [{"view": view, "skipped": {}, "latched": {}, **row} for row in document["history"]]
    facts = tuple(fact for row in rows for fact in facts_of_row(row))
    return Played(document["method"], facts, document, config or {})


def _lines(path: Path) -> Iterable[Fact]:
    """Facts of a file; a last line that a killed process left half-written is not one."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            fact = json.loads(line)
        except ValueError:
            continue
        if isinstance(fact, dict) and {"seed", "round", "metric", "value"} <= set(fact):
            yield fact


def _json(path: Path, shape: Any) -> Any:
    if not path.is_file():
        return None
    found = disk.read_json(path)
    lacking = disk.shaped(found, shape)
    if lacking:
        raise Refused(f"{path} is damaged: {lacking}")
    return found


def _toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Refused(f"{path} is damaged: {error}") from None
