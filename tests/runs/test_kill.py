"""Killed at a random instant, a run goes on to the bytes of the uncut one."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

METHODS = ("fedavg", "fedbn", "scaffold", "fedtan_ii(m=4)")


def config(method):
    return {
        "method": method,
        "rounds": 10,
        "steps": 2,
        "batch_size": 8,
        "evaluate_every": 7,
        "views": ["global"],
        "seeds": [0],
    }


class Killable:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killable.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def play(self, method, out, kill_after=None):
        """Exit code and seconds; killed after some of them."""
        self.process.stdin.write(json.dumps({"config": config(method), "out": str(out)}) + "\n")
        self.process.stdin.flush()
        pid, started = int(self.process.stdout.readline()), time.monotonic()
        if kill_after is not None:
            time.sleep(kill_after)
            with contextlib.suppress(ProcessLookupError):  # it may have ended before
                os.kill(pid, signal.SIGKILL)
        code = int(self.process.stdout.readline())
        return code, time.monotonic() - started


@pytest.fixture(scope="module")
def killable():
    made = Killable()
    yield made
    made.process.stdin.close()
    made.process.stdout.close()
    made.process.wait()


def contents(folder):
    """Every file's bytes; of the result, everything but its timing."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = json.loads(found["result.json"])
    del result["timing"]
    return {**found, "result.json": json.dumps(result)}


def kill_and_resume(killable, method, uncut, seconds, folder, instants):
    """Kills at each instant, counted from the last start; then lets the run end."""
    killed = 0
    for instant in instants:
        code, _ = killable.play(method, folder, kill_after=instant * seconds)
        killed += code == -signal.SIGKILL
    assert killable.play(method, folder)[0] == 0
    assert contents(folder) == uncut
    return killed


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("times", [3, pytest.param(50, marks=pytest.mark.full)])
def test_a_killed_run_goes_on_to_the_same_bytes(killable, tmp_path, method, times):
    code, seconds = killable.play(method, tmp_path / "uncut")
    assert code == 0
    uncut = contents(tmp_path / "uncut")
    assert {"config.toml", "records.jsonl", "model.safetensors", "checkpoint.safetensors"} <= set(uncut)
    draw = random.Random(f"{method} {times}")
    killed = 0
    for i in range(times):
        instants = [draw.uniform(0.02, 1.0) for _ in range(1 + i % 2)]
        killed += kill_and_resume(killable, method, uncut, seconds, tmp_path / str(i), instants)
    assert killed >= times // 2
