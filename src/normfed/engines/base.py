"""What every engine does, and the four things in which engines differ.

Clients are dealt into *groups*. A group begins, takes local steps and ends; a lock-step is taken by all groups together
(`cohort.lockstep`). Engines differ in how clients are grouped, how a group calls the client's program, how it
differentiates, and in the order of steps inside a group. None knows a method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from normfed.client import Alone, Carry, Outcome, Program, Slots, viewed
from normfed.cohort import Cohort, lockstep
from normfed.data.store import Store
from normfed.method import Segment, Steps, Value, When
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
    course: Course  # what it trains on
    measured_on: Callable[[int | None], Course]  # batch size -> every sample once


@dataclass(frozen=True)
class Task:
    """One exchange's work for an engine."""

    program: Program
    anchor: State
    sent: Mapping[str, Mapping[str, Value]]
    places: Sequence[Place]
    federation: Store
    message_bytes: list[int] = field(default_factory=list)  # of each collective, per client; written by the engine


@dataclass(frozen=True)
class Bundle:
    """Outcomes of some clients, stacked: every tensor is [clients, ...]."""

    places: Sequence[Place]
    outcome: Outcome


@dataclass(frozen=True)
class Advance:
    """A step that a part of a group is about to take together with all others."""

    step: Callable[[Cohort], Carry]
    commit: Callable[[Carry], None]
    batch_size: int
    clients: int


class Group(Protocol):
    """Clients that an engine runs at once."""

    def begin(self) -> None: ...

    def advance(self, segment: Segment) -> None:
        """All steps of a segment, each client on its own."""
        ...

    def measure(self, segment: Segment) -> None:
        """One full pass over each client's data without training."""
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
            if segment.lockstep:
                _together(wave, segment, task)
            for group in wave if not segment.lockstep else ():
                if segment.train:
                    group.advance(segment)
                else:
                    group.measure(segment)
        while wave:
            yield wave.pop(0).end()


def _together(groups: list[Group], segment: Segment, task: Task) -> None:
    assert isinstance(segment.steps, int), "a lock-step segment says how many steps it has"
    for _ in range(segment.steps):
        advances = [advance for group in groups for advance in group.common_step(segment)]
        carries, messages = lockstep(
            [a.step for a in advances], [a.batch_size for a in advances], [a.clients for a in advances]
        )
        for advance, carry in zip(advances, carries, strict=True):
            advance.commit(carry)
        task.message_bytes.extend(messages)


def alone(
    program: Program, federation: Store, client: str, state: State, when: When, round: int, slots: Slots
) -> dict[str, State]:
    """What a client sends for the server to see by itself, made outside of any stack."""
    gathers = [(owner, g) for owner, g in program.plan.gathers if g.when is when]
    if when is When.ROUND:
        gathers = [(owner, g) for owner, g in gathers if owner in program.phase.methods]
    if not gathers:
        return {}
    x, y = federation.train(client)
    x = program.net.cast(x)
    if when is When.ROUND:
        x = viewed(program.phase, x, client, federation.names, slots, x)
    view = Alone(client, x, y, state, round, program.net, program.classes)
    return {f"{owner}/{gather.name}": gather.make(view) for owner, gather in gathers}


def row(value: Any, i: int) -> Any:
    """Client i of a bundle, as tensors of its own."""
    if isinstance(value, Tensor):
        return value[i].clone() if len(value) > 1 else value[0]
    return {name: row(part, i) for name, part in value.items()}


def first_steps(segment: Segment, taken: int, available: int) -> int:
    """How many steps a segment takes from a client that has taken some of the available ones."""
    left = available - taken
    return left if segment.steps is Steps.ALL else min(int(segment.steps), left)
