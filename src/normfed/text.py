"""Calls written as text: `fedprox(mu=0.01)`, `focal(gamma=1.0)`. Arguments are TOML literals."""

from __future__ import annotations

import inspect
import json
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from normfed.errors import Refused, nearest


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
    plain = [f"{_key(k)} = {toml_value(v)}" for k, v in document.items() if not isinstance(v, Mapping)]
    tables = [
        f"\n[{_key(name)}]\n" + "".join(f"{_key(k)} = {toml_value(v)}\n" for k, v in table.items())
        for name, table in document.items()
        if isinstance(table, Mapping)
    ]
    return "".join(line + "\n" for line in plain) + "".join(tables)


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else toml_value(name)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in value.items()) + "}"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def bind(
    function: Callable[..., Any], name: str, positional: Sequence[Any], named: Mapping[str, Any],
    given: Sequence[str] = (),
) -> inspect.BoundArguments:  # fmt: skip
    """The arguments of a call, checked against the function's signature and annotations. Parameters in `given` are
    not the writer's. Defaults are filled in."""
    hints = typing.get_type_hints(function)
    every = inspect.signature(function).parameters.values()
    parameters = [p.replace(annotation=hints.get(p.name, p.empty)) for p in every if p.name not in given]
    signature = inspect.Signature(parameters)
    for key in named:
        if key not in signature.parameters:
            hint = nearest(key, signature.parameters) if parameters else "it takes none"
            raise Refused(f"{name}: unknown argument '{key}'; {hint}")
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise Refused(f"{name}: {error}; its arguments are {signature}") from None
    bound.apply_defaults()
    for key, value in bound.arguments.items():
        several = signature.parameters[key].kind is inspect.Parameter.VAR_POSITIONAL
        for one in value if several else (value,):
            if not _fits(one, hints[key]):
                raise Refused(f"{name}: {key}={one!r} is not {_say(hints[key])}")
    return bound


def _fits(value: Any, hint: Any) -> bool:
    if isinstance(hint, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if kind is Any:
        return True
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind if isinstance(kind, type) else object)


def _say(hint: Any) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(_say(option) for option in typing.get_args(hint))
    plain = {float: "a number", int: "a whole number", bool: "true or false", str: "a string", type(None): "none"}
    return plain.get(hint) or str(getattr(hint, "__name__", hint))
