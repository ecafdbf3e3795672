"""Clients one after another, plain autograd: the engine that defines the meaning of all others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from normfed.client import Carry, Outcome, Seat
from normfed.cohort import Cohort
from normfed.engines.base import Advance, Bundle, Group, Place, Task, first_steps
from normfed.method import Segment
from normfed.state import State


def gradient(objective: Callable[[State], tuple[Tensor, Any]], params: State) -> tuple[State, Any]:
    leaves = list(params.values())
    for leaf in leaves:
        leaf.requires_grad_(True)
    total, aux = objective(params)
    grads = torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
    return dict(zip(params, grads, strict=True)), aux


class _One:
    """A group of one client."""

    def __init__(self, task: Task, place: Place) -> None:
        self.task, self.place, self.program = task, place, task.program
        self.x, self.y = task.federation.train(place.client)
        weight = torch.tensor(place.weight, dtype=torch.float64, device=self.x.device)
        self.seat = Seat(task.anchor, place.kept, place.own, task.sent, place.key, place.n_samples, weight)
        self.taken = 0
        self.carry: Carry

    def begin(self) -> None:
        self.carry = self.program.begin(self.seat)

    def _step(self, segment: Segment, cohort: Cohort | None) -> Carry:
        chosen = self.place.course.samples(self.taken)
        position = self.place.course.batches[self.taken].position
        return self.program.step(
            self.seat, self.carry, self.x[chosen], self.y[chosen], self.taken, position, segment, gradient, cohort
        )

    def advance(self, segment: Segment) -> None:
        for _ in range(first_steps(segment, self.taken, len(self.place.course.batches))):
            self._commit(self._step(segment, None))

    def measure(self, segment: Segment) -> None:
        course = self.place.measured_on(segment.batch_size)
        for number, batch in enumerate(course.batches):
            x = self.x[course.samples(number)]
            self.carry = self.program.measure(self.seat, self.carry, x, number, batch.start, segment)

    def common_step(self, segment: Segment) -> list[Advance]:
        size = self.place.course.batches[self.taken].size
        return [Advance(lambda cohort: self._step(segment, cohort), self._commit, size, 1)]

    def _commit(self, carry: Carry) -> None:
        self.carry = carry
        self.taken += 1

    def end(self) -> Bundle:
        with torch.no_grad():
            outcome = self.program.end(self.seat, self.carry, self.taken)
        return Bundle([self.place], Outcome(*(_leading(part) for part in outcome)))


def _leading(value: Any) -> Any:
    """The value with an axis of one client in front."""
    if isinstance(value, Tensor):
        return value.detach()[None]
    return {name: _leading(part) for name, part in value.items()}


class Serial:
    name = "serial"

    def groups(self, task: Task) -> Iterator[Group]:
        return (_One(task, place) for place in task.places)
