"""A contact sheet of a federation: clients in rows, classes in columns, a few samples in each place."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from normfed.data.federation import Federation

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

EACH = 3  # samples in a place
ROWS, COLUMNS = 20, 20  # what a sheet has room for
WIDTH = 1300  # of a sheet, about
LARGE = 50  # regions of a connectome, at least
LEFT, TOP, GAP = 170, 34, 6
INK, PAPER, FAINT = (30, 30, 30), (226, 226, 226), (100, 100, 100)


def sizes(federation: Federation) -> tuple[list[str], list[list[str]]]:
    """A table: role, samples in each split and classes held, of every client."""
    rows = []
    for client, part in federation.parts.items():
        held = len(np.unique(federation.source.labels[part.everything]))
        rows.append([client, part.role, *(str(len(part.rows(s))) for s in ("train", "val", "test")), str(held)])
    return ["client", "role", "train", "val", "test", "classes"], rows


def sheet(federation: Federation) -> bytes:
    """The sheet as a PNG. Samples are the first of their class in the client's training data, or test data where it
    has no other."""
    from PIL import Image as pillow
    from PIL import ImageDraw

    clients = list(federation.parts)[:ROWS]
    classes = federation.classes[:COLUMNS]
    side = min(96, max(30, WIDTH // (len(classes) * EACH)))
    across, down = (side + 1) * EACH + GAP, side + GAP
    note = _left_out(federation)
    paper = pillow.new("RGB", (LEFT + across * len(classes), TOP + down * len(clients) + 18 * bool(note)), PAPER)
    draw = ImageDraw.Draw(paper)
    for column, name in enumerate(classes):
        _write(draw, (LEFT + column * across, 10), name, across - GAP)
    scale = _scale(federation)
    for row, client in enumerate(clients):
        top = TOP + row * down
        part = federation.parts[client]
        _write(draw, (8, top), client, LEFT - 16)
        if side >= 40:
            said = part.role if part.role != "train" else f"{len(part.train):,} train, {len(part.test):,} test"
            _write(draw, (8, top + 16), said, LEFT - 16, FAINT)
        rows = part.train if len(part.train) else part.everything
        for column in range(len(classes)):
            mine = rows[federation.source.labels[rows] == column][:EACH]
            for i, sample in enumerate(federation.source.take(mine)):
                paper.paste(_picture(sample, scale, side), (LEFT + column * across + i * (side + 1), top))
    _write(draw, (8, TOP + down * len(clients)), note, paper.width - 16, FAINT)
    file = io.BytesIO()
    paper.save(file, "PNG", optimize=True)
    return file.getvalue()


def _left_out(federation: Federation) -> str:
    parts = [
        f"the first {most} of {found} {what}"
        for what, found, most in (("clients", len(federation), ROWS), ("classes", len(federation.classes), COLUMNS))
        if found > most
    ]
    return ", ".join(parts)


def _write(draw: ImageDraw, at: tuple[int, int], text: str, width: int, colour: tuple[int, int, int] = INK) -> None:
    """Text, cut to a width."""
    from PIL import ImageFont

    font = ImageFont.load_default(12)
    cut = text
    while cut and draw.textlength(cut if cut == text else f"{cut}…", font) > width:
        cut = cut[:-1]
    draw.text(at, cut if cut == text else f"{cut}…", colour, font)


def _scale(federation: Federation) -> tuple[float, float]:
    """The numbers that are shown as black and as white: those of bytes, of what was prepared to [0, 1] or [-1, 1], or
    the ends of the first samples."""
    source = federation.source
    if source.blocks[0].dtype == np.uint8:
        return 0.0, 255.0
    some = np.concatenate([block.read()[:100].ravel() for block in source.blocks])
    low, high = float(some.min()), float(some.max())
    if len(source.blocks[0].shape) != 3:
        most = float(np.quantile(np.abs(some), 0.99)) or 1.0
        return -most, most
    if low >= -1 and high <= 1:
        return (-1.0 if low < 0 else 0.0), 1.0
    return low, high


def _picture(sample: np.ndarray, scale: tuple[float, float], side: int) -> Image:
    from PIL import Image as pillow

    low, high = scale
    values = ((sample.astype(np.float64) - low) / max(high - low, 1e-12)).clip(0, 1)
    if values.ndim == 3 and len(values) in (1, 3):
        shown = np.broadcast_to(values, (3, *values.shape[1:])).transpose(1, 2, 0)
    else:
        shown = _coloured(_plane(values.ravel()))
    picture = pillow.fromarray((shown * 255).round().astype(np.uint8))
    large = max(picture.size) > side
    how: Any = pillow.Resampling.BOX if large else pillow.Resampling.NEAREST
    fit = side / max(picture.size)
    return picture.resize((max(1, round(picture.width * fit)), max(1, round(picture.height * fit))), how)


def _plane(values: np.ndarray) -> np.ndarray:
    """Numbers as a square: as many as lie above the diagonal of a large matrix as that matrix, made symmetric; else row
    by row."""
    n = round((1 + math.sqrt(1 + 8 * len(values))) / 2)
    if n * (n - 1) // 2 == len(values) and n >= LARGE:
        square = np.ones((n, n))
        square[np.triu_indices(n, 1)] = values
        return np.minimum(square, square.T)
    n = math.ceil(math.sqrt(len(values)))
    return np.pad(values, (0, n * n - len(values)), constant_values=0.5).reshape(n, n)


def _coloured(plane: np.ndarray) -> np.ndarray:
    """Low in blue, the middle white, high in red."""
    away = np.abs(2 * plane - 1)[..., None]
    ends = np.where(plane[..., None] < 0.5, np.array([0.13, 0.40, 0.67]), np.array([0.70, 0.09, 0.17]))
    coloured: np.ndarray = 1 - away * (1 - ends)
    return coloured
