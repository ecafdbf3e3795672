"""One run, several seeds of it, several methods: all are trials in folders, played side by side and put together."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normfed.compare import Document, comparison, summary
from normfed.errors import Problems, Refused
from normfed.experiment import Run
from normfed.recipe import Config
from normfed.runs import disk, trial, workers
from normfed.runs.config import admit, config_hash, read_config, write_config
from normfed.runs.inputs import facts, forget, open_run
from normfed.runs.trial import RECORDS, RESULT, Job, read_result

COMPARISON = "comparison.json"

OnRound = Callable[[str, dict[str, Any]], None]  # (method, row of its history)


@dataclass(frozen=True)
class Task:
    """One method in its folder: a job for each seed, all in one document in the end."""

    config: Config
    folder: Path
    recipe: str
    root: Path | None

    @property
    def jobs(self) -> list[Job]:
        seeds = self.config["seeds"]
        if len(seeds) == 1:
            return [Job(self.config, self.folder, self.recipe, self.root)]
        return [
            Job({**self.config, "seeds": [seed]}, self.folder / f"seed-{seed}", self.recipe, self.root)
            for seed in seeds
        ]

    @property
    def finished(self) -> bool:
        return (self.folder / RESULT).exists()

    def put_together(self) -> None:
        """One document and one file of records for all seeds."""
        if self.finished:
            return
        parts = [job.folder for job in self.jobs]
        disk.write(self.folder / RECORDS, b"".join((part / RECORDS).read_bytes() for part in parts))
        disk.write_json(self.folder / RESULT, summary([read_result(part) for part in parts]))


def run(
    config: Config, out: Path | None = None, *, resume: bool = False, root: Path | None = None, recipe: str = "",
    jobs: int | None = None, on_round: OnRound | None = None,
) -> Document:  # fmt: skip
    """Plays a resolved config in the folder `out` and returns the document of its result.json.

    Without `out` the folder is runs/<hash of the config>. `jobs` is how many seeds train at once, each in a process;
    None: as many as there are cores. `on_round` is called after every round, in this process.
    """
    folder = folder_of(config) if out is None else Path(out)
    task = Task(config, folder, recipe, root)
    play_tasks([task], resume, jobs, on_round)
    return read_result(folder)


def compare(
    configs: Sequence[Config] | Mapping[str, Config], out: Path | None = None, *, resume: bool = False,
    root: Path | None = None, recipe: str = "", jobs: int | None = None, on_round: OnRound | None = None,
) -> Document:  # fmt: skip
    """Plays several configs, each in a folder of its own inside `out`, and returns the document of comparison.json.

    The folders are named by the methods, or by the keys of a mapping. `jobs` is how many trials, a method with a seed
    each, train at once.
    """
    named = named_by(configs)
    held = {**common(named.values()), "runs": {name: config["method"] for name, config in named.items()}}
    folder = folder_of(named) if out is None else Path(out)
    new = admit(folder, held, resume)
    tasks = [Task(config, folder / name, recipe, root) for name, config in named.items()]
    play_tasks(tasks, True, jobs, on_round, before=lambda: write_config(folder, held) if new else None)
    if not (folder / COMPARISON).exists():
        results = [(task.config, read_result(task.folder)) for task in tasks]
        disk.write_json(folder / COMPARISON, comparison(results))
    return disk.read_json(folder / COMPARISON)


def common(configs: Iterable[Config]) -> Config:
    """What all of them say, beside the method: what a comparison keeps equal."""
    first, *others = configs
    return {k: v for k, v in first.items() if k != "method" and all(c.get(k) == v for c in others)}


def folder_of(configs: Config | Mapping[str, Config]) -> Path:
    """Where a run or a comparison goes that nobody named a folder for."""
    return Path("runs") / config_hash(configs)


def named_by(configs: Sequence[Config] | Mapping[str, Config]) -> dict[str, Config]:
    named = dict(configs) if isinstance(configs, Mapping) else dict(zip(slugs(configs), configs, strict=True))
    if not named:
        raise Refused("nothing to compare")
    return named


def slugs(configs: Iterable[Config]) -> list[str]:
    """A folder's name for each, by its method: fedprox(mu=0.01) -> fedprox-mu-0.01."""
    found: list[str] = []
    for config in configs:
        slug = re.sub(r"[^a-z0-9._]+", "-", config["method"].lower()).strip("-.")
        again = (f"{slug}-{n}" for n in range(2, len(found) + 3))
        found.append(slug if slug not in found else next(name for name in again if name not in found))
    return found


def play_tasks(
    tasks: Sequence[Task], resume: bool, jobs: int | None, on_round: OnRound | None,
    before: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Checks everything, then plays what is not finished."""
    forget()
    problems = Problems()
    new: dict[Path, bool] = {}
    for task in tasks:
        with problems:
            new[task.folder] = admit(task.folder, task.config, resume)
    problems.say()
    unfinished = [task for task in tasks if not task.finished]
    opened: Run | None = None
    known: dict[Path, dict[str, Any]] = {}
    for task in unfinished:
        with problems:
            opened = open_run(task.jobs[0].config, task.root)
            known[task.folder] = facts(task.config, task.root)
    problems.say()
    for task in unfinished:
        if not new[task.folder]:
            _check_facts(task.folder, known[task.folder])
    before()
    for task in unfinished:
        if new[task.folder]:
            write_config(task.folder, task.config, known[task.folder])
        for job in task.jobs:
            if job.folder != task.folder and admit(job.folder, job.config, True):
                write_config(job.folder, job.config, known[task.folder])
    trials = [(task, job) for task in unfinished for job in task.jobs]
    damaged = _play_trials(trials, jobs, on_round, opened)
    for task in unfinished:
        task.put_together()
    for line in damaged:
        warnings.warn(f"{line}; went on from the checkpoint before it", stacklevel=3)


def _play_trials(
    trials: Sequence[tuple[Task, Job]], jobs: int | None, on_round: OnRound | None, opened: Run | None
) -> list[str]:
    def say(number: int, row: dict[str, Any]) -> None:
        if on_round is not None:
            on_round(trials[number][0].config["method"], row)

    if len(trials) == 1:
        return trial.play(trials[0][1], lambda row: say(0, row), opened)
    at_once = [cores() // task.config["threads"] if task.config["device"] == "cpu" else 1 for task, _ in trials]
    count = max(1, min(at_once, default=1)) if jobs is None else jobs
    return workers.play_all([job for _, job in trials], count, say)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_facts(folder: Path, now: Mapping[str, Any]) -> None:
    """A run goes on with the data it began with; another torch may sum in another order."""
    _, began = read_config(folder)
    if began.get("partition_hash") != now["partition_hash"]:
        raise Refused(f"{folder} began on other data: the partition's hash was {began.get('partition_hash')!r}")
    if began.get("torch") != now["torch"]:
        warnings.warn(
            f"{folder} began with torch {began.get('torch')}, this is {now['torch']}: numbers may differ in the last "
            "digits from those of an uncut run",
            stacklevel=4,
        )
