"""Who gets which samples, as text: steps joined by " / ", each a pure function of what it is given and a key.

    domain / clients(20) / dirichlet(0.3) / fraction(0.5)

It starts from one part that holds everything. `domain` makes a part of each domain; `clients(n)` deals each part to n
clients, at random or as the step behind it says (iid, dirichlet, shards, classes, blocks, quantity); the other steps
shorten, split, choose and name. What comes out is a `Part` for each client: rows of its training, test and validation
samples. `docs/partitions.md` has every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from normfed.data.deal import DEALS, subkey
from normfed.data.steps import STEPS, Part, Parts, World
from normfed.errors import Problems, Refused, nearest
from normfed.text import bind, call, split, toml_value

EXAMPLE = "domain / clients(20) / dirichlet(0.3)"
GIVEN = ("parts", "part", "name", "world", "labels", "clients", "key", "how")  # parameters that no user writes


@dataclass(frozen=True)
class Called:
    """A step as written."""

    name: str
    positional: tuple[Any, ...]
    named: Mapping[str, Any]

    def __str__(self) -> str:
        given = [
            *map(toml_value, self.positional),
            *(f"{key}={toml_value(value)}" for key, value in self.named.items()),
        ]
        return f"{self.name}({', '.join(given)})" if given else self.name


def parse(text: str) -> tuple[Called, ...]:
    """The steps of a partition; raises `Refused` with everything that is wrong with them."""
    problems = Problems()
    steps: list[Called] = []
    for part in split(text, "/"):
        with problems:
            name, positional, named = call(part, EXAMPLE)
            if name not in STEPS and name not in DEALS:
                raise Refused(f"unknown step '{name}' of a partition; {nearest(name, [*STEPS, *DEALS])}")
            called = Called(name, tuple(positional), named)
            if name in DEALS and (not steps or steps[-1].name != "clients"):
                raise Refused(f"{called}: to how many clients? Write clients(20) / {called}")
            bind(STEPS.get(name) or DEALS[name], name, positional, named, given=GIVEN)
            steps.append(called)
    problems.say()
    return tuple(steps)


def text_of(steps: Sequence[Called]) -> str:
    return " / ".join(map(str, steps))


def apply(steps: Sequence[Called], start: Parts, world: World, key: int) -> Parts:
    """What the steps make of the parts they start from."""
    parts, seen = start, dict.fromkeys((s.name for s in steps), 0)
    for i, called in enumerate(steps):
        if called.name in DEALS:  # said how the clients before it are dealt to
            continue
        extra: dict[str, Any] = {}
        after = steps[i + 1] if i + 1 < len(steps) else None
        if after is not None and after.name in DEALS:
            deal = DEALS[after.name]
            extra["how"] = lambda labels, n, k, deal=deal, after=after: deal(
                labels, n, k, *after.positional, **after.named
            )
        own = subkey(key, "partition", called.name, seen[called.name])
        seen[called.name] += 1
        parts = STEPS[called.name](parts, world, own, *called.positional, **called.named, **extra)
    empty = [
        f"client '{name}': no training samples" for name, p in parts.items() if p.role == "train" and not len(p.train)
    ]
    if empty or not parts:
        raise Refused(*(empty or ["the partition leaves no client"]))
    return {name: part.sorted() for name, part in parts.items()}


def partition(
    text: str, labels: np.ndarray, key: int = 0, test: np.ndarray | None = None, domains: Sequence[str] | None = None
) -> Parts:
    """The partition of bare labels: rows 0 to n - 1, `test` marking those that are test samples, `domains` naming the
    domain of each row."""
    rows = np.arange(len(labels))
    held = np.zeros(len(labels), bool) if test is None else np.asarray(test, bool)
    names = ("",) if domains is None else tuple(dict.fromkeys(domains))
    numbers = None if domains is None else np.array([names.index(name) for name in domains])
    world = World(np.asarray(labels, np.int64), names, numbers)
    return apply(parse(text), {"": Part(train=rows[~held], test=rows[held])}, world, subkey(key, "data"))
