"""What composes with what: every pair of methods is built on a small residual network, and what is refused says why."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from normfed.errors import Refused
from normfed.expression import parse
from normfed.keys import normal
from normfed.methods import METHODS
from normfed.plan import build
from normfed.testing import ResidualNet, seeded

HEADER = """# What composes with what

`a + b` puts two methods together. Every pair below was built on a small residual network with BatchNorm; `make
test-full` runs those that compose on every engine. What is not listed as refused composes. A pair that is refused ends
before round 0 with its reason. The page is made by `python -m normfed.tables composition`.
"""


def refusal(one: str, other: str) -> str | None:
    """Why two methods do not compose, or None."""
    try:
        build(parse(f"{one}+{other}"), seeded(ResidualNet), normal(0, (2, 3, 6, 6)))
    except Refused as refused:
        return refused.problems[0]
    return None


def in_general(reason: str, one: str, other: str) -> str:
    """A reason without the names of the two it was given for, nor of their layers."""
    first = one if reason.startswith((f"{one} ", f"{one}:")) or not reason.startswith(other) else other
    second = other if first == one else one
    for name, word in ((first, "one"), (second, "the other")):
        reason = re.sub(rf"(?<![\w']){name}(?![\w'])", word, reason)
    reason = re.sub(r"'[\w.]+' \(\w+\), ", "", reason)
    reason = re.sub(r"[:;] it has [\w ]+?(?= \(|$)", "", reason)  # which norm layers are left
    return reason.replace("one and the other the model has none", "the other the model has none").replace(
        "one and the other", "the two"
    )


@functools.cache
def composition() -> tuple[dict[str, dict[str, list[str]]], int]:
    """Method -> reason in general -> the methods it is refused with for that; and how many pairs compose."""
    refused: dict[str, dict[str, list[str]]] = {name: {} for name in METHODS}
    pairs = list(itertools.combinations(METHODS, 2))
    count = 0
    for one, other in pairs:
        reasons = {pair: refusal(*pair) for pair in ((one, other), (other, one))}
        if None not in reasons.values():
            reason = in_general(next(r for r in reasons.values() if r is not None), one, other)
            refused[one].setdefault(reason, []).append(other)
            refused[other].setdefault(reason, []).append(one)
            continue
        count += 1
        for (first, second), why in reasons.items():
            if why is not None:
                note = f"in this order (the other way round works): {in_general(why, first, second)}"
                refused[first].setdefault(note, []).append(second)
    return refused, count


def page(results: Path) -> Mapping[str, str]:
    """docs/composition.md"""
    refused, count = composition()
    reasons = list(dict.fromkeys(reason for found in refused.values() for reason in found))
    total = len(METHODS) - 1
    lines = [
        HEADER,
        f"{count} of {len(METHODS) * total // 2} pairs compose.",
        "",
        "| method | composes with | refused with |",
    ]
    lines.append("|---|---|---|")
    for name, found in refused.items():
        without = sum(len(others) for reason, others in found.items() if not reason.startswith("in this order"))
        cells = [f"{' '.join(f'`{o}`' for o in others)} ({reasons.index(r) + 1})" for r, others in found.items()]
        lines.append(f"| `{name}` | {'all' if not without else total - without} of {total} | {'; '.join(cells)} |")
    lines += ["", "## Reasons", "", *(f"{i}. {reason}" for i, reason in enumerate(reasons, 1)), ""]
    return {"docs/composition.md": "\n".join(lines)}
