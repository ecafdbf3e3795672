"""The site builds, strictly, without a network."""

import re
import subprocess
import sys
from pathlib import Path

import normfed as nf

ROOT = Path(__file__).parents[2]


def test_the_site_builds(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    page = (tmp_path / "site" / "index.html").read_text()
    assert "normfed" in page
    assert "fonts.googleapis" not in page and "unpkg.com" not in page  # opens offline


def test_every_public_name_is_in_the_reference():
    page = (ROOT / "docs" / "reference.md").read_text()
    lost = [name for name in nf.__all__ if name != "__version__" and not re.search(rf"[. ]{name}\b", page)]
    assert not lost, lost
