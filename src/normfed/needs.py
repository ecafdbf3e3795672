"""Facts a method may ask of the model and the engine it is built for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normfed.method import Need
from normfed.state import Scope, Select, norm, stats

if TYPE_CHECKING:
    from normfed.plan import Built


def _instead(built: Built) -> str:
    return f"it has {built.census}"


def has(entries: Select, what: str) -> Need:
    """The model has at least one such entry."""

    def unmet(built: Built) -> str | None:
        return None if any(entries(e) for e in built.entries) else f"the model has none: {_instead(built)}"

    return Need(f"has {what}", unmet)


def shares(entries: Select, what: str) -> Need:
    """The model has such entries, and all of them are shared."""

    def unmet(built: Built) -> str | None:
        chosen = [e for e in built.entries if entries(e)]
        if not chosen:
            return f"the model has none: {_instead(built)}"
        local = [e.name for e in chosen if built.scope[e.name] is Scope.LOCAL]
        return f"they stay on the clients ({local[0]}{', …' if len(local) > 1 else ''})" if local else None

    return Need(f"shares {what}", unmet)


def _no_classifier(built: Built) -> str | None:
    return None if built.facts.head else "no linear layer was found whose input could be taken for features"


HAS_FEATURES = Need("has a classifier", _no_classifier)
HAS_BATCHNORM = has(norm, "BatchNorm layers")
HAS_STATISTICS = has(stats, "running statistics")
SHARES_STATISTICS = shares(stats, "running statistics")
