"""A run's numbers as they come, for who watches many: TensorBoard or MLflow, of the `track` extra.

TensorBoard reads DIR/tensorboard. MLflow writes to MLFLOW_TRACKING_URI where that is set, else to DIR/mlruns.
A method and a seed are a run there; a number has the name `metric/client`, and its round as the step.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from normfed.errors import Refused, first_line, nearest
from normfed.runs.play import slugs

KINDS = ("tensorboard", "mlflow")


def scalars(row: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers of a row: by client, and their mean."""
    for name in ("bytes_up", "bytes_down", "messages"):
        yield name, row[name]
    for key, values in row.items():
        if key == "train_loss" or key.startswith(("test_", "val_")):
            known = {client: value for client, value in values.items() if value is not None}
            yield from ((f"{key}/{client}", value) for client, value in known.items())
            if known:
                yield f"{key}/mean", fmean(known.values())


class Tracker:
    """A context whose `on_round` passes numbers on. Nothing is written before the first round is played."""

    def __init__(self, kind: str, folder: Path) -> None:
        if kind not in KINDS:
            raise Refused(f"unknown tracker '{kind}'; {nearest(kind, KINDS)}")
        self._kind = kind
        self._open = _tensorboard(folder) if kind == "tensorboard" else _mlflow(folder)
        self._writers: dict[tuple[str, int], Any] = {}

    def __enter__(self) -> Tracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for writer in self._writers.values():
            writer.close()

    def on_round(self, method: str, row: dict[str, Any]) -> None:
        who = (method, row["seed"])
        try:
            if who not in self._writers:
                self._writers[who] = self._open(method, row["seed"])
            self._writers[who].add(list(scalars(row)), row["round"])
        except Exception as error:  # whatever a server, a disk or a library may come up with
            raise Refused(f"--track {self._kind}: {first_line(error)}; --resume goes on") from None


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise Refused("--track tensorboard needs TensorBoard: pip install 'normfed[track]'") from None

    class Writer:
        def __init__(self, method: str, seed: int) -> None:
            self._to = SummaryWriter(str(folder / "tensorboard" / _name(method, seed)))

        def add(self, found: list[tuple[str, float]], round: int) -> None:
            for name, value in found:
                self._to.add_scalar(name, value, round)

        def close(self) -> None:
            self._to.close()

    return Writer


def _mlflow(folder: Path) -> Any:
    try:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient
    except ImportError:
        raise Refused("--track mlflow needs MLflow: pip install 'normfed[track]'") from None

    class Writer:
        def __init__(self, method: str, seed: int) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # files stay readable; a database is the user's choice
                where = os.environ.get("MLFLOW_TRACKING_URI")
                if not where:
                    where = (folder / "mlruns").absolute().as_uri()
                    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # which it wants to be asked for by now
                self._to = MlflowClient(where)
                known = self._to.get_experiment_by_name("normfed")
                experiment = known.experiment_id if known else self._to.create_experiment("normfed")
                self._run = self._known(experiment, _name(method, seed)) or self._new(experiment, method, seed)

        def _known(self, experiment: str, name: str) -> str | None:
            """The run that this one goes on with."""
            runs = self._to.search_runs([experiment])
            same = [r for r in runs if (r.info.run_name, r.data.tags.get("folder")) == (name, str(folder.absolute()))]
            return same[0].info.run_id if same else None

        def _new(self, experiment: str, method: str, seed: int) -> str:
            tags = {"folder": str(folder.absolute())}
            run: str = self._to.create_run(experiment, run_name=_name(method, seed), tags=tags).info.run_id
            for key, value in (("method", method), ("seed", seed)):
                self._to.log_param(run, key, value)
            return run

        def add(self, found: list[tuple[str, float]], round: int) -> None:
            import time

            now = int(time.time() * 1000)
            self._to.log_batch(self._run, [Metric(_plain(name), value, now, round) for name, value in found])

        def close(self) -> None:
            self._to.set_terminated(self._run)

    return Writer


def _plain(name: str) -> str:
    """With the characters that MLflow takes."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _name(method: str, seed: int) -> str:
    return f"{slugs([{'method': method}])[0]}-seed-{seed}"
