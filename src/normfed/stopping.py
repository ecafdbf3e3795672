"""Early stopping as a pure function of the history: a run that was cut and goes on stops in the same round.

train_loss(patience=10)    val_accuracy(patience=5, min_delta=0.001)    val_loss(patience=3)

The metric is averaged over the clients, and looked at in every round that has it. Training ends after the `patience`-th
such round in a row that is not better than the best before it by more than `min_delta`. Test data are never looked at.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from normfed.errors import Refused, nearest
from normfed.metrics import METRICS
from normfed.text import call

KNOWN = ("train_loss", "val_loss", *(f"val_{name}" for name in METRICS))


@dataclass(frozen=True)
class Stop:
    """When to end training before its last round."""

    metric: str
    patience: int = 5
    min_delta: float = 0.0

    def after(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Whether training ends here."""
        sign = -1.0 if self.metric.endswith("loss") else 1.0
        best, waited = -math.inf, 0
        for row in history:
            if not row.get(self.metric):
                continue
            value = sign * statistics.fmean(row[self.metric].values())
            better = value > best + self.min_delta
            best, waited = (value, 0) if better else (best, waited + 1)
        return waited >= self.patience


def parse(text: str) -> Stop:
    metric, positional, named = call(text, "val_accuracy(patience=5)")
    if metric.startswith("test"):
        raise Refused(f"stop: {metric} would choose by test data; choose by validation data or train_loss")
    if metric not in KNOWN:
        raise Refused(f"stop: unknown metric '{metric}'; {nearest(metric, KNOWN)}")
    names = ("patience", "min_delta")
    problems = [f"stop: unknown argument '{name}'; {nearest(name, names)}" for name in named if name not in names]
    if len(positional) > 1:
        problems.append("stop: name the arguments, val_accuracy(patience=5, min_delta=0.001)")
    if problems:
        raise Refused(*problems)
    stop = Stop(metric, **{**dict(zip(names, positional, strict=False)), **named})
    if isinstance(stop.patience, bool) or not isinstance(stop.patience, int) or stop.patience < 1:
        problems.append(f"stop: patience={stop.patience!r} must be a whole number, 1 or more")
    if not isinstance(stop.min_delta, int | float) or isinstance(stop.min_delta, bool) or not stop.min_delta >= 0:
        problems.append(f"stop: min_delta={stop.min_delta!r} must be a number, 0 or more")
    if problems:
        raise Refused(*problems)
    return stop
