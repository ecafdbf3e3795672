"""A run's state as bytes and back: tensors as safetensors, structure as JSON in its header, never a pickle.

The bytes are sealed: the header holds the SHA-256 of everything, taken with zeros in the hash's own place. A byte that
changed is found out before anything is believed.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from normfed.errors import Refused
from normfed.server import ClientState, RunState

FORMAT = "normfed.runstate.2"
UNSEALED = "0" * 64
_SEAL = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')


def _flatten(value: Any, tensors: list[Tensor]) -> Any:
    """Nested mappings of tensors -> the same with numbers for tensors."""
    if isinstance(value, Tensor):
        tensors.append(value)
        return len(tensors) - 1
    return {name: _flatten(part, tensors) for name, part in value.items()}


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of numbers: safetensors knows no complex128."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _restore(shape: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(shape, int):
        return tensors[str(shape)]
    return {name: _restore(part, tensors) for name, part in shape.items()}


def to_bytes(state: RunState, extra: Mapping[str, Any] | None = None) -> bytes:
    """`extra` is any JSON value to keep beside the state (the records so far, say)."""
    tensors: list[Tensor] = []
    document = {
        "sha256": UNSEALED,
        "format": FORMAT,
        "round": state.round,
        "latched": dict(state.latched),
        "model": _flatten(state.model, tensors),
        "slots": _flatten(state.slots, tensors),
        "clients": {
            name: {"kept": _flatten(c.kept, tensors), "slots": _flatten(c.slots, tensors)}
            for name, c in state.clients.items()
        },
        "complex": [i for i, tensor in enumerate(tensors) if tensor.is_complex()],
        "extra": extra,
    }
    # A tensor of its own for each entry: safetensors refuses shared storage.
    plain = {str(i): _real(tensor.detach().cpu()).contiguous().clone() for i, tensor in enumerate(tensors)}
    data = save_tensors(plain, metadata={"normfed": json.dumps(document)})
    return _with_seal(data, hashlib.sha256(data).hexdigest())


def _with_seal(data: bytes, seal: str) -> bytes:
    found = _SEAL.search(data)
    if found is None:
        raise ValueError("it is not sealed")
    return data[: found.start(1)] + seal.encode() + data[found.end(1) :]


def _check_seal(data: bytes) -> None:
    found = _SEAL.search(data)
    seal = found[1].decode() if found else ""
    if hashlib.sha256(_with_seal(data, UNSEALED)).hexdigest() != seal:
        raise ValueError(_cut_short(data) or "its bytes do not have the SHA-256 that it was written with")


def _cut_short(data: bytes) -> str | None:
    """What is missing at the end, where the header can still tell."""
    length = 8 + int.from_bytes(data[:8], "little")
    try:
        ends = [entry["data_offsets"][1] for entry in json.loads(data[8:length]).values() if "data_offsets" in entry]
    except (ValueError, KeyError, TypeError, AttributeError):
        ends = []
    whole = length + max(ends, default=0)
    return f"it is cut short, {len(data)} of {whole} bytes" if len(data) < whole < 1 << 50 else None


def from_bytes(data: bytes) -> tuple[RunState, Any]:
    """The state and the extra value. Raises `Refused` for anything that is not a run's state."""
    try:
        _check_seal(data)
        length = int.from_bytes(data[:8], "little")
        document = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["normfed"])
        tensors = load_tensors(data)
        tensors |= {str(i): torch.view_as_complex(tensors[str(i)]) for i in document.get("complex", ())}
        if document["format"] != FORMAT:
            raise Refused(f"a run saved in format '{document['format']}', this version reads '{FORMAT}'")
        state = RunState(
            round=document["round"],
            model=_restore(document["model"], tensors),
            slots=_restore(document["slots"], tensors),
            latched=document["latched"],
            clients={
                name: ClientState(_restore(c["kept"], tensors), _restore(c["slots"], tensors))
                for name, c in document["clients"].items()
            },
        )
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, Refused):
            raise
        raise Refused(f"not a saved run, or a damaged one: {error}") from None
    return state, document["extra"]


def move(state: RunState, device: Any) -> RunState:
    """The state with every tensor on a device."""

    def to(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else {name: to(part) for name, part in value.items()}

    clients = {name: ClientState(to(c.kept), to(c.slots)) for name, c in state.clients.items()}
    return RunState(state.round, to(state.model), to(state.slots), state.latched, clients)
