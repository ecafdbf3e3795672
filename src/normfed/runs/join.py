"""Finished runs put into one comparison; numbers that do not belong together are not put side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normfed.compare import Document, comparison
from normfed.errors import Refused
from normfed.runs import disk
from normfed.runs.config import admit, read_config, write_config
from normfed.runs.play import COMPARISON
from normfed.runs.sweep import chosen
from normfed.runs.trial import DOCUMENT, RESULT, read_result

# Of runs that stand in one table. The hash tells data apart that have the same name.
SAME = ("data", "partition", "partition_seed", "partition_hash", "model", "rounds", "seeds")


def results(folder: Path) -> list[tuple[dict[str, Any], Document]]:
    """(config, document) of every finished run in a folder: one, a comparison's, or those that a sweep chose."""
    config, facts = read_config(folder)
    if "joined" in config:
        return [pair for name in config["joined"] for pair in results(folder / name)]
    if "select" in config:
        return [pair for name in chosen(folder) for pair in results(folder / name)]
    if "runs" in config:
        return [pair for name in config["runs"] for pair in results(folder / name)]
    if not (folder / RESULT).exists():
        raise Refused(f"{folder} is not finished: go on with it (--resume) first")
    return [({**config, "partition_hash": facts.get("partition_hash")}, read_result(folder))]


def comparison_of(folder: Path) -> Document:
    """The document of a comparison's folder; that of a finished run as a comparison of one."""
    path = folder / COMPARISON
    if not path.exists():
        return comparison(results(folder))
    document = disk.read_json(path)
    missing = disk.shaped(document, {"results": [DOCUMENT]})
    if missing:
        raise Refused(f"{path} is damaged: {missing}")
    return document


def join(folders: Sequence[Path], out: Path | None = None) -> Document:
    """The document of a comparison of finished runs; kept in `out`, where that is given."""
    twice = [str(folder) for i, folder in enumerate(folders) if folder.resolve() in [f.resolve() for f in folders[:i]]]
    if twice:
        raise Refused(*(f"{name} is there twice" for name in dict.fromkeys(twice)))
    found = [pair for folder in folders for pair in results(folder)]
    first = found[0][0]
    differing = [key for key in SAME if any(config.get(key) != first.get(key) for config, _ in found)]
    if differing:
        raise Refused(
            *(f"these runs do not belong in one table: {key} is " + ", ".join(_values(found, key)) for key in differing)
        )
    document = comparison(found)
    if out is not None:
        admit(out, {}, False)
        write_config(out, {"joined": [Path(os.path.relpath(folder, out)).as_posix() for folder in folders]})
        disk.write_json(out / COMPARISON, document)
    return document


def _values(found: Sequence[tuple[dict[str, Any], Document]], key: str) -> list[str]:
    return list(dict.fromkeys(f"{disk.dumps(config.get(key))} ({config['method']})" for config, _ in found))
