"""Federations: where samples come from, who gets which, and how they are held.

federation = open_federation("office_caltech10", "domain / truncate(0.5, val=0.4)")
"""

from __future__ import annotations

from pathlib import Path

from normfed.data import catalogue
from normfed.data.catalogue import DATASETS, Dataset, present
from normfed.data.federation import Federation, federate
from normfed.data.source import Block, Source
from normfed.errors import Refused
from normfed.text import bind, call

__all__ = [
    "DATASETS",
    "Block",
    "Dataset",
    "Federation",
    "Source",
    "federate",
    "open_federation",
    "present",
    "source_of",
]


def open_federation(data: str, partition: str | None = None, seed: int = 0, root: Path | None = None) -> Federation:
    """The clients of `data`: a dataset's name, with arguments where needed (`domainnet(classes=100)`), "embedded", or a
    path of your own. `partition` is a text or the path of a saved one; None: the dataset's own."""
    return federate(source_of(data, root), partition, seed)


def source_of(data: str, root: Path | None = None) -> Source:
    """What `data` means, before it is dealt to clients."""
    name, positional, named = call(data, "digits or domainnet(classes=100)")
    if name == "embedded":
        from normfed.data.embedded import source as embedded

        bind(embedded, name, positional, named)
        return embedded(*positional, **named)
    catalogue.find(name)
    if positional:
        raise Refused(f"{name}: arguments go by name, {name}(side=64)")
    bind(catalogue.source, name, positional, named, given=("name", "root"))
    return catalogue.source(name, root, **named)
