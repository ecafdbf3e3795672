"""A new user: a fresh clone, the demo, a run on a folder of images, a comparison, a report, a new site.

Here with the environment that runs the tests and the demo's short form; `make test-full` installs, and plays it whole.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SITES = ("hospital-a", "hospital-b", "hospital-c")


class User:
    """Types commands into a clone; each must end well and say nothing on stderr."""

    def __init__(self, clone, command, env):
        self.clone, self.command, self.env = clone, command, env

    def normfed(self, *arguments):
        done = subprocess.run(
            [*self.command, *map(str, arguments)],
            capture_output=True,
            text=True,
            cwd=self.clone,
            env=self.env,
            timeout=900,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout


def cloned(folder):
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git repository: there is nothing to clone")
    clone = folder / "normfed"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True, capture_output=True)
    return clone


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    clone = cloned(tmp_path_factory.mktemp("newcomer"))
    env = {**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1"}
    user = User(clone, [sys.executable, "-m", "normfed.cli"], env)
    where = subprocess.run(
        [sys.executable, "-c", "import normfed; print(normfed.__file__)"],
        env=env,
        cwd=clone,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(clone)), "it is the clone that is tried"
    return user


def scans(root, sites, each=12, side=16):
    """site/class/image: a cross or a ring, each site with a background and a contrast of its own."""
    draw = np.random.default_rng(0)
    row, column = np.indices((side, side)) - side / 2 + 0.5
    radius = np.hypot(row, column)
    shapes = {"cross": (abs(row) < 2) | (abs(column) < 2), "ring": (radius > 4) & (radius < 7)}
    for number, site in enumerate(sites):
        for name, shape in shapes.items():
            folder = root / site / name
            folder.mkdir(parents=True)
            for i in range(each):
                light = 60 + 50 * number + (120 - 60 * number) * shape + draw.normal(0, 8, (side, side))
                Image.fromarray(light.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    return root


def play_the_demo(user, *arguments):
    out = user.normfed("demo", *arguments)
    table, comparison = out.splitlines(), json.loads((user.clone / "runs/demo/comparison.json").read_text())
    methods = [d["method"] for d in comparison["results"]]
    assert {"fedavg", "fedbn", "silobn", "fedwon", "fedtan", "greg"} <= set(methods)
    assert table[0].split() == ["method", "ink", "neon", "blueprint", "scan", "cloth", "average"]
    several = len(comparison["results"][0]["seeds"]) > 1
    number = r"\d+\.\d ± \d+\.\d" if several else r" \d+\.\d\b"  # one seed has no deviation
    assert len(re.findall(number, out)) == 6 * len(methods)
    assert [line.split(" [")[0] for line in table[1 : len(methods) + 1]] == methods
    assert "[lr=" in table[1]  # each at a learning rate of its own, and it is said
    assert (user.clone / "runs/demo/report.html").stat().st_size > 10_000
    assert table[-1].startswith("Open runs/demo/report.html in a browser; then type: ")
    return out, {d["method"]: d["final"]["average"]["mean"] for d in comparison["results"]}


def test_the_demo_twice_and_what_it_says_to_type_next(user):
    arguments = ["--quick", "--seeds", "0"]
    first, averages = play_the_demo(user, *arguments)
    assert averages["fedbn"] > averages["fedavg"]
    played = {path: path.stat().st_mtime_ns for path in (user.clone / "runs/demo").rglob("*")}
    assert play_the_demo(user, *arguments)[0] == first
    assert {path: path.stat().st_mtime_ns for path in (user.clone / "runs/demo").rglob("*")} == played  # nothing again
    arguments = first.splitlines()[-1].partition(" run ")[2].split()
    assert arguments == ["demo", "--method", "fedbn"]
    user.normfed("run", *arguments, "--quick", "--seeds", "0", "--set", "rounds=2")
    (folder,) = [path for path in (user.clone / "runs").iterdir() if path.name != "demo"]
    assert (folder / "report.html").exists()


def test_a_folder_of_ones_own_from_images_to_a_new_site(user):
    photos = scans(user.clone / "photos", SITES)
    recipe = 'data = "photos"\nmodel = "resnet20"\nrounds = 3\nbatch_size = 6\nlr = 0.1\nseeds = [0]\n'
    (user.clone / "mine.toml").write_text(recipe)
    out = user.normfed("run", "mine.toml", "--method", "fedbn", "--out", "runs/mine")
    assert out.splitlines()[0].split() == ["method", *SITES, "average"] and "Kept in runs/mine" in out
    assert json.loads((user.clone / "runs/mine/result.json").read_text())["clients"] == list(SITES)
    user.normfed("run", "mine.toml", "--method", "fedavg", "--out", "runs/plain")

    both = user.normfed("compare", "runs/mine", "runs/plain", "--out", "runs/both")
    assert [line.split()[0] for line in both.splitlines()[1:3]] == ["fedbn", "fedavg"]
    assert user.normfed("report", "runs/both").strip() == "runs/both/report.html"
    assert all(site in (user.clone / "runs/both/report.html").read_text() for site in SITES)

    scans(user.clone / "new", ("hospital-d",))
    shutil.rmtree(photos)  # a colleague has the run, and not the data
    out = user.normfed("evaluate", "runs/mine", "--data", "new", "--predictions", "predictions.csv")
    assert "unseen/reestimated" in out and "Predictions in predictions.csv" in out
    lines = (user.clone / "predictions.csv").read_text().splitlines()
    assert lines[0] == "client,view,sample,label,predicted,probability"
    assert len([line for line in lines if line.startswith("hospital-d,unseen/averaged,")]) == 24
    assert {line.split(",")[3] for line in lines[1:]} == {"cross", "ring"}


@pytest.mark.full
def test_installed_from_the_clone_make_demo_takes_less_than_two_minutes(tmp_path):
    """The whole of it: an environment of its own, the package and what it needs, the demo as `make demo` plays it."""
    clone = cloned(tmp_path)
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    made = subprocess.run(["make", ".venv/ready"], cwd=clone, env=env, capture_output=True, text=True, timeout=3600)
    if made.returncode and "No matching distribution" in made.stderr:
        pytest.skip("no package index can be reached to install from")
    assert made.returncode == 0, made.stderr
    started = time.monotonic()
    done = subprocess.run(["make", "demo"], cwd=clone, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 120
    assert "type: .venv/bin/normfed run demo --method fedbn" in done.stdout
    user = User(clone, [clone / ".venv/bin/normfed"], env)
    _, averages = play_the_demo(user)
    assert averages["fedbn"] - averages["fedavg"] > 0.03
