"""A round on two samples per client: what a plan would do, found out by doing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from normfed.data.federation import ClientData, Federation
from normfed.engines.base import Engine
from normfed.optim import sgd
from normfed.plan import Plan
from normfed.server import RoundFacts, Rules, initial, play


def dry_run(
    plan: Plan, engine: Engine, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], clients: int = 2
) -> dict[frozenset[str], RoundFacts]:
    """Plays one step of one round in every phase with made-up clients; returns what was counted in each."""
    return dict(_phases(plan, engine, x, y, loss, clients))


def _phases(
    plan: Plan, engine: Engine, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], clients: int
) -> Iterator[tuple[frozenset[str], RoundFacts]]:
    two = [i % len(x) for i in range(2)]
    data = ClientData(train=(x[two], y[two]))
    names = [f"client {i}" for i in range(clients)]
    federation = Federation(dict.fromkeys(names, data), x.device)
    # A round past the first, so that terms that start later take part.
    rules = Rules(
        seed=0, rounds=4, batch_size=2, epochs=1, steps=None, drop_last=False, shuffle=False, participation=1.0,
        weighting="equal", lr=lambda round: 1e-3, optimizer=sgd(0.0, 0.0), clip_norm=None, loss=loss,
    )  # fmt: skip
    for thrown in plan.phases:
        state = replace(initial(plan), round=1, latched={s.name: s.name in thrown for s in plan.switches})
        still = replace(plan, switches=tuple(replace(s, when=lambda view: False) for s in plan.switches))
        _, facts = play(still, state, engine, federation, dict.fromkeys(names, 2), rules)
        yield thrown, facts
