"""Colours of the page, light and dark. Those of the methods keep apart under the common colour blindnesses, which a
test computes; the first ones are near those of Okabe and Ito (2008)."""

from __future__ import annotations

LIGHT = {
    "paper": "#ffffff", "ink": "#1d2129", "muted": "#5b6270", "line": "#dde1e8", "grid": "#e3e6ec", "tint": "#f3f5f8",
    "accent": "#1b6ca3",
}  # fmt: skip
DARK = {
    "paper": "#15181d", "ink": "#e8eaee", "muted": "#a0a7b4", "line": "#323842", "grid": "#2c323b", "tint": "#1e232a",
    "accent": "#6cbbe6",
}  # fmt: skip
SERIES_LIGHT = ("#1b6ca3", "#cc6f1a", "#2e9575", "#77306a", "#85570f", "#3c95f0", "#3a3ca2", "#14161a")
SERIES_DARK = ("#59b1d6", "#ff6535", "#51e6ce", "#b3658f", "#fbc031", "#3f6ad0", "#a76ef8", "#f6f8fc")


def _variables(colours: dict[str, str], series: tuple[str, ...]) -> str:
    named = {**colours, **{f"s{i}": code for i, code in enumerate(series)}}
    return " ".join(f"--{name}: {code};" for name, code in named.items())


def light() -> str:
    return _variables(LIGHT, SERIES_LIGHT)


def css() -> str:
    """The system's theme, unless the reader has chosen one."""
    dark = _variables(DARK, SERIES_DARK)
    return (
        f":root {{ {light()} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme='light']) {{ {dark} }} }}\n"
        f":root[data-theme='dark'] {{ color-scheme: dark; {dark} }}\n"
        ":root[data-theme='light'] { color-scheme: light; }"
    )
