"""What keeps a line of a table from being played here: data, weights, extras."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from normfed.data import DATASETS, MADE
from normfed.data.catalogue import present, root_of
from normfed.errors import Refused
from normfed.recipe import Config, Recipe
from normfed.runs.inputs import open_run, weights_file


def keys_of(row: Recipe, quick: bool) -> dict[str, Any]:
    """A row's keys in a form, as written."""
    return {**row.keys, **(row.quick if quick else {})}


def needed(row: Recipe, quick: bool) -> str:
    """The dataset that a row's form is played on; "" for one that needs no files."""
    name = str(keys_of(row, quick).get("data", "")).partition("(")[0]
    return "" if name in MADE else name


def obstacle(row: Recipe, quick: bool, root: Path | None = None) -> str:
    """Why a form of a row cannot be played, as far as looking for files tells; "" where nothing is in the way."""
    keys, data = keys_of(row, quick), needed(row, quick)
    if row.missing and not quick:
        return row.missing
    if data in DATASETS and not present(data, root):
        return f"no data: {data} (it is not under {root_of(root)}; `normfed data fetch {data}` gets it, or says how)"
    weights = keys.get("weights")
    if weights and not weights_file(weights, root).is_file():
        return f"no weights: {weights} (looked for as {weights_file(weights, root)}, named as torchvision or timm does)"
    return _extra(keys)


def brief(reasons: Iterable[str]) -> str:
    """Several reasons in a few words: "no data: vlcs, domainnet; no weights: resnet18.safetensors"."""
    found: dict[str, dict[str, None]] = {}
    for reason in reasons:
        what, _, which = reason.partition(" (")[0].partition(": ")
        found.setdefault(what, {})[which] = None
    return "; ".join(f"{what}: {', '.join(which)}" for what, which in found.items())


def _extra(keys: Mapping[str, Any]) -> str:
    """A network that only an extra has."""
    model = str(keys.get("model", ""))
    if not model.startswith("zoo:"):
        return ""
    from normfed.models import find

    try:
        find(model)
    except Refused as refusal:
        return f"no extra: zoo ({'; '.join(refusal.problems)})"
    return ""


def refusal(config: Config, root: Path | None = None) -> str:
    """What a run of a config would be refused for, everything opened; "" where nothing."""
    try:
        open_run({**config, "seeds": config["seeds"][:1]}, root)
    except Refused as found:
        return "; ".join(found.problems)
    return ""
