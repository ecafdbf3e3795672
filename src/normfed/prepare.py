"""From stored images to what a model sees: one function, written as text, the same on every engine.

    resize(256) + flip + rotate(30) + normalize(0.5, 0.5)

Images are stored as bytes, [samples, channels, height, width], and stay bytes on the device. A batch is made floating,
in [0, 1], when it is gathered; then the steps act in order. Random ones act in training only, each sample drawing for
itself from the key of (seed, round, client, step); in evaluation they are left out, and `crop` takes the middle.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate

import torch
import torch.nn.functional as F
from torch import Tensor

from normfed.errors import Problems, Refused, nearest
from normfed.keys import Key, fold, integers, uniform
from normfed.text import bind, call, split

Step = Callable[Concatenate[Tensor, Key | None, ...], Tensor]  # ([n, c, h, w], key or None in evaluation, arguments)
STEPS: dict[str, Step] = {}
NAMED = {  # mean and standard deviation of the training images, as commonly printed
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
}


def step(make: Step) -> Step:
    STEPS[make.__name__] = make
    return make


@step
def resize(x: Tensor, key: Key | None, side: int) -> Tensor:
    """To side x side: bilinear, with antialiasing where it shrinks."""
    _require(side >= 1, f"resize({side}): must be 1 or more")
    rows, columns = (_weights(n, side, x) for n in x.shape[-2:])
    return rows @ x @ columns.T


def _weights(old: int, new: int, like: Tensor) -> Tensor:
    """[new, old]: triangles as wide as a pixel of the coarser of the two grids."""
    scale = old / new
    width = max(scale, 1.0)
    centres = (torch.arange(new, dtype=like.dtype, device=like.device) + 0.5) * scale
    pixels = torch.arange(old, dtype=like.dtype, device=like.device) + 0.5
    weights = (1 - (pixels - centres[:, None]).abs() / width).clamp(min=0)
    return weights / weights.sum(1, keepdim=True)


@step
def flip(x: Tensor, key: Key | None) -> Tensor:
    """Left and right exchanged, of every other image."""
    if key is None:
        return x
    on = uniform(key, (len(x), 1, 1, 1), torch.float32, x.device) < 0.5
    return torch.where(on, x.flip(-1), x)


@step
def rotate(x: Tensor, key: Key | None, degrees: float) -> Tensor:
    """By an angle between -degrees and degrees, about the middle; nearest pixel, black where there is none."""
    _require(0 <= degrees <= 180, f"rotate({degrees:g}): must be from 0 to 180")
    if key is None:
        return x
    angle = (2 * uniform(key, (len(x),), torch.float64, x.device) - 1) * math.radians(degrees)
    return turned(x, angle)


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """Each image turned by its angle (counter-clockwise, in radians). Places are whole numbers of 2^-16 pixels, so
    that no rounding can make two engines, or two devices, pick different pixels."""
    height, width = x.shape[-2:]
    cos, sin = torch.cos(-angle), torch.sin(-angle)  # [n]
    left = (0.5 - width / 2) * cos + (0.5 - height / 2) * sin + width / 2
    top = (0.5 - height / 2) * cos - (0.5 - width / 2) * sin + height / 2
    cos, sin, left, top = (torch.floor(v * 65536 + 0.5).long()[:, None, None] for v in (cos, sin, left, top))
    rows = torch.arange(height, device=x.device)[:, None]
    columns = torch.arange(width, device=x.device)
    from_column = (left + cos * columns + sin * rows) >> 16  # [n, height, width]
    from_row = (top - sin * columns + cos * rows) >> 16
    inside = (from_column >= 0) & (from_column < width) & (from_row >= 0) & (from_row < height)
    source = torch.where(inside, from_row * width + from_column, 0).flatten(1)[:, None].expand(-1, x.shape[1], -1)
    return x.flatten(2).gather(2, source).view_as(x) * inside[:, None]


@step
def crop(x: Tensor, key: Key | None, side: int, padding: int = 0) -> Tensor:
    """A square somewhere in the image with a black border of `padding`; in evaluation the middle of the image."""
    height, width = x.shape[-2:]
    _require(1 <= side <= min(height, width), f"crop({side}): the images are {height}x{width}")
    _require(padding >= 0, f"crop: padding={padding} must be 0 or more")
    if key is None:
        top, left = (height - side) // 2, (width - side) // 2
        return x[..., top : top + side, left : left + side]
    n, channels = x.shape[:2]
    x = F.pad(x, (padding, padding, padding, padding))
    span = torch.arange(side, device=x.device)
    rows = integers(fold(key, "top"), (n, 1), height + 2 * padding - side + 1, x.device) + span
    columns = integers(fold(key, "left"), (n, 1), width + 2 * padding - side + 1, x.device) + span
    x = x.gather(2, rows[:, None, :, None].expand(-1, channels, -1, x.shape[-1]))
    return x.gather(3, columns[:, None, None, :].expand(-1, channels, side, -1))


@step
def gray(x: Tensor, key: Key | None) -> Tensor:
    """One channel: 0.299 red + 0.587 green + 0.114 blue."""
    if x.shape[1] == 1:
        return x
    _require(x.shape[1] == 3, f"gray: the images have {x.shape[1]} channels")
    return (x * torch.tensor([0.299, 0.587, 0.114], dtype=x.dtype, device=x.device)[:, None, None]).sum(1, keepdim=True)


@step
def rgb(x: Tensor, key: Key | None) -> Tensor:
    """Three channels; grey images have the same in each."""
    _require(x.shape[1] in (1, 3), f"rgb: the images have {x.shape[1]} channels")
    return x.expand(-1, 3, -1, -1)


@step
def normalize(x: Tensor, key: Key | None, mean: float | list | str, std: float | list | None = None) -> Tensor:  # type: ignore[type-arg]
    """(x - mean) / std: numbers, one for each channel, or a name (imagenet, cifar10, cifar100, mnist)."""
    if isinstance(mean, str):
        _require(mean in NAMED, f"normalize: unknown name '{mean}'; {nearest(mean, NAMED)}")
        _require(std is None, f'normalize("{mean}") has its own std')
        means, stds = NAMED[mean]
    else:
        _require(std is not None, "normalize(mean, std): std is missing")
        means, stds = _numbers("mean", mean), _numbers("std", std)
        _require(all(s > 0 for s in stds), "normalize: std must be above 0")
    for values in (means, stds):
        _require(len(values) in (1, x.shape[1]), f"normalize: {len(values)} numbers for {x.shape[1]} channels")
    return (x - _channels(means, x)) / _channels(stds, x)


def _numbers(what: str, value: Any) -> tuple[float, ...]:
    values = tuple(value) if isinstance(value, list) else (value,)
    good = values and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    _require(bool(good), f"normalize: {what}={value!r} must be a number or a list of numbers")
    return values


def _channels(values: Sequence[float], like: Tensor) -> Tensor | float:
    if len(values) == 1:
        return values[0]
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise Refused(message)


@dataclass(frozen=True)
class Prepare:
    """A chain of steps. Empty, it makes floating numbers in [0, 1] of bytes, and nothing of anything else."""

    steps: tuple[tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], ...] = ()

    def __call__(self, x: Tensor, dtype: torch.dtype, key: Key | None = None) -> Tensor:
        """`x` as the model is to see it. What is floating already has been prepared; whole numbers that are not bytes
        (token ids) are not images."""
        if x.is_floating_point():
            return x.to(dtype)
        if x.dtype is not torch.uint8:
            return x
        x = x.to(dtype) / 255
        for i, (name, positional, named) in enumerate(self.steps):
            x = STEPS[name](x, None if key is None else fold(key, name, i), *positional, **dict(named))
        return x

    def check(self, x: Tensor) -> None:
        """Raises `Refused` where it cannot prepare samples like these."""
        if x.dtype is not torch.uint8 or x.dim() != 4:
            about = f"{tuple(x.shape[1:])} of {x.dtype}"
            raise Refused(f"prepare is for images stored as uint8 [channels, height, width]; these are {about}")
        problems = Problems()
        for key in (None, 0):
            with problems:
                self(x[:1], torch.float32, key)
        problems.say()


PLAIN = Prepare()


def parse(text: str | None, like: Tensor | None = None) -> Prepare:
    """The chain that a text means, tried on samples. Raises `Refused` with every problem in it."""
    if text is None:
        return PLAIN
    if not isinstance(text, str):
        raise Refused(f'prepare={text!r}: must be a text, "flip + normalize(0.5, 0.5)"')
    problems = Problems()
    steps = []
    for part in split(text, "+"):
        with problems:
            name, positional, named = call(part, "flip + normalize(0.5, 0.5)")
            if name not in STEPS:
                raise Refused(f"prepare: unknown step '{name}'; {nearest(name, STEPS)}")
            bind(STEPS[name], name, positional, named, given=("x", "key"))
            steps.append((name, tuple(positional), tuple(named.items())))
    problems.say()
    chain = Prepare(tuple(steps))
    if like is not None:
        chain.check(like)
    return chain
