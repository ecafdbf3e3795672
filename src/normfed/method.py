"""A method is a value: a frozen record with one field per axis, in the order in which data meet them in a round.

An empty record *is* FedAvg, and the unit of composition: `fedavg() | m == m == m | fedavg()`. `a | b` puts records
together; what each axis makes of several records is written beside its field and checked by `plan.build`.
`switch` makes phases. No record knows an engine, a device, a logger or a config.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ParamSpec

from torch import Tensor, nn

from normfed.errors import Refused
from normfed.norm import BATCH, RUNNING, Mode
from normfed.reducers import Reducer
from normfed.state import Entry, Scope, Select, State, zeros
from normfed.text import bind

if TYPE_CHECKING:
    from normfed.client import Alone, Context, End, Reply, Step, Viewer
    from normfed.plan import Built
    from normfed.server import RoundEnd, ServerView

P = ParamSpec("P")
Value = Tensor | State  # of a slot or a report


# ---------------------------------------------------------------------------------------------------------------
# What stands in the fields of a method.


class Steps(StrEnum):
    ALL = "all"  # what is left of the round's batches


@dataclass(frozen=True)
class Segment:
    """A stretch of local steps under one mode of the norm layers. In lock-step, all clients take each step together.

    With `train=False` nothing is trained: one full pass over the client's data in stored order, for what the norm
    layers emit on the way; in batches of `batch_size`, the run's where none is given.
    """

    steps: int | Steps = Steps.ALL
    norm: Mode = BATCH
    lockstep: bool = False
    train: bool = True
    batch_size: int | None = None


@dataclass(frozen=True)
class Beginning:
    """What the first value of a slot may depend on."""

    model: State  # the global model
    trained: State  # its entries that are trainable and shared
    entries: tuple[Entry, ...]


def zeros_of_trained(beginning: Beginning) -> State:
    """First value of control variates, momentum and the like."""
    return zeros(beginning.trained)


class Holder(StrEnum):
    CLIENT = "client"  # one value per client, stays there
    SERVER = "server"  # one value, broadcast to the clients of a round


@dataclass(frozen=True)
class Slot:
    """State that is not the model: control variates, server momentum, counters of calm rounds.

    `init(beginning)` gives the first value: the server's before round 0, a client's when it first takes part.
    `after(end)` gives the new value when the round commits; a client's and the server's commit together or not at all.
    """

    name: str
    holder: Holder
    init: Callable[[Beginning], Value]
    after: Callable[[Any], Value]  # End for a client's slot, RoundEnd for the server's
    to_clients: bool = True  # whether a server's slot is broadcast


@dataclass(frozen=True)
class Report:
    """What a client uploads beside the model, with how it is reduced. Every client's has the same names and shapes."""

    name: str
    make: Callable[[End], State]
    reducer: Reducer


class When(StrEnum):
    SETUP = "setup"  # once, from every client, before round 0
    ROUND = "round"  # from the clients of a round, at its end


@dataclass(frozen=True)
class Gather:
    """What the server must see client by client: prototypes, banks of statistics. Names and shapes may differ.

    `make(alone)` is called for each client outside of any stack; `combine(values, before)` gets the clients' values in
    the federation's order. The combined value is a slot of the server, `empty` at first, broadcast from then on.
    """

    name: str
    make: Callable[[Alone], State]
    combine: Callable[[list[State], Any], State]
    empty: State
    when: When = When.ROUND


@dataclass(frozen=True)
class View:
    """How a method's model is evaluated, where that is not simply its state on the client's samples."""

    inputs: Callable[[Tensor, Viewer], Tensor] | None = None  # applied to samples before they enter the model
    refresh: Method | None = None  # an exchange played before each evaluation; what it gives is not kept


@dataclass(frozen=True)
class Need:
    """A fact that must hold for the built model and engine. `unmet` gives the reason it does not, or None."""

    text: str
    unmet: Callable[[Built], str | None]


# ---------------------------------------------------------------------------------------------------------------
# The algebra.


@dataclass(frozen=True)
class Call:
    """How a method was made: factory and arguments. Equality, printing, shipping and resuming a method use this."""

    factory: str
    arguments: tuple[tuple[str, Any], ...] = ()
    defaults: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    identity: int | None = None  # of a method made by hand: equal to itself alone

    def __str__(self) -> str:
        usual = dict(self.defaults)
        given = [f"{k}={_literal(v)}" for k, v in self.arguments if k not in usual or usual[k] != v]
        return f"{self.factory}({', '.join(given)})" if given else self.factory


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Select):
        return f"{str(value)!r}".replace("'", '"')
    return repr(value)


class Expression:
    """A method, or several put together with `|` and `switch`."""

    calls: tuple[Call, ...]

    def __or__(self, other: Expression) -> Expression:
        if not isinstance(other, Expression):
            return NotImplemented
        members = tuple(m for side in (self, other) for m in side.members() if not m.is_unit)
        if len(members) > 1:
            return Together(calls=tuple(c for m in members for c in m.calls), parts=members)
        return members[0] if members else self

    def __add__(self, other: object) -> Expression:
        raise TypeError("methods are put together with |; + is how their text writes it")

    @property
    def is_unit(self) -> bool:
        return False

    def members(self) -> tuple[Expression, ...]:
        return (self,)

    def atoms(self, latched: Mapping[str, bool]) -> tuple[Method, ...]:
        """The records in force when the switches named in `latched` have (or have not) been thrown."""
        raise NotImplementedError

    def switches(self) -> tuple[Switch, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self.calls == other.calls

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return "+".join(str(call) for call in self.calls)

    def __repr__(self) -> str:
        return f"<method {self}>"


@dataclass(frozen=True, eq=False, repr=False)
class Method(Expression):
    """One record. Fields in the order of a round; the law of composition behind each."""

    name: str = "fedavg"
    calls: tuple[Call, ...] = ()
    needs: tuple[Need, ...] = ()  # union; all unmet ones are listed
    pool: bool = False  # the clients' data become one client's (Centralized); one suffices
    transform: tuple[Callable[[nn.Module, Tensor], nn.Module], ...] = ()  # (own copy, samples); left to right
    scope: tuple[tuple[Select, Scope], ...] = ()  # first match; records must agree; rest: SHARED
    slots: tuple[Slot, ...] = ()  # disjoint union
    load: Callable[[Context], State] | None = None  # at most one; default: broadcast state with own LOCAL entries
    plan: tuple[Segment, ...] | None = None  # at most one; default: one segment of everything
    batch: tuple[Callable[[Tensor, Tensor, Step], tuple[Tensor, Tensor]], ...] = ()  # left to right
    params: Callable[[State, Step], State] | None = None  # at most one; trained parameters -> those of the forward
    task: Callable[[Step], Tensor] | None = None  # at most one; default: the run's loss
    loss: tuple[Callable[[Step], Tensor | None], ...] = ()  # summed
    grad: tuple[Callable[[State, Step], State], ...] = ()  # left to right
    report: tuple[Report, ...] = ()  # disjoint union
    gather: tuple[Gather, ...] = ()  # disjoint union
    weigh: Callable[[Reply], Tensor] | None = None  # at most one; unnormalised; default: the run's weighting
    reduce: tuple[tuple[Select, Reducer], ...] = ()  # as scope; rest: weighted mean, integers: maximum
    server: tuple[tuple[Select, Callable[[RoundEnd, State], State]], ...] = ()  # no two on one entry
    view: View | None = None  # at most one

    def __post_init__(self) -> None:
        if not self.calls:  # made by hand, not by a factory: equal to itself alone
            object.__setattr__(self, "calls", (Call(self.name, identity=None if self._empty() else id(self)),))

    def _empty(self) -> bool:
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        return all(getattr(self, axis) == usual[axis] for axis in usual if axis not in ("name", "calls"))

    @property
    def is_unit(self) -> bool:
        return self._empty()

    def atoms(self, latched: Mapping[str, bool]) -> tuple[Method, ...]:
        return (self,)

    def switches(self) -> tuple[Switch, ...]:
        return ()


@dataclass(frozen=True, eq=False, repr=False)
class Together(Expression):
    """Several methods at once; `|` makes it."""

    calls: tuple[Call, ...]
    parts: tuple[Expression, ...]

    def members(self) -> tuple[Expression, ...]:
        return self.parts if len(self.calls) == len(self.parts) else (self,)

    def atoms(self, latched: Mapping[str, bool]) -> tuple[Method, ...]:
        return tuple(atom for part in self.parts for atom in part.atoms(latched))

    def switches(self) -> tuple[Switch, ...]:
        return tuple(s for part in self.parts for s in part.switches())


@dataclass(frozen=True, eq=False, repr=False)
class Switch(Expression):
    """Two phases. Asked on the server at the start of each round, latched there: it is never thrown back, it is saved
    with the run, and no client decides. Composing distributes: `switch(w, a, b) | m` has phases `a | m`, `b | m`."""

    name: str
    when: Callable[[ServerView], bool]
    before: Expression
    after: Expression
    calls: tuple[Call, ...] = ()

    def __post_init__(self) -> None:
        if not self.calls:
            object.__setattr__(self, "calls", (Call(self.name, identity=id(self)),))

    def atoms(self, latched: Mapping[str, bool]) -> tuple[Method, ...]:
        return (self.after if latched.get(self.name, False) else self.before).atoms(latched)

    def switches(self) -> tuple[Switch, ...]:
        return (self, *self.before.switches(), *self.after.switches())


def switch(name: str, when: Callable[[ServerView], bool], before: Expression, after: Expression) -> Switch:
    """`before` until `when(server)` first holds at the start of a round, then `after` for good."""
    return Switch(name, when, before, after)


def from_round(t: int | None) -> Callable[[ServerView], bool]:
    """From round `t` on, counted from 0; None: from half of the rounds."""
    return lambda server: server.round >= (server.rounds // 2 if t is None else t)


# ---------------------------------------------------------------------------------------------------------------
# Factories.


def factory(make: Callable[P, Expression]) -> Callable[P, Expression]:
    """Marks a function that makes a method: the value remembers the function's name and its arguments, which are
    checked against the signature and its annotations."""
    name = make.__name__
    parameters = inspect.signature(make).parameters
    defaults = tuple((n, p.default) for n, p in parameters.items() if p.default is not p.empty)

    @functools.wraps(make)
    def build(*args: P.args, **kwargs: P.kwargs) -> Expression:
        bound = bind(make, name, args, kwargs)
        made = make(*bound.args, **bound.kwargs)
        call = Call(name, tuple((k, _frozen(v)) for k, v in bound.arguments.items()), defaults)
        return dataclasses.replace(made, calls=(call,))  # type: ignore[type-var]

    build.makes_a_method = True  # type: ignore[attr-defined]
    return build


def is_factory(value: object) -> bool:
    return getattr(value, "makes_a_method", False)


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted((k, _frozen(v)) for k, v in value.items()))
    return tuple(value) if isinstance(value, list) else value


def require(condition: bool, message: str) -> None:
    """For factories: a value out of range."""
    if not condition:
        raise Refused(message)


FROZEN_STATISTICS: tuple[Segment, ...] = (Segment(norm=RUNNING),)
