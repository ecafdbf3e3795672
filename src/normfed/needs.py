"""Facts a method may ask of the model and the engine it is built for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normfed.method import Need
from normfed.state import Select, census, norm, stats

if TYPE_CHECKING:
    from normfed.plan import Built


def _none(built: Built) -> str:
    after = f"after {' and '.join(built.changed_by)} " if built.changed_by else ""
    return f"{after}the model has none: it has {census(built.norms)}"


def has(entries: Select, what: str) -> Need:
    """The model has at least one such entry."""

    def unmet(built: Built) -> str | None:
        return None if any(entries(e) for e in built.entries) else _none(built)

    return Need(f"has {what}", unmet)


def shares(entries: Select, what: str) -> Need:
    """The model has such entries, and all of them are shared."""

    def unmet(built: Built) -> str | None:
        chosen = [e for e in built.entries if entries(e)]
        if not chosen:
            return _none(built)
        local = [e.name for e in chosen if e.name in built.keepers]
        if not local:
            return None
        keepers = dict.fromkeys(built.keepers[name] for name in local)
        return f"{' and '.join(keepers)} keeps them on the clients ({local[0]}{', …' if len(local) > 1 else ''})"

    return Need(f"shares {what}", unmet)


def has_layers(kind: str) -> Need:
    """The model has norm layers of this type: what a transform has put there, no other has taken away."""
    return Need(f"has {kind} layers", lambda built: None if kind in built.norms else _none(built))


def _no_classifier(built: Built) -> str | None:
    return None if built.facts.head else "no linear layer was found whose input could be taken for features"


HAS_FEATURES = Need("has a classifier", _no_classifier)
HAS_BATCHNORM = has(norm, "BatchNorm layers to keep at home")
HAS_STATISTICS = has(stats, "running statistics to keep at home")
SHARES_STATISTICS = shares(stats, "running statistics")
