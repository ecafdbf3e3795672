"""One round on the server: who takes part, one exchange, one commit. All of it or nothing of it.

A run's state is a value. A round makes a new one from the old; if anything fails on the way, the old one still stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normfed.client import Outcome, Program, Reply
from normfed.data.federation import Federation
from normfed.engines.base import Bundle, Engine, Place, Task, run
from normfed.errors import Aborted
from normfed.keys import fold, subset
from normfed.method import Holder, Value
from normfed.optim import Optimizer
from normfed.plan import Phase, Plan
from normfed.schedule import course
from normfed.state import State, pick


@dataclass(frozen=True)
class ClientState:
    """What stays with a client between rounds."""

    kept: State = field(default_factory=dict)  # entries that are LOCAL in some phase
    slots: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)


@dataclass(frozen=True)
class RunState:
    """Everything a run needs to go on: a value, saved and resumed whole."""

    round: int
    model: State  # the global model; LOCAL entries keep their initial value
    slots: Mapping[str, Mapping[str, Value]]  # the server's
    latched: Mapping[str, bool]  # switches, thrown or not
    clients: Mapping[str, ClientState]  # those who took part at least once


@dataclass(frozen=True)
class ServerView:
    """What a switch looks at when a round starts."""

    round: int
    rounds: int
    all_slots: Mapping[str, Mapping[str, Value]]
    owner: str

    @property
    def slots(self) -> Mapping[str, Any]:
        return self.all_slots.get(self.owner, {})


@dataclass(frozen=True)
class RoundEnd:
    """What a server's slot, and a server piece, see when the exchange is about to commit."""

    round: int
    anchor: State  # the global model the round began with
    proposal: State  # the reduced uploads
    all_slots: Mapping[str, Mapping[str, Value]]  # for slots: before the round; for server pieces: after it
    all_reports: Mapping[str, State]  # reduced
    losses: Tensor  # [clients of the round]
    weights: Tensor  # [clients of the round], unnormalised
    n_clients: int  # in the federation, taking part or not
    owner: str

    @property
    def slots(self) -> Mapping[str, Any]:
        return self.all_slots.get(self.owner, {})

    @property
    def reports(self) -> Mapping[str, Any]:
        prefix = f"{self.owner}/"
        return {name.removeprefix(prefix): r for name, r in self.all_reports.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class RoundFacts:
    """What is recorded of a round. Bytes are totals over its clients, both directions apart; one message is one
    exchange between the server and the clients."""

    train_loss: dict[str, float]
    skipped: dict[str, int]  # batches a norm layer could not have normalised; only clients that have any
    bytes_up: int
    bytes_down: int
    messages: int
    latched: dict[str, bool]
    wire: dict[str, int]  # bytes per client: model_up, model_down, reports, slots, collectives


@dataclass(frozen=True)
class Rules:
    """The run's settings that a round depends on."""

    seed: int
    rounds: int
    batch_size: int
    epochs: int
    steps: int | None
    drop_last: bool
    shuffle: bool
    participation: float
    weighting: str | Mapping[str, float]
    lr: Callable[[int], float]
    optimizer: Optimizer
    clip_norm: float | None
    loss: Callable[[Tensor, Tensor], Tensor]


def initial(plan: Plan) -> RunState:
    shared = {name for phase in plan.phases.values() for name in phase.shared}
    start = pick(plan.net.initial, [n for n in plan.net.trainable if n in shared])
    slots: dict[str, dict[str, Value]] = {}
    for owner, slot in plan.slots:
        if slot.holder is Holder.SERVER:
            slots.setdefault(owner, {})[slot.name] = slot.init(start)
    return RunState(0, plan.net.initial, slots, {switch.name: False for switch in plan.switches}, {})


def cohort_of(names: Sequence[str], round: int, rules: Rules) -> list[str]:
    """The clients of a round, in the federation's order: `participation` of them, at least one, by key."""
    size = max(1, round_half_up(rules.participation * len(names)))
    return list(names) if size == len(names) else subset(int(fold(rules.seed, "cohort", round)), names, size)


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def play(
    plan: Plan, state: RunState, engine: Engine, federation: Federation, sizes: Mapping[str, int], rules: Rules
) -> tuple[RunState, RoundFacts]:
    """Plays one round and returns the state after it. `state` is not touched."""
    latched = {
        switch.name: state.latched[switch.name]
        or bool(switch.when(ServerView(state.round, rules.rounds, state.slots, switch.name)))
        for switch in plan.switches
    }
    phase = plan.phase(latched)
    cohort = cohort_of(federation.names, state.round, rules)
    places = [_place(plan, phase, state, client, sizes[client], rules) for client in cohort]
    sent = {
        owner: {slot.name: state.slots[owner][slot.name]}
        for owner, slot in plan.slots
        if slot.holder is Holder.SERVER and slot.to_clients and owner in phase.methods
    }
    program = Program(plan, phase, state.round, rules.lr(state.round), rules.optimizer, rules.clip_norm, rules.loss)
    task = Task(program, state.model, sent, places, federation)
    gathered = _gather(plan, phase, rules, run(engine, task))

    end = RoundEnd(
        state.round, state.model, {**state.model, **gathered.proposal}, state.slots, gathered.reports,
        gathered.losses, gathered.weights, len(federation.names), owner="",
    )  # fmt: skip
    slots = _server_slots(plan, phase, state, end)
    model = _server_pieces(phase, end, slots)
    clients = dict(state.clients)
    for client, new in gathered.clients.items():  # a phase keeps what it does not own for the phase that does
        clients[client] = ClientState({**(clients[client].kept if client in clients else {}), **new.kept}, new.slots)
    wire = _wire(plan, phase, sent, gathered.report_bytes, task.message_bytes)
    n = 0 if plan.pool else len(cohort)
    crosses = bool(phase.shared or phase.reports) and not plan.pool
    losses = dict(zip(gathered.order, gathered.losses.tolist(), strict=True))
    facts = RoundFacts(
        train_loss={client: losses[client] for client in cohort},
        skipped={place.client: place.course.skipped for place in places if place.course.skipped},
        bytes_up=n * (wire["model_up"] + wire["reports"] + wire["collectives"]),
        bytes_down=n * (wire["model_down"] + wire["slots"] + wire["collectives"]),
        messages=int(crosses) + (0 if plan.pool else len(task.message_bytes)),
        latched=latched,
        wire=wire,
    )
    return RunState(state.round + 1, model, slots, latched, clients), facts


def _place(plan: Plan, phase: Phase, state: RunState, client: str, n: int, rules: Rules) -> Place:
    mine = state.clients.get(client, ClientState())
    key = fold(rules.seed, state.round, client)
    assert isinstance(key, int)
    start = pick(state.model, [name for name in plan.net.trainable if name in phase.shared])
    own: dict[str, dict[str, Value]] = {}
    for owner, slot in plan.slots:
        if slot.holder is Holder.CLIENT:
            known = mine.slots.get(owner, {})
            own.setdefault(owner, {})[slot.name] = known[slot.name] if slot.name in known else slot.init(start)
    weighting = rules.weighting
    if isinstance(weighting, str):
        weight = float(n) if weighting == "samples" else 1.0
    else:
        weight = float(weighting[client])
    return Place(
        client,
        kept={name: mine.kept.get(name, state.model[name]) for name in phase.local},
        own=own,
        key=key,
        n_samples=n,
        weight=weight,
        course=course(
            n, rules.batch_size, rules.epochs, rules.steps, rules.drop_last, plan.facts.smallest_batch,
            key if rules.shuffle else None,
        ),
    )  # fmt: skip


@dataclass
class _Gathered:
    proposal: dict[str, Tensor]
    reports: dict[str, State]
    report_bytes: int
    clients: dict[str, ClientState]
    order: list[str]
    losses: Tensor
    weights: Tensor


def _gather(plan: Plan, phase: Phase, rules: Rules, bundles: Any) -> _Gathered:
    """Reduces the uploads as they come and holds back what stays with the clients until all have come."""
    sums = [reducer.start() for reducer, _ in phase.reducers]
    reports = {f"{owner}/{report.name}": (report.reducer, report.reducer.start()) for owner, report in phase.reports}
    gathered = _Gathered({}, {}, 0, {}, [], torch.zeros(0), torch.zeros(0))
    for bundle in bundles:
        outcome: Outcome = bundle.outcome
        weights = _weights(phase, bundle)
        sums = [
            reducer.add(acc, pick(outcome.shared, names), weights)
            for (reducer, names), acc in zip(phase.reducers, sums, strict=True)
        ]
        for name, (reducer, acc) in reports.items():
            values = outcome.reports[name]
            reports[name] = (reducer, reducer.add(acc, values, weights))
        k = len(bundle.places)
        gathered.report_bytes = sum(v.nbytes // k for values in outcome.reports.values() for v in values.values())
        for i, place in enumerate(bundle.places):
            gathered.clients[place.client] = ClientState(_row(outcome.kept, i), _row(outcome.own, i))
            gathered.order.append(place.client)
        gathered.losses = torch.cat([gathered.losses, outcome.loss.to("cpu", torch.float64)])
        gathered.weights = torch.cat([gathered.weights, weights])
    if not phase.reducers and not phase.reports:
        return gathered
    try:
        for (reducer, _), acc in zip(phase.reducers, sums, strict=True):
            gathered.proposal.update(reducer.finish(acc))
        gathered.reports = {name: reducer.finish(acc) for name, (reducer, acc) in reports.items()}
    except Aborted as reason:
        of = ", ".join(f"{c}: {w:g}" for c, w in zip(gathered.order, gathered.weights.tolist(), strict=True))
        raise Aborted(f"{reason} ({of}); the round was not committed") from None
    return gathered


def _weights(phase: Phase, bundle: Bundle) -> Tensor:
    """[clients], float64, on the CPU."""
    if phase.weigh is None:
        return torch.tensor([place.weight for place in bundle.places], dtype=torch.float64)
    n_samples = torch.tensor([place.n_samples for place in bundle.places], dtype=torch.float64)
    _, weigh = phase.weigh
    weights: Tensor = weigh(Reply(n_samples, bundle.outcome.loss.to("cpu", torch.float64)))
    return weights


def _row(value: Any, i: int) -> Any:
    """Client i of a bundle, as tensors of its own."""
    if isinstance(value, Tensor):
        return value[i].clone() if len(value) > 1 else value[0]
    return {name: _row(part, i) for name, part in value.items()}


def _server_slots(plan: Plan, phase: Phase, state: RunState, end: RoundEnd) -> dict[str, dict[str, Value]]:
    slots: dict[str, dict[str, Value]] = {}
    for owner, slot in plan.slots:
        if slot.holder is Holder.SERVER:
            before = state.slots[owner][slot.name]
            after = slot.after(replace(end, owner=owner)) if owner in phase.methods else before
            slots.setdefault(owner, {})[slot.name] = after
    return slots


def _server_pieces(phase: Phase, end: RoundEnd, slots: Mapping[str, Mapping[str, Value]]) -> dict[str, Tensor]:
    model = dict(end.proposal)
    for owner, names, piece in phase.server:
        changed = piece(replace(end, owner=owner, all_slots=slots), pick(end.proposal, names))
        if set(changed) != set(names):
            raise AssertionError(f"a server piece of '{owner}' must give back the entries it was given")
        model.update(changed)
    return model


def nbytes(value: Any) -> int:
    return value.nbytes if isinstance(value, Tensor) else sum(nbytes(part) for part in value.values())


def _wire(plan: Plan, phase: Phase, sent: Any, report_bytes: int, messages: Sequence[int]) -> dict[str, int]:
    sizes = {e.name: e.nbytes for e in plan.net.entries}
    return {
        "model_up": sum(sizes[name] for name in phase.uploaded),
        "model_down": sum(sizes[name] for name in phase.shared),
        "reports": report_bytes,
        "slots": nbytes(sent),
        "collectives": sum(messages),
    }
