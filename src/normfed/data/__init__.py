"""Federations: where samples come from, who gets which, and how they are held.

federation = open_federation("office_caltech10", "domain / truncate(0.5, val=0.4)")
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from normfed.data import catalogue, own, synthetic
from normfed.data.catalogue import DATASETS, Dataset, present
from normfed.data.embedded import source as embedded_source
from normfed.data.federation import Federation, federate
from normfed.data.given import federation
from normfed.data.source import Block, Source
from normfed.errors import Refused
from normfed.text import bind, call

MADE: dict[str, Callable[..., Source]] = {  # federations that need no files
    "embedded": embedded_source,
    "fedbn_cosine": synthetic.cosine,
    "fedbn_gaussians": synthetic.gaussians,
}

__all__ = [
    "DATASETS",
    "MADE",
    "Block",
    "Dataset",
    "Federation",
    "Source",
    "federate",
    "federation",
    "open_federation",
    "present",
    "source_of",
]


def open_federation(data: str, partition: str | None = None, seed: int = 0, root: Path | None = None) -> Federation:
    """The clients of `data`: a dataset's name, with arguments where needed (`domainnet(classes=100)`), "embedded", or a
    path of your own. `partition` is a text or the path of a saved one; None: the dataset's own."""
    return federate(source_of(data, root), partition, seed)


def source_of(data: str, root: Path | None = None, **options: Any) -> Source:
    """What `data` means, before it is dealt to clients; `options` are further arguments of it. A name goes before a
    path: `./digits` is a folder of yours."""
    path, arguments = _path_in(data)
    if path is not None:
        _, positional, named = call(f"own{arguments}", 'photos(side=64, label="diagnosis")')
        named |= options
        bind(own.source, str(path), positional, named, given=("path",))
        return own.source(path, **named)
    name, positional, named = call(data, "digits or domainnet(classes=100)")
    named |= options
    if name in MADE:
        bind(MADE[name], name, positional, named)
        return MADE[name](*positional, **named)
    catalogue.find(name)
    if positional:
        raise Refused(f"{name}: arguments go by name, {name}(side=64)")
    bind(catalogue.source, name, positional, named, given=("name", "root"))
    return catalogue.source(name, root, **named)


def _path_in(data: str) -> tuple[Path | None, str]:
    """The path of own data and its arguments, `photos(side=64)`; None where it is a name."""
    if data.partition("(")[0] in {*MADE, *DATASETS}:
        return None, ""
    cuts = [len(data), *(i for i, char in enumerate(data) if char == "(" and data.endswith(")"))]
    for cut in cuts:
        if data[:cut] and Path(data[:cut]).exists():
            return Path(data[:cut]), data[cut:]
    if not data.partition("(")[0].strip().isidentifier():
        raise Refused(f"there is no file or folder '{data[: cuts[-1]]}'")
    return None, ""
