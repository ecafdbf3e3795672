"""Pieces of HTML: everything that is not ours is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape as _escape
from typing import Any

from normfed.report.read import Part, Played, Spread
from normfed.report.svg import SERIES, Chart

MISSING = "–"


def escape(value: Any) -> str:
    return _escape(str(value))


@dataclass(frozen=True)
class Cell:
    """Of a table: what is written (HTML), what it sorts by, its class and style."""

    html: str
    value: float | str | None = None
    name: str = ""
    style: str = ""
    title: str = ""


def number(spread: Spread | None, best: bool = False, title: str = "") -> Cell:
    """A fraction in percent with its spread."""
    if spread is None:
        return Cell(MISSING, -1.0, "none", title="not recorded")
    deviation = f' <span class="pm">± {100 * spread.std:.1f}</span>' if len(spread.by_seed) > 1 else ""
    return Cell(f"{100 * spread.mean:.1f}{deviation}", spread.mean, "best" if best else "", title=title)


def plain(value: float | None, digits: str = ",.0f") -> Cell:
    return Cell(MISSING, -1.0, "none") if value is None else Cell(format(value, digits), value)


def text(value: Any) -> Cell:
    return Cell(escape(value), None, "text")


def table(
    head: Sequence[str], rows: Sequence[tuple[int, Sequence[Cell]]], part: Part, texts: Iterable[int] = ()
) -> str:
    """A method a row; heads that begin with text columns say so, the others sort by number."""
    left = {0, *texts}
    top = "".join(
        f'<th scope="col"{" class=text" if i in left else ""}><button type="button">{breakable(name)}</button></th>'
        for i, name in enumerate(head)
    )
    body = "".join(
        f'<tr class="m{index}">{_named(index, part.played[index])}{"".join(map(_cell, cells))}</tr>'
        for index, cells in rows
    )
    return f'<div class="scroll"><table class="sorts"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def breakable(name: str) -> str:
    """Escaped; may go on in a new line behind a slash."""
    return escape(name).replace("/", "/<wbr>")


def _named(index: int, played: Played) -> str:
    cut = "" if played.finished else f' <span class="pm">{played.reached} of {played.rounds} rounds</span>'
    return f'<th scope="row">{key(index)} {escape(played.method)}{cut}</th>'


def _cell(cell: Cell) -> str:
    value = "" if cell.value is None else f' data-v="{escape(cell.value)}"'
    name = f' class="{cell.name}"' if cell.name else ""
    style = f' style="{cell.style}"' if cell.style else ""
    title = f' title="{escape(cell.title)}"' if cell.title else ""
    return f"<td{value}{name}{style}{title}>{cell.html}</td>"


def key(index: int) -> str:
    """A stroke in a method's colour."""
    dashed = " dashed" if index >= SERIES else ""
    return f'<i class="key{dashed}" style="--c:var(--s{index % SERIES})"></i>'


def figure(chart: Chart, caption: str = "", name: str = "", head: str = "") -> str:
    """A chart with what the script knows of it, and one sentence on how to read it."""
    data = json.dumps(chart.data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    said = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure class="{name}">{head}<div class="plotbox" tabindex="0">{chart.svg}'
        f'<script type="application/json">{data}</script></div>{said}</figure>'
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of what is what; the values are HTML."""
    return '<dl class="facts">' + "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in pairs if v) + "</dl>"


def listed(items: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def several(count: int, one: str) -> str:
    return f"{count:,} {one}{'' if count == 1 else 's'}"
