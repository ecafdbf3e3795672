"""A federation of what is in memory: arrays, datasets of PyTorch, datasets of Hugging Face; or of a name or a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from normfed.data.federation import Federation, federate
from normfed.data.files import as_samples
from normfed.data.images import Images
from normfed.data.source import SPLITS, WHOLE
from normfed.data.store import ClientData
from normfed.data.table import ALIASES, Table, source_of
from normfed.errors import Problems, Refused
from normfed.text import bind


def federation(
    data: Any, partition: str | None = None, *, seed: int = 0, root: Path | str | None = None, **options: Any
) -> Federation:
    """Any data as a federation: one line, and all that is wrong with them is said before anything trains.

    `data` is a name or a path, as in a recipe; or a mapping from site to what it has: `ClientData`, a pair of arrays
    (x, y), a `torch.utils.data.Dataset`, a mapping of splits to these; or a Hugging Face dataset (or a dictionary of
    its splits) with columns `image`, `label`, `site`.

    Options, of what is not a dataset's name: `classes` (how many, or their names), `side` (resize pictures), `channels`
    (1 or 3), `duplicates="keep"`; and what columns are called: `image`, `label`, `site`, `split`, `id`.
    """
    from normfed.data import source_of as named

    if isinstance(data, str | Path):
        home = Path(root) if isinstance(root, str) else root
        return federate(named(str(data), home, **options), partition, seed)
    if _is_hub(data):
        return federate(_of_hub(data, **options), partition, seed)
    if isinstance(data, Mapping) and data:
        bind(source_of, "federation", (), options, given=("name", "tables", "about"))
        return federate(source_of("given", _tables(data), **options), partition, seed)
    raise Refused(f"{type(data).__name__} is no federation: a name, a path, a mapping from site to data, or a dataset "
                  "with a site column was expected")  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------
# Sites with their data


def _tables(data: Mapping[Any, Any]) -> list[Table]:
    problems = Problems()
    tables = []
    for site, held in data.items():
        if not isinstance(site, str) or not site:
            problems.found.append(f"site {site!r}: a name was expected")
            continue
        for split, part in _splits(held).items():
            with problems:
                tables.append(_part(site, split, part))
    problems.say()
    return tables


def _splits(held: Any) -> dict[str, Any]:
    if isinstance(held, ClientData):
        return {s: getattr(held, s) for s in SPLITS if getattr(held, s) is not None}
    return dict(held) if isinstance(held, Mapping) else {WHOLE: held}


def _part(site: str, split: str, part: Any) -> Table:
    where = f"site '{site}'" + (f", {split}" if split != WHOLE else "")
    x, y = _pair(part, where)
    if len(x) != len(y):
        raise Refused(f"{where}: {len(x)} samples but {len(y)} labels")
    if not len(x):
        raise Refused(f"{where}: no samples")
    return Table([site] * len(y), [split] * len(y), y, x, lambda i: f"{where}, sample {i}")


def _pair(part: Any, where: str) -> tuple[np.ndarray, list[Any]]:
    """Samples and labels of a pair of arrays, or of a dataset that is read once, sample by sample."""
    if isinstance(part, tuple | list) and len(part) == 2:
        return _array(part[0], where), _labels(part[1])
    if not hasattr(part, "__getitem__") or not hasattr(part, "__len__"):
        raise Refused(f"{where}: {type(part).__name__} is neither a pair (x, y) nor a dataset with a length")
    samples, labels, problems = [], [], []
    for i in range(len(part)):
        try:
            x, y = part[i]
            samples.append(_array(x, where))
            labels += _labels([y])
        except Exception as error:  # a user's code may raise anything
            problems.append(f"{where}, sample {i}: {str(error) or type(error).__name__}")
    shapes = list(dict.fromkeys(x.shape for x in samples))
    if len(shapes) > 1:
        problems.append(f"{where}: samples differ in shape: {', '.join(map(str, shapes))}")
    if problems:
        raise Refused(*problems)
    return np.stack(samples) if samples else np.empty(0), labels


def _array(value: Any, where: str) -> np.ndarray:
    """Numbers as an array; a picture as [channels, height, width]."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    try:
        x = np.asarray(value)
    except ValueError as error:  # ragged
        raise Refused(f"{where}: samples cannot be made one array: {error}") from None
    if hasattr(value, "getbands"):
        x = x.transpose(2, 0, 1) if x.ndim == 3 else x[None]
    if x.dtype.kind not in "buif":
        raise Refused(f"{where}: samples are {x.dtype}, not numbers")
    return as_samples(x)


def _labels(given: Any) -> list[Any]:
    found: list[Any] = given.tolist() if isinstance(given, Tensor | np.ndarray) else list(given)
    return [label.item() if isinstance(label, Tensor) else label for label in found]


# ---------------------------------------------------------------------------------------------------------------
# Hugging Face


def _is_hub(data: Any) -> bool:
    """By what it can do: `datasets` itself is not needed."""
    one = next(iter(data.values()), None) if isinstance(data, Mapping) else data
    return all(hasattr(one, name) for name in ("column_names", "features", "__getitem__", "__len__"))


def _of_hub(
    data: Any, *, image: str = "image", label: str = "label", site: str = "site", split: str = "split", id: str = "id",
    **options: Any,
) -> Any:  # fmt: skip
    bind(source_of, "federation", (), options, given=("name", "tables", "about"))
    parts = dict(data) if isinstance(data, Mapping) else {WHOLE: data}
    of_sites = not parts.keys() & {*SPLITS, *ALIASES, WHOLE}
    problems = Problems()
    tables = []
    for name, rows in parts.items():
        with problems:
            owner, part = (name, WHOLE) if of_sites else ("", name)
            tables.append(_rows(rows, owner, part, (image, label, site, split, id)))
    problems.say()
    return source_of("given", tables, **options)


def _rows(rows: Any, owner: str, part: str, columns: Sequence[str]) -> Table:
    """The rows of one dataset: of all sites, or of one; of all splits, or of one."""
    image, label, site, split, person = columns
    missing = [f"'{c}'" for c in (image, label, *([] if owner else [site])) if c not in rows.column_names]
    if missing:
        raise Refused(f"the dataset has no column {' and none '.join(missing)}; it has {', '.join(rows.column_names)}")
    place = ", ".join(word for word in (owner, part if part != WHOLE else "") if word)

    def where(i: int) -> str:
        return f"{place}, row {i}" if place else f"row {i}"

    def column(which: str) -> list[Any]:
        names = getattr(rows.features[which], "names", None)  # a ClassLabel has some
        return [names[v] if names and isinstance(v, int) and v >= 0 else v for v in rows[which]]

    def picture(i: int) -> Any:
        value = rows[i][image]
        if not hasattr(value, "getbands"):
            raise ValueError(f"a picture was expected, not {type(value).__name__}")
        return value

    sites = [owner] * len(rows) if owner else ["" if v is None else str(v) for v in column(site)]
    splits = list(map(str, column(split))) if split in rows.column_names else [part] * len(rows)
    first = rows[0][image] if len(rows) else None
    in_numbers = first is not None and not hasattr(first, "getbands")
    samples = _array(rows[image], place or "the dataset") if in_numbers else Images(len(rows), picture, where)
    names = tuple(getattr(rows.features[label], "names", None) or ())
    ids = list(rows[person]) if person in rows.column_names else None
    return Table(sites, splits, list(rows[label]), samples, where, names, ids)
