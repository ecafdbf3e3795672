"""Charts: drawn by matplotlib, written as SVG that takes its colours from the page.

Colours are drawn as placeholders, which become CSS variables: a chart follows the theme, and a method its switch.
"""

from __future__ import annotations

import importlib.util
import io
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

INK, MUTED, GRID, PAPER = "#000001", "#000002", "#000003", "#000004"
SERIES = 8  # colours of the page
FONT = 10  # points
BELOW = 0.45  # inches for the x axis
SVG, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
CODES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)", PAPER: "var(--paper)"}
POINTS = 160  # of a line: more cannot be told apart


def drawable() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def colour(index: int) -> str:
    return f"#0000f{index % SERIES:x}"


def dash(index: int) -> Any:
    """Colours come again dashed."""
    return "solid" if index < SERIES else (0, (5, 2)) if index < 2 * SERIES else (0, (1.5, 1.5))


@dataclass(frozen=True)
class Line:
    """One method's values."""

    index: int  # of the method
    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()


@dataclass(frozen=True)
class Chart:
    """What is drawn, and what the page's script knows of it."""

    svg: str
    data: dict[str, Any]


def lines(
    members: Sequence[Line],
    *,
    title: str,
    x: str,
    y: str = "",
    size: tuple[float, float] = (4.9, 2.75),
    percent: bool = False,
    log: bool = False,
    ends: bool = False,
    ticks: Sequence[str] | None = None,
    limits: tuple[float, float] | None = None,
) -> Chart:
    """Lines with bands of one standard deviation. `ends` writes the names at the lines' ends; `ticks` names whole
    numbers on the x axis."""
    members = [_thinned(line) for line in members]
    figure, axes = _axes(size, ends)
    for line in members:
        gid = f"m{line.index}"
        ink = colour(line.index)
        if line.spread and any(line.spread):
            low = [v - s for v, s in zip(line.y, line.spread, strict=True)]
            high = [v + s for v, s in zip(line.y, line.spread, strict=True)]
            floor = min(line.y) / 10 if log else -math.inf
            low = [max(v, floor) for v in low]
            axes.fill_between(line.x, low, high, color=ink, alpha=0.11, linewidth=0, gid=f"{gid} band")
        style = {"marker": "o", "markersize": 4} if len(line.x) == 1 or ticks else {}
        axes.plot(line.x, line.y, color=ink, linewidth=1.7, linestyle=dash(line.index), gid=gid, **style)
    axes.margins(x=0.015)
    if log:
        _logarithmic(axes)
    if limits:
        axes.set_ylim(*limits)
    if ticks is not None:
        step = -(-len(ticks) // 8)
        axes.set_xticks(range(0, len(ticks), step), [_short(tick) for tick in ticks[::step]])
        axes.set_xlim(-0.3, len(ticks) - 0.7)
    elif x == "round":
        axes.xaxis.get_major_locator().set_params(integer=True)
    if percent:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}")
    axes.set_xlabel(x, color=MUTED)
    if y:
        axes.set_title(y, loc="left", fontsize=FONT, color=MUTED, pad=8)
    if ends:
        _names(axes, members)
    return _chart(figure, axes, title, {
        "kind": "lines", "x": x, "unit": "%" if percent else "", "ylog": log, "ticks": list(ticks) if ticks else None,
        "lines": [
            {"m": line.index, "x": [_few(v) for v in line.x], "y": [_few(v) for v in line.y],
             "s": [_few(v) for v in line.spread]} for line in members
        ],
    })  # fmt: skip


def heat(
    values: Sequence[Sequence[float | None]], rows: Sequence[str], columns: Sequence[int], *, title: str,
    limits: tuple[float, float], width: float = 3.4,
) -> Chart:  # fmt: skip
    """Rows over columns, on a logarithmic scale of colours that several heat maps share."""
    from matplotlib.colors import LogNorm

    shown = min(len(rows), 20)
    left = 0.16 + 0.075 * max(len(_short(row)) for row in rows)
    figure, axes = _axes((width, BELOW + 0.05 + 0.24 * shown), False, left=left, above=0.05)
    cells = [[math.nan if value is None else max(value, limits[0]) for value in row] for row in values]
    axes.imshow(cells, aspect="auto", interpolation="none", cmap="cividis", norm=LogNorm(*limits), origin="upper")
    step = -(-len(rows) // shown)
    axes.set_yticks(range(0, len(rows), step), [_short(row) for row in rows[::step]])
    gap = -(-len(columns) // 6)
    axes.set_xticks(range(0, len(columns), gap), [str(column) for column in columns[::gap]])
    axes.set_xlabel("round", color=MUTED)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return _chart(figure, axes, title, {
        "kind": "heat", "rows": list(rows), "columns": list(columns),
        "cells": [[None if v is None else _few(v) for v in row] for row in values],
    })  # fmt: skip


def scale() -> str:
    """The colours of a heat map, as a CSS gradient."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return f"linear-gradient(to right, {', '.join(to_hex(colormaps['cividis'](i / 8)) for i in range(9))})"


def _axes(size: tuple[float, float], ends: bool, left: float = 0.45, above: float = 0.28) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    width, height = size
    right = 1.35 if ends else 0.12
    box = (left / width, BELOW / height, 1 - (left + right) / width, 1 - (BELOW + above) / height)
    axes = figure.add_axes(box)
    figure.patch.set_visible(False)
    axes.patch.set_visible(False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=FONT - 1, labelcolor=MUTED, pad=5)
    axes.xaxis.label.set_fontsize(FONT - 1)
    axes.minorticks_off()
    return figure, axes


def _logarithmic(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.autoscale_view()
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 300 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _names(axes: Any, members: Sequence[Line]) -> None:
    """The lines' names beside their ends, moved apart where they would cover each other."""
    drawn = sorted((line for line in members if line.y), key=lambda line: line.y[-1])
    figure = axes.figure
    axes.autoscale_view()
    to_pixels, back = axes.transData.transform, axes.transData.inverted().transform
    places = [to_pixels((line.x[-1], line.y[-1]))[1] for line in drawn]
    least = (FONT + 3.5) * figure.dpi / 72
    places = _apart(places, least, *(axes.bbox.extents[i] for i in (1, 3)))
    right = axes.get_xlim()[1]
    for line, place in zip(drawn, places, strict=True):
        axes.text(
            right, back((0, place))[1], f" {_short(line.label, 21)}", color=colour(line.index), fontsize=FONT,
            va="center", gid=f"m{line.index} name", clip_on=False,
        )  # fmt: skip


def _apart(places: list[float], least: float, low: float, high: float) -> list[float]:
    """Ascending places, at least `least` between neighbours, each as near to where it was as that allows."""
    groups = [[place, 1] for place in places]  # (centre, members)
    i = 0
    while i + 1 < len(groups):
        (a, n), (b, m) = groups[i], groups[i + 1]
        if b - a < least * (n + m) / 2:
            groups[i : i + 2] = [[(a * n + b * m) / (n + m), n + m]]
            i = max(0, i - 1)
        else:
            i += 1
    found = [centre + least * (k - (n - 1) / 2) for centre, n in groups for k in range(int(n))]
    shift = max(0.0, low - found[0]) - max(0.0, found[-1] - high) if found else 0.0
    return [place + shift for place in found]


def _thinned(line: Line) -> Line:
    if len(line.x) <= POINTS:
        return line
    keep = sorted({round(i * (len(line.x) - 1) / (POINTS - 1)) for i in range(POINTS)})
    return Line(
        line.index, line.label, [line.x[i] for i in keep], [line.y[i] for i in keep],
        [line.spread[i] for i in keep] if line.spread else (),
    )  # fmt: skip


def _few(value: float) -> float:
    return float(f"{value:.4g}")


def _short(text: str, most: int = 16) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _chart(figure: Any, axes: Any, title: str, data: dict[str, Any]) -> Chart:
    import matplotlib

    raw = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "path.simplify": False}):
        figure.savefig(raw, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    width, height = (72 * inches for inches in figure.get_size_inches())
    left, bottom, w, h = axes.get_position().bounds
    box = [left * width, (1 - bottom - h) * height, w * width, h * height]
    data |= {
        "box": [round(v, 2) for v in box],
        "xlim": [_few(v) for v in axes.get_xlim()],
        "ylim": [_few(v) for v in axes.get_ylim()],
    }
    return Chart(_inline(raw.getvalue().decode(), title, width, height), data)


def _inline(text: str, title: str, width: float, height: float) -> str:
    """matplotlib's document as an element of a page: no prologue, no ids but those referred to, short numbers."""
    root = ET.fromstring(re.sub(r"<!DOCTYPE.*?>", "", text, flags=re.S))
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'xlink:href="#([^"]+)"', text))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (SVG + "metadata", SVG + "style"):
                parent.remove(child)
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            element.set("id", name)
        elif re.match(r"m\d", name):
            element.set("class", name)
        if LINK in element.attrib:
            element.set("href", element.attrib.pop(LINK))
        style = element.attrib.pop("style", "")
        if element.tag == SVG + "text":
            style = re.sub(r"font(-family)?: [^;]*'[^;]*;?|font-family:[^;]*;?", _size, style)
        if style := _colours(style):
            element.set("style", style)
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        for key in ("d", "transform", "x", "y"):
            if key in element.attrib:
                element.set(key, _rounded(element.attrib[key]))
    root.attrib = {
        "viewBox": f"0 0 {width:g} {height:g}", "role": "img", "aria-label": title, "class": "plot",
    }  # fmt: skip
    ET.register_namespace("", SVG[1:-1])
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", ET.tostring(root, encoding="unicode"))
    return re.sub(r">\s+<", "><", text).replace("<g />", "")


def _size(found: re.Match[str]) -> str:
    size = re.search(r"([\d.]+)px", found[0])
    return f"font-size: {size[1]}px;" if size else ""


def _colours(style: str) -> str:
    for code, variable in CODES.items():
        style = style.replace(code, variable)
    return re.sub(r"#0000f([0-9a-f])", r"var(--s\1)", style).strip()


def _rounded(numbers: str) -> str:
    text = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), numbers)
    return re.sub(r"\s+", " ", text).strip()
