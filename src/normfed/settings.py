"""What a run is told beside model, clients and method, checked as one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normfed import losses, prepare, rates, stopping
from normfed.checks import choice
from normfed.errors import Problems, Refused, nearest
from normfed.evaluate import VIEWS
from normfed.metrics import METRICS
from normfed.optim import Optimizer, adamw, sgd
from normfed.pictures import PICTURES

ENGINES = ("auto", "serial", "stacked", "distributed")
NOT_YET = {"distributed": "engine 'distributed' is not there yet; use serial, stacked or auto"}
OPTIMIZERS = ("sgd", "adamw")
WEIGHTINGS = ("samples", "equal")

Schedule = float | str | Callable[[int], float]  # a text: see normfed.rates


@dataclass(frozen=True)
class Settings:
    """The arguments of `simulate` that are neither data nor method. Times are counted in rounds, epochs or steps."""

    rounds: int
    epochs: int = 1
    steps: int | None = None
    batch_size: int = 32
    lr: Schedule = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    clip_norm: float | None = None
    loss: str | Callable[[Tensor, Tensor], Tensor] | None = None
    metrics: tuple[str, ...] = ("accuracy",)
    evaluate_every: int = 1
    views: tuple[str, ...] = ()  # further views to evaluate under, beside the method's own
    views_every: int = 1  # rounds between two looks under those; the last round always has one
    pictures: tuple[str, ...] = ()  # of normalization, see normfed.pictures
    shuffle: bool = True
    drop_last: bool = False
    prepare: str | None = None  # of stored images: what becomes of them before the model sees them
    weighting: str | Mapping[str, float] = "samples"
    participation: float = 1.0
    stop: str | None = None  # when to end before the last round: see normfed.stopping
    engine: str = "auto"
    device: str = "cpu"
    seed: int = 0
    stack: int | None = None

    @classmethod
    def of(cls, **given: Any) -> Settings:
        """Settings from keywords; every unknown or impossible one is listed."""
        known = [f.name for f in fields(cls)]
        problems = [f"unknown argument '{key}'; {nearest(key, known)}" for key in given if key not in known]
        if "rounds" not in given:
            problems.append("rounds: missing")
        if problems:
            raise Refused(*problems)
        for name in ("metrics", "views", "pictures"):
            value = given.get(name)
            if isinstance(value, str | list):
                given[name] = (value,) if isinstance(value, str) else tuple(value)
        for name, value in given.items():
            if isinstance(value, np.generic | torch.device):
                given[name] = value.item() if isinstance(value, np.generic) else str(value)
        if given.get("views") == ("all",):
            given["views"] = VIEWS
        if given.get("pictures") == ("all",):
            given["pictures"] = PICTURES
        settings = cls(**given)
        problems = settings.problems()
        if problems:
            raise Refused(*problems)
        return settings

    def problems(self) -> list[str]:
        found: list[str] = []
        for name in ("rounds", "epochs", "batch_size", "evaluate_every", "views_every", "steps", "stack"):
            value = getattr(self, name)
            if value is None and name in ("steps", "stack"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                found.append(f"{name}={value!r}: must be a whole number, 1 or more")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            found.append(f"seed={self.seed!r}: must be a whole number")
        for name in ("momentum", "weight_decay"):
            found += _number(name, getattr(self, name), 0.0, 1.0 if name == "momentum" else math.inf)
        if isinstance(self.lr, str) and "(" in self.lr:
            found += _refusals(rates.parse, self.lr)
        else:
            found += self._bad_rates() if callable(self.lr) else _number("lr", self.lr, 0.0, math.inf)
        if self.clip_norm is not None:
            found += _number("clip_norm", self.clip_norm, 0.0, math.inf, open_low=True)
        found += _number("participation", self.participation, 0.0, 1.0, open_low=True, closed_high=True)
        for name in ("shuffle", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                found.append(f"{name}={getattr(self, name)!r}: must be true or false")
        later = NOT_YET.get(str(self.engine))
        found += choice("engine", self.engine, ENGINES) if later is None else [later]
        found += choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer == "adamw" and self.momentum:
            found.append("momentum is sgd's; adamw has its own")
        for what, known in (("metric", METRICS), ("view", (*VIEWS, "all")), ("picture", (*PICTURES, "all"))):
            named = getattr(self, f"{what}s")
            if not isinstance(named, tuple):
                found.append(f"{what}s={named!r}: must be a name or several")
                continue
            for name in named:
                found += choice(what, name, known)
        if isinstance(self.loss, str):
            found += _refusals(losses.parse, self.loss)
        elif self.loss is not None and not callable(self.loss):
            found.append(f"loss={self.loss!r}: must be a name or a function of (logits, labels)")
        found += _refusals(prepare.parse, self.prepare)
        if isinstance(self.stop, str):
            found += _refusals(stopping.parse, self.stop)
        elif self.stop is not None:
            found.append(f"stop={self.stop!r}: must be a text such as 'val_accuracy(patience=5)'")
        if isinstance(self.weighting, str):
            found += choice("weighting", self.weighting, WEIGHTINGS)
        elif not isinstance(self.weighting, Mapping):
            found.append(f"weighting={self.weighting!r}: must be 'samples', 'equal' or a mapping from client to weight")
        return found

    def _bad_rates(self) -> list[str]:
        """A function of the round must have a rate for every round; the first that is none is told."""
        for round in range(self.rounds if isinstance(self.rounds, int) else 0):
            try:
                problems = _number(f"lr({round})", self.lr_at(round), 0.0, math.inf)
            except Exception as error:
                problems = [f"lr({round}): must be a number at least 0; it raises {type(error).__name__}"]
            if problems:
                return problems
        return []

    def check_weighting(self, clients: Any) -> list[str]:
        """A mapping must name every client, and the weights must be able to sum to something."""
        if not isinstance(self.weighting, Mapping):
            return []
        found = [f"weighting: no weight for client '{name}'" for name in clients if name not in self.weighting]
        found += [
            f"weighting: unknown client '{name}'; {nearest(name, clients)}"
            for name in self.weighting
            if name not in clients
        ]
        values = list(self.weighting.values())
        if any(not isinstance(v, int | float | np.number) or not math.isfinite(v) or v < 0 for v in values):
            found.append("weighting: weights must be finite numbers, 0 or more")
        elif sum(values) <= 0:
            found.append("weighting: the weights sum to zero: nothing to average")
        return found

    @property
    def loss_function(self) -> Callable[[Tensor, Tensor], Tensor]:
        return self.loss if callable(self.loss) else losses.parse(self.loss or "cross_entropy")

    @property
    def stop_rule(self) -> stopping.Stop | None:
        return None if self.stop is None else stopping.parse(self.stop)

    def check_stop(self, splits: Mapping[str, frozenset[str]]) -> list[str]:
        """Who stops by validation data must have some; and metrics that nobody takes are never better."""
        rule = self.stop_rule
        if rule is None or rule.metric == "train_loss":
            return []
        if not any("val" in present for present in splits.values()):
            return [f"stop: {rule.metric} needs validation data, and no client has any; train_loss needs none"]
        name = rule.metric.removeprefix("val_")
        if name not in ("loss", "accuracy", *self.metrics):
            return [f"stop: {rule.metric} is not measured; add '{name}' to metrics"]
        return []

    @property
    def lr_at(self) -> Callable[[int], float]:
        if isinstance(self.lr, str):
            return rates.parse(self.lr)
        rate = self.lr
        return (lambda round: float(rate(round))) if callable(rate) else (lambda round: float(rate))

    def make_optimizer(self) -> Optimizer:
        return adamw(self.weight_decay) if self.optimizer == "adamw" else sgd(self.momentum, self.weight_decay)


def _refusals(parse: Callable[[Any], Any], text: Any) -> list[str]:
    problems = Problems()
    with problems:
        parse(text)
    return problems.found


def _number(
    name: str, value: Any, low: float, high: float, open_low: bool = False, closed_high: bool = False
) -> list[str]:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good and (value > low if open_low else value >= low) and (value <= high if closed_high else value < high):
        return []
    bounds = f"{'above' if open_low else 'at least'} {low:g}"
    if math.isfinite(high):
        bounds += f" and {'at most' if closed_high else 'below'} {high:g}"
    return [f"{name}={value!r}: must be a number {bounds}"]
