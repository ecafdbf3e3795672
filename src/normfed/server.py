"""One round on the server: who takes part, one exchange, one commit. All of it or nothing of it.

A run's state is a value. A round makes a new one from the old; if anything fails on the way, the old one still stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normfed.client import Outcome, Program, Reply, Seat
from normfed.data.store import Store
from normfed.engines.base import Bundle, Engine, Place, Task, alone, row, run
from normfed.errors import Aborted
from normfed.keys import fold, subset
from normfed.method import Beginning, Holder, Value, When
from normfed.optim import Optimizer
from normfed.plan import Phase, Plan
from normfed.schedule import course, full_pass
from normfed.state import State, pick

Watch = Callable[[str, State], None]  # (client, its model at the end of local training)


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
    n_samples: Tensor  # [clients of the round]
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
class Traffic:
    """What crossed the wire: totals over the clients, both directions apart. One message is one exchange between the
    server and the clients, whatever their number."""

    bytes_up: int = 0
    bytes_down: int = 0
    messages: int = 0
    per_client: Mapping[str, int] = field(default_factory=dict)  # model_up, model_down, reports, slots, collectives, …


@dataclass(frozen=True)
class RoundFacts:
    """What is recorded of a round."""

    train_loss: dict[str, float]
    skipped: dict[str, int]  # batches a norm layer could not have normalised; only clients that have any
    traffic: Traffic
    setup: Traffic  # of an exchange before round 0
    latched: dict[str, bool]


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
    slots: dict[str, dict[str, Value]] = {}
    beginning = _beginning(plan, plan.net.initial)
    for owner, slot in plan.slots:
        if slot.holder is Holder.SERVER:
            slots.setdefault(owner, {})[slot.name] = slot.init(beginning)
    for owner, gather in plan.gathers:
        slots.setdefault(owner, {})[gather.name] = gather.empty
    return RunState(0, plan.net.initial, slots, {switch.name: False for switch in plan.switches}, {})


def _beginning(plan: Plan, model: State) -> Beginning:
    shared = {name for phase in plan.phases.values() for name in phase.shared}
    return Beginning(model, pick(model, [n for n in plan.net.trainable if n in shared]), plan.net.entries)


def cohort_of(names: Sequence[str], round: int, rules: Rules) -> list[str]:
    """The clients of a round, in the federation's order: `participation` of them, at least one, by key."""
    size = max(1, round_half_up(rules.participation * len(names)))
    return list(names) if size == len(names) else subset(int(fold(rules.seed, "cohort", round)), names, size)


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def play(
    plan: Plan, state: RunState, engine: Engine, federation: Store, sizes: Mapping[str, int], rules: Rules,
    watch: Watch | None = None,
) -> tuple[RunState, RoundFacts]:  # fmt: skip
    """Plays one round and returns the state after it. `state` is not touched. `watch` is shown the model that each
    client ends its training with."""
    latched = {
        switch.name: state.latched[switch.name]
        or bool(switch.when(ServerView(state.round, rules.rounds, state.slots, switch.name)))
        for switch in plan.switches
    }
    state, before = _set_up(plan, state, federation, rules) if state.round == 0 else (state, Traffic())
    cohort = cohort_of(federation.names, state.round, rules)
    after, losses, skipped, traffic = exchange(
        plan, plan.phase(latched), state, engine, federation, sizes, rules, cohort, watch
    )
    facts = RoundFacts(losses, skipped, traffic, before, latched)
    return replace(after, round=state.round + 1, latched=latched), facts


def refresh(
    plan: Plan, state: RunState, engine: Engine, federation: Store, sizes: Mapping[str, int], rules: Rules
) -> tuple[State, Traffic]:
    """The model to evaluate with, where a method has an exchange of its own for that. Nothing of it is kept."""
    phase = plan.refreshes.get(frozenset(name for name, thrown in state.latched.items() if thrown))
    if phase is None:
        return state.model, Traffic()
    after, _, _, traffic = exchange(plan, phase, state, engine, federation, sizes, rules, list(federation.names))
    return after.model, traffic


def exchange(
    plan: Plan, phase: Phase, state: RunState, engine: Engine, federation: Store, sizes: Mapping[str, int],
    rules: Rules, cohort: Sequence[str], watch: Watch | None = None,
) -> tuple[RunState, dict[str, float], dict[str, int], Traffic]:  # fmt: skip
    """Broadcast, local segments, uploads, reduction, server pieces, commit: the state after it, the clients' losses,
    the batches they skipped, what crossed the wire."""
    places = [_place(plan, phase, state, client, sizes[client], rules) for client in cohort]
    gathered_slots = {(owner, gather.name) for owner, gather in phase.gathers}
    kept_back = {(owner, slot.name) for owner, slot in plan.slots if not slot.to_clients}
    sent = {
        owner: {name: value for name, value in slots.items() if (owner, name) not in kept_back}
        for owner, slots in state.slots.items()
        if owner in phase.methods
    }
    program = Program(plan, phase, state.round, rules.lr(state.round), rules.optimizer, rules.clip_norm, rules.loss)
    task = Task(program, state.model, sent, places, federation)
    uploads = _receive(task, phase, run(engine, task), watch)

    end = RoundEnd(
        state.round, state.model, {**state.model, **uploads.proposal}, state.slots, uploads.reports, uploads.losses,
        uploads.weights, uploads.n_samples, len(federation.names), owner="",
    )  # fmt: skip
    slots = _server_slots(plan, phase, end)
    for owner, name in gathered_slots:
        slots[owner][name] = uploads.gathered[f"{owner}/{name}"]
    clients = dict(state.clients)
    for client, new in uploads.clients.items():  # a phase keeps what it does not own for the phase that does
        clients[client] = ClientState({**(clients[client].kept if client in clients else {}), **new.kept}, new.slots)
    after = replace(state, model=_server_pieces(phase, end, slots), slots=slots, clients=clients)
    losses = dict(zip(uploads.order, uploads.losses.tolist(), strict=True))
    return (
        after,
        {client: losses[client] for client in cohort},
        {place.client: place.course.skipped for place in places if place.course.skipped},
        _traffic(plan, phase, sent, uploads, task.message_bytes),
    )


def evaluated(
    plan: Plan, state: RunState, client: str, model: State, size: int, federation: Store, rules: Rules
) -> State:
    """What a client evaluates with, given the global model: what it would start the next round from."""
    phase = plan.phase(state.latched)
    mine = state.clients.get(client, ClientState())
    own = {**model, **{name: mine.kept[name] for name in phase.local if name in mine.kept}}
    if phase.load is None:
        return own
    place = _place(plan, phase, replace(state, model=model), client, size, rules)
    program = Program(plan, phase, state.round, 0.0, rules.optimizer, rules.clip_norm, rules.loss)
    seat = Seat(model, place.kept, place.own, state.slots, place.key, size, torch.tensor(place.weight))
    return {**own, **program.start(seat)}


def _set_up(plan: Plan, state: RunState, federation: Store, rules: Rules) -> tuple[RunState, Traffic]:
    """What every client is asked for once, before round 0."""
    wanted = [(owner, gather) for owner, gather in plan.gathers if gather.when is When.SETUP]
    if not wanted:
        return state, Traffic()
    program = Program(plan, plan.first, -1, rules.lr(0), rules.optimizer, rules.clip_norm, rules.loss)
    values = [alone(program, federation, client, state.model, When.SETUP, -1, {}) for client in federation.names]
    slots = {owner: dict(slots) for owner, slots in state.slots.items()}
    for owner, gather in wanted:
        slots[owner][gather.name] = gather.combine([v[f"{owner}/{gather.name}"] for v in values], gather.empty)
    up = sum(nbytes(value) for value in values)
    return replace(state, slots=slots), Traffic(bytes_up=up, messages=1, per_client={"gathered": up // len(values)})


def _place(plan: Plan, phase: Phase, state: RunState, client: str, n: int, rules: Rules) -> Place:
    mine = state.clients.get(client, ClientState())
    key = fold(rules.seed, state.round, client)
    assert isinstance(key, int)
    beginning = _beginning(plan, state.model)
    own: dict[str, dict[str, Value]] = {}
    for owner, slot in plan.slots:
        if slot.holder is Holder.CLIENT:
            known = mine.slots.get(owner, {})
            own.setdefault(owner, {})[slot.name] = known[slot.name] if slot.name in known else slot.init(beginning)
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
        measured_on=lambda size: full_pass(n, size or rules.batch_size, plan.facts.smallest_batch),
        course=course(
            n, rules.batch_size, rules.epochs, rules.steps, rules.drop_last, plan.facts.smallest_batch,
            key if rules.shuffle else None,
        ),
    )  # fmt: skip


@dataclass
class _Uploads:
    proposal: dict[str, Tensor] = field(default_factory=dict)
    reports: dict[str, State] = field(default_factory=dict)
    gathered: dict[str, State] = field(default_factory=dict)
    bytes_of_reports: int = 0
    bytes_of_gathered: int = 0
    clients: dict[str, ClientState] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    losses: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    weights: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    n_samples: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))


def _receive(task: Task, phase: Phase, bundles: Iterable[Bundle], watch: Watch | None = None) -> _Uploads:
    """Reduces the uploads as they come and holds back what stays with the clients until all have come."""
    sums = [reducer.start() for reducer, _ in phase.reducers]
    reports = {f"{owner}/{report.name}": (report.reducer, report.reducer.start()) for owner, report in phase.reports}
    gathered: dict[str, dict[str, State]] = {f"{owner}/{gather.name}": {} for owner, gather in phase.gathers}
    uploads = _Uploads()
    for bundle in bundles:
        outcome: Outcome = bundle.outcome
        n_samples = torch.tensor([place.n_samples for place in bundle.places], dtype=torch.float64)
        weights = _weights(phase, bundle, n_samples)
        sums = [
            reducer.add(acc, pick(outcome.shared, names), weights)
            for (reducer, names), acc in zip(phase.reducers, sums, strict=True)
        ]
        for name, (reducer, acc) in reports.items():
            reports[name] = (reducer, reducer.add(acc, outcome.reports[name], weights))
        uploads.bytes_of_reports = sum(nbytes(values) // len(bundle.places) for values in outcome.reports.values())
        for i, place in enumerate(bundle.places):
            uploads.clients[place.client] = ClientState(row(outcome.kept, i), row(outcome.own, i))
            uploads.order.append(place.client)
            if not gathered and watch is None:
                continue
            final = {**task.anchor, **row(outcome.shared, i), **row(outcome.kept, i)}
            if watch is not None:
                watch(place.client, final)
            if gathered:
                made = alone(
                    task.program, task.federation, place.client, final, When.ROUND, task.program.round, task.sent
                )
                uploads.bytes_of_gathered += nbytes(made)
                for name in gathered:
                    gathered[name][place.client] = made[name]
        uploads.losses = torch.cat([uploads.losses, outcome.loss.to("cpu", torch.float64)])
        uploads.weights = torch.cat([uploads.weights, weights])
        uploads.n_samples = torch.cat([uploads.n_samples, n_samples])
    try:
        for (reducer, _), acc in zip(phase.reducers, sums, strict=True):
            uploads.proposal.update(reducer.finish(acc))
        uploads.reports = {name: reducer.finish(acc) for name, (reducer, acc) in reports.items()}
    except Aborted as reason:
        of = ", ".join(f"{c}: {w:g}" for c, w in zip(uploads.order, uploads.weights.tolist(), strict=True))
        raise Aborted(f"{reason} ({of}); the round was not committed") from None
    for owner, gather in phase.gathers:
        values = gathered[f"{owner}/{gather.name}"]
        in_order = [values[place.client] for place in task.places]
        uploads.gathered[f"{owner}/{gather.name}"] = gather.combine(in_order, task.sent[owner][gather.name])
    return uploads


def _weights(phase: Phase, bundle: Bundle, n_samples: Tensor) -> Tensor:
    """[clients], float64, on the CPU."""
    if phase.weigh is None:
        return torch.tensor([place.weight for place in bundle.places], dtype=torch.float64)
    _, weigh = phase.weigh
    weights: Tensor = weigh(Reply(n_samples, bundle.outcome.loss.to("cpu", torch.float64)))
    return weights


def _server_slots(plan: Plan, phase: Phase, end: RoundEnd) -> dict[str, dict[str, Value]]:
    slots = {owner: dict(values) for owner, values in end.all_slots.items()}
    for owner, slot in plan.slots:
        if slot.holder is Holder.SERVER and owner in phase.methods:
            slots[owner][slot.name] = slot.after(replace(end, owner=owner))
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


def _traffic(plan: Plan, phase: Phase, sent: Any, uploads: _Uploads, collectives: Sequence[int]) -> Traffic:
    sizes = {e.name: e.nbytes for e in plan.net.entries}
    clients = len(uploads.order)
    per_client = {
        "model_up": sum(sizes[name] for name in phase.uploaded),
        "model_down": sum(sizes[name] for name in phase.shared),
        "reports": uploads.bytes_of_reports,
        "gathered": uploads.bytes_of_gathered // clients,
        "slots": nbytes(sent),
        "collectives": sum(collectives),
    }
    if plan.pool or not (phase.shared or phase.reports or phase.gathers):
        return Traffic()
    return Traffic(
        bytes_up=clients * (per_client["model_up"] + per_client["reports"] + per_client["collectives"])
        + uploads.bytes_of_gathered,
        bytes_down=clients * (per_client["model_down"] + per_client["slots"] + per_client["collectives"]),
        messages=1 + len(collectives),
        per_client=per_client,
    )
