"""What a terminal sees of long work: a bar, the last round's loss and accuracy, the time left. Nothing elsewhere."""

from __future__ import annotations

import sys
from statistics import fmean
from types import TracebackType
from typing import Any


class Progress:
    """A context whose `on_round` is called after every round of every trial."""

    def __init__(self, trials: int, rounds: int) -> None:
        self.total = trials * rounds
        self._reached: dict[tuple[str, int], int] = {}  # (method, seed) -> rounds played
        self._accuracy: dict[tuple[str, int], float] = {}
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rounds,"),
                TimeRemainingColumn(), TextColumn("left"), console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("opening", total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_round(self, method: str, row: dict[str, Any]) -> None:
        if self._bar is None:
            return
        who = (method, row["seed"])
        self._reached[who] = row["round"] + 1
        losses = [value for value in row["train_loss"].values() if value is not None]
        if row["test_accuracy"]:
            self._accuracy[who] = fmean(row["test_accuracy"].values())
        text = f"{method}, seed {row['seed']}: {len(losses)} clients"
        text += f", loss {fmean(losses):.3f}" if losses else ""
        text += f", accuracy {100 * self._accuracy[who]:.1f} %" if who in self._accuracy else ""
        self._bar.update(self._task, completed=sum(self._reached.values()), description=text)
