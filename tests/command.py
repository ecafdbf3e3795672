"""The command line in this process, as fast as a function; and in one of its own."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings
from dataclasses import dataclass
from unittest import mock

from normfed import cli

KEYS = {"data": "embedded(train=20)", "rounds": 2, "steps": 1, "batch_size": 4}


def sets(**keys) -> list[str]:
    """Options for two short rounds, or what is said otherwise."""
    return [part for key, value in {**KEYS, **keys}.items() for part in ("--set", f"{key}={value}")]


TINY = sets()


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


def normfed(*arguments) -> Done:
    """What a user who types this gets."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(),
        mock.patch.object(sys, "argv", ["normfed", *map(str, arguments)]),
    ):  # fmt: skip
        warnings.simplefilter("default")
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def tiny(*arguments, seeds="0", **keys) -> Done:
    """`normfed run demo`, two short rounds of it, or `normfed compare demo …`."""
    command, *rest = arguments if arguments[:1] == ("compare",) else ("run", *arguments)
    return normfed(command, "demo", *(["--seeds", seeds] if seeds else []), *sets(**keys), *rest)


def refused(*arguments) -> list[str]:
    """The lines said on stderr by a command that is turned down: no more than a few, no traceback, no result."""
    done = normfed(*arguments)
    lines = [" ".join(line.split()) for line in done.err.splitlines()]
    assert done.code == 2 and done.out == "", (done.code, done.out, done.err)
    assert 1 <= len(lines) <= 12 and "Traceback" not in done.err, done.err
    return lines


def process(*arguments, **more) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "normfed.cli", *map(str, arguments)], capture_output=True, text=True, timeout=120, **more
    )


def started(*arguments, **more) -> subprocess.Popen:
    """In a session of its own, so that a signal to its group is one from its terminal."""
    return subprocess.Popen(
        [sys.executable, "-m", "normfed.cli", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, **more,
    )  # fmt: skip
