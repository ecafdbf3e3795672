"""One factory per method. The imports are the registry: a new method is its own file and one line here."""

from collections.abc import Callable

from normfed.method import Expression, is_factory
from normfed.methods.agc import agc
from normfed.methods.batchrenorm import batchrenorm
from normfed.methods.centralized import centralized
from normfed.methods.fbn import fbn
from normfed.methods.fedavg import fedavg
from normfed.methods.fedbn import fedbn
from normfed.methods.fedbs import fedbs
from normfed.methods.fedfa import fedfa
from normfed.methods.fedplvm import fedplvm
from normfed.methods.fedprox import fedprox
from normfed.methods.fedrdn import fedrdn
from normfed.methods.fedtan import feddna, fedtan, fedtan_ii
from normfed.methods.fedwon import fedwon
from normfed.methods.fixbn import fixbn
from normfed.methods.fixup import fixup
from normfed.methods.globalstats import ensemblestats, globalstats, mixstats
from normfed.methods.greg import greg
from normfed.methods.groupnorm import groupnorm
from normfed.methods.hbn import hbn
from normfed.methods.layernorm import layernorm
from normfed.methods.nonorm import nonorm
from normfed.methods.partialfed import partialfed, partialfed_adaptive
from normfed.methods.pooled import pooled
from normfed.methods.popnorm import popnorm
from normfed.methods.scaffold import scaffold
from normfed.methods.server_optimizers import fedadam, fedavgm, fedyogi
from normfed.methods.silobn import silobn
from normfed.methods.singleset import singleset

# Every factory imported above, by name.
METHODS: dict[str, Callable[..., Expression]] = {
    name: made for name, made in sorted(globals().items()) if is_factory(made)
}
