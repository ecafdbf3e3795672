"""How the values of many clients become one: commutative monoids over *selections* of entries.

`start`, `add` a bundle of clients, `merge` two accumulators, `finish`. Weights are not normalised before they come
here and are normalised nowhere else. Accumulators are float32 or wider.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from normfed.errors import Aborted, Refused
from normfed.state import Entry, State

Acc = dict[str, Any]


class Reducer(Protocol):
    """`values` hold one bundle: every tensor is [clients, ...], `weights` is [clients], in float64."""

    @property
    def name(self) -> str: ...

    @property
    def linear(self) -> bool:
        """Whether it is a weighted sum: fit for secure aggregation and differential privacy."""
        ...

    def fits(self, entries: Sequence[Entry]) -> str | None:
        """Why it cannot reduce these entries, or None."""
        ...

    def start(self) -> Acc: ...

    def add(self, acc: Acc, values: State, weights: Tensor) -> Acc: ...

    def merge(self, a: Acc, b: Acc) -> Acc: ...

    def finish(self, acc: Acc) -> dict[str, Tensor]: ...


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _weigh(weights: Tensor, values: Tensor) -> Tensor:
    """sum_k w_k x_k over the leading axis, in the order of the clients where there is one at a time."""
    wide = _wide(values)
    weights = weights.to(wide.device, wide.dtype)
    return wide[0] * weights[0] if len(wide) == 1 else torch.tensordot(weights, wide, dims=1)


def _total_weight(acc: Acc) -> Tensor:
    total: Tensor = acc["weight"]
    if not bool(torch.isfinite(total)) or float(total) <= 0:
        raise Aborted(f"the clients' weights sum to {float(total):g}: nothing to average")
    return total


@dataclass(frozen=True)
class WeightedMean:
    """sum_k w_k x_k / sum_k w_k, entry by entry."""

    name: str = "weighted_mean"
    linear: bool = True

    def fits(self, entries: Sequence[Entry]) -> str | None:
        whole = [e.name for e in entries if not (e.dtype.is_floating_point or e.dtype.is_complex)]
        return f"integers are not averaged: {', '.join(whole)}" if whole else None

    def start(self) -> Acc:
        return {"weight": torch.zeros((), dtype=torch.float64), "sum": {}, "dtype": {}}

    def add(self, acc: Acc, values: State, weights: Tensor) -> Acc:
        new = {name: _weigh(weights, value) for name, value in values.items()}
        dtypes = {name: value.dtype for name, value in values.items()}
        return self.merge(acc, {"weight": weights.sum(), "sum": new, "dtype": dtypes})

    def merge(self, a: Acc, b: Acc) -> Acc:
        if not a["sum"] or not b["sum"]:
            return a if a["sum"] else b
        total = {name: value + b["sum"][name] for name, value in a["sum"].items()}
        return {"weight": a["weight"] + b["weight"], "sum": total, "dtype": a["dtype"]}

    def finish(self, acc: Acc) -> dict[str, Tensor]:
        if not acc["sum"]:
            return {}
        weight = float(_total_weight(acc))
        return {name: (value / weight).to(acc["dtype"][name]) for name, value in acc["sum"].items()}


@dataclass(frozen=True)
class Maximum:
    """The largest value: for counters, which keep their type and are never averaged."""

    name: str = "maximum"
    linear: bool = False

    def fits(self, entries: Sequence[Entry]) -> str | None:
        return None

    def start(self) -> Acc:
        return {}

    def add(self, acc: Acc, values: State, weights: Tensor) -> Acc:
        return self.merge(acc, {name: value.amax(0) for name, value in values.items()})

    def merge(self, a: Acc, b: Acc) -> Acc:
        if not a or not b:
            return a or b
        return {name: torch.maximum(value, b[name]) for name, value in a.items()}

    def finish(self, acc: Acc) -> dict[str, Tensor]:
        return dict(acc)


@dataclass(frozen=True)
class Total:
    """sum_k x_k, whatever the weights."""

    name: str = "total"
    linear: bool = True

    def fits(self, entries: Sequence[Entry]) -> str | None:
        return None

    def start(self) -> Acc:
        return {}

    def add(self, acc: Acc, values: State, weights: Tensor) -> Acc:
        return self.merge(acc, {name: value.sum(0) for name, value in values.items()})

    def merge(self, a: Acc, b: Acc) -> Acc:
        if not a or not b:
            return a or b
        return {name: value + b[name] for name, value in a.items()}

    def finish(self, acc: Acc) -> dict[str, Tensor]:
        return dict(acc)


@dataclass(frozen=True)
class PooledMoments:
    """Mean and variance of each norm layer by the law of total variance: the spread of the clients' means counts.

        mean = sum_k p_k mean_k        var = sum_k p_k (var_k + (mean_k - mean)^2)

    Needs running mean and running variance of a layer together. Merged without subtracting large numbers (Chan,
    Golub, LeVeque, 1983).
    """

    name: str = "pooled_moments"
    linear: bool = False
    pairs: tuple[tuple[str, str], ...] = ()  # (name of mean, name of variance); filled in by `paired`

    def fits(self, entries: Sequence[Entry]) -> str | None:
        try:
            self.paired(entries)
        except Refused as problem:
            return str(problem)
        return None

    def paired(self, entries: Sequence[Entry]) -> PooledMoments:
        """This reducer, knowing which entries belong together."""
        layers: dict[str, dict[str, str]] = {}
        for entry in entries:
            layers.setdefault(entry.layer, {})[entry.attribute] = entry.name
        pairs = []
        for layer, names in layers.items():
            if set(names) != {"running_mean", "running_var"}:
                raise Refused(f"pooled moments need running mean and variance of layer '{layer}', got {sorted(names)}")
            pairs.append((names["running_mean"], names["running_var"]))
        return PooledMoments(pairs=tuple(pairs))

    def start(self) -> Acc:
        return {}

    def add(self, acc: Acc, values: State, weights: Tensor) -> Acc:
        new: Acc = {"weight": weights.sum(), "mean": {}, "spread": {}, "dtype": {}}
        total = float(_total_weight(new)) if float(weights.sum()) > 0 else 1.0
        for mean_name, var_name in self.pairs:
            mean, var = _wide(values[mean_name]), _wide(values[var_name])
            centre = _weigh(weights, mean) / total
            new["mean"][mean_name] = centre
            new["spread"][mean_name] = _weigh(weights, var + (mean - centre).square())
            new["dtype"][mean_name] = values[mean_name].dtype
        return self.merge(acc, new)

    def merge(self, a: Acc, b: Acc) -> Acc:
        if not a or not b:
            return a or b
        weight = a["weight"] + b["weight"]
        merged: Acc = {"weight": weight, "mean": {}, "spread": {}, "dtype": a["dtype"]}
        share = float(b["weight"] / weight) if float(weight) > 0 else 0.0
        for name, mean in a["mean"].items():
            gap = b["mean"][name] - mean
            merged["mean"][name] = mean + gap * share
            merged["spread"][name] = a["spread"][name] + b["spread"][name] + gap.square() * (float(a["weight"]) * share)
        return merged

    def finish(self, acc: Acc) -> dict[str, Tensor]:
        if not acc:
            return {}
        weight = float(_total_weight(acc))
        state: dict[str, Tensor] = {}
        for mean_name, var_name in self.pairs:
            state[mean_name] = acc["mean"][mean_name].to(acc["dtype"][mean_name])
            state[var_name] = (acc["spread"][mean_name] / weight).to(acc["dtype"][mean_name])
        return state


@dataclass(frozen=True)
class SpreadOverClients:
    """Averages entries, and puts the variance of each over the clients, element by element and unbiased, into its
    companion: 'layer.mean' -> 'layer.spread_of_mean' for `prefix='spread_of_'`. Companions are not averaged."""

    prefix: str
    name: str = "spread_over_clients"
    linear: bool = False

    def fits(self, entries: Sequence[Entry]) -> str | None:
        return None

    def start(self) -> Acc:
        return {"average": weighted_mean.start(), "spread": {}, "pairs": (), "clients": 0}

    def add(self, acc: Acc, values: State, weights: Tensor) -> Acc:
        plain = {name: value for name, value in values.items() if f".{self.prefix}" not in name}
        pairs = tuple((name, f".{self.prefix}".join(name.rsplit(".", 1))) for name in plain)
        points = {**plain, **{spread: torch.zeros_like(plain[name]) for name, spread in pairs}}  # a client is a point
        spread = PooledMoments(pairs=pairs).add({}, points, torch.ones_like(weights))
        average = weighted_mean.add(weighted_mean.start(), plain, weights)
        return self.merge(acc, {"average": average, "spread": spread, "pairs": pairs, "clients": len(weights)})

    def merge(self, a: Acc, b: Acc) -> Acc:
        return {
            "average": weighted_mean.merge(a["average"], b["average"]),
            "spread": PooledMoments().merge(a["spread"], b["spread"]),
            "pairs": a["pairs"] or b["pairs"],
            "clients": a["clients"] + b["clients"],
        }

    def finish(self, acc: Acc) -> dict[str, Tensor]:
        moments = PooledMoments(pairs=acc["pairs"]).finish(acc["spread"])
        bessel = acc["clients"] / (acc["clients"] - 1) if acc["clients"] > 1 else 0.0
        spreads = {spread: moments[spread] * bessel for _, spread in acc["pairs"]}
        return {**weighted_mean.finish(acc["average"]), **spreads}


weighted_mean: Reducer = WeightedMean()
maximum: Reducer = Maximum()
total: Reducer = Total()
pooled_moments: Reducer = PooledMoments()
