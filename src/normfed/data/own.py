"""Your own data in one line: a folder of images, a CSV of paths, a Parquet, an npz.

site/class/image, site/{train,test,val}/class/image, class/image      a folder of images
site/{train,test,val,all}.{parquet,npz}                               a folder of tables
path,label,site[,split][,id]                                          a CSV; paths are relative to it
image, label [, site, split, id]                                      a Parquet; image: bytes, {bytes, path} or path
x, label [, site, split, id, classes, scale]                          an npz
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normfed.data import cache, files
from normfed.data.images import SUFFIXES, Images
from normfed.data.source import SPLITS, WHOLE, Source
from normfed.data.table import ALIASES, Table, source_of
from normfed.errors import Problems, Refused, first_line

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Columns:
    """What the columns are called."""

    image: str | None  # None: `path` of a CSV, `image` of a Parquet, `x` of an npz
    label: str
    site: str
    split: str
    id: str


def source(
    path: Path, *, image: str | None = None, label: str = "label", site: str = "site", split: str = "split",
    id: str = "id", classes: int | list[str] | None = None, side: int | None = None, channels: int | None = None,
    duplicates: str = "refuse",
) -> Source:  # fmt: skip
    """A path as a source. All images are decoded once, so that everything wrong with any of them is said now."""
    columns = Columns(image, label, site, split, id)
    kinds = {".csv": _csv, ".parquet": _parquet, ".npz": _npz}
    if path.is_dir():
        tables = _folder(path, columns)
    elif path.suffix.lower() in kinds:
        tables = [kinds[path.suffix.lower()](path, columns)]
    else:
        raise Refused(f"{path}: a folder, or a file that ends in {', '.join(kinds)}, was expected")
    return source_of(
        path.name, tables, classes=classes, side=side, channels=channels, duplicates=duplicates, about=str(path)
    )


# ---------------------------------------------------------------------------------------------------------------
# Folders


def _folder(root: Path, columns: Columns) -> list[Table]:
    found = {folder.name if folder != root else "": files.found_in(folder) for folder in (root, *_folders(root))}
    if any(found.values()):
        return _folder_of_tables(root, found, columns)
    return [_folder_of_images(root)]


def _folders(root: Path) -> list[Path]:
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


def _folder_of_tables(root: Path, found: Mapping[str, Mapping[str, Path]], columns: Columns) -> list[Table]:
    problems = Problems()
    tables = []
    for site, splits in found.items():
        if site and not splits:
            problems.found.append(f"site '{site}': no {{train,test,val,all}}.{{parquet,npz}} in {root / site}")
        for split, path in splits.items():
            with problems:
                read = _npz if path.suffix == ".npz" else _parquet
                tables.append(read(path, columns, site, split))
    problems.say()
    return tables


def _folder_of_images(root: Path) -> Table:
    paths: list[Path] = []
    others: list[Path] = []
    for folder, inside, names in os.walk(root, followlinks=True):
        inside[:] = sorted(name for name in inside if not name.startswith("."))
        here = [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        paths += [p for p in here if p.suffix.lower() in SUFFIXES]
        others += [p for p in here if p.suffix.lower() not in SUFFIXES and p.name not in ("Thumbs.db", "desktop.ini")]
    problems = [f"{p}: not an image ({p.suffix or 'no suffix'}); images end in {', '.join(SUFFIXES)}" for p in others]
    rows = []
    for path in paths:
        folders = list(path.relative_to(root).parts[:-1])
        split = next((f for f in folders[:2] if f in (*SPLITS, *ALIASES)), None)
        if split is not None:
            folders.remove(split)
        if len(folders) not in (1, 2):
            problems.append(f"{path}: site/class/image or site/split/class/image was expected")
        else:
            rows.append((folders[0] if len(folders) == 2 else "", split or WHOLE, folders[-1]))
    named = {bool(site) for site, _, _ in rows}
    if len(named) > 1:
        problems.append(f"{root}: some images lie under site/class, others under class")
    elif named == {True}:
        held = {path.relative_to(root).parts[0] for path in paths}
        problems += [f"site '{p.name}': no images" for p in _folders(root) if p.name not in held]
    if not rows and not problems:
        problems.append(f"{root}: no images; site/class/image was expected")
    if problems:
        raise Refused(*problems)
    names = sorted({name for _, _, name in rows}, key=lambda n: (not n.isdigit(), int(n) if n.isdigit() else 0, n))
    sites, splits, labels = ([row[k] for row in rows] for k in range(3))
    return Table(sites, splits, labels, _images_at(paths), lambda i: str(paths[i]), tuple(names))


def _images_at(paths: Sequence[Path]) -> Images:
    from PIL import Image as pillow

    facts = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError:
            continue  # said when it is opened
        facts.append(f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}")
    key = f"own-{cache.number(chr(10).join(facts).encode()):016x}"
    return Images(len(paths), lambda i: pillow.open(paths[i]), lambda i: str(paths[i]), key)


# ---------------------------------------------------------------------------------------------------------------
# Files


def _csv(path: Path, columns: Columns) -> Table:
    image = columns.image or "path"
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} cannot be read as CSV: {getattr(error, 'strerror', None) or error}") from None
    _need(path, (image, columns.label), header)
    problems = [f"{path}, line {n}: {len(header)} fields were expected" for n, row in rows if None in row]
    problems += [f"{path}, line {n}: no {image}" for n, row in rows if not row[image]]
    if problems:
        raise Refused(*problems)
    found = {name: [row[name] or "" for _, row in rows] for name in header if name}
    images = _images_at([path.parent / name for name in found[image]])

    def where(i: int) -> str:
        return f"{path}, line {rows[i][0]} ({found[image][i]})"

    return _table(found, columns, len(rows), Images(len(rows), images.open, where, images.key), where)


def _parquet(path: Path, columns: Columns, site: str = "", split: str = WHOLE) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = columns.image or "image"
    try:
        with pq.ParquetFile(path) as file:
            header = file.schema_arrow.names
            _need(path, (image, columns.label), header)
            names = files.class_names(file.schema_arrow.metadata, columns.label)
            wanted = [n for n in (columns.label, columns.site, columns.split, columns.id) if n in header]
            found = {name: file.read([name])[name].to_pylist() for name in wanted}
            pictures = file.read([image])[image]
    except (OSError, pa.ArrowException) as error:
        raise Refused(f"{path} cannot be read as Parquet: {first_line(error)}") from None

    def where(i: int) -> str:
        return f"{path}, row {i}"

    key = f"{cache.hash_of(path)[:32]}-{cache.number(image.encode()):016x}"
    samples = Images(len(pictures), lambda i: _picture(pictures[i].as_py(), path.parent), where, key)
    return _table(found, columns, len(pictures), samples, where, names, site, split)


def _picture(value: Any, home: Path) -> Image:
    """What a Parquet has in its image column: bytes, a path, or both as Hugging Face `datasets` writes them."""
    from PIL import Image as pillow

    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str):
        return pillow.open(home / value)
    if not isinstance(value, bytes):
        raise ValueError("no image" if value is None else f"an image was expected, not {type(value).__name__}")
    return pillow.open(io.BytesIO(value))


def _npz(path: Path, columns: Columns, site: str = "", split: str = WHOLE) -> Table:
    image = columns.image or "x"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except Exception as error:  # zip and npy readers raise what they like on damaged files
        raise Refused(f"{path} cannot be read as npz: {str(error) or type(error).__name__}") from None
    if columns.label not in found and "y" in found:
        found[columns.label] = found["y"]
    _need(path, (image, columns.label), list(found))
    x = found.pop(image)
    names = tuple(map(str, found.pop("classes", ())))
    rows = {name: found[name].tolist() for name in vars(columns).values() if name in found}
    wrong = {name: len(values) for name, values in rows.items() if len(values) != len(x)}
    if wrong:
        raise Refused(*(f"{path}: {len(x)} samples but {n} values of '{name}'" for name, n in wrong.items()))
    return _table(
        rows, columns, len(x), files.as_samples(x, found.get("scale")), lambda i: f"{path}, row {i}", names, site, split
    )


def _need(path: Path, wanted: Sequence[str], header: Sequence[str]) -> None:
    missing = [name for name in wanted if name not in header]
    if missing:
        said = " and no ".join(f"'{name}'" for name in missing)
        raise Refused(f"{path} has no column {said}; it has {', '.join(header) or 'none'}")


def _table(
    found: Mapping[str, Sequence[Any]], columns: Columns, count: int, samples: Images | np.ndarray,
    where: Callable[[int], str], names: tuple[str, ...] = (), site: str = "", split: str = WHOLE,
) -> Table:  # fmt: skip
    """A table of columns; `site` and `split` are what the file's place says, where no column does."""

    def column(name: str, otherwise: str) -> list[str]:
        return ["" if v is None else str(v) for v in found[name]] if name in found else [otherwise] * count

    return Table(
        column(columns.site, site), column(columns.split, split), found[columns.label], samples, where, names,
        found.get(columns.id),
    )  # fmt: skip
