"""From a method and a model to a plan: every question answered before round 0, or every reason why not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normfed.errors import Refused
from normfed.method import Expression, Gather, Method, Report, Segment, Slot, Switch, View, When
from normfed.net import Facts, Net, materialise, probe
from normfed.norm import BATCH, RUNNING, Driveable
from normfed.prepare import PLAIN, Prepare
from normfed.reducers import PooledMoments, Reducer, maximum, weighted_mean
from normfed.state import BATCH_NORMS, Entry, Role, Scope, Select, StatisticsLayer, norm_layers

T = TypeVar("T")
Owned = tuple[str, Callable[..., Any]]  # (the method it belongs to, piece)


@dataclass(frozen=True)
class Built:
    """What needs are checked against."""

    entries: tuple[Entry, ...]
    keepers: Mapping[str, str]  # entry that stays on the clients -> the method that keeps it there
    norms: Mapping[str, int]  # type of norm layer -> how many
    changed_by: tuple[str, ...]  # methods that transform the model
    facts: Facts


@dataclass(frozen=True)
class Phase:
    """The method as it stands between two switches, every rule resolved entry by entry."""

    methods: tuple[str, ...]
    scope: Mapping[str, Scope]
    shared: tuple[str, ...]
    local: tuple[str, ...]
    uploaded: tuple[str, ...]  # shared, less the statistics that no segment moves
    reducers: tuple[tuple[Reducer, tuple[str, ...]], ...]
    segments: tuple[Segment, ...]
    load: Owned | None
    batch: tuple[Owned, ...]
    params: Owned | None
    task: Owned | None
    losses: tuple[Owned, ...]
    grads: tuple[Owned, ...]
    reports: tuple[tuple[str, Report], ...]
    gathers: tuple[tuple[str, Gather], ...]
    weigh: Owned | None
    server: tuple[tuple[str, tuple[str, ...], Callable[..., Any]], ...]  # (owner, entries it sets, piece)
    view: tuple[str, View] | None
    needs: tuple[str, ...]

    @property
    def lockstep(self) -> bool:
        return any(segment.lockstep for segment in self.segments)

    def reducer_of(self, name: str) -> str | None:
        return next((reducer.name for reducer, names in self.reducers if name in names), None)


@dataclass(frozen=True)
class Plan:
    """A method built for a model."""

    method: Expression
    net: Net
    facts: Facts
    phases: Mapping[frozenset[str], Phase]  # thrown switches -> phase
    switches: tuple[Switch, ...]
    slots: tuple[tuple[str, Slot], ...]
    pool: bool
    refreshes: Mapping[frozenset[str], Phase]  # the exchange played before an evaluation, where a phase has one
    gathers: tuple[tuple[str, Gather], ...]  # of all phases

    def phase(self, latched: Mapping[str, bool]) -> Phase:
        return self.phases[frozenset(name for name, thrown in latched.items() if thrown)]

    @property
    def first(self) -> Phase:
        return self.phases[frozenset()]


def build(method: Expression, model: nn.Module, x: Tensor, seed: int = 0, prepare: Prepare = PLAIN) -> Plan:
    """Builds `method` for `model` (not touched) and samples like `x`, which `prepare` makes input of. Raises `Refused`
    with all problems."""
    if not isinstance(method, Expression):
        hint = "; call it" if callable(method) else "; normfed.expression.parse reads text" * isinstance(method, str)
        kind = type(method).__name__
        raise Refused(f"method must be what a factory of normfed.methods returns, not {kind}{hint}")
    if not isinstance(model, nn.Module):
        raise Refused(f"model must be a torch.nn.Module, not {getattr(model, '__name__', type(model).__name__)}")
    switches = tuple({s.name: s for s in method.switches()}.values())
    combinations = [
        frozenset(name for name, thrown in zip([s.name for s in switches], flags, strict=True) if thrown)
        for flags in itertools.product((False, True), repeat=len(switches))
    ]
    atoms = {c: method.atoms(dict.fromkeys(c, True)) for c in combinations}
    problems: list[str] = []

    transforms = {c: [(a.name, t) for a in chosen for t in a.transform] for c, chosen in atoms.items()}
    first = transforms[frozenset()]
    if any([t for _, t in other] != [t for _, t in first] for other in transforms.values()):
        problems.append(f"{method}: phases of a method cannot transform the model differently")
    x = prepare(x, _precision(model))
    net = _transformed(materialise(model, x, seed), x, first, problems)
    model_facts = (norm_layers(net), tuple(dict.fromkeys(owner for owner, _ in first)))
    prepared = Net(net, prepare)
    facts = probe(prepared, x)
    problems += facts.problems

    slots, clashes = _slots(atoms.values())
    problems += clashes
    phases, refreshes = {}, {}
    gathers: dict[tuple[str, str], Gather] = {}
    for combination, chosen in atoms.items():
        phase, clashes = _phase(chosen, prepared, facts, *model_facts)
        phases[combination] = phase
        problems += clashes
        gathers.update({(a.name, gather.name): gather for a in chosen for gather in a.gather})
        if phase.view is not None and phase.view[1].refresh is not None:
            refreshes[combination], clashes = _phase([phase.view[1].refresh], prepared, facts, *model_facts)
            problems += clashes
    if problems:
        raise Refused(*dict.fromkeys(problems))
    pool = any(a.pool for chosen in atoms.values() for a in chosen)
    every_gather = tuple((owner, gather) for (owner, _), gather in gathers.items())
    return Plan(method, prepared, facts, phases, switches, slots, pool, refreshes, every_gather)


def _precision(model: nn.Module) -> torch.dtype:
    floating = (p.dtype for p in model.parameters() if p.dtype.is_floating_point)
    return next(floating, torch.get_default_dtype())


def transformed(method: Expression, model: nn.Module, x: Tensor, seed: int = 0, prepare: Prepare = PLAIN) -> nn.Module:
    """A copy of the model as the method has it made: a plain module, which nobody drives."""
    transforms = [(atom.name, t) for atom in method.atoms({}) for t in atom.transform]
    x = prepare(x, _precision(model))
    return _transformed(materialise(model, x, seed), x, transforms, [])


def _transformed(net: nn.Module, x: Tensor, transforms: Sequence[tuple[str, Any]], problems: list[str]) -> nn.Module:
    for i, (owner, transform) in enumerate(transforms):
        earlier = " and ".join(dict.fromkeys(name for name, _ in transforms[:i]))
        try:
            net = transform(net, x)
        except Refused as refusal:
            problems += [f"{owner}: {problem}" + f" (after {earlier})" * bool(earlier) for problem in refusal.problems]
    if problems:
        raise Refused(*problems)
    return net


def _slots(phases: Any) -> tuple[tuple[tuple[str, Slot], ...], list[str]]:
    """Every slot of every phase: all are allocated at the start, so a change of phase changes no shape."""
    slots: dict[tuple[str, str], Slot] = {}
    problems = []
    for atoms in phases:
        seen: set[tuple[str, str]] = set()
        for atom in atoms:
            for slot in atom.slots:
                key = (atom.name, slot.name)
                if key in seen or slots.get(key, slot) is not slot:
                    problems.append(f"two methods called '{atom.name}' both keep '{slot.name}'")
                seen.add(key)
                slots[key] = slot
    return tuple((owner, slot) for (owner, _), slot in slots.items()), problems


# What a record decides alone, in words.
_SINGLE = {
    "load": "what a client starts a round from",
    "params": "which weights enter the forward pass",
    "task": "the loss",
    "weigh": "how clients are weighed",
    "plan": "how norm layers behave in the local steps",
    "view": "what an evaluation sees",
}


def _phase(
    atoms: Sequence[Method], net: Net, facts: Facts, norms: Mapping[str, int], changed_by: tuple[str, ...]
) -> tuple[Phase, list[str]]:
    problems: list[str] = []
    entries = net.entries
    scope, clashes = _resolve([(a.name, a.scope) for a in atoms], entries, "is owned by")
    problems += clashes
    owners = {e.name: scope.get(e.name, Scope.SHARED) for e in entries}
    shared = tuple(e.name for e in entries if owners[e.name] is Scope.SHARED)
    reducers, clashes = _resolve([(a.name, a.reduce) for a in atoms], entries, "is reduced by")
    problems += clashes

    singles: dict[str, Any] = {}
    for axis, words in _SINGLE.items():
        setters = [(a.name, getattr(a, axis)) for a in atoms if getattr(a, axis) is not None]
        if len({id(value) for _, value in setters}) > 1 and any(v != setters[0][1] for _, v in setters):
            problems.append(f"{' and '.join(name for name, _ in setters)} cannot be combined: both decide {words}")
        singles[axis] = setters[0] if setters else None
    plan = singles["plan"]
    segments: Any = plan[1] if plan is not None else (Segment(),)
    uploaded = [e for e in entries if e.name in shared and _can_move(e, segments, net)]
    server, clashes = _server(atoms, uploaded)
    problems += clashes
    if any(s.lockstep for s in segments) and singles["weigh"] is not None:
        problems.append(
            f"{singles['weigh'][0]} and {plan[0]} cannot be combined: {singles['weigh'][0]} weighs clients after the "
            f"round, {plan[0]} needs the weights inside it"
        )
    odd = {e.layer: e.kind.__name__ for e in entries if issubclass(e.kind, StatisticsLayer)}
    modes = [s.norm for s in segments if s.norm not in (BATCH, RUNNING)]
    if odd and modes and any(e.role is Role.NORM_STAT and e.layer in odd for e in entries):
        kinds = ", ".join(sorted(set(odd.values())))
        problems.append(f"{plan[0]} tells BatchNorm layers how to normalise, and {kinds} layers cannot be told")
    view = singles["view"]
    keepers = {
        name: next(a.name for a in atoms if any(chosen(e) for chosen, _ in a.scope))
        for e in entries
        if owners[name := e.name] is Scope.LOCAL
    }
    built = Built(entries, keepers, norms, changed_by, facts)
    for atom in atoms:
        for need in atom.needs:
            reason = need.unmet(built)
            if reason is not None:
                problems.append(f"{atom.name} needs a model that {need.text}; {reason}")

    phase = Phase(
        methods=tuple(a.name for a in atoms),
        scope=owners,
        shared=shared,
        local=tuple(e.name for e in entries if owners[e.name] is Scope.LOCAL),
        uploaded=tuple(e.name for e in uploaded),
        reducers=_grouped(reducers, uploaded, problems),
        segments=tuple(segments),
        load=singles["load"],
        batch=tuple((a.name, f) for a in atoms for f in a.batch),
        params=singles["params"],
        task=singles["task"],
        losses=tuple((a.name, f) for a in atoms for f in a.loss),
        grads=tuple((a.name, f) for a in atoms for f in a.grad),
        reports=tuple((a.name, r) for a in atoms for r in a.report),
        gathers=tuple((a.name, g) for a in atoms for g in a.gather if g.when is When.ROUND),
        weigh=singles["weigh"],
        server=server,
        view=view,
        needs=tuple(f"{a.name}: {need.text}" for a in atoms for need in a.needs),
    )
    return phase, problems


def _can_move(entry: Entry, segments: Sequence[Segment], net: Net) -> bool:
    """Whether a client's round can change an entry. What cannot move need not be sent back, nor averaged."""
    if entry.trainable:
        return any(s.train for s in segments)
    if entry.role in (Role.NORM_STAT, Role.COUNTER):
        return issubclass(entry.kind, BATCH_NORMS) and any(s.norm.emits for s in segments)
    if entry.role is Role.BUFFER:
        return issubclass(entry.kind, Driveable) or entry.name in net.stateful
    return False  # a frozen parameter


def _resolve(
    rules: Sequence[tuple[str, Sequence[tuple[Select, T]]]], entries: Sequence[Entry], verb: str
) -> tuple[dict[str, T], list[str]]:
    """The answer of each entry. Within a method the first matching rule counts; methods must agree."""
    answers: dict[str, T] = {}
    clashes: dict[str, str] = {}
    for entry in entries:
        given = [(owner, next((answer for chosen, answer in own if chosen(entry)), None)) for owner, own in rules]
        said = [(owner, answer) for owner, answer in given if answer is not None]
        if said:
            answers[entry.name] = said[0][1]
        if any(answer != said[0][1] for _, answer in said):
            two = dict(said)
            text = ", ".join(f"{_label(answer)} ({owner})" for owner, answer in two.items())
            clashes.setdefault(f"{' and '.join(two)} cannot be combined", f"'{entry.name}' {verb} {text}")
    return answers, [f"{who}: {what}" for who, what in clashes.items()]


def _label(answer: Any) -> str:
    return getattr(answer, "name", str(answer)).lower()


def _grouped(
    chosen: Mapping[str, Reducer], entries: Sequence[Entry], problems: list[str]
) -> tuple[tuple[Reducer, tuple[str, ...]], ...]:
    groups: dict[Reducer, list[Entry]] = {}
    for entry in entries:
        default = weighted_mean if entry.dtype.is_floating_point or entry.dtype.is_complex else maximum
        groups.setdefault(chosen.get(entry.name, default), []).append(entry)
    resolved = []
    for reducer, members in groups.items():
        reason = reducer.fits(members)
        if reason is not None:
            problems.append(f"reducer {reducer.name}: {reason}")
            continue
        if isinstance(reducer, PooledMoments):
            reducer = reducer.paired(members)
        resolved.append((reducer, tuple(e.name for e in members)))
    return tuple(resolved)


def _server(
    atoms: Sequence[Method], shared: Sequence[Entry]
) -> tuple[tuple[tuple[str, tuple[str, ...], Callable[..., Any]], ...], list[str]]:
    """Server pieces with the entries each may set; no entry has two."""
    pieces, problems = [], []
    taken: dict[str, str] = {}
    for atom in atoms:
        for chosen, piece in atom.server:
            names = tuple(e.name for e in shared if chosen(e))
            twice = next((name for name in names if name in taken), None)
            if twice is not None:
                problems.append(f"{taken[twice]} and {atom.name} cannot be combined: both set '{twice}' on the server")
            taken.update(dict.fromkeys(names, atom.name))
            pieces.append((atom.name, names, piece))
    return tuple(pieces), problems
