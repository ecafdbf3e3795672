"""The report of a run's or a comparison's folder: one HTML file that opens offline."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from normfed import __version__
from normfed.report import normalization, sections, theme
from normfed.report.markup import escape, key, listed, several
from normfed.report.read import Part, read
from normfed.report.svg import drawable
from normfed.runs import disk

REPORT = "report.html"
UNDRAWN = (
    '<div class="notice">There are no figures here: matplotlib is not installed. After '
    "<code>pip install 'normfed[report]'</code> the command <code>normfed report</code> draws them.</div>"
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def write(folder: Path) -> Path:
    """Makes `report.html` in the folder of a run or of a comparison, finished or not."""
    folder = Path(folder)
    page = render(read(folder))
    disk.write(folder / REPORT, page.encode())
    return folder / REPORT


def render(parts: list[Part]) -> str:
    """The page. The same parts give the same bytes."""
    recipes = list(dict.fromkeys(str(p.document.get("recipe") or "") for part in parts for p in part.played))
    played = [p for part in parts for p in part.played]
    data = dict.fromkeys(str(p.config["data"]) for p in played if "data" in p.config)
    title = ", ".join(filter(None, recipes)) or ", ".join(data) or played[0].method
    about = f"{several(len(played), 'method')}, {several(len({c for p in parts for c in p.clients}), 'client')}"
    many = len(parts) > 1
    body = "".join(_part(part, f"Setting {i + 1}" if many else "") for i, part in enumerate(parts))
    style = (
        _file("page.css").replace("/*THEMES*/", theme.css()).replace("/*PRINT*/", f":root:root {{ {theme.light()} }}")
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)} · normfed report</title>\n<style>\n{style}</style></head>\n<body>"
        f'<header class="top"><div><p class="over">normfed report</p><h1>{escape(title)}</h1>'
        f'<p class="lead">{escape(about)}</p></div><button type="button" id="theme">Theme</button></header>'
        f"<main>{_apart(parts) if many else ''}{'' if drawable() else UNDRAWN}{body}</main>"
        f"<footer>Made by normfed {escape(__version__)} from the records of the runs. "
        "The page asks nothing of the network.</footer>"
        f'<div id="tip" role="status" hidden></div><script>\n{_file("page.js")}</script></body></html>\n'
    )


def _file(name: str) -> str:
    return resources.files("normfed.report").joinpath(name).read_text(encoding="utf-8")


def _apart(parts: list[Part]) -> str:
    """Why there is more than one part."""
    keys = dict.fromkeys(k for part in parts for k in part.setting)
    differing = [k for k in keys if len({json.dumps(part.setting.get(k)) for part in parts}) > 1]
    items = [
        f"Setting {i + 1}: {escape(', '.join(p.method for p in part.played))}; "
        + escape(", ".join(f"{k} {_said(part.setting.get(k))}" for k in differing))
        for i, part in enumerate(parts)
    ]
    return (
        '<div class="notice">The runs of this folder differ in more than their method, so they are shown apart and not '
        f"compared: {escape(', '.join(differing))}.{listed(items)}</div>"
    )


def _said(value: object) -> str:
    return f"{len(value)}" if isinstance(value, list) else str(value)


def _part(part: Part, head: str) -> str:
    chips = "".join(
        f'<button type="button" class="chip" data-method="m{i}" aria-pressed="true">{key(i)} {escape(p.method)}'
        "</button>"
        for i, p in enumerate(part.played)
    )
    many = len(part.played) > 1
    bar = (
        f'<nav class="methods" aria-label="Methods shown">{chips}<button type="button" class="all">show all</button>'
        '<button type="button" class="bands">hide bands</button></nav>'
    )
    names = escape(json.dumps([p.method for p in part.played], ensure_ascii=False))
    inside = [
        sections.summary(part), bar if many else "", sections.accuracy(part), sections.others(part),
        sections.rounds(part), sections.matrix(part), sections.wire(part), normalization.pictures(part),
        sections.notes(part),
    ]  # fmt: skip
    return f'<div class="part" data-methods="{names}">{f"<h2>{head}</h2>" if head else ""}{"".join(inside)}</div>'
