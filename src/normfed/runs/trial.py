"""A run of one seed in its folder: played, saved as it goes, finished; exact when it is cut and goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors.torch import save
from torch import Tensor

from normfed import checkpoint
from normfed.compare import Document, condensed
from normfed.errors import Refused
from normfed.experiment import Run
from normfed.recipe import Config
from normfed.runs import disk
from normfed.runs.inputs import open_run
from normfed.runs.records import Log, facts, rows
from normfed.server import RunState

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
# What of result.json is relied on when it is read again.
DOCUMENT = {
    "method": str, "seeds": [int], "rounds": int, "clients": [str], "history": [dict],
    "final": {
        "test_accuracy": dict, "average": {"mean": (float, int, type(None))}, "view": str, "selected_round": dict,
    },
    "timing": dict,
}  # fmt: skip
RESULT, RECORDS, MODEL, CLIENTS, TIMING = "result.json", "records.jsonl", "model.safetensors", "clients", "timing.json"
SHARE = 0.05  # of the time that saving may take; a round that is slow to play is saved at once

OnRound = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Job:
    """What to play and where. `config` has one seed."""

    config: Config
    folder: Path
    recipe: str = ""
    root: Path | None = None


@dataclass(frozen=True)
class _Kept:
    """A state that could be saved: everything of it is in the records."""

    state: RunState
    mark: dict[str, Any]


class _Keeper:
    """The two last checkpoints of a trial, and the records that belong to them."""

    def __init__(self, folder: Path, views: list[str]) -> None:
        self.folder, self.views = folder, views
        self.log = Log(folder / RECORDS)
        self._on_disk: int | None = None  # round of the newest checkpoint
        self._cost, self._last = 0.0, time.monotonic()

    def restore(self, run: Run) -> list[str]:
        """Brings a run to where its newest good checkpoint stands; says what was damaged."""
        damaged = []
        for name in (CHECKPOINT, PREVIOUS):
            path = self.folder / name
            if not path.exists():
                continue
            try:
                mark = run.restore(path.read_bytes())["records"]
                if not self.log.holds(mark):
                    raise Refused(f"{self.folder / RECORDS} is damaged: it does not begin as it did in that round")
            except (Refused, OSError) as reason:
                damaged.append(f"{path}: {reason}")
                continue
            if name == PREVIOUS:  # in the place of what is gone, so that it is not rotated away
                path.replace(self.folder / CHECKPOINT)
            self.log.cut(mark)
            run.history = rows(self.log.read(), self.views)
            with contextlib.suppress(Refused, TypeError):
                run.timing.update(disk.read_json(self.folder / TIMING))
            self._on_disk = run.state.round
            return damaged
        if damaged:
            raise Refused(*damaged, f"{self.folder}: no checkpoint to go on from; nothing was changed")
        self.log.cut()
        return []

    def save(self, run: Run, kept: _Kept, whatever: bool = False) -> None:
        """Saves a state, unless saving would take more than its share of the time."""
        if kept.state.round == self._on_disk:
            return
        if not whatever and time.monotonic() - self._last < self._cost / SHARE:
            return
        started = time.monotonic()
        self.log.sync()
        data = checkpoint.to_bytes(kept.state, {"method": str(run.plan.method), "records": kept.mark})
        disk.write(self.folder / CHECKPOINT, data, before=self.folder / PREVIOUS)
        disk.write_json(self.folder / TIMING, run.timing)
        self._on_disk = kept.state.round
        self._last = time.monotonic()
        self._cost = self._last - started


def play(job: Job, on_round: OnRound | None = None, run: Run | None = None) -> list[str]:
    """Plays a trial to its end, from where its folder stands. Returns what was damaged there and is made good.

    `run` may be one that was opened for this config and has not been played.
    """
    disk.make_folder(job.folder)
    with disk.alone(job.folder), limited_threads(job.config["threads"]):
        if (job.folder / RESULT).exists():
            return []
        run = open_run(job.config, job.root) if run is None else run
        keeper = _Keeper(job.folder, job.config["views"])
        damaged = keeper.restore(run)
        kept = _Kept(run.state, keeper.log.mark)
        try:
            while not run.done:
                row = run.play()
                keeper.log.append(facts(row))
                kept = _Kept(run.state, keeper.log.mark)
                keeper.save(run, kept)
                if on_round is not None:
                    on_round(row)
        except KeyboardInterrupt:
            keeper.save(run, kept, whatever=True)
            raise
        except Exception:  # of a callback, a tracker, a network; a disk that was full may still be
            with contextlib.suppress(disk.Unwritable):
                keeper.save(run, kept, whatever=True)
            raise
        keeper.save(run, kept, whatever=True)
        _finish(job, run, keeper)
    return damaged


def _finish(job: Job, run: Run, keeper: _Keeper) -> None:
    """Models, then the result: its presence says that the trial is finished."""
    run.history = rows(keeper.log.read(), keeper.views)  # as everybody else will read it
    result = run.result()
    disk.write(job.folder / MODEL, tensors(result.global_state))
    shared = {name: tensor for name, tensor in result.global_state.items() if name not in run.local}
    own = {client: _differing(state, shared) for client, state in result.client_states.items()}
    if any(own.values()):
        disk.make_folder(job.folder / CLIENTS)
    for client, state in own.items():
        if state:
            disk.write(job.folder / client_file(client), tensors(state))
    for name in (PREVIOUS, TIMING):  # before the result: nobody looks at a finished run again to clear up
        (job.folder / name).unlink(missing_ok=True)
    disk.write_json(job.folder / RESULT, condensed(result.to_dict(job.recipe)))


def read_result(folder: Path) -> Document:
    """The document of a finished run."""
    document = disk.read_json(folder / RESULT)
    missing = disk.shaped(document, DOCUMENT)
    if missing:
        raise Refused(f"{folder / RESULT} is damaged: {missing}")
    return document


def _differing(state: dict[str, Tensor], shared: dict[str, Tensor]) -> dict[str, Tensor]:
    """What a client evaluates with beside the shared entries: LOCAL ones, and what its method makes its own."""
    return {name: t for name, t in state.items() if name not in shared or not _same(t, shared[name])}


def _same(a: Tensor, b: Tensor) -> bool:
    return a is b or bool(((a == b) | ((a != a) & (b != b))).all())


def client_file(client: str) -> str:
    """Relative to the folder; any client's name can be a file's."""
    return f"{CLIENTS}/{quote(client, safe=' ')}.safetensors"


def tensors(state: dict[str, Tensor]) -> bytes:
    return save({name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()})


@contextlib.contextmanager
def limited_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
