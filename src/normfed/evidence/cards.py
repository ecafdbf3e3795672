"""A card for each method, from its code: docstrings, signature, a played round, cost, what it composes with."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from normfed.evidence import composition, cost
from normfed.explain import Explanation, PhaseReport, explain
from normfed.expression import parse
from normfed.methods import METHODS
from normfed.models import find, make

MODEL = "resnet20"  # every method can act on it
ROLES = {
    "weight": "weights",
    "norm_affine": "gains and offsets",
    "norm_stat": "running statistics",
    "counter": "counters",
}

Costs = Mapping[str, Mapping[str, Any]]


def page(results: Path) -> Mapping[str, str]:
    """docs/methods/index.md and a page for each method"""
    costs = cost.read(results)
    refused, _ = composition.composition()
    explained = {name: explain(parse(name), make(MODEL), MODEL, find(MODEL).shape) for name in METHODS}
    cards = {f"docs/methods/{name}.md": card(name, explained[name], costs, refused[name]) for name in METHODS}
    return {"docs/methods/index.md": index(explained, costs), **cards}


# ---------------------------------------------------------------------------------------------------------------
# What a docstring says


def words(name: str) -> dict[str, str]:
    """`does`, `use`, `cannot` and, where there are any, `identities` of a factory's docstring."""
    text = inspect.getdoc(METHODS[name]) or ""
    summary, _, rest = text.partition("\n\n")
    found = re.fullmatch(r"(Use it when .*?)\s(It cannot .*?)(?:\sIdentities: (.*))?", " ".join(rest.split()))
    if found is None:
        raise ValueError(f"the docstring of {name} does not say when to use it and what it cannot do")
    use, cannot, identities = found.groups()
    return {"does": " ".join(summary.split()), "use": use, "cannot": cannot, "identities": identities or ""}


def usage(name: str) -> str:
    """The factory's call with types and defaults."""
    parameters = inspect.signature(METHODS[name]).parameters.values()
    return f"normfed.methods.{name}({', '.join(str(p).replace('normfed.state.', '') for p in parameters)})"


# ---------------------------------------------------------------------------------------------------------------
# What a played round says


def counted(attributes: Sequence[str]) -> str:
    return ", ".join(f"{n} × `{a}`" for a, n in Counter(attributes).items())


def network(explained: Explanation) -> list[str]:
    """How the network differs from the one that was given."""
    given, now = set(make(MODEL).state_dict()), {e["name"] for e in explained.first.entries}
    gone, new = ([name.rpartition(".")[2] for name in sorted(names)] for names in (given - now, now - given))
    found = [f"taken from the network: {counted(gone)}"] if gone else []
    return found + ([f"added to it: {counted(new)}"] if new else [])


def state(explained: Explanation) -> list[str]:
    """What clients and server remember beside the shared model."""
    first = explained.first
    local = Counter(ROLES[e["role"]] for e in first.entries if e["scope"] == "local")
    found = [f"at home: {', '.join(f'{n} × {role}' for role, n in local.items())}"] if local else []
    found += [f"`{slot['name']}`, held by the {slot['held_by']}" for slot in first.slots]
    found += [f"`{g['name']}`, gathered from every client ({g['when']}), held by the server" for g in first.gathers]
    return found or ["nothing beside the model; a client need not come back"]


def kilobytes(n: int) -> str:
    return f"{n / 1024:.1f} kB"


def wire(phase: PhaseReport) -> str:
    after = f"after the switch of `{'`, `'.join(phase.thrown)}`" if phase.thrown else "a round"
    return f"| {after} | {kilobytes(phase.bytes_up)} | {kilobytes(phase.bytes_down)} | {phase.messages} |"


def traffic(explained: Explanation) -> list[str]:
    lines = ["| per client | up | down | messages |", "|---|---:|---:|---:|", *map(wire, explained.phases)]
    for what, more in (("before round 0", explained.setup), ("before an evaluation", explained.first.evaluation)):
        if more.messages:
            lines.append(f"| {what} | {kilobytes(more.bytes_up)} | {kilobytes(more.bytes_down)} | {more.messages} |")
    return lines


# ---------------------------------------------------------------------------------------------------------------
# Pages


def partners(refused: Mapping[str, Sequence[str]]) -> str:
    always = {reason: others for reason, others in refused.items() if not reason.startswith("in this order")}
    count = len(METHODS) - 1 - sum(map(len, always.values()))
    lines = [f"With {count} of {len(METHODS) - 1} methods."]
    lines += [f"- not with {', '.join(f'`{o}`' for o in others)}: {reason}" for reason, others in refused.items()]
    return "\n".join([lines[0], *([""] if lines[1:] else []), *lines[1:]])


def card(name: str, explained: Explanation, costs: Costs, refused: Mapping[str, Sequence[str]]) -> str:
    """One method's page."""
    said = words(name)
    header = inspect.cleandoc(sys.modules[METHODS[name].__module__].__doc__ or "")
    identities = [f"- `{identity.strip()}`" for identity in said["identities"].rstrip(".").split(";") if identity]
    sections = {
        "State": "\n".join(f"- {line}" for line in [*state(explained), *network(explained)]),
        "On the wire": "\n".join(traffic(explained)),
        "Cost": "\n".join(cost.lines(name, costs)),
        "Composes": f"{partners(refused)}\n\n[All pairs and reasons](../composition.md).",
        "Identities": "\n".join(identities),
        "Paper and deviations": f"```text\n{header}\n```",
    }
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in sections.items() if text)
    return (
        f"# {name}\n\n{said['does']}\n\n{said['use']}\n\n{said['cannot']}\n\n`{usage(name)}`\n\n{body}\n\n"
        f"Counted on `{MODEL}`. Made from the code by `make cards`; [all methods](index.md).\n"
    )


def index(explained: Mapping[str, Explanation], costs: Costs) -> str:
    """The list of all."""
    usual = explained["fedavg"].first
    lines = [
        "# Methods",
        "",
        f"Every method of `normfed.methods`, with what a round of it sends on `{MODEL}` and what it takes to compute,",
        f"both over FedAvg's ({kilobytes(usual.bytes_up)} up and as much down; [cost](../cost.md)). A name leads to",
        "its card. Made from the code by `make cards`.",
        "",
        "| method | what it does | bytes | messages | seconds |",
        "|---|---|---:|---:|---:|",
    ]
    both = usual.bytes_up + usual.bytes_down
    for name, one in explained.items():
        sent = (one.first.bytes_up + one.first.bytes_down) / both
        does = words(name)["does"].replace("|", "\\|")
        lines.append(
            f"| [{name}]({name}.md) | {does} | {sent:.2f} | {one.first.messages} | {cost.shown(name, costs)} |"
        )
    return "\n".join([*lines, ""])
