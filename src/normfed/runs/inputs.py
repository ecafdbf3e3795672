"""From a config to what `Run` takes: the federation, the model, the settings."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normfed import models, prepare
from normfed._version import __version__
from normfed.checks import first_samples
from normfed.data import Federation, open_federation
from normfed.data.catalogue import root_of
from normfed.experiment import Run
from normfed.expression import parse
from normfed.models import weights
from normfed.recipe import Config
from normfed.settings import Settings

SETTINGS = frozenset(f.name for f in fields(Settings))


@lru_cache(maxsize=1)  # the runs of a comparison share their data
def _opened(data: str, partition: str | None, seed: int, root: Path | None) -> Federation:
    return open_federation(data, partition, seed, root)


def forget() -> None:
    """Before anything new is begun: what lies in a folder may have changed since it was opened."""
    _opened.cache_clear()


def federation(config: Config, root: Path | None) -> Federation:
    return _opened(config["data"], config.get("partition"), config["partition_seed"], root)


def weights_file(name: str, root: Path | None = None) -> Path:
    """A file of weights: by its path, or under `weights/` where the datasets lie."""
    path = Path(name)
    return path if path.is_absolute() or path.is_file() else root_of(root) / "weights" / name


def model(config: Config, seed: int, classes: int, shape: Sequence[int], root: Path | None = None) -> nn.Module:
    """The network with the initial weights of a seed, the same for every method; or those of a file."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = models.make(config["model"], classes, shape)
    if "weights" in config:
        weights.load(made, weights_file(config["weights"], root))
    return made


def seen(config: Config, x: Tensor) -> Tensor:
    """Stored samples as the model sees them."""
    return prepare.parse(config.get("prepare"), like=x)(x, torch.float32)


def open_run(config: Config, root: Path | None = None, resume: bytes | None = None) -> Run:
    """A run of a config with one seed, every problem with it said before any work."""
    (seed,) = config["seeds"]
    given = federation(config, root)
    shape = seen(config, first_samples(given)[0]).shape[1:]
    settings = {key: value for key, value in config.items() if key in SETTINGS}
    method = parse(config["method"])
    network = model(config, seed, len(given.classes), shape, root)
    return Run(network, given, method, resume=resume, seed=seed, **settings)


def facts(config: Config, root: Path | None) -> dict[str, Any]:
    """What a run began with, beside its config: enough to rebuild its model without its data."""
    given = federation(config, root)
    x, _ = first_samples(given)
    trained = {name: pair for name, c in given.items() if c.role == "train" and (pair := c.train) is not None}
    return {
        "normfed": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "partition_hash": given.hash,
        "input": list(x.shape[1:]),
        "dtype": str(x.dtype).removeprefix("torch."),
        "classes": list(given.classes),
        "clients": list(trained),
        "samples": [len(pair[1]) for pair in trained.values()],
    }
