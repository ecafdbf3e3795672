"""Finished runs put into one comparison; numbers that do not belong together are not put side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normfed.compare import Document
from normfed.errors import Refused
from normfed.runs import disk
from normfed.runs.config import admit, read_config, write_config
from normfed.runs.play import COMPARISON
from normfed.runs.trial import RESULT

SAME = ("data", "partition", "partition_seed", "model", "rounds", "seeds")  # of runs that stand in one table


def results(folder: Path) -> list[tuple[dict[str, Any], Document]]:
    """(config, document) of every finished run in a folder: one, or a comparison's."""
    config, _ = read_config(folder)
    if "joined" in config:
        return [pair for name in config["joined"] for pair in results(Path(name))]
    if "runs" in config:
        return [pair for name in config["runs"] for pair in results(folder / name)]
    if not (folder / RESULT).exists():
        raise Refused(f"{folder} is not finished: go on with it (--resume) first")
    return [(config, disk.read_json(folder / RESULT))]


def documents_of(folder: Path) -> list[Document]:
    """Of a finished run, or of everything in a comparison."""
    if (folder / COMPARISON).exists():
        return disk.read_json(folder / COMPARISON)["results"]
    return [document for _, document in results(folder)]


def join(folders: Sequence[Path], out: Path | None = None) -> Document:
    """The document of a comparison of finished runs; kept in `out`, where that is given."""
    found = [pair for folder in folders for pair in results(folder)]
    first = found[0][0]
    differing = [key for key in SAME if any(config.get(key) != first.get(key) for config, _ in found)]
    if differing:
        raise Refused(
            *(f"these runs do not belong in one table: {key} is " + ", ".join(_values(found, key)) for key in differing)
        )
    document = {"schema": 1, "results": [document for _, document in found]}
    if out is not None:
        admit(out, {}, False)
        write_config(out, {"joined": [str(folder) for folder in folders]})
        disk.write_json(out / COMPARISON, document)
    return document


def _values(found: Sequence[tuple[dict[str, Any], Document]], key: str) -> list[str]:
    return list(dict.fromkeys(f"{disk.dumps(config.get(key))} ({config['method']})" for config, _ in found))
