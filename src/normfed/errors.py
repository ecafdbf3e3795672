"""What normfed says when it will not start: every problem at once, one line each, with the nearest valid choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NormfedError(Exception):
    """Base of everything normfed raises on purpose."""


class Refused(NormfedError, ValueError):
    """Input that was looked at and turned down before any work was done."""

    def __init__(self, *problems: str) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class Aborted(NormfedError, RuntimeError):
    """A round that could not be committed. The state before it is untouched."""


def nearest(wrong: str, choices: Iterable[str]) -> str:
    """`did you mean …` for a mistyped name, or the whole choice where nothing is near."""
    known = sorted(choices)
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"choose from: {', '.join(known)}"
