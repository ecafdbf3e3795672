"""Dropout whose masks are drawn from keys: the same on every engine, in a second pass, and after a resume."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from normfed.keys import uniform


class KeyedLayer:
    """A layer whose noise comes from the key of the pass under way."""

    def forward(self: Any, x: Tensor) -> Tensor:
        if not (self.training and self._wire.now.training) or self.p == 0.0:
            return x
        spatial = {None: 0, ALL_SPATIAL: x.dim() - 2}.get(self._spatial, self._spatial)
        shape = (*x.shape[: x.dim() - spatial], *[1] * spatial)
        key = self._wire.now.site_key(self._name)
        keep = (uniform(key, shape, torch.float32, x.device) >= self.p).to(x.dtype)
        return self._apply_mask(x, keep)


class _Plain:
    def _apply_mask(self: Any, x: Tensor, keep: Tensor) -> Tensor:
        return x * keep * (0.0 if self.p == 1.0 else 1.0 / (1.0 - self.p))


class _Alpha:
    """Dropped units take SELU's saturation value, and mean and variance are restored (Klambauer et al., 2017)."""

    def _apply_mask(self: Any, x: Tensor, keep: Tensor) -> Tensor:
        if self.p == 1.0:
            return torch.zeros_like(x)
        alpha = -1.7580993408473766  # -scale * alpha of SELU
        a = ((1.0 - self.p) * (1.0 + self.p * alpha**2)) ** -0.5
        return (x * keep + alpha * (1 - keep)) * a + -a * alpha * self.p


ALL_SPATIAL = -1

# type -> (how the mask is applied, number of trailing dimensions that share one draw; None: every element its own)
_KINDS: dict[type[nn.Module], tuple[type, int | None]] = {
    nn.Dropout: (_Plain, None),
    nn.Dropout1d: (_Plain, 1),
    nn.Dropout2d: (_Plain, 2),
    nn.Dropout3d: (_Plain, 3),
    nn.AlphaDropout: (_Alpha, None),
    nn.FeatureAlphaDropout: (_Alpha, ALL_SPATIAL),
}


@functools.cache
def keyed(kind: type[nn.Module]) -> type[nn.Module] | None:
    """The keyed class for a dropout layer; None for anything whose forward is not a stock dropout's."""
    if not issubclass(kind, _DropoutNd) or issubclass(kind, KeyedLayer):
        return None
    for stock, (rule, spatial) in _KINDS.items():
        if issubclass(kind, stock) and kind.forward is stock.forward:
            return type(f"Keyed{kind.__name__}", (KeyedLayer, rule, kind), {"_spatial": spatial})
    return None
