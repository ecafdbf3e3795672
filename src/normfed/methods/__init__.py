"""One factory per method. The imports are the registry: a new method is its own file and one line here."""

from collections.abc import Callable

from normfed.method import Expression, is_factory
from normfed.methods.agc import agc
from normfed.methods.centralized import centralized
from normfed.methods.fedavg import fedavg
from normfed.methods.fedbn import fedbn
from normfed.methods.fedbs import fedbs
from normfed.methods.fedprox import fedprox
from normfed.methods.fixbn import fixbn
from normfed.methods.groupnorm import groupnorm
from normfed.methods.layernorm import layernorm
from normfed.methods.nonorm import nonorm
from normfed.methods.pooled import pooled
from normfed.methods.scaffold import scaffold
from normfed.methods.server_optimizers import fedadam, fedavgm, fedyogi
from normfed.methods.silobn import silobn
from normfed.methods.singleset import singleset

# Every factory imported above, by name.
METHODS: dict[str, Callable[..., Expression]] = {
    name: made for name, made in sorted(globals().items()) if is_factory(made)
}
