"""Which engine runs a plan, and why."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from normfed.dry import dry_run
from normfed.engines.base import Engine
from normfed.engines.serial import Serial
from normfed.engines.stacked import Stacked
from normfed.errors import Refused, first_line
from normfed.plan import Plan

# Stacking trades memory for fewer, larger kernels. On a CPU a large kernel is no faster per number, so it pays only
# where the overhead of small ones dominates (`make bench`, scenarios S1 to S3).
_CPU_STACK_PARAMETERS = 300_000
_STACK_BYTES = {"cpu": 2 * 2**30, "cuda": 32 * 2**30}


def choose(
    requested: str, plan: Plan, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor], clients: int,
    batch_size: int, at_once: int | None = None,
) -> tuple[Engine, str]:  # fmt: skip
    """The engine, and why. Raises `Refused` where the one asked for cannot run this model."""
    stacked = Stacked(at_once or _at_once(plan, x, batch_size))
    if requested == "serial":
        return Serial(), "asked for"
    if requested == "stacked":
        reason = _unstackable(plan, x, y, loss)
        if reason is not None:
            raise Refused(f"engine 'stacked' cannot run this model: {reason}; use serial")
        return stacked, "asked for"
    worth = _worth_stacking(plan, x, clients)
    if worth is None:
        return Serial(), "one client after another is fastest here"
    reason = _unstackable(plan, x, y, loss)
    return (stacked, worth) if reason is None else (Serial(), f"this model cannot be stacked: {reason}")


def _worth_stacking(plan: Plan, x: Tensor, clients: int) -> str | None:
    """Decided from the model and the method alone, so the same run always takes the same engine."""
    if clients == 1 or plan.pool:
        return None
    if x.device.type != "cpu":
        return "many clients per kernel"
    if any(phase.lockstep for phase in plan.phases.values()):
        return "a lock-step costs one pass here, and one pass per message one after another"
    convolutions = any(isinstance(m, nn.modules.conv._ConvNd) for m in plan.net.module.modules())
    small = sum(plan.net.initial[name].numel() for name in plan.net.trainable) <= _CPU_STACK_PARAMETERS
    return "small layers: many clients per kernel" if small and not convolutions else None


def _at_once(plan: Plan, x: Tensor, batch_size: int) -> int:
    """Clients in one stack, from what a client holds: state, gradient and copies, and its batch on its way."""
    state = sum(tensor.nbytes for tensor in plan.net.initial.values())
    activations = batch_size * x[0].numel() * 4 * 64  # a rough multiple of the input
    return max(1, _STACK_BYTES.get(x.device.type, 2 * 2**30) // (6 * state + activations + 1))


def _unstackable(plan: Plan, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> str | None:
    """Tried, not guessed: one small round of two clients."""
    if plan.net.unkeyed:
        return "it draws random numbers of its own; dropout as a layer (nn.Dropout) would be keyed"
    try:
        dry_run(plan, Stacked(2), x, y, loss)
    except Exception as error:
        return first_line(error)
    return None


def device(name: str) -> torch.device:
    """The torch device of that name, if it can be used."""
    if not isinstance(name, str):
        raise Refused(f"device={name!r}: must be a name, 'cpu' or 'cuda'")
    try:
        found = torch.device(name)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        raise Refused(f"device '{name}' cannot be used here: {first_line(error)}") from None
    return found
