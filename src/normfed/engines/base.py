"""What every engine does, and the four things in which engines differ.

Clients are dealt into *groups*. A group begins, takes local steps and ends; a lock-step is taken by all groups together
(`cohort.lockstep`). Engines differ in how clients are grouped, how a group calls the client's program, how it
differentiates, and in the order of steps inside a group. None knows a method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from normfed.client import Carry, Outcome, Program
from normfed.cohort import Cohort, lockstep
from normfed.data.federation import Federation
from normfed.method import Segment, Steps, Value
from normfed.schedule import Course
from normfed.state import State


@dataclass(frozen=True)
class Place:
    """One client of a cohort, before an engine seats it."""

    client: str
    kept: State
    own: Mapping[str, Mapping[str, Value]]
    key: int
    n_samples: int
    weight: float
    course: Course


@dataclass(frozen=True)
class Task:
    """One exchange's work for an engine."""

    program: Program
    anchor: State
    sent: Mapping[str, Mapping[str, Value]]
    places: Sequence[Place]
    federation: Federation
    message_bytes: list[int] = field(default_factory=list)  # of each collective, per client; written by the engine


@dataclass(frozen=True)
class Bundle:
    """Outcomes of some clients, stacked: every tensor is [clients, ...]."""

    places: Sequence[Place]
    outcome: Outcome


Advance = tuple[Callable[[Cohort], Carry], Callable[[Carry], None], int, int]  # step, commit, batch size, clients


class Group(Protocol):
    """Clients that an engine runs at once."""

    def begin(self) -> None: ...

    def advance(self, segment: Segment) -> None:
        """All steps of a segment, each client on its own."""
        ...

    def common_step(self, segment: Segment) -> list[Advance]:
        """The next lock-step step, one entry per batch size."""
        ...

    def end(self) -> Bundle: ...


class Engine(Protocol):
    name: str

    def groups(self, task: Task) -> Iterator[Group]: ...


def run(engine: Engine, task: Task) -> Iterator[Bundle]:
    """Streams the outcomes of a round. Without lock-steps only one group is held in memory at a time."""
    groups = engine.groups(task)
    waves: Iterable[list[Group]] = (
        iter([list(groups)]) if task.program.phase.lockstep else ([group] for group in groups)
    )
    for wave in waves:
        for group in wave:
            group.begin()
        for segment in task.program.phase.segments:
            if not segment.lockstep:
                for group in wave:
                    group.advance(segment)
                continue
            assert isinstance(segment.steps, int), "a lock-step segment says how many steps it has"
            for _ in range(segment.steps):
                advances = [advance for group in wave for advance in group.common_step(segment)]
                steps, commits, sizes, counts = zip(*advances, strict=True)
                carries, messages = lockstep(steps, sizes, counts)
                for commit, carry in zip(commits, carries, strict=True):
                    commit(carry)
                task.message_bytes.extend(messages)
        while wave:
            yield wave.pop(0).end()


def first_steps(segment: Segment, taken: int, available: int) -> int:
    """How many steps a segment takes from a client that has taken some of the available ones."""
    left = available - taken
    return left if segment.steps is Steps.ALL else min(int(segment.steps), left)
