"""Method expressions as text: `fedbn`, `fedprox(mu=0.01)`, `fedfa+fedprox(mu=0.001)+greg`."""

from __future__ import annotations

from normfed.errors import Problems, Refused, nearest
from normfed.method import Expression
from normfed.methods import METHODS
from normfed.text import call, split

EXAMPLE = "fedprox(mu=0.01)+greg"


def parse(text: str) -> Expression:
    """The method an expression means. Raises `Refused` with every problem in it."""
    problems = Problems()
    method: Expression | None = None
    for part in split(text, "+"):
        with problems:
            name, positional, named = call(part, EXAMPLE)
            if name not in METHODS:
                raise Refused(f"unknown method '{name}'; {nearest(name, METHODS)}")
            one = METHODS[name](*positional, **named)
            method = one if method is None else method | one
    problems.say()
    assert method is not None
    return method
