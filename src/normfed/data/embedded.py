"""A federation that needs no files: real handwritten digits, seen through five instruments.

1,797 digits of 8x8 pixels (Alpaydin and Kaynak, 1998, UCI repository, CC BY 4.0; as scikit-learn ships them), dealt out
to five sites without overlap, and drawn by each site in its own way: ink on paper, a neon sign, a blueprint, a faint
scan, print on a patterned cloth. Labels are balanced alike everywhere, so what differs between the sites is how things
look: feature shift, and nothing else.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normfed.data.source import Block, Source
from normfed.data.store import ClientData
from normfed.keys import fold, normal, permutation, uniform

SIDE = 16  # pixels of a drawn digit


def digits() -> tuple[Tensor, Tensor]:
    """(x, y): [1797, 8, 8] in [0, 1], labels 0 to 9."""
    with resources.files("normfed.data").joinpath("digits8x8.npz").open("rb") as file, np.load(file) as arrays:
        return torch.from_numpy(arrays["x"]).float() / 16, torch.from_numpy(arrays["y"]).long()


def _ramp(axis: int) -> Tensor:
    line = torch.linspace(0, 1, SIDE)
    return line.view(-1, 1).expand(SIDE, SIDE) if axis == 0 else line.expand(SIDE, SIDE)


def _colour(*rgb: float) -> Tensor:
    return torch.tensor(rgb).view(3, 1, 1)


def _blend(mask: Tensor, front: Tensor, back: Tensor) -> Tensor:
    return mask * front + (1 - mask) * back


def _ink(mask: Tensor, key: int) -> Tensor:
    paper = 0.93 + 0.03 * normal(key, (len(mask), 1, SIDE, SIDE))
    return _blend(mask, _colour(0.1, 0.1, 0.2), paper * _colour(1.0, 0.98, 0.92))


def _neon(mask: Tensor, key: int) -> Tensor:
    glow = F.avg_pool2d(mask, 3, 1, 1)
    hue = uniform(key, (len(mask), 3, 1, 1)) * 0.5 + 0.5
    return (glow * 0.4 + mask * 0.9).clamp(0, 1) * hue * _colour(0.9, 0.35, 1.0)


def _blueprint(mask: Tensor, key: int) -> Tensor:
    light = 0.5 + 0.5 * uniform(key, (len(mask), 1, 1, 1)) * _ramp(0)
    grid = ((torch.arange(SIDE) % 4 == 0).float().view(-1, 1) + (torch.arange(SIDE) % 4 == 0).float()).clamp(max=1)
    return _blend(mask * 0.85, _colour(0.85, 0.92, 1.0), light * _colour(0.1, 0.25, 0.65) + 0.12 * grid)


def _scan(mask: Tensor, key: int) -> Tensor:
    soft = F.avg_pool2d(mask, 3, 1, 1)
    grey = 0.62 - 0.16 * soft + 0.02 * normal(key, (len(mask), 1, SIDE, SIDE)) + 0.08 * _ramp(1)
    return grey.expand(-1, 3, -1, -1)


def _cloth(mask: Tensor, key: int) -> Tensor:
    phase = uniform(key, (len(mask), 1, 1, 1)) * 6.28
    rows, columns = torch.arange(SIDE).view(-1, 1), torch.arange(SIDE)
    weave = 0.5 + 0.5 * torch.sin(1.3 * rows + 0.9 * columns + phase)
    return _blend(
        mask, _colour(0.95, 0.85, 0.3), weave * _colour(0.75, 0.15, 0.2) + (1 - weave) * _colour(0.2, 0.45, 0.3)
    )


STYLES = {"ink": _ink, "neon": _neon, "blueprint": _blueprint, "scan": _scan, "cloth": _cloth}


def embedded(train: int = 100, seed: int = 0) -> dict[str, ClientData]:
    """Five sites with `train` training and 200 test images each, [3, 16, 16] in [-1, 1]."""
    x, y = digits()
    order = permutation(fold(seed, "embedded"), len(x))
    share = len(x) // len(STYLES)
    clients = {}
    for k, (name, draw) in enumerate(STYLES.items()):
        mine = order[k * share : (k + 1) * share]
        mask = F.interpolate(x[mine][:, None], size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        key = fold(seed, "embedded", name)
        assert isinstance(key, int)
        pictures = (draw(mask, key).clamp(0, 1) - 0.5) / 0.5
        test = slice(share - 200, share)
        clients[name] = ClientData(train=(pictures[:train], y[mine][:train]), test=(pictures[test], y[mine][test]))
    return clients


def source(train: int = 100) -> Source:
    """The same federation as a source: a block for each site's training and test images."""
    blocks = [
        Block(name, split, y.numpy(), tuple(x.shape[1:]), x.numpy().dtype, lambda x=x: x.numpy())  # type: ignore[misc]
        for name, client in embedded(train).items()
        for split, (x, y) in (("train", client.train), ("test", client.test))
    ]
    return Source("embedded", tuple(map(str, range(10))), tuple(blocks), "Real digits seen through five instruments")
