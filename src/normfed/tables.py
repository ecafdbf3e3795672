"""Tables and figures of the docs, made from results/ and from the code: `python -m normfed.tables [--check] [NAME …]`.

A table is a function from the folder of results to files: path (beside results/) -> text. A new one is a function
where it belongs and one line here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from normfed.errors import Refused, nearest
from normfed.evidence import cards, composition, cost, phenomena_page, speed
from normfed.library import page as datasets
from normfed.reproduce import page as recipes

Table = Callable[[Path], Mapping[str, str]]

TABLES: dict[str, Table] = {
    "cards": cards.page,
    "composition": composition.page,
    "cost": cost.page,
    "datasets": datasets.page,
    "phenomena": phenomena_page.page,
    "recipes": recipes.page,
    "speed": speed.page,
}


def stale(root: Path, names: Sequence[str] = ()) -> dict[str, str]:
    """Files that are not what results and code say now, with what they should hold."""
    for name in names:
        if name not in TABLES:
            raise Refused(f"unknown table '{name}'; {nearest(name, TABLES)}")
    made = {path: text for name in names or TABLES for path, text in TABLES[name](root / "results").items()}
    return {path: text for path, text in made.items() if _read(root / path) != text}


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def rebuild(root: Path, names: Sequence[str] = ()) -> list[str]:
    """Writes what is stale; returns the paths written."""
    found = stale(root, names)
    for path, text in found.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
    return list(found)


def main(arguments: Sequence[str]) -> int:
    """Rebuilds; with --check, changes nothing and fails where something is stale."""
    check = "--check" in arguments
    names = [argument for argument in arguments if argument != "--check"]
    try:
        paths = list(stale(Path(), names)) if check else rebuild(Path(), names)
    except Refused as refusal:
        print(*(f"normfed: {problem}" for problem in refusal.problems), sep="\n", file=sys.stderr)
        return 2
    print(*(f"{path}: {'stale, make results rebuilds it' if check else 'written'}" for path in paths), sep="\n", end="")
    print("" if paths else "everything is up to date")
    return int(check and bool(paths))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
