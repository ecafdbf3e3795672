"""The page on writing a method, done: its file and its one line put into a copy of the package, its commands run."""

import filecmp
import inspect
import os
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from normfed import client, server
from normfed.expression import parse
from normfed.method import Beginning, Method
from normfed.methods import METHODS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "new-method.md").read_text()
SOURCE = ROOT / "src" / "normfed"


def fences(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def overlay(tmp_path_factory):
    """A copy of the package with the method in it."""
    root = tmp_path_factory.mktemp("overlay")
    shutil.copytree(SOURCE, root / "normfed", ignore=shutil.ignore_patterns("__pycache__"))
    (file,), (line,) = [body for body in fences("python") if "@factory" in body], fences("py")
    (root / "normfed/methods/softbn.py").write_text(file)
    registry = root / "normfed/methods/__init__.py"
    before = registry.read_text()
    registry.write_text(before.replace("from normfed.methods.agc", f"{line}from normfed.methods.agc", 1))
    assert len(line.splitlines()) == 1 and len(registry.read_text().splitlines()) == len(before.splitlines()) + 1
    return root


# Every command in one process of its own, which finds the copy before the package.
SCRIPT = """
import shlex, sys
from normfed import cli
from normfed.runs import play
play.cores = lambda: 1
for command in sys.stdin.read().splitlines():
    print("$", command)
    sys.argv = shlex.split(command)
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code, end.code
from normfed.expression import parse
from normfed.methods import softbn
from normfed.testing import check_method
assert parse(str(softbn(0.3))) == softbn(0.3)
check_method(softbn(0.3), rounds=2)
"""


def test_one_file_and_one_line_are_all(overlay):
    seen = filecmp.dircmp(SOURCE, overlay / "normfed", ignore=["__pycache__"])
    assert not seen.left_only and not seen.right_only and not seen.diff_files
    seen = filecmp.dircmp(SOURCE / "methods", overlay / "normfed" / "methods", ignore=["__pycache__"])
    assert not seen.left_only and seen.right_only == ["softbn.py"] and seen.diff_files == ["__init__.py"]


def test_every_command_knows_the_method_and_its_contract_holds(overlay, tmp_path):
    (commands,) = fences("bash")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], input=commands, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(overlay)},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    _, listed, explained, ran, compared = done.stdout.split("$ ")
    assert "softbn" in listed and "report softbn/gains" in explained
    assert "softbn(mu=0.3)" in ran and "softbn(mu=0.3)+fedprox" in compared
    assert (tmp_path / "runs/softbn/result.json").exists() and (tmp_path / "runs/both/comparison.json").exists()


def test_the_file_is_as_long_as_the_title_says():
    (file,) = [body for body in fences("python") if "@factory" in body]
    assert len(file.splitlines()) <= 50
    code = [line for line in "".join(file.split('"""')[::2]).splitlines() if line.strip()]
    assert len(code) <= 40


def test_the_table_has_every_axis_with_a_method_that_sets_it():
    axes = PAGE.partition("## All axes")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", axes, re.M)
    usual = {f.name: f.default for f in fields(Method) if f.name not in ("name", "calls")}
    assert [axis for axis, _ in rows] == list(usual), "in the order of the record"
    for axis, example in rows:
        name = example.strip("`")
        if name in METHODS:
            records = parse(name).atoms({})
            assert any(getattr(record, axis) != usual[axis] for record in records), f"{name} leaves {axis} alone"
        else:
            users = [n for n in METHODS if any(a.task is not None for a in parse(n).atoms({}))]
            assert axis == "task" and not users, f"{users} could be named as an example of {axis}"


def test_what_a_piece_is_handed_is_there():
    handed = PAGE.partition("## What a piece is handed")[2]
    for contexts, said in re.findall(r"^\| (`[A-Z].*?) \| .*? \| (.*) \|$", handed, re.M):
        names = re.findall(r"`(\w+)(?:\(\))?`", said)
        assert names
        for context in re.findall(r"`([A-Z]\w+)`", contexts):
            kind = Beginning if context == "Beginning" else getattr(client, context, None) or getattr(server, context)
            source = "".join(inspect.getsource(base) for base in kind.__mro__ if base.__module__.startswith("normfed"))
            lost = [n for n in names if not re.search(rf"self\.{n}\b|def {n}\b|self\.\w+, self\.{n}\b|^    {n}:", source, re.M)]  # fmt: skip
            assert not lost, (context, lost)
