"""Clients along an axis of every tensor: `torch.func.vmap` over the client's program, many clients per kernel.

Batches are never padded. A tick takes the clients whose next batch has the most frequent size, so every client sees its
own batch exactly, and models, losses and methods need no mask. Clients are seated by the number of their batches,
most first, so those still at work are mostly a prefix of the stack and no state is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from normfed.client import Carry, Outcome, Seat
from normfed.cohort import Cohort
from normfed.engines.base import Advance, Bundle, Group, Place, Task, first_steps
from normfed.keys import signed
from normfed.method import Segment
from normfed.schedule import Course
from normfed.state import State

T = TypeVar("T")


def gradient(objective: Callable[[State], tuple[Tensor, Any]], params: State) -> tuple[State, Any]:
    grads, (_, aux) = grad_and_value(objective, has_aux=True)(params)
    return grads, aux


def stack_states(states: Sequence[Any]) -> Any:
    """Nested dictionaries of tensors, one per client -> the same with an axis of clients in front."""
    first = states[0]
    if isinstance(first, Tensor):
        return torch.stack(list(states))
    return {name: stack_states([state[name] for state in states]) for name in first}


def _map(f: Callable[..., Tensor], value: Any, *others: Any) -> Any:
    if isinstance(value, Tensor):
        return f(value, *others)
    if isinstance(value, Carry):
        return Carry(*(_map(f, part, *(o[i] for o in others)) for i, part in enumerate(value)))
    return {name: _map(f, part, *(o[name] for o in others)) for name, part in value.items()}


class _Chosen:
    """Some clients of a stack: a slice (a view of the state) or an index (a copy, written back)."""

    def __init__(self, members: list[int], size: int, device: torch.device) -> None:
        self.members = members
        self.all = len(members) == size
        first, last = members[0], members[-1]
        contiguous = last - first + 1 == len(members)
        self.index: Any = slice(first, last + 1) if contiguous else torch.tensor(members, device=device)

    def take(self, value: T) -> T:
        return value if self.all else _map(lambda t: t[self.index], value)

    def put(self, whole: Carry, part: Carry) -> Carry:
        if self.all:
            return part

        def write(old: Tensor, new: Tensor) -> Tensor:
            view = old[self.index] if isinstance(self.index, slice) else None
            if view is None or view.data_ptr() != new.data_ptr() or view.stride() != new.stride():
                old[self.index] = new
            return old

        return _map(write, whole, part)


class _Path:
    """The batches of every client of a stack, and how far each has come."""

    def __init__(self, courses: list[Course], first_rows: list[int], device: torch.device) -> None:
        self.courses, self.device = courses, device
        self.orders: list[Tensor] = []  # of each client: rows of its samples as it meets them, batch after batch
        self.starts: list[list[int]] = []  # where each batch begins in that order
        for course, first in zip(courses, first_rows, strict=True):
            indices = [course.indices(i) for i in range(len(course))]
            self.orders.append(torch.cat(indices).to(device) + first if indices else torch.zeros(0, dtype=torch.long))
            sizes = [0, *(batch.size for batch in course.batches)]
            self.starts.append(torch.tensor(sizes).cumsum(0).tolist())
        self.taken = [0] * len(courses)

    def size(self, i: int) -> int:
        """Of client i's next batch."""
        return self.courses[i].batches[self.taken[i]].size

    def rows(self, members: list[int], size: int) -> Tensor:
        """[members, size]: rows of the next batches."""
        starts = [self.starts[i][self.taken[i]] for i in members]
        return torch.stack([self.orders[i][a : a + size] for i, a in zip(members, starts, strict=True)])

    def numbers(self, members: list[int]) -> Tensor:
        return torch.tensor([self.taken[i] for i in members], device=self.device)

    def positions(self, members: list[int]) -> Tensor:
        positions = [self.courses[i].batches[self.taken[i]].position for i in members]
        return torch.tensor(positions, device=self.device)

    def seen(self, members: list[int]) -> Tensor:
        """Samples of each client's earlier batches."""
        return torch.tensor([self.starts[i][self.taken[i]] for i in members], device=self.device)

    def ticks(self, todo: list[int]) -> Iterator[tuple[_Chosen, int]]:
        """Who steps together, until everyone has taken `todo` steps. The user of a tick calls `step`."""
        while any(todo):
            sizes = {i: self.size(i) for i, left in enumerate(todo) if left}
            size, _ = max(Counter(sizes.values()).items(), key=lambda item: (item[1], item[0]))
            chosen = _Chosen([i for i, s in sizes.items() if s == size], len(todo), self.device)
            yield chosen, size
            for i in chosen.members:
                todo[i] -= 1

    def step(self, members: list[int]) -> None:
        for i in members:
            self.taken[i] += 1


class _Stack:
    """A group of several clients."""

    def __init__(self, task: Task, places: Sequence[Place]) -> None:
        self.task, self.program = task, task.program
        # Most batches first: those still at work stay together.
        self.places = sorted(places, key=lambda place: -len(place.course))
        self.x, self.y, first = task.federation.pool([place.client for place in self.places])
        device = self.device = self.x.device
        self.first_rows = [first[place.client] for place in self.places]
        self.path = _Path([place.course for place in self.places], self.first_rows, device)
        self.seat = Seat(
            anchor=task.anchor,
            kept=stack_states([place.kept for place in self.places]),
            own=stack_states([place.own for place in self.places]),
            sent=task.sent,
            key=torch.tensor([signed(place.key) for place in self.places], device=device),
            n_samples=torch.tensor([place.n_samples for place in self.places], device=device),
            weight=torch.tensor([place.weight for place in self.places], dtype=torch.float64, device=device),
        )
        self.axes = Seat(anchor=None, kept=0, own=0, sent=None, key=0, n_samples=0, weight=0)  # type: ignore[arg-type]
        self.carry: Carry

    def begin(self) -> None:
        carry = vmap(self.program.begin, (self.axes,), randomness="error")(self.seat)
        # What was the same for all clients came back as one tensor seen many times: make it many.
        self.carry = _map(lambda t: t.clone(memory_format=torch.contiguous_format), carry)

    def _taken(self, chosen: _Chosen) -> Seat:
        return Seat(
            *(part if axis is None else chosen.take(part) for part, axis in zip(self.seat, self.axes, strict=True))
        )

    def _step(self, chosen: _Chosen, size: int, segment: Segment, cohort: Cohort | None) -> Carry:
        rows = self.path.rows(chosen.members, size)

        def step(seat: Seat, carry: Carry, x: Tensor, y: Tensor, number: Tensor, position: Tensor) -> Carry:
            return self.program.step(seat, carry, x, y, number, position, segment, gradient, cohort)

        return vmap(step, (self.axes, 0, 0, 0, 0, 0), randomness="error")(
            self._taken(chosen), chosen.take(self.carry), self.x[rows], self.y[rows],
            self.path.numbers(chosen.members), self.path.positions(chosen.members),
        )  # fmt: skip

    def _commit(self, chosen: _Chosen, carry: Carry) -> None:
        self.carry = chosen.put(self.carry, carry)
        self.path.step(chosen.members)

    def advance(self, segment: Segment) -> None:
        todo = [first_steps(segment, t, len(c)) for t, c in zip(self.path.taken, self.path.courses, strict=True)]
        for chosen, size in self.path.ticks(todo):
            self._commit(chosen, self._step(chosen, size, segment, None))

    def measure(self, segment: Segment) -> None:
        path = _Path([place.measured_on(segment.batch_size) for place in self.places], self.first_rows, self.device)

        def step(seat: Seat, carry: Carry, x: Tensor, number: Tensor, seen: Tensor) -> Carry:
            return self.program.measure(seat, carry, x, number, seen, segment)

        for chosen, size in path.ticks([len(course) for course in path.courses]):
            x = self.x[path.rows(chosen.members, size)]
            carry = vmap(step, (self.axes, 0, 0, 0, 0), randomness="error")(
                self._taken(chosen), chosen.take(self.carry), x, path.numbers(chosen.members), path.seen(chosen.members)
            )
            self.carry = chosen.put(self.carry, carry)
            path.step(chosen.members)

    def common_step(self, segment: Segment) -> list[Advance]:
        sizes = [self.path.size(i) for i in range(len(self.places))]
        advances: list[Advance] = []
        for size in sorted(set(sizes), reverse=True):
            chosen = _Chosen([i for i, s in enumerate(sizes) if s == size], len(sizes), self.device)

            def step(cohort: Cohort, chosen: _Chosen = chosen, size: int = size) -> Carry:
                return self._step(chosen, size, segment, cohort)

            def commit(carry: Carry, chosen: _Chosen = chosen) -> None:
                self._commit(chosen, carry)

            advances.append(Advance(step, commit, size, len(chosen.members)))
        return advances

    def end(self) -> Bundle:
        with torch.no_grad():
            steps = torch.tensor(self.path.taken, device=self.device)
            outcome = vmap(self.program.end, (self.axes, 0, 0))(self.seat, self.carry, steps)
        return Bundle(self.places, Outcome(*outcome))


class Stacked:
    name = "stacked"

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once  # clients in one stack

    def groups(self, task: Task) -> Iterator[Group]:
        places = task.places
        return (_Stack(task, places[i : i + self.at_once]) for i in range(0, len(places), self.at_once))
