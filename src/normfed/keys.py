"""Randomness as a function: a number is drawn *from a key*, never from a generator that remembers.

A key is 64 bits. `fold` derives a key from a key; the draws hash key and position (SplitMix64: Steele, Lea, Flood,
OOPSLA 2014). A key is a Python int, or an int64 tensor where clients are stacked; both give the same numbers, so
resuming, replaying, stacking and distributing a run cannot change what it draws.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

Key = int | Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def signed(value: int) -> int:
    """The int64 with the same 64 bits (torch has no arithmetic on uint64)."""
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # logical, not arithmetic


def _mix(z: Key) -> Key:
    if isinstance(z, int):
        z &= _MASK
        z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
        z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
        return z ^ (z >> 31)
    z = (z ^ _shift(z, 30)) * signed(_MIX_1)
    z = (z ^ _shift(z, 27)) * signed(_MIX_2)
    return z ^ _shift(z, 31)


def named(text: str) -> int:
    """64 stable bits of a name: a client keeps its draws when others join or leave."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def fold(key: Key, *data: Key | str) -> Key:
    """A new key for each distinct piece of data, in order."""
    for item in data:
        item = named(item) if isinstance(item, str) else item
        if isinstance(item, int) and isinstance(key, Tensor):
            item = signed(item)
        if isinstance(key, int) and isinstance(item, Tensor):
            key = signed(key)
        inner = _mix(item + (_GOLDEN if isinstance(item, int) else signed(_GOLDEN)))
        if isinstance(inner, int) and isinstance(key, Tensor):
            inner = signed(inner)
        key = _mix((key ^ inner) + (_GOLDEN if isinstance(key, int) else signed(_GOLDEN)))
    return key


def bits(key: Key, shape: Sequence[int], device: torch.device | str | None = None) -> Tensor:
    """int64 tensor of independent random bits."""
    if isinstance(key, Tensor):
        device = key.device
    else:
        key = signed(key)
    count = torch.arange(1, math.prod(shape) + 1, device=device)
    mixed = _mix(key + count * signed(_GOLDEN))
    assert isinstance(mixed, Tensor)
    return mixed.reshape(tuple(shape))


def uniform(
    key: Key, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """Uniform in [0, 1): as many random bits as the type holds exactly."""
    exact = {torch.float64: 53, torch.float32: 24}.get(dtype, 8)
    return _shift(bits(key, shape, device), 64 - exact).to(dtype) * 2.0**-exact


def normal(
    key: Key, shape: Sequence[int], dtype: torch.dtype = torch.float32, device: torch.device | str | None = None
) -> Tensor:
    """Standard normal (Box and Muller, 1958)."""
    wide = torch.promote_types(dtype, torch.float32)
    radius = torch.sqrt(-2.0 * torch.log1p(-uniform(fold(key, 1), shape, wide, device)))
    angle = 2.0 * math.pi * uniform(fold(key, 2), shape, wide, device)
    return (radius * torch.cos(angle)).to(dtype)


def integers(key: Key, shape: Sequence[int], high: int, device: torch.device | str | None = None) -> Tensor:
    """Uniform integers in [0, high); the bias of the remainder is below high / 2**62."""
    return _shift(bits(key, shape, device), 2) % high


def permutation(key: Key, n: int, device: torch.device | str | None = None) -> Tensor:
    """A permutation of range(n): the order in which random bits sort."""
    return torch.argsort(bits(key, (n,), device), stable=True)


def subset(key: int, names: Sequence[str], size: int) -> list[str]:
    """`size` of the names, in their given order. Depends on the names, not on their positions."""
    drawn = sorted(names, key=lambda name: (fold(key, name), name))[:size]
    chosen = set(drawn)
    return [name for name in names if name in chosen]
