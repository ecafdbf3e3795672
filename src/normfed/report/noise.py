"""Is the best ahead of the others by more than chance? A paired t test over seeds (Student, 1908).

Seeds are paired: with the same seed, methods start from the same weights and see the data in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from normfed.report.read import Spread

LEVEL = 0.05
SEEDS = 3  # fewer say nothing about noise


def paired_t(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, int] | None:
    """(two-sided p of 'no difference', seeds in common); None where the seeds cannot tell."""
    common = sorted(set(a) & set(b))
    differences = [a[seed] - b[seed] for seed in common]
    if len(common) < SEEDS:
        return None
    spread = stdev(differences)
    if spread < 1e-12:  # the same in every seed: no noise was seen to measure against
        return None if abs(fmean(differences)) > 1e-12 else (1.0, len(common))
    return two_sided(fmean(differences) / (spread / math.sqrt(len(common))), len(common) - 1), len(common)


def two_sided(t: float, freedom: int) -> float:
    """P(|T| >= |t|) of Student's distribution, by its finite series (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    cosine = math.cos(angle)
    odd = freedom % 2
    term = total = 1.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    if odd:
        inside = 2 / math.pi * (angle + (math.sin(angle) * cosine * total if freedom > 1 else 0.0))
    else:
        inside = math.sin(angle) * total
    return max(0.0, 1.0 - inside)


@dataclass(frozen=True)
class Verdict:
    """On one column of a table."""

    best: str
    marked: bool
    why: str


def verdict(column: Mapping[str, Spread]) -> Verdict | None:
    """The method with the best mean, marked where it is ahead of every other one by more than the noise."""
    if len(column) < 2:
        return None
    best = max(column, key=lambda method: column[method].mean)
    largest = 0.0
    for method, spread in sorted(column.items(), key=lambda item: -item[1].mean):
        if method == best:
            continue
        found = paired_t(column[best].by_seed, spread.by_seed)
        if found is None:
            common = set(column[best].by_seed) & set(spread.by_seed)
            few = f"{len(common)} seed{'s' if len(common) != 1 else ''} in common with {method}, the test needs {SEEDS}"
            return Verdict(best, False, few if len(common) < SEEDS else f"ahead of {method} by the same in every seed")
        if found[0] >= LEVEL:
            return Verdict(best, False, f"{method} is within the noise (p = {found[0]:.2g}, {found[1]} seeds)")
        largest = max(largest, found[0])
    return Verdict(best, True, f"ahead of every other method (p at most {largest:.2g})")
