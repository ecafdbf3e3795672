"""The steps of a partition: each takes parts and gives parts, a pure function of facts about the rows and a key.

Their first parameters are given by `partition.apply`; the others are what a user writes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate

import numpy as np

from normfed.data.deal import DEALS, Dealt, alike, shuffled, subkey
from normfed.errors import Refused, nearest

EMPTY = np.empty(0, np.int64)
TESTS = ("own", "whole", "apart")  # who is tested on what, where a part is dealt to clients


@dataclass(frozen=True)
class Part:
    """A client, or what will be dealt to several: rows of its samples."""

    train: np.ndarray = field(default_factory=lambda: EMPTY)
    test: np.ndarray = field(default_factory=lambda: EMPTY)
    val: np.ndarray = field(default_factory=lambda: EMPTY)
    role: str = "train"

    def rows(self, split: str) -> np.ndarray:
        found: np.ndarray = getattr(self, split)
        return found

    def with_rows(self, split: str, rows: np.ndarray) -> Part:
        given: dict[str, Any] = {split: rows}
        return replace(self, **given)

    def sorted(self) -> Part:
        """The same samples in stored order."""
        return Part(np.sort(self.train), np.sort(self.test), np.sort(self.val), self.role)

    @property
    def everything(self) -> np.ndarray:
        return np.concatenate([self.train, self.test, self.val])


Parts = dict[str, Part]


@dataclass(frozen=True)
class World:
    """What steps may look at: facts about every row."""

    labels: np.ndarray  # [rows]
    domains: tuple[str, ...] = ("",)
    domain_of: np.ndarray | None = None  # [rows]: number of the domain; None: one domain
    twins: Callable[[], np.ndarray] | None = None  # [rows]: copies of one sample have the same number


Step = Callable[Concatenate[Parts, World, int, ...], Parts]
STEPS: dict[str, Step] = {}


def step(make: Step) -> Step:
    STEPS[make.__name__.rstrip("_")] = make
    return make


def each(one: Callable[..., Part]) -> Step:
    """A step that treats every client that trains by itself, under a key of its own."""

    @functools.wraps(one)
    def all_of(parts: Parts, world: World, key: int, *args: Any, **kwargs: Any) -> Parts:
        return {
            name: one(name, part, world, subkey(key, name), *args, **kwargs) if part.role == "train" else part
            for name, part in parts.items()
        }

    return all_of


@step
def domain(parts: Parts, world: World, key: int) -> Parts:
    """A client for each domain or site."""
    made: Parts = {}
    for part in parts.values():
        for number, name in enumerate(world.domains):
            chosen = {s: _where(part.rows(s), world, number) for s in ("train", "test", "val")}
            if any(map(len, chosen.values())):
                made[name or "client"] = Part(**chosen, role=part.role)
    return made


def _where(rows: np.ndarray, world: World, number: int) -> np.ndarray:
    return rows if world.domain_of is None else rows[world.domain_of[rows] == number]


@step
def clients(
    parts: Parts, world: World, key: int, n: int, test: str = "own", how: Callable[..., Dealt] = DEALS["iid"]
) -> Parts:
    """Deals every part to `n` clients. Test samples go where training samples of their classes went ("own"), all of
    them to every client ("whole"), or to one more client that only evaluates ("apart")."""
    require(n >= 1, f"clients({n}): there must be one or more")
    require(test in TESTS, f"clients: test={test!r}; {nearest(test, TESTS)}")
    made: Parts = {}
    for name, part in parts.items():
        if part.role != "train":
            made[name] = part
            continue
        own = subkey(key, name)
        labels = world.labels[part.train]
        dealt = how(labels, n, own)
        others = {}
        for which in ("test", "val"):
            rows = part.rows(which)
            if which == "test" and test != "own":
                others[which] = [rows if test == "whole" else EMPTY] * n
            else:
                places = alike(dealt, labels, world.labels[rows], subkey(own, which))
                others[which] = [rows[place] for place in places]
        prefix = name or "client"
        for i, place in enumerate(dealt):
            child = f"{prefix}-{i:0{len(str(n - 1))}d}"
            made[child] = Part(part.train[place], others["test"][i], others["val"][i])
        if test == "apart" and len(part.test):
            made[f"{prefix}-test" if name else "test"] = Part(test=part.test, role="evaluate")
    return made


@step
@each
def fraction(
    name: str, part: Part, world: World, key: int, share: float, test: float = 1.0, up: bool = False
) -> Part:  # fmt: skip
    """Keeps int(share n) of each client's n training samples, drawn by key; and of its test samples with `test`. With
    `up`, what is not whole counts as one more sample."""
    require(0 < share <= 1, f"fraction({share:g}): must be above 0 and at most 1")
    require(0 < test <= 1, f"fraction: test={test:g} must be above 0 and at most 1")
    whole = math.ceil if up else int
    kept, tested = whole(share * len(part.train)), whole(test * len(part.test))
    require(kept > 0, f"fraction({share:g}): client '{name}' has {len(part.train)} samples and would keep none")
    return replace(part, train=draw(part.train, kept, key), test=draw(part.test, tested, subkey(key, "test")))


@step
@each
def at_most(name: str, part: Part, world: World, key: int, n: int, test: int | None = None) -> Part:
    """Keeps `n` of each client's training samples, drawn by key, or all where there are fewer; and `test` of its test
    samples."""
    require(n >= 1 and (test is None or test >= 1), f"at_most({n}): there must be one or more")
    tested = part.test if test is None else draw(part.test, test, subkey(key, "test"))
    return replace(part, train=draw(part.train, n, key), test=tested)


@step
@each
def first(name: str, part: Part, world: World, key: int, n: int) -> Part:
    """Keeps the first `n` training samples in stored order."""
    require(1 <= n <= len(part.train), f"first({n}): client '{name}' has {len(part.train)} samples")
    return replace(part, train=part.train[:n])


@step
def truncate(parts: Parts, world: World, key: int, share: float, val: float = 0.0) -> Parts:
    """As many training samples for everyone: the first int(share m) of each list, m being the shortest list; and the
    last int(val m) for validation. Lists are shuffled by key."""
    require(
        share > 0 and val >= 0 and share + val <= 1,
        f"truncate({share:g}, val={val:g}): shares above 0, at most 1 in all",
    )
    lists = {name: part.train for name, part in parts.items() if part.role == "train"}
    shortest = min(map(len, lists.values()))
    kept, held = int(share * shortest), int(val * shortest)
    require(kept > 0, f"truncate({share:g}): the shortest list has {shortest} samples and would keep none")
    made = dict(parts)
    for name, rows in lists.items():
        order = rows[shuffled(subkey(key, name), len(rows))]
        made[name] = replace(parts[name], train=np.sort(order[:kept]))
        if held:
            made[name] = replace(made[name], val=np.sort(order[len(order) - held :]))
    return made


@step
@each
def hold_out(name: str, part: Part, world: World, key: int, test: float, val: float = 0.0) -> Part:
    """Makes the splits that a client does not have: of n training samples n - int((1 - share) n), of every class its
    share. Copies of one sample stay together, on the training side."""
    require(
        test >= 0 and val >= 0 and test + val < 1, f"hold_out({test:g}, {val:g}): shares from 0 on, less than 1 in all"
    )
    wanted = {"test": 0.0 if len(part.test) else test, "val": 0.0 if len(part.val) else val}
    made = part
    for which, share in wanted.items():
        if share:
            chosen = stratified(
                part.train, len(part.train) - int((1 - share) * len(part.train)), made.train, world, subkey(key, which)
            )
            made = replace(made, train=np.setdiff1d(made.train, chosen)).with_rows(which, chosen)
    return made


@step
def split_(parts: Parts, world: World, key: int, test: float, val: float = 0.0) -> Parts:
    """Joins each client's samples and splits them anew, as `hold_out` does."""
    joined = {
        name: replace(part, train=np.sort(part.everything), test=EMPTY, val=EMPTY) if part.role == "train" else part
        for name, part in parts.items()
    }
    return hold_out(joined, world, key, test, val)


def stratified(whole: np.ndarray, count: int, free: np.ndarray, world: World, key: int) -> np.ndarray:
    """`count` of the `free` rows, each class by its share of `whole`; no row that has a copy."""
    twins = None if world.twins is None else world.twins()
    if twins is not None:
        numbers, copies = np.unique(twins[whole], return_counts=True)
        free = free[~np.isin(twins[free], numbers[copies > 1])]
    order = free[shuffled(key, len(free))]
    # Sorted by rank in its class over the class's size, the first `count` hold every class's share.
    labels = world.labels[order]
    place = np.empty(len(order))
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        place[mine] = (np.arange(len(mine)) + 0.5) / (world.labels[whole] == label).sum()
    return np.sort(order[np.argsort(place, kind="stable")[:count]])


@step
def only(parts: Parts, world: World, key: int, *names: str) -> Parts:
    """Keeps these clients, in this order."""
    check_names("only", names, parts)
    return {name: parts[name] for name in names}


@step
def without(parts: Parts, world: World, key: int, *names: str) -> Parts:
    """Leaves these clients away."""
    check_names("without", names, parts)
    return {name: part for name, part in parts.items() if name not in names}


@step
def leave_out(parts: Parts, world: World, key: int, *names: str) -> Parts:
    """These clients are unseen: not in the federation, there to be tested on. All their samples are test samples; what
    was for training can be looked at without labels."""
    check_names("leave_out", names, parts)
    unseen = {name: replace(parts[name], test=parts[name].everything, role="unseen") for name in names}
    return {name: unseen.get(name, part) for name, part in parts.items()}


@step
def evaluate(parts: Parts, world: World, key: int, *names: str) -> Parts:
    """These clients do not train: they evaluate the global model."""
    check_names("evaluate", names, parts)
    return {name: replace(part, role="evaluate") if name in names else part for name, part in parts.items()}


def check_names(what: str, names: Sequence[str], parts: Parts) -> None:
    problems = [f"{what}: no client '{name}'; {nearest(str(name), parts)}" for name in names if name not in parts]
    if problems or not names:
        raise Refused(*(problems or [f"{what}: name one client or more"]))


def draw(rows: np.ndarray, n: int, key: int) -> np.ndarray:
    """`n` rows at random, in stored order; all where there are no more."""
    return np.sort(rows[shuffled(key, len(rows))[:n]])


def require(condition: bool, message: str) -> None:
    if not condition:
        raise Refused(message)
