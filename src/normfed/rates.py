"""A learning rate that falls in stages, as text: `stages(0.5, 0.05, 0.005, at=[6000, 8000])`.

The first holds until round 6000 (rounds are counted from 0), the second from that round on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from normfed.errors import Refused, nearest
from normfed.text import call

EXAMPLE = "stages(0.5, 0.05, at=[6000])"


@dataclass(frozen=True)
class Stages:
    """Rates, and the rounds in which the next one begins."""

    rates: tuple[float, ...]
    at: tuple[int, ...]

    def __call__(self, round: int) -> float:
        return self.rates[bisect_right(self.at, round)]


def parse(text: str) -> Callable[[int], float]:
    """The rate of each round that a text means."""
    name, rates, named = call(text, EXAMPLE)
    problems = [] if name == "stages" else [f"lr: unknown schedule '{name}'; {nearest(name, ['stages'])}"]
    problems += [f"lr: stages has no argument '{key}'; {nearest(key, ['at'])}" for key in named if key != "at"]
    at = named.get("at", [])
    problems += [f"lr: {rate!r} must be a number, 0 or more" for rate in rates if not _number(rate) or rate < 0]
    whole = isinstance(at, list) and all(isinstance(r, int) and not isinstance(r, bool) for r in at)
    if not whole or any(a >= b for a, b in pairwise([0, *at])):
        problems.append(f"lr: at={at!r} must be rounds above 0, each later than the one before: {EXAMPLE}")
    elif len(rates) != len(at) + 1:
        problems.append(
            f"lr: {len(rates)} rates and {len(at)} rounds to change in: one more rate than rounds, {EXAMPLE}"
        )
    if problems:
        raise Refused(*problems)
    return Stages(tuple(map(float, rates)), tuple(at))


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
