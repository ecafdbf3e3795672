"""Pictures of any kind as bytes [channels, height, width], by one declared rule.

- Colour: if one picture of the data has colour, all become RGB, grey ones by repetition; else all are grey. `channels`
  decides otherwise. Grey of 16 bits keeps its upper eight; an alpha channel is dropped; of an animation the first
  picture counts. Floating-point pictures have no range and are refused.
- Size: as it is, where all have one; else `side` asks for side x side (bilinear).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from normfed.data import cache
from normfed.errors import Refused

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N")


def decoding_faults() -> tuple[type[Exception], ...]:
    """What decoders raise on damaged bytes, and on a picture so large that it must be an attack."""
    from PIL import Image as pillow

    return OSError, SyntaxError, TypeError, ValueError, EOFError, pillow.DecompressionBombError


def pixels(image: Image, channels: int, size: tuple[int, int]) -> tuple[np.ndarray, int]:
    """[channels, height, width] bytes, and a number that tells pictures apart: of the pixels before any resizing."""
    from PIL import Image as pillow

    if image.mode == "F":
        raise ValueError("floating-point pixels have no range: save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = pillow.fromarray((np.asarray(image).astype(np.int64).clip(0, 65535) >> 8).astype(np.uint8))
    picture = image.convert("RGB" if channels == 3 else "L")
    own = cache.number(repr(picture.size).encode() + picture.tobytes())
    if picture.size != size:
        picture = picture.resize(size, pillow.Resampling.BILINEAR)
    values = np.asarray(picture)
    return (values.transpose(2, 0, 1) if channels == 3 else values[None]), own


@dataclass(frozen=True)
class Images:
    """Pictures that can be opened one by one."""

    count: int
    open: Callable[[int], Image]
    where: Callable[[int], str]
    key: str = ""  # names what they were made from; "": they cannot be told apart from others later, and are not cached

    def faults(self, look: Callable[[int, Image], None]) -> list[str]:
        """Looks at every picture; what cannot be opened, one line each."""
        found = []
        for i in range(self.count):
            try:
                with self.open(i) as image:
                    look(i, image)
            except decoding_faults() as error:
                found.append(f"{self.where(i)}: cannot be decoded: {said(error)}")
        return found

    def taken(self, order: np.ndarray) -> Images:
        return Images(len(order), lambda i: self.open(int(order[i])), lambda i: self.where(int(order[i])), self.key)


def said(error: Exception) -> str:
    text = str(error).partition(" <")[0].partition(" '")[0]  # Pillow names the buffer, we name the file
    return text.splitlines()[0] if text else type(error).__name__


@dataclass(frozen=True)
class Form:
    """What pictures are brought to."""

    channels: int
    size: tuple[int, int]  # width, height
    note: str = ""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.size[1], self.size[0]


def form_of(groups: list[Images], side: int | None, channels: int | None) -> Form:
    """One form for all pictures, read off their heads. Raises `Refused` with every picture that has none, or where
    sizes differ and no `side` was asked for."""
    sizes: Counter[tuple[int, int]] = Counter()
    first: dict[tuple[int, int], str] = {}
    grey: Counter[bool] = Counter()
    problems: list[str] = []
    for images in groups:

        def look(i: int, image: Image, images: Images = images) -> None:
            sizes[image.size] += 1
            first.setdefault(image.size, images.where(i))
            grey[image.mode in GREY] += 1

        problems += images.faults(look)
    if len(sizes) > 1 and side is None:
        problems.append(f"pictures differ in size; give side={max(map(max, sizes))}, say, to bring them to one")
        problems += [f"  {w} x {h}: {n}, the first is {first[w, h]}" for (w, h), n in sizes.most_common()]
    if problems:
        raise Refused(*problems)
    mixed = channels is None and len(grey) == 2
    note = f"{grey[True]} grey and {grey[False]} colour pictures: all are read as RGB (channels=1: as grey)"
    size = next(iter(sizes)) if side is None else (side, side)
    return Form(channels or (3 if grey[False] else 1), size, note if mixed else "")


def decoded(images: Images, form: Form) -> cache.Decoded:
    """All pictures in that form. Looking at them raises `Refused` with every one that does not decode, before
    anything is kept."""

    def each() -> Iterator[tuple[np.ndarray, int]]:
        problems = []
        for i in range(images.count):
            try:
                with images.open(i) as image:
                    yield pixels(image, form.channels, form.size)
            except decoding_faults() as error:
                problems.append(f"{images.where(i)}: cannot be decoded: {said(error)}")
                yield np.zeros(form.shape, np.uint8), 0
        if problems:
            raise Refused(*problems)

    name = f"{images.key}-{'x'.join(map(str, form.shape))}" if images.key else ""
    return cache.Decoded(lambda: name, form.shape, images.count, each)
