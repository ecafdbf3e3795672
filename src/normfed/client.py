"""What a client does in a round: begin, local steps, end. Written for one client; an engine may stack many.

The contexts that pieces of methods receive are here: `Seat` (a client at the table this round), `Step` (one local
step), `End` (its round is over), `Reply` (what the server may weigh). They are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from normfed.cohort import Cohort
from normfed.keys import Key, fold
from normfed.method import Holder, Segment, Value
from normfed.net import Net
from normfed.norm import RUNNING, Mode, Pass
from normfed.optim import Optimizer, OptimState, clip
from normfed.plan import Phase, Plan
from normfed.state import State, pick

Slots = Mapping[str, Mapping[str, Value]]  # method -> slot -> value
Gradient = Callable[[Callable[[State], Any], State], Any]  # (objective, params) -> (grads, what else it returned)


class Seat(NamedTuple):
    """A client at the table this round: what it was sent and what it kept."""

    anchor: State  # the state broadcast this round; LOCAL entries hold their initial value
    kept: State  # the client's own LOCAL entries
    own: Slots  # its slots
    sent: Slots  # the server's slots, as broadcast
    key: Key  # of this client and round
    n_samples: Any
    weight: Tensor  # in a lock-step, where weights are needed before the round ends


class Carry(NamedTuple):
    """A client's working copy, from step to step."""

    params: State
    rest: State
    memory: OptimState
    loss: Tensor  # sum of the task loss over the steps


class Outcome(NamedTuple):
    """What a client's round leaves."""

    shared: State  # goes up: shared entries that can have moved
    kept: State  # stays
    own: Slots  # stays
    reports: Mapping[str, State]  # goes up, with the model
    loss: Tensor  # mean task loss over all local steps, every batch counting once


def _real(number: Any) -> Any:
    """A whole number that differs among stacked clients is a tensor; in float64, so that arithmetic with it is exact
    (an integer tensor times a float would be float32)."""
    return number.to(torch.float64) if isinstance(number, Tensor) else number


class Context:
    """A client at the table, as a piece of a method sees it: what it was sent, and the slots of that method."""

    def __init__(self, program: Program, seat: Seat) -> None:
        self._program = program
        self._seat = seat
        self._owner = ""
        self.round, self.lr = program.round, program.lr  # plain numbers, the same for all clients
        self.entries = program.net.entries
        self.scope = program.phase.scope
        self.n_samples = _real(seat.n_samples)
        self.anchor = seat.anchor

    def of(self, owner: str) -> Any:
        self._owner = owner
        return self

    @property
    def received(self) -> dict[str, Tensor]:
        """What the client has at the start of the round: the broadcast state with its own LOCAL entries."""
        return {**self._seat.anchor, **self._seat.kept}

    @property
    def slots(self) -> dict[str, Any]:
        """This method's slots: the client's own and the server's as broadcast."""
        return {**self._seat.sent.get(self._owner, {}), **self._seat.own.get(self._owner, {})}


class Step(Context):
    """One local step. `step` and `position` may be tensors where clients are stacked."""

    def __init__(
        self, program: Program, seat: Seat, carry: Carry, x: Tensor, y: Tensor, step: Any, position: Any
    ) -> None:
        super().__init__(program, seat)
        self.params: State = carry.params  # trained by gradient
        self.forward_params: State = carry.params  # what the forward pass runs on: the same, unless a piece changes it
        self.rest: State = carry.rest  # everything else: running statistics, counters, frozen weights
        self.x, self.y = x, y
        self._number = step
        self.step, self.position = _real(step), _real(position)  # number in the round, number in its epoch
        self.logits: Tensor  # of the main forward pass, computed once and shared by all terms
        self.features: Tensor | None = None  # what entered the classifier in that pass
        self._second_passes = 0

    @property
    def classes(self) -> int:
        return self._program.classes

    @property
    def head(self) -> frozenset[str]:
        """Names of the entries of the classifier: the layer whose output is the model's."""
        return self._program.head

    def key(self, *purpose: str | int) -> Key:
        """Randomness of this client, round and step, for a purpose."""
        return fold(self._seat.key, "step", self._number, self._owner, *purpose)

    def task_loss(self, logits: Tensor) -> Tensor:
        """The run's loss of these logits on this batch."""
        return self._program.task_loss(logits, self.y)

    def forward(
        self, norm: Mode = RUNNING, params: State | None = None, rest: State | None = None, fresh_noise: bool = False
    ) -> Tensor:
        """A further forward pass over the batch, on the weights of the main pass unless others are given; nothing it
        emits is kept. Draws the same noise as the main pass, so that a difference between the two is not the noise's.
        `rest` may be a whole state, `anchor` for one: its running statistics are taken."""
        self._second_passes += fresh_noise
        return self._program.net(
            self.forward_params if params is None else params,
            self.rest if rest is None else pick(rest, self.rest),
            self.x,
            self._program.forward_pass(
                self._seat, norm, self._number, None, self._second_passes if fresh_noise else 0, False
            ),
        )


class End(Context):
    """A client's round is over."""

    def __init__(self, program: Program, seat: Seat, start: State, final: State, steps: Any, mean_loss: Tensor) -> None:
        super().__init__(program, seat)
        self.start, self.final = start, final  # whole states
        self.steps, self.mean_loss = _real(steps), mean_loss  # steps really taken


@dataclass(frozen=True)
class Viewer:
    """Who is looking, for views that prepare samples client by client."""

    client: str
    index: int | None  # in the federation's order; None for a client that is not in it
    slots: Mapping[str, Any]  # of the method whose view it is
    x: Tensor | None  # the client's training samples, where it has any


def viewed(phase: Phase, x: Tensor, client: str, names: Sequence[str], slots: Slots, train: Tensor | None) -> Tensor:
    """Samples of a client as the method's view wants them to enter the model. `names`: the federation's, in order."""
    if phase.view is None or phase.view[1].inputs is None:
        return x
    owner, view = phase.view
    assert view.inputs is not None
    index = list(names).index(client) if client in names else None
    return view.inputs(x, Viewer(client, index, slots.get(owner, {}), train))


class Alone(NamedTuple):
    """One client with its data, outside of any stack: for what only a look at all samples can tell."""

    client: str
    x: Tensor  # as they enter the model in evaluation; as they are stored, before round 0
    y: Tensor
    state: State  # at the end of its round; the model it would start from, before round 0
    round: int  # -1 before round 0
    net: Net
    classes: int

    def features(self) -> Tensor:
        """What enters the classifier for each sample, in evaluation mode."""
        return self.net.features(self.state, self.x)


class Reply(NamedTuple):
    """What the server weighs replies by; one number per client."""

    n_samples: Tensor
    mean_loss: Tensor


@dataclass(frozen=True)
class Program:
    """The local program of one round: the same for all clients, on every engine."""

    plan: Plan
    phase: Phase
    round: int
    lr: float
    optimizer: Optimizer
    clip_norm: float | None
    task_loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def net(self) -> Net:
        return self.plan.net

    @property
    def classes(self) -> int:
        return self.plan.facts.classes

    @property
    def head(self) -> frozenset[str]:
        return self.plan.facts.head

    @property
    def trains(self) -> bool:
        return any(segment.train for segment in self.phase.segments)

    def start(self, seat: Seat) -> State:
        """The state a client starts the round from."""
        context = Context(self, seat)
        if self.phase.load is None:
            return context.received
        owner, load = self.phase.load
        state: State = load(context.of(owner))
        return state

    def begin(self, seat: Seat) -> Carry:
        params, rest = self.net.split(self.start(seat))
        params = {name: tensor.clone() for name, tensor in params.items()}
        device = next(iter(params.values())).device
        return Carry(params, rest, self.optimizer.start(params), torch.zeros((), dtype=self.net.dtype, device=device))

    def forward_pass(
        self, seat: Seat, norm: Mode, step: Any, cohort: Cohort | None, fresh: int = 0, emit: bool = True
    ) -> Pass:
        def key() -> Key:
            return fold(seat.key, "noise", step, fresh)

        return Pass(norm, emit=emit, key=key, given=seat.anchor, step=_real(step), cohort=cohort, weight=seat.weight)

    def step(
        self,
        seat: Seat,
        carry: Carry,
        x: Tensor,
        y: Tensor,
        number: Any,
        position: Any,
        segment: Segment,
        gradient: Gradient,
        cohort: Cohort | None = None,
    ) -> Carry:
        """One local step on stored samples. Parameters and optimizer memory of `carry` are updated in place."""
        x = self.net.cast(x, fold(seat.key, "prepare", number))
        step = Step(self, seat, carry, x, y, number, position)
        for owner, change in self.phase.batch:
            step.x, step.y = change(step.x, step.y, step.of(owner))

        def objective(params: State) -> tuple[Tensor, Any]:
            step.params = params
            now = self.forward_pass(seat, segment.norm, number, cohort)
            if self.phase.params is not None:
                owner, change = self.phase.params
                params = change(params, step.of(owner))
            step.forward_params = params
            step.logits = self.net(params, carry.rest, step.x, now)
            step.features = now.features
            if self.phase.task is None:
                task = self.task_loss(step.logits, step.y)
            else:
                owner, own_task = self.phase.task
                task = own_task(step.of(owner))
            total = task
            for owner, term in self.phase.losses:
                extra = term(step.of(owner))
                total = total if extra is None else total + extra
            return total, (task.detach(), {name: tensor.detach() for name, tensor in now.emitted.items()})

        grads, (task, emitted) = gradient(objective, carry.params)
        with torch.no_grad():
            step.params = carry.params
            for owner, change in self.phase.grads:
                grads = change(grads, step.of(owner))
            if self.clip_norm is not None:
                grads = clip(grads, self.clip_norm)
            self.optimizer.update(carry.params, grads, carry.memory, self.lr, number)
        return Carry(carry.params, {**carry.rest, **emitted}, carry.memory, carry.loss + task)

    def measure(self, seat: Seat, carry: Carry, x: Tensor, number: Any, seen: Any, segment: Segment) -> Carry:
        """One batch of a segment that does not train: only what layers emit is kept."""
        now = self.forward_pass(seat, segment.norm, number, None)
        now.seen = _real(seen)
        with torch.no_grad():
            self.net(carry.params, carry.rest, self.net.cast(x), now)
        return carry._replace(rest={**carry.rest, **now.emitted})

    def end(self, seat: Seat, carry: Carry, steps: Any) -> Outcome:
        final = {**carry.params, **carry.rest}
        end = End(self, seat, self.start(seat), final, steps, carry.loss / steps if self.trains else carry.loss)
        own: dict[str, dict[str, Value]] = {}
        for owner, slot in self.plan.slots:
            if slot.holder is Holder.CLIENT:
                active = owner in self.phase.methods
                value = slot.after(end.of(owner)) if active else seat.own[owner][slot.name]
                own.setdefault(owner, {})[slot.name] = value
        reports = {f"{owner}/{report.name}": report.make(end.of(owner)) for owner, report in self.phase.reports}
        return Outcome(pick(final, self.phase.uploaded), pick(final, self.phase.local), own, reports, end.mean_loss)
