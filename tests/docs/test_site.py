"""The site builds, strictly, without a network."""

import subprocess
import sys
from pathlib import Path

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
