"""Ctrl-C and kill -9 on real processes, alone and with workers: what was done is kept, and goes on to the same bytes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from command import normfed, sets, started

KEYS = sets(rounds=80, evaluate_every=40)


def contents(folder):
    """Every file but the report and the locks; of results all but their timing."""
    found = {
        str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".html"
    }

    def untimed(document):
        return {k: [untimed(d) for d in v] if k == "results" else v for k, v in document.items() if k != "timing"}

    return {n: untimed(json.loads(data)) if n.endswith(".json") else data for n, data in found.items()}


def typed(out, *more):
    return ["run", "demo", *KEYS, "--method", "fedbn", "--out", out, *more]


def wait_for(folder, rounds=5, patience=60.0):
    """Until the records of some seed hold this many rounds; fails where the run ends before."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        for path in [folder / "records.jsonl", *folder.glob("**/records.jsonl")]:
            if path.exists() and path.read_bytes().count(b'"metric": "messages"') >= rounds:
                return
        time.sleep(0.02)
    raise AssertionError(f"{folder}: nothing happens")


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ended(done):
    """Exit code, stdout, stderr of a process that was sent a signal."""
    out, err = done.communicate(timeout=60)
    return done.returncode, out, err


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """Of one seed, and of two."""
    made = {}
    for seeds in ("0", "0,1"):
        folder = made[seeds] = tmp_path_factory.mktemp("uncut") / "run"
        assert normfed(*typed(folder, "--seeds", seeds, "--jobs", "1")).code == 0
    return made


@pytest.mark.parametrize(("seeds", "jobs"), [("0", 1), ("0,1", 2)], ids=["alone", "with workers"])
def test_ctrl_c_saves_and_resume_goes_on_to_the_same_bytes(uncut, tmp_path, seeds, jobs):
    folder = tmp_path / "cut"
    running = started(*typed(folder, "--seeds", seeds, "--jobs", jobs))
    wait_for(folder)
    os.killpg(running.pid, signal.SIGINT)
    code, out, err = ended(running)
    assert (code, out) == (130, "")
    assert err.strip() == f"normfed: interrupted; {folder} keeps what was done, --resume goes on with it"
    cut = [folder] if jobs == 1 else sorted(folder.glob("seed-*"))
    for one in cut:  # saved after the last round of which there are records, not only now and then
        if not (one / "result.json").exists() and (one / "records.jsonl").exists():
            assert (one / "checkpoint.safetensors").exists()
    done = normfed(*typed(folder, "--seeds", seeds, "--jobs", "1", "--resume"))
    assert (done.code, done.err) == (0, "") and contents(folder) == contents(uncut[seeds])


def test_killing_the_parent_ends_its_workers_and_resume_goes_on(uncut, tmp_path):
    folder = tmp_path / "cut"
    running = started(*typed(folder, "--seeds", "0,1", "--jobs", "2"))
    wait_for(folder)
    workers = children(running.pid)
    assert len(workers) == 2
    os.kill(running.pid, signal.SIGKILL)
    assert ended(running)[0] == -signal.SIGKILL
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until, "a worker outlives its parent"
        time.sleep(0.05)
    done = normfed(*typed(folder, "--seeds", "0,1", "--jobs", "1", "--resume"))
    assert done.code == 0 and contents(folder) == contents(uncut["0,1"])


def test_a_killed_worker_is_told_and_resume_goes_on(uncut, tmp_path):
    folder = tmp_path / "cut"
    running = started(*typed(folder, "--seeds", "0,1", "--jobs", "2"))
    wait_for(folder)
    os.kill(children(running.pid)[0], signal.SIGKILL)
    code, out, err = ended(running)
    assert (code, out) == (2, "") and "Traceback" not in err
    assert "its process ended (code -9; -9 may mean that memory ran out); go on with --resume" in err
    done = normfed(*typed(folder, "--seeds", "0,1", "--jobs", "1", "--resume"))
    assert done.code == 0 and contents(folder) == contents(uncut["0,1"])


@pytest.mark.full
def test_a_killed_comparison_goes_on_to_the_same_bytes(tmp_path):
    def compare(out, *more):
        return [
            "compare",
            "demo",
            *KEYS,
            "--seeds",
            "0",
            "--methods",
            "scaffold,fedbn",
            "--jobs",
            "1",
            "--out",
            out,
            *more,
        ]

    assert normfed(*compare(tmp_path / "uncut")).code == 0
    running = started(*compare(tmp_path / "cut"))
    wait_for(tmp_path / "cut")
    os.kill(running.pid, signal.SIGKILL)
    running.communicate()
    assert not (tmp_path / "cut" / "comparison.json").exists()
    done = normfed(*compare(tmp_path / "cut", "--resume"))
    assert done.code == 0 and contents(tmp_path / "cut") == contents(tmp_path / "uncut")
