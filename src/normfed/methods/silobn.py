"""SiloBN: Andreux et al., DCL workshop at MICCAI 2020.

Running statistics (and counters) stay at home; gamma and beta are averaged like any weight. Deviations: none.
"""

from normfed.method import Expression, Method, factory
from normfed.needs import HAS_STATISTICS
from normfed.state import Scope, counters, norm, stats


@factory
def silobn() -> Expression:
    """Keeps the running statistics at home and averages the rest.

    Use it when sites look different but gains and offsets can be common: a client new to the federation needs
    statistics alone.
    It cannot serve classes that a client has never seen, and clients must come back.
    Identities: silobn+fedbn = fedbn
    """
    return Method("silobn", needs=(HAS_STATISTICS,), scope=((norm & (stats | counters), Scope.LOCAL),))
