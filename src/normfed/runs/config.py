"""A folder says what it holds: config.toml, written first. A folder that holds something else is not written into."""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normfed.errors import Refused
from normfed.runs import disk
from normfed.text import toml

CONFIG = "config.toml"
FACTS = "facts"  # the table of what the run began with; not a part of the config


def config_hash(config: Mapping[str, Any]) -> str:
    """The same for the same keys with the same values."""
    return hashlib.sha256(disk.dumps(dict(sorted(config.items()))).encode()).hexdigest()[:12]


def write_config(folder: Path, config: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> None:
    """Makes a folder with its config; no folder where that cannot be written."""
    disk.make_folder(folder)
    try:
        disk.write(folder / CONFIG, toml({**config, **({FACTS: facts} if facts else {})}).encode())
    except disk.Unwritable:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise


def read_config(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of a folder, and the facts it began with."""
    path = folder / CONFIG
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Refused(f"{folder} is not a run's folder: it has no {CONFIG}") from None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise Refused(f"{path} is damaged: {error}") from None
    if not document:
        raise Refused(f"{path} is damaged: it is empty")
    return document, document.pop(FACTS, {})


def admit(folder: Path, config: Mapping[str, Any], resume: bool) -> bool:
    """Whether the folder is new. Refuses one that is there, without `resume`, and one that holds something else."""
    if not folder.is_dir():
        if folder.exists():
            raise Refused(f"{folder} is a file, not a folder")
        return True
    if not resume:
        raise Refused(f"{folder} is there already: --resume goes on with what is in it, --out names another folder")
    if all(path.name.endswith(disk.PART) for path in folder.iterdir()):
        return True
    held, _ = read_config(folder)
    differences = list(_differences(held, tomllib.loads(toml(config))))
    if differences:
        raise Refused(*(f"{folder} holds another run: {difference}" for difference in differences))
    return False


def _differences(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    def said(config: Mapping[str, Any], key: str) -> str:
        return disk.dumps(config[key]) if key in config else "not set"

    keys = dict.fromkeys((*held, *wanted))
    return [
        f"{key} is {said(held, key)} there, {said(wanted, key)} here"
        for key in keys
        if (key in held) != (key in wanted) or held.get(key) != wanted.get(key)
    ]
