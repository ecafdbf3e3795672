"""Tests and files that the pages point to are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEYS = {"test_accuracy"}  # of a history; not the name of a test
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page):
    text = page.read_text()
    lost = [name for name in re.findall(r"`(test_\w+)`", text) if name not in TESTS | KEYS]
    paths = re.findall(r"`((?:tests|src|examples|docs)/[\w./-]+)`", text)
    lost += [path for path in paths if not (ROOT / path).exists() and "softbn" not in path]
    assert not lost, lost


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.name)
def test_a_page_names_no_place_on_a_machine(page):
    found = re.findall(r"(?<![\w.<>])/(?:work|home|tmp|root|usr|mnt|Users)/\S*", page.read_text())
    assert not found, found
