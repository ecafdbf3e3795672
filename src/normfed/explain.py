"""Who owns each entry of a model's state, and what crosses the wire, before anything is trained.

Counts are not computed from a model of the method: one step of a round is played on two made-up samples, and what it
sends is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from normfed.dry import Dry, dry_run
from normfed.engines.serial import Serial
from normfed.errors import Refused
from normfed.keys import normal
from normfed.method import Expression, Holder, Segment, Steps
from normfed.plan import Phase, Plan, build
from normfed.server import Traffic


@dataclass(frozen=True)
class PhaseReport:
    """One phase of a method: what each client sends and receives in a round."""

    thrown: tuple[str, ...]  # the switches that have been thrown
    entries: list[dict[str, Any]]
    segments: list[str]
    pieces: list[str]  # what methods do that no table shows
    slots: list[dict[str, str]]
    reports: list[dict[str, str]]
    gathers: list[dict[str, str]]  # what the server sees client by client; as large as what there is
    needs: list[str]
    server: list[str]
    bytes_up: int
    bytes_down: int
    messages: int
    wire: dict[str, int]  # where a client's bytes come from
    evaluation: Traffic  # of the exchange before an evaluation, where there is one

    def counted_once(self, clients: int) -> int:
        """Bytes of a round as the papers count them: every upload, and one broadcast for all."""
        return clients * self.bytes_up + self.bytes_down


@dataclass(frozen=True)
class Explanation:
    """A method on a model."""

    method: str
    model: str
    phases: list[PhaseReport]
    setup: Traffic  # of an exchange before round 0

    @property
    def first(self) -> PhaseReport:
        return self.phases[0]

    def to_dict(self) -> dict[str, Any]:
        first = self.first
        return {
            "method": self.method,
            "model": self.model,
            "entries": first.entries,
            "bytes_up": first.bytes_up,
            "bytes_down": first.bytes_down,
            "messages": first.messages,
            "wire": first.wire,
            "segments": first.segments,
            "pieces": first.pieces,
            "slots": first.slots,
            "reports": first.reports,
            "gathers": first.gathers,
            "needs": [{"need": need, "holds": True} for need in first.needs],
            "server": first.server,
            "setup": _counts(self.setup),
            "evaluation": _counts(first.evaluation),
            "phases": [
                {"after": list(p.thrown), "bytes_up": p.bytes_up, "bytes_down": p.bytes_down, "messages": p.messages}
                for p in self.phases
            ],
        }


def explain(method: Expression, model: nn.Module, name: str = "", shape: Sequence[int] = (3, 28, 28)) -> Explanation:
    """Builds `method` for `model` and looks. Raises `Refused` with every need that does not hold."""
    dtype = next((p.dtype for p in model.parameters()), torch.get_default_dtype())
    x = normal(0, (2, *shape), dtype if dtype.is_floating_point else torch.float32)
    plan = build(method, model, x)
    counted = dry_run(plan, Serial(), x, torch.zeros(2, dtype=torch.long), F.cross_entropy, clients=1)
    order = sorted(plan.phases, key=lambda thrown: (len(thrown), sorted(thrown)))
    return Explanation(str(method), name, [_phase(plan, thrown, counted) for thrown in order], counted.setup)


def _phase(plan: Plan, thrown: frozenset[str], counted: Dry) -> PhaseReport:
    phase, traffic = plan.phases[thrown], counted.rounds[thrown]
    entries = [
        {
            "name": entry.name,
            "role": str(entry.role),
            "scope": str(phase.scope[entry.name]),
            "reduce": phase.reducer_of(entry.name),
            "wire": entry.name in phase.shared and not plan.pool,
            "layer": entry.kind.__name__,
            "bytes": entry.nbytes,
        }
        for entry in plan.net.entries
    ]
    segments = [_segment(s) for s in phase.segments]
    slots = [
        {"name": f"{owner}/{slot.name}", "held_by": str(slot.holder), "sent_to_clients": str(slot.to_clients).lower()}
        if slot.holder is Holder.SERVER
        else {"name": f"{owner}/{slot.name}", "held_by": str(slot.holder), "sent_to_clients": "false"}
        for owner, slot in plan.slots
        if owner in phase.methods
    ]
    return PhaseReport(
        thrown=tuple(sorted(thrown)),
        entries=entries,
        segments=segments,
        pieces=_pieces(phase),
        slots=slots,
        reports=[{"name": f"{owner}/{r.name}", "reduce": r.reducer.name} for owner, r in phase.reports],
        gathers=[
            {"name": f"{owner}/{gather.name}", "when": str(gather.when)}
            for owner, gather in plan.gathers
            if owner in phase.methods
        ],
        needs=list(phase.needs),
        server=[f"{owner} sets {len(names)} entries" for owner, names, _ in phase.server],
        bytes_up=traffic.bytes_up,
        bytes_down=traffic.bytes_down,
        messages=traffic.messages,
        wire=dict(traffic.per_client),
        evaluation=counted.refresh[thrown],
    )


def _segment(segment: Segment) -> str:
    if not segment.train:
        return f"one pass over all data without training, norm layers {_name(segment.norm)}"
    steps = "all further steps" if segment.steps is Steps.ALL else f"{segment.steps} step{'s' * (segment.steps != 1)}"
    return f"{steps}, norm layers {_name(segment.norm)}" + (", in lock-step" if segment.lockstep else "")


def _pieces(phase: Phase) -> list[str]:
    """Whose functions act where, in the order of a round."""

    def named(*pieces: tuple[str, Any] | None, joined: str = ", then ") -> str:
        return joined.join(piece[0] for piece in pieces if piece is not None)

    view = phase.view if phase.view is not None and phase.view[1].inputs is not None else None
    said = {
        "a client starts the round from what {} loads": named(phase.load),
        "samples and labels of a step: changed by {}": named(*phase.batch),
        "weights of the forward pass: made by {}": named(phase.params),
        "loss of the task: that of {}": named(phase.task),
        "terms beside the task's loss: {}": named(*phase.losses, joined=", "),
        "gradients: changed by {}": named(*phase.grads),
        "clients are weighed by {}": named(phase.weigh),
        "evaluation: samples as {} prepares them": named(view),
    }
    return [text.format(names) for text, names in said.items() if names]


def _counts(traffic: Traffic) -> dict[str, int]:
    return {"bytes_up": traffic.bytes_up, "bytes_down": traffic.bytes_down, "messages": traffic.messages}


def _name(mode: Any) -> str:
    return str(getattr(mode, "text", type(mode).__name__.strip("_").lower()))


def render(explanation: Explanation, clients: int | None = None) -> str:
    """The explanation as plain text."""
    lines = [f"{explanation.method} on {explanation.model or 'the model'}"]
    for phase in explanation.phases:
        if phase.thrown:
            lines += ["", f"after the switch of {', '.join(phase.thrown)}:"]
        if not phase.thrown or [e["scope"] for e in phase.entries] != [e["scope"] for e in explanation.first.entries]:
            lines += ["", *_table(phase.entries)]
        shared = sum(e["scope"] == "shared" for e in phase.entries)
        lines += [
            "",
            f"{shared} entries shared, {len(phase.entries) - shared} local",
            f"per client and round: {_size(phase.bytes_up)} up, {_size(phase.bytes_down)} down, "
            f"{phase.messages} message{'s' * (phase.messages != 1)}"
            + "".join(f"; {part} {_size(n)}" for part, n in phase.wire.items() if n and not part.startswith("model")),
        ]
        if phase.evaluation.messages:
            lines.append(f"before each evaluation: one more exchange, {_both_ways(phase.evaluation)}")
        if explanation.setup.messages and not phase.thrown:
            lines.append(f"before round 0: one exchange, {_both_ways(explanation.setup)}")
        if clients is not None:
            once = phase.counted_once(clients)
            lines.append(f"with {clients} clients, the broadcast counted once (as the papers do): {_size(once)}")
        lines += [f"local steps: {text}" for text in phase.segments]
        lines += phase.pieces
        lines += [f"slot {s['name']}: held by the {s['held_by']}" for s in phase.slots]
        lines += [f"report {r['name']}: reduced by {r['reduce']}" for r in phase.reports]
        lines += [
            f"gathered {g['name']} ({g['when']}): the server sees each client's, as large as its data have it"
            for g in phase.gathers
        ]
        lines += [f"on the server: {text}" for text in phase.server]
        lines += [f"needs a model that {need.split(': ', 1)[1]} ({need.split(': ')[0]}): holds" for need in phase.needs]
    return "\n".join(lines)


def _table(entries: list[dict[str, Any]]) -> list[str]:
    header = ("entry", "layer", "role", "scope", "reduce", "wire", "bytes")
    rows = [
        (
            e["name"],
            e["layer"],
            e["role"],
            e["scope"],
            e["reduce"] or "-",
            "yes" if e["wire"] else "no",
            str(e["bytes"]),
        )
        for e in entries
    ]
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


def _both_ways(traffic: Traffic) -> str:
    return f"{_size(traffic.bytes_up)} up, {_size(traffic.bytes_down)} down"


def _size(n: int) -> str:
    return f"{n} B" if n < 10_000 else f"{n / 2**20:.4f} MB"


def input_shape(text: str) -> tuple[int, ...]:
    """'3,224,224' -> (3, 224, 224)"""
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise Refused(f"input '{text}' is not a shape; write for example 3,224,224")
    return shape
