"""What tests share: the golden construction of weights and data, and comparisons."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

import normfed as nf

GOLDEN = Path(__file__).parent / "golden"
PARITY = 1e-9


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def golden_weights(model: nn.Module, rename=lambda name: name) -> nn.Module:
    """Every parameter from its own stream, seeded by the CRC-32 of its (golden) name; float64."""
    model.double()
    norms = {f"{path}." for path, m in model.named_modules() if isinstance(m, _BatchNorm | nn.GroupNorm)}
    for name, parameter in model.named_parameters():
        z = np.random.default_rng(zlib.crc32(rename(name).encode())).standard_normal(tuple(parameter.shape))
        owner, _, attribute = name.rpartition(".")
        if f"{owner}." in norms:
            z = 1 + 0.1 * z if attribute == "weight" else 0.1 * z
        elif attribute == "weight":
            z = z / np.sqrt(np.prod(parameter.shape[1:]))
        else:
            z = 0.01 * z
        parameter.data = torch.from_numpy(z)
    return model


def summary(tensor):
    a = tensor.double().numpy().ravel()
    return {
        "sum": a.sum(),
        "l2": np.sqrt((a * a).sum()),
        "absmax": np.abs(a).max(),
        "first": a[:4].tolist(),
        "wsum": (a * np.cos(np.arange(a.size))).sum(),
    }


def gap(expected, tensor) -> float:
    """Largest deviation of a tensor from a golden entry: whole, or its summary (relative to its size)."""
    if isinstance(expected, dict):
        found = summary(tensor)
        scale = max(1.0, abs(expected["l2"]))
        return max(np.abs(np.asarray(expected[key]) - np.asarray(found[key])).max() / scale for key in found)
    return float(np.abs(np.asarray(expected, dtype=float).ravel() - tensor.double().numpy().ravel()).max())


def worst(expected, state, skip=("num_batches_tracked", "running_num")):
    """Over all entries of a golden state; counters are not compared (the references' differ by client)."""
    return max(gap(value, state[name]) for name, value in expected.items() if not name.endswith(skip))


def losses(result, round):
    return np.array(list(result.history[round]["train_loss"].values()))


def scaled_normals(seed, sizes, scales, shifts, shape, classes, cast=None):
    """Golden data: labels first, then samples; client k from default_rng([seed, k])."""
    pairs = []
    for k, (n, s, m) in enumerate(zip(sizes, scales, shifts, strict=True)):
        r = np.random.default_rng([seed, k])
        y = r.integers(0, classes, size=n)
        x = r.standard_normal((n, *shape)) * s + m
        pairs.append((x if cast is None else x.astype(cast).astype(np.float64), y))
    return pairs


def federation(train, test=None):
    test = [None] * len(train) if test is None else test
    return {f"client {k}": nf.ClientData(train=a, test=b) for k, (a, b) in enumerate(zip(train, test, strict=True))}
