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


class Problems:
    """Collects refusals, so that all of them are said at once.

    with problems:            # whatever is refused in here is kept
        ...
    problems.say()            # raises if there was anything
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> Problems:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Refused):
            self.found += error.problems
            return True
        return False

    def say(self) -> None:
        if self.found:
            raise Refused(*dict.fromkeys(self.found))


def first_line(error: BaseException) -> str:
    """What somebody else's error says, in one line; its name where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


MANY = 40  # choices; more are not a help but a wall


def nearest(wrong: str, choices: Iterable[str]) -> str:
    """`did you mean …` for a mistyped name, or the whole choice where nothing is near, or its beginning where it is
    too much."""
    known = sorted(choices)

    def likeness(choice: str) -> float:
        return difflib.SequenceMatcher(None, wrong.lower(), choice.lower()).ratio()

    best = max(map(likeness, known), default=0.0)
    if best < 0.5:
        more = f", … ({len(known)} in all)" if len(known) > MANY else ""
        return f"choose from: {', '.join(known[:8] if more else known)}{more}"
    return f"did you mean {' or '.join(repr(choice) for choice in known if likeness(choice) == best)}?"
