"""From what a user downloaded by hand, a folder or a .zip of images by domain and class, into the folder layout.

…/domain/class/image    …/domain/{train,test,val}/class/image    …/class/image where there is one domain
"""

from __future__ import annotations

import os
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from normfed.data import files, images
from normfed.data.catalogue import Dataset
from normfed.data.source import SPLITS, WHOLE
from normfed.errors import Refused
from normfed.library.fetch import Fetched, OnRows
from normfed.library.shelf import Drafts, Shelf, dataset_of

PICKLES = (".pkl", ".pickle", ".pt", ".pth")
AT_ONCE = 256


@dataclass(frozen=True)
class Archive:
    """A folder or a .zip: what is in it, and the bytes of each."""

    path: Path
    names: list[PurePosixPath]  # sorted
    read: Callable[[PurePosixPath], bytes]


@dataclass(frozen=True)
class Member:
    """An image of an archive, and where it belongs."""

    name: PurePosixPath
    domain: str
    split: str
    label: str


def bring(
    name: str, path: Path, root: Path | None = None, on_rows: OnRows = lambda what, done, total: None
) -> Fetched:  # fmt: skip
    """Puts the images of a folder or an archive where they are looked for: all, or none where anything is wrong with
    any. Nothing is unpickled, ever."""
    dataset = dataset_of(name)
    if not dataset.side:
        raise Refused(f"{name} is arrays, not images:", *(f"  {line}" for line in dataset.obtain))
    archive, shelf = _archive(path), Shelf(dataset, root)
    members = _members(dataset, archive)
    found = Fetched(shelf.folder)
    files_of: dict[tuple[str, str], list[Member]] = {}
    for member in members:
        files_of.setdefault((member.domain, member.split), []).append(member)
    for key, mine in list(files_of.items()):
        entry = shelf.entries.get(shelf.name(*key), {})
        if shelf.whole(*key) and (entry["from"], entry["samples"]) == (str(path), len(mine)):  # it goes on from here
            found.kept[shelf.name(*key)] = len(files_of.pop(key))
    _check(archive, files_of, shelf, on_rows)
    known = dataset.classes if dataset.classes and not dataset.choose else ()
    names = known or tuple(sorted({member.label for member in members}))
    with shelf.mine():
        for (domain, split), mine in files_of.items():
            mine.sort(key=lambda member: names.index(member.label))  # stable: by class, then by name
            with Drafts(shelf, split, names, str(path)) as drafts:
                for start in range(0, len(mine), AT_ONCE):
                    some = mine[start : start + AT_ONCE]
                    read = [{"bytes": archive.read(member.name), "path": member.name.name} for member in some]
                    drafts.add(domain, read, np.array([names.index(member.label) for member in some]))
            found.written[shelf.name(domain, split)] = len(mine)
    return found


def _archive(path: Path) -> Archive:
    if path.is_dir():
        home = path.resolve()  # its own name may be that of a domain
        inside = [Path(folder, name) for folder, _, names in os.walk(home, followlinks=True) for name in names]
        relative = [PurePosixPath(file.relative_to(home).as_posix()) for file in inside]
        names = [home.name / name for name in relative if _visible(name)]
        return Archive(path, sorted(names), lambda name: (home.parent / name).read_bytes())
    if not path.exists():
        raise Refused(f"there is no file or folder '{path}'")
    try:
        opened = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as error:
        raise Refused(f"{path}: a folder or a .zip was expected; unpack other archives first ({error})") from None
    if any(one.flag_bits & 1 for one in opened.infolist()):
        raise Refused(f"{path} has a password; unpack it first")
    names = [PurePosixPath(one.filename) for one in opened.infolist() if not one.is_dir()]
    return Archive(path, sorted(filter(_visible, names)), lambda name: opened.read(str(name)))


def _visible(name: PurePosixPath) -> bool:
    return not any(part.startswith((".", "__MACOSX")) for part in name.parts)


def _members(dataset: Dataset, archive: Archive) -> list[Member]:
    """The images, each with its place; raises `Refused` with all that have none."""
    found, problems = [], []
    form = "domain/class/image" if dataset.domains else "class/image"
    for name in archive.names:
        if name.suffix.lower() not in images.SUFFIXES:
            continue
        folders = name.parts[:-1]
        domain = next((ours for ours in map(dataset.ours, folders) if ours in dataset.domains), "")
        label = dataset.ours(folders[-1]) if folders else ""
        known = label in dataset.classes or (label and (dataset.choose or not dataset.classes))
        if not known or bool(domain) != bool(dataset.domains):
            problems.append(f"{archive.path}: {name}: {form} was expected, with the names of {dataset.name}")
        else:
            found.append(Member(name, domain, next((f for f in folders if f in SPLITS), WHOLE), label))
    _say_pickles(archive, bool(found))
    if not found and not problems:
        problems.append(f"{archive.path}: there are no images in it; {form} was expected")
    if problems:
        raise Refused(*problems)
    return found


def _say_pickles(archive: Archive, images_too: bool) -> None:
    pickles = [name for name in archive.names if name.suffix.lower() in PICKLES]
    if not pickles:
        return
    text = (
        f"{archive.path} holds pickles ({len(pickles)}, the first is {pickles[0]}), which are never opened: "
        "reading one can run any program"
    )
    if not images_too:
        raise Refused(text)
    warnings.warn(f"{text}; only the images are taken", stacklevel=4)


def _check(
    archive: Archive, files_of: Mapping[tuple[str, str], list[Member]], shelf: Shelf, on_rows: OnRows
) -> None:  # fmt: skip
    """Nothing is in the way, and every image decodes."""
    ours = [name for name, entry in shelf.entries.items() if entry["from"] == str(archive.path)]
    problems = [
        f"{shelf.folder / other} is there already; move it away first"
        for domain in dict.fromkeys(domain for domain, _ in files_of)
        for other in shelf.others(domain, ())
        if other not in ours
    ]
    members = [member for mine in files_of.values() for member in mine]
    faults: tuple[type[Exception], ...] = (*images.decoding_faults(), zipfile.BadZipFile, zlib.error)
    for done, member in enumerate(members, 1):
        try:
            files.decode(archive.read(member.name), 3, 1)
        except faults as error:
            problems.append(f"{archive.path}: {member.name}: cannot be decoded: {images.said(error)}")
        on_rows(archive.path.name, done, len(members))
    if problems:
        raise Refused(*problems)
