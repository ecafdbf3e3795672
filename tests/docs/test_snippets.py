"""Every snippet of README and docs is run.

```python blocks of a page run in order in one namespace. ```console blocks: lines that start with `$ ` run in bash (a
plain `normfed …` in this process, which is the same and does not import torch anew) and must succeed; the other lines must
occur in what they print, in order (`…` stands for anything, spaces for any spaces).
A page has one folder of its own, empty at first. Other fences (text, toml, json, bash) show and are not run.
A page whose first line is `<!-- long -->` runs in `make test-full`.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from normfed.runs import inputs

from command import normfed

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.M | re.S)


def blocks(page):
    return [(kind, body) for kind, body in FENCE.findall(page.read_text()) if kind in ("python", "console")]


def is_long(page):
    return page.read_text().startswith("<!-- long -->")


def run_python(body, namespace, where):
    exec(compile(body, str(where), "exec"), namespace)


def run_console(body, folder):
    command, wanted = None, []
    for line in [*body.splitlines(), None]:
        if line is None or line.startswith("$ "):
            if command is not None:
                check(command, wanted, folder)
            command, wanted = (line or "")[2:], []
        elif line.startswith("> ") and command is not None and not wanted:
            command += "\n" + line[2:]
        elif line.strip():
            wanted.append(line)


def run(command, folder):
    """Exit code and everything that was printed."""
    if command.startswith("normfed ") and not re.search(r"[|&;<>$`*?~]", command):
        inputs._opened.cache_clear()  # a path means another folder on another page
        with mock.patch("normfed.runs.play.cores", lambda: 1), mock.patch.dict(os.environ, {"COLUMNS": "200"}):
            done = normfed(*shlex.split(command)[1:])
        return done.code, done.out + done.err
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": "200"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout


def check(command, wanted, folder):
    code, printed = run(command, folder)
    assert code == 0, f"$ {command}\n{printed}"
    at = 0
    for line in wanted:
        pattern = r"\s+".join(".*?".join(map(re.escape, word.split("…"))) for word in line.split())
        found = re.compile(pattern).search(printed, at)
        assert found, f"$ {command}\nprinted no line like\n{line}\nbut\n{printed}"
        at = found.end()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, id=str(p.relative_to(ROOT)), marks=[pytest.mark.full] if is_long(p) else [])
        for p in PAGES
        if blocks(p)
    ],
)
def test_snippets(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    namespace = {"__name__": "snippet"}
    with torch.random.fork_rng(devices=[]):
        for kind, body in blocks(page):
            if kind == "python":
                run_python(body, namespace, page.relative_to(ROOT))
            else:
                run_console(body, tmp_path)


def test_a_snippet_that_prints_something_else_fails(tmp_path):
    run_console("$ echo one two; echo three\none  …\nthree\n", tmp_path)
    with pytest.raises(AssertionError, match="printed no line like"):
        run_console("$ echo one\ntwo\n", tmp_path)
    with pytest.raises(AssertionError, match=r"\$ false"):
        run_console("$ false\n", tmp_path)


def test_links_between_pages_lead_somewhere():
    lost = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)\s#]+)", page.read_text()):
            if not (page.parent / target).exists():
                lost.append(f"{page.relative_to(ROOT)}: {target}")
    assert not lost, lost
