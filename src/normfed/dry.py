"""A round on two samples per client: what a plan would do, found out by doing it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from normfed.data.store import ClientData, Store
from normfed.engines.base import Engine
from normfed.optim import sgd
from normfed.plan import Plan
from normfed.server import Rules, Traffic, initial, play, refresh


@dataclass(frozen=True)
class Dry:
    """What was counted."""

    rounds: dict[frozenset[str], Traffic]  # one round in each phase
    setup: Traffic  # before round 0
    refresh: dict[frozenset[str], Traffic]  # before an evaluation


def dry_run(
    plan: Plan, engine: Engine, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], clients: int = 2
) -> Dry:
    """Plays one step of one round in every phase with made-up clients, and an evaluation's exchange."""
    two = [i % len(x) for i in range(2)]
    data = ClientData(train=(x[two], y[two]))
    names = [f"client {i}" for i in range(clients)]
    federation = Store(dict.fromkeys(names, data), x.device)
    rules = Rules(
        seed=0, rounds=4, batch_size=2, epochs=1, steps=None, drop_last=False, shuffle=False, participation=1.0,
        weighting="equal", lr=lambda round: 1e-3, optimizer=sgd(0.0, 0.0), clip_norm=None, loss=loss,
    )  # fmt: skip
    still = replace(plan, switches=tuple(replace(s, when=lambda view: False) for s in plan.switches))
    sizes = dict.fromkeys(names, 2)
    # What is counted is a round past the first, when terms that start later and slots that fill up are there.
    first, facts = play(still, initial(plan), engine, federation, sizes, rules)
    rounds, refreshes = {}, {}
    for thrown in plan.phases:
        state = replace(first, latched={s.name: s.name in thrown for s in plan.switches})
        after, later = play(still, state, engine, federation, sizes, rules)
        rounds[thrown] = later.traffic
        refreshes[thrown] = refresh(still, after, engine, federation, sizes, rules)[1]
    return Dry(rounds, facts.setup, refreshes)
