"""Calls written as text: `fedprox(mu=0.01)`, `focal(gamma=1.0)`. Arguments are TOML literals."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from normfed.errors import Refused


def split(text: str, separator: str) -> list[str]:
    """Splits at a separator that is in no brackets and in no string."""
    parts, depth, quote, start = [], 0, "", 0
    for i, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [part.strip() for part in (*parts, text[start:])]


def call(text: str, example: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Name, positional and named arguments."""
    name, bracket, rest = text.partition("(")
    name = name.strip()
    if not name.isidentifier() or (bracket and not rest.endswith(")")):
        raise Refused(f"'{text}' cannot be read; write for example {example}")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in split(rest[:-1], ",") if bracket and rest[:-1].strip() else []:
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise Refused(f"{name}: argument '{key.strip()}' is given twice")
            named[key.strip()] = literal(value, name)
        else:
            positional.append(literal(argument, name))
    return name, positional, named


def literal(text: str, where: str) -> Any:
    """A TOML value."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        raise Refused(f'{where}: {text.strip()} is not a TOML value; write 0.5, 3, true or "text"') from None


def toml(document: Mapping[str, Any]) -> str:
    """A document of plain values, and tables of them one level deep, as TOML."""
    plain = [f"{_key(k)} = {_toml_value(v)}" for k, v in document.items() if not isinstance(v, Mapping)]
    tables = [
        f"\n[{_key(name)}]\n" + "".join(f"{_key(k)} = {_toml_value(v)}\n" for k, v in table.items())
        for name, table in document.items()
        if isinstance(table, Mapping)
    ]
    return "".join(line + "\n" for line in plain) + "".join(tables)


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else _toml_value(name)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
