"""A federation that needs no files: real handwritten digits, seen through five instruments.

1,797 digits of 8x8 pixels (Alpaydin and Kaynak, 1998, UCI repository, CC BY 4.0; as scikit-learn ships them), dealt out
to five sites without overlap, and drawn by each site in its own way: ink on paper, a neon sign, a blueprint, a grey
scan, print on a patterned cloth. Exposure varies from picture to picture, everywhere alike. Labels are balanced alike
everywhere too, so what differs between the sites is how things look: feature shift, and nothing else.

The shift is of a size that leaves no method helpless: a model that a site trains alone, or one that averages
everything, is right about most digits at every site (`tests/data/test_embedded.py` holds it to that).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from normfed.data.source import Block, Source
from normfed.data.store import ClientData
from normfed.errors import Refused
from normfed.keys import Key, fold, normal, permutation, uniform

SIDE = 16  # pixels of a drawn digit
TEST = 200  # test images of a site
SHARED_OUT = 100  # training images of a site, where the unseen one gets the rest

CLASSES = tuple(map(str, range(10)))

Style = Callable[[Tensor, Key], Tensor]


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


def _ink(mask: Tensor, key: Key) -> Tensor:
    paper = 0.80 + 0.03 * normal(key, (len(mask), 1, SIDE, SIDE))
    return _blend(mask * 0.9, _colour(0.15, 0.15, 0.27), paper * _colour(1.0, 0.96, 0.88))


def _neon(mask: Tensor, key: Key) -> Tensor:
    glow = F.avg_pool2d(mask, 3, 1, 1)
    hue = uniform(key, (len(mask), 3, 1, 1)) * 0.4 + 0.6
    return _colour(0.24, 0.14, 0.29) + (glow * 0.3 + mask * 0.6) * hue * _colour(0.8, 0.5, 0.75)


def _blueprint(mask: Tensor, key: Key) -> Tensor:
    light = 0.6 + 0.4 * uniform(key, (len(mask), 1, 1, 1)) * _ramp(0)
    lines = (torch.arange(SIDE) % 4 == 0).float()
    grid = (lines.view(-1, 1) + lines).clamp(max=1)
    return _blend(mask * 0.85, _colour(0.85, 0.92, 1.0), light * _colour(0.16, 0.33, 0.66) + 0.1 * grid)


def _scan(mask: Tensor, key: Key) -> Tensor:
    soft = 0.6 * mask + 0.4 * F.avg_pool2d(mask, 3, 1, 1)
    grey = 0.70 - 0.46 * soft + 0.02 * normal(key, (len(mask), 1, SIDE, SIDE)) + 0.08 * _ramp(1)
    return grey.expand(-1, 3, -1, -1)


def _cloth(mask: Tensor, key: Key) -> Tensor:
    phase = uniform(key, (len(mask), 1, 1, 1)) * 6.28
    rows, columns = torch.arange(SIDE).view(-1, 1), torch.arange(SIDE)
    weave = 0.5 + 0.5 * torch.sin(1.3 * rows + 0.9 * columns + phase)
    back = weave * _colour(0.6, 0.25, 0.25) + (1 - weave) * _colour(0.3, 0.4, 0.3)
    return _blend(mask, _colour(0.95, 0.85, 0.4), back)


def _chalk(mask: Tensor, key: Key) -> Tensor:
    dust = uniform(key, (len(mask), 1, SIDE, SIDE))
    board = _colour(0.20, 0.33, 0.27) + 0.06 * F.avg_pool2d(dust, 5, 1, 2)
    return _blend(mask * (0.6 + 0.4 * dust), _colour(0.93, 0.93, 0.88), board)


STYLES = {"ink": _ink, "neon": _neon, "blueprint": _blueprint, "scan": _scan, "cloth": _cloth}
UNSEEN = {"chalk": _chalk}


def _expose(pictures: Tensor, key: Key) -> Tensor:
    """Contrast and brightness of each picture, drawn alike at every site."""
    contrast = 0.6 + 0.4 * uniform(fold(key, "contrast"), (len(pictures), 1, 1, 1))
    brightness = 0.3 * (uniform(fold(key, "brightness"), (len(pictures), 1, 1, 1)) - 0.5)
    return 0.5 + (pictures - 0.5) * contrast + brightness


def embedded(train: int = 100, seed: int = 0, unseen: bool = False) -> dict[str, ClientData]:
    """Five sites with `train` training and 200 test images each, [3, 16, 16] in [-1, 1].

    `unseen` adds a sixth, "chalk", that takes no part: 97 images without use of their labels, 200 to be tested on.
    """
    x, y = digits()
    order = permutation(fold(seed, "embedded"), len(x))
    shares = order[: len(x) // len(STYLES) * len(STYLES)].view(len(STYLES), -1)
    most = SHARED_OUT if unseen else shares.shape[1] - TEST
    if not 1 <= train <= most:
        raise Refused(f"embedded: train={train!r} must be a whole number from 1 to {most}")

    def site(name: str, draw: Style, mine: Tensor, role: str = "train") -> ClientData:
        mask = F.interpolate(x[mine][:, None], size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        key = fold(seed, "embedded", name)
        pictures = (_expose(draw(mask, key), key).clamp(0, 1) - 0.5) / 0.5
        labels, first = y[mine], train if role == "train" else len(mine) - TEST
        return ClientData(train=(pictures[:first], labels[:first]), test=(pictures[-TEST:], labels[-TEST:]), role=role)

    clients = {name: site(name, draw, mine) for (name, draw), mine in zip(STYLES.items(), shares, strict=True)}
    if unseen:
        left = torch.cat([shares[:, SHARED_OUT:-TEST].flatten(), order[shares.numel() :]])
        clients |= {name: site(name, draw, left, role="unseen") for name, draw in UNSEEN.items()}
    return clients


def source(train: int = 100, unseen: bool = False) -> Source:
    """The same federation as a source: a block for each site's training and test images."""
    clients = embedded(train, unseen=unseen)
    blocks = [
        Block(name, split, y.numpy(), tuple(x.shape[1:]), x.numpy().dtype, lambda x=x: x.numpy())  # type: ignore[misc]
        for name, client in clients.items()
        for split, (x, y) in (("train", client.train), ("test", client.test))
    ]
    names = ", ".join(f'"{name}"' for name, client in clients.items() if client.role == "unseen")
    partition = f"domain / leave_out({names})" if names else "domain"
    return Source("embedded", CLASSES, tuple(blocks), "Real digits seen through five instruments", partition)
