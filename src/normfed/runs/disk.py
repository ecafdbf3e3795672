"""What is written is written whole: to a file beside, flushed to the disk, then renamed over the old one.

A process killed at any instant leaves the old file or the new one. A disk that is full, or a folder that may not be
written to, is said in one line, and the old file stands.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normfed.errors import NormfedError, Refused

PART = ".part"  # ending of a file that is being written
PATIENCE = 5.0  # seconds that one waits for a process that is ending
REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system can only be read",
    errno.EACCES: "no permission to write",
    errno.EPERM: "no permission to write",
    errno.ENOTDIR: "a part of the path is a file",
}


class Unwritable(NormfedError):
    """Something could not be written. What was there before still is."""


@contextlib.contextmanager
def telling(path: Path) -> Iterator[None]:
    """Turns a failure to write into one line that says what and why."""
    try:
        yield
    except OSError as error:
        reason = REASONS.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise Unwritable(f"{path} cannot be written: {reason}") from None


def write(path: Path, data: bytes, before: Path | None = None) -> None:
    """Replaces a file, whole or not at all; the old one stays under the name `before`, if that is given."""
    part = path.with_name(path.name + PART)
    with telling(path):
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if before is not None and path.exists():
                path.replace(before)
            part.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        sync(path.parent)


def sync(folder: Path) -> None:
    """Makes names that came or went in a folder last."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    try:
        with telling(folder):
            folder.mkdir(parents=True, exist_ok=True)
    except Unwritable as error:
        raise Refused(str(error)) from None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def strict(value: Any) -> Any:
    """As JSON has it: a number that is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict(part) for key, part in value.items()}
    return [strict(part) for part in value] if isinstance(value, list | tuple) else value


def dumps(value: Any, indent: int | None = None) -> str:
    return json.dumps(strict(value), indent=indent, allow_nan=False, ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    write(path, (dumps(value, indent=1) + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise Refused(f"{path} is damaged: {error}") from None


def shaped(value: Any, shape: Any) -> str | None:
    """What a value read from a file lacks of a shape: `{"final": {"view": str}, "clients": [str]}`; None: nothing."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return "is no table"
        for key, part in shape.items():
            lacking = shaped(value[key], part) if key in value else "is missing"
            if lacking:
                return f"{key} {lacking}" if lacking.startswith("is ") else f"{key}.{lacking}"
        return None
    if isinstance(shape, list):
        good = isinstance(value, list) and all(shaped(part, shape[0]) is None for part in value)
        return None if good else "is no list of the right kind"
    return None if isinstance(value, shape) else f"is {dumps(value)[:40]}"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a folder for this process; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Refused(f"{folder}: another process is at work there") from None
                time.sleep(0.05)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        os.close(handle)
