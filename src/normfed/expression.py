"""Method expressions as text: `fedbn`, `fedprox(mu=0.01)`, `fedfa+fedprox(mu=0.001)+greg`. Arguments are TOML."""

from __future__ import annotations

import tomllib
from typing import Any

from normfed.errors import Refused, nearest
from normfed.method import Expression
from normfed.methods import METHODS

# Names that are spoken for and whose files are not written yet.
NOT_YET: frozenset[str] = frozenset()


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


def parse(text: str) -> Expression:
    """The method an expression means. Raises `Refused` with every problem in it."""
    problems: list[str] = []
    method: Expression | None = None
    for part in split(text, "+"):
        try:
            one = _one(part, text)
            method = one if method is None else method | one
        except Refused as refusal:
            problems += refusal.problems
    if problems:
        raise Refused(*problems)
    assert method is not None
    return method


def _one(part: str, text: str) -> Expression:
    name, bracket, rest = part.partition("(")
    name = name.strip()
    if not name or (bracket and not rest.endswith(")")):
        raise Refused(f"method '{text}' cannot be read; write for example fedprox(mu=0.01)+greg")
    if name in NOT_YET:
        raise Refused(f"method '{name}' is not there yet")
    if name not in METHODS:
        raise Refused(f"unknown method '{name}'; {nearest(name, METHODS)}")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for argument in split(rest[:-1], ",") if bracket and rest[:-1].strip() else []:
        key, equals, value = argument.partition("=")
        if equals and key.strip().isidentifier():
            if key.strip() in named:
                raise Refused(f"{name}: argument '{key.strip()}' is given twice")
            named[key.strip()] = _literal(value, name)
        else:
            positional.append(_literal(argument, name))
    return METHODS[name](*positional, **named)


def _literal(text: str, name: str) -> Any:
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        raise Refused(f'{name}: {text.strip()} is not a TOML value; write 0.5, 3, true or "text"') from None
