"""normfed: federated learning that keeps its normalization straight on non-IID data."""

from normfed import methods
from normfed._version import __version__
from normfed.data.given import federation
from normfed.data.store import ClientData
from normfed.errors import Aborted, NormfedError, Refused
from normfed.experiment import Result, Run, simulate
from normfed.method import Method, Report, Segment, Slot, factory, switch
from normfed.runs import load

__all__ = [
    "Aborted",
    "ClientData",
    "Method",
    "NormfedError",
    "Refused",
    "Report",
    "Result",
    "Run",
    "Segment",
    "Slot",
    "__version__",
    "factory",
    "federation",
    "load",
    "methods",
    "simulate",
    "switch",
]
