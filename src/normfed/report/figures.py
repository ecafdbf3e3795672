"""From the facts of a part to its charts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from normfed.report.read import Part, Played, Spread
from normfed.report.svg import Chart, Line, drawable, heat, lines

Rounds = Mapping[int, Mapping[int, float]]  # seed -> round -> value
MOST = 12  # small multiples


def by_round(values: Rounds) -> list[tuple[int, Spread]]:
    """(round, spread over seeds), for the rounds that every seed has."""
    if not values:
        return []
    common = set.intersection(*(set(rounds) for rounds in values.values()))
    found = [(r, Spread.of({seed: rounds[r] for seed, rounds in values.items()})) for r in sorted(common)]
    return [(r, spread) for r, spread in found if spread is not None]


def _line(index: int, played: Played, values: Rounds, x: Callable[[int], float] = lambda r: r + 1) -> Line | None:
    points = by_round(values)
    if not points:
        return None
    return Line(
        index, played.method, [x(r) for r, _ in points], [s.mean for _, s in points], [s.std for _, s in points]
    )  # fmt: skip


def _lines(part: Part, values: Callable[[Played], Rounds]) -> list[Line]:
    found = (_line(i, played, values(played)) for i, played in enumerate(part.played) if drawable())
    return [line for line in found if line is not None]


def _accuracy(played: Played, **wanted: Any) -> Rounds:
    return played.over(lambda f: None, split="test", metric="accuracy", view=played.view, **wanted).get(None, {})


def accuracy(part: Part) -> Chart | None:
    """Mean over clients, over rounds."""
    members = _lines(part, _accuracy)
    if not members:
        return None
    return lines(
        members, title="Accuracy over rounds, mean over clients", x="round", y="accuracy in percent",
        size=(9.2, 3.9), percent=True, ends=True,
    )  # fmt: skip


def loss(part: Part) -> Chart | None:
    members = _lines(part, lambda p: p.over(lambda f: None, split="train", metric="loss").get(None, {}))
    if not members or min(min(line.y) for line in members) <= 0:
        return None
    return lines(members, title="Training loss over rounds, mean over clients", x="round", y="training loss", log=True)


def clients(part: Part) -> dict[str, Chart]:
    """Small multiples, all with the same axes."""
    members = {c: _lines(part, lambda p, c=c: _accuracy(p, client=c)) for c in part.clients[:MOST]}  # type: ignore[misc]
    values = [v for found in members.values() for line in found for v in line.y]
    if not values:
        return {}
    margin = 0.05 * (max(values) - min(values)) or 0.05
    limits = (min(values) - margin, min(1.0, max(values)) + margin)
    return {
        c: lines(
            found, title=f"Accuracy of {c} over rounds", x="round", y=c, percent=True,
            limits=limits, size=(3.9, 2.3),
        )
        for c, found in members.items() if found
    }  # fmt: skip


def wire(part: Part) -> dict[str, Chart]:
    """Accuracy against what had crossed the wire by then."""
    found = {}
    for what, metrics, unit in (
        ("megabytes", ("bytes_up", "bytes_down"), 1e6),
        ("messages", ("messages",), 1.0),
    ):
        members = []
        for i, played in enumerate(part.played):
            sent = {r: value / unit for r, value in _cumulative(played, metrics).items()}
            line = _line(i, played, _accuracy(played), sent.__getitem__) if sent and drawable() else None
            if line is not None:
                members.append(line)
        if members:
            found[what] = lines(
                members, title=f"Accuracy against {what} that crossed the wire", x=f"{what} so far, all clients"
                if what == "megabytes" else "exchanges with the server so far", y="accuracy in percent", percent=True,
            )  # fmt: skip
    return found


def _cumulative(played: Played, metrics: Sequence[str]) -> dict[int, float]:
    """Round -> sum up to it, mean over seeds."""
    per_round: dict[int, float] = {}
    for metric in metrics:
        values = played.over(lambda f: None, metric=metric).get(None, {})
        for r in {r for rounds in values.values() for r in rounds}:
            per_round[r] = per_round.get(r, 0.0) + fmean(rounds[r] for rounds in values.values() if r in rounds)
    total, found = 0.0, {}
    for r in sorted(per_round):
        total += per_round[r]
        found[r] = total
    return found


def gaps(part: Part) -> dict[str, Chart]:
    """GReg's figures 2 and 3."""
    found = {}
    for name, where in (("gap/test", "on test data"), ("gap/train", "in training")):
        members = _lines(part, lambda p, name=name: p.over(lambda f: None, metric=name).get(None, {}))  # type: ignore[misc]
        if members:
            found[name] = lines(members, title=f"Loss gap {where} over rounds", x="round", y=f"loss gap {where}")
    return found


def cosine(part: Part) -> Chart | None:
    """FedWon's figure 5: layer by layer, at the last picture."""
    members, layers = [], _layers(part, "feature_cosine")
    for i, played in enumerate(part.played):
        last = _last(played, "feature_cosine")
        at = [k for k, layer in enumerate(layers) if layer in last]
        if at and drawable():
            spreads = [last[layers[k]] for k in at]
            members.append(Line(i, played.method, at, [s.mean for s in spreads], [s.std for s in spreads]))
    if not members:
        return None
    return lines(
        members, title="Cosine similarity of feature maps, layer by layer", x="layer", y="cosine similarity",
        ticks=layers,
    )  # fmt: skip


def _last(played: Played, metric: str) -> dict[str, Spread]:
    values = played.over(lambda f: f["layer"], metric=metric)
    return {layer: points[-1][1] for layer, rounds in values.items() if (points := by_round(rounds))}


def _layers(part: Part, metric: str) -> list[str]:
    facts = (f for p in part.played for f in p.facts if f["metric"] == metric)
    return list(dict.fromkeys(f["layer"] for f in facts))


def representations(part: Part) -> Chart | None:
    """GReg's figure 6."""
    name = "representation_divergence"
    members = _lines(part, lambda p: p.over(lambda f: None, metric=name).get(None, {}))
    if not members:
        return None
    positive = min(min(line.y) for line in members) > 0
    return lines(
        members, title="Divergence of representations over rounds", x="round", y="symmetric KL", log=positive
    )  # fmt: skip


def heats(part: Part, metric: str) -> tuple[dict[str, Chart], tuple[float, float]] | None:
    """A heat map for each method, layers over rounds, and the range of their common scale."""
    tables: dict[str, tuple[list[str], list[int], list[list[float | None]]]] = {}
    for played in part.played:
        values = {k: dict(by_round(v)) for k, v in played.over(lambda f: f["layer"], metric=metric).items()}
        rounds = sorted({r for found in values.values() for r in found})
        if rounds:
            cells = [[found[r].mean if r in found else None for r in rounds] for found in values.values()]
            tables[played.method] = (list(values), [r + 1 for r in rounds], cells)
    known = [v for _, _, cells in tables.values() for row in cells for v in row if v is not None]
    if not known or not drawable():
        return None
    high = max(max(known), 1e-6)
    low = min(max(min(known), high * 1e-4, 1e-9), high / 10)
    charts = {
        method: heat(cells, rows, columns, title=f"{metric}, {method}", limits=(low, high))
        for method, (rows, columns, cells) in tables.items()
    }
    return charts, (low, high)


def total(played: Played, metric: str) -> float:
    """Of all rounds, a seed."""
    return max(_cumulative(played, (metric,)).values(), default=0.0)
