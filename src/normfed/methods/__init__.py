"""One factory per method. `METHODS` is the registry: a new method is its own file and one line here."""

from collections.abc import Callable

from normfed.method import Expression
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

METHODS: dict[str, Callable[..., Expression]] = {
    "agc": agc,
    "centralized": centralized,
    "fedadam": fedadam,
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedbn": fedbn,
    "fedbs": fedbs,
    "fedprox": fedprox,
    "fedyogi": fedyogi,
    "fixbn": fixbn,
    "groupnorm": groupnorm,
    "layernorm": layernorm,
    "nonorm": nonorm,
    "pooled": pooled,
    "scaffold": scaffold,
    "silobn": silobn,
    "singleset": singleset,
}
