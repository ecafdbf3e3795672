"""Trials in several processes: one thread each, one trial at a time each, the numbers of one process.

A worker reads jobs from its input, one JSON line each, and prints what happens to its output. It ends when its input
does, so none outlives the process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from normfed.errors import Aborted, NormfedError, Refused
from normfed.runs.disk import dumps
from normfed.runs.trial import Job, play

# An interrupt that comes before there is anything to save ends a worker without a word.
START = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL); from normfed.runs.workers import main; main()"

OnRound = Callable[[int, dict[str, Any]], None]  # (number of the job, row of its history)


def play_all(jobs: Sequence[Job], workers: int, on_round: OnRound) -> list[str]:
    """Plays all jobs, `workers` at a time. Returns what was found damaged and made good."""
    workers = min(workers, len(jobs))
    if workers <= 1:
        return [
            line
            for number, job in enumerate(jobs)
            for line in play(job, lambda row, number=number: on_round(number, row))  # type: ignore[misc]
        ]
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(jobs)):
        todo.put(number)
    said: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
    processes = [_start(jobs[0].config["threads"]) for _ in range(workers)]
    threads = [threading.Thread(target=_drive, args=(p, jobs, todo, said), daemon=True) for p in processes]
    for thread in threads:
        thread.start()
    damaged: list[str] = []
    try:
        left = len(jobs)
        while left:
            number, event = said.get()
            if event["said"] == "row":
                on_round(number, event["row"])
            elif event["said"] == "done":
                damaged += event["damaged"]
                left -= 1
            else:
                raise _error(event)
    finally:
        _stop(processes, threads, todo)
    return damaged


def _start(threads: int) -> subprocess.Popen[str]:
    path = os.pathsep.join(part or str(Path.cwd()) for part in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)},
        start_new_session=True,  # Ctrl-C in a terminal comes to the parent alone, which passes it on
    )


def _drive(process: subprocess.Popen[str], jobs: Sequence[Job], todo: Any, said: Any) -> None:
    """Gives one worker jobs and passes on what it says, in a thread of its own."""
    assert process.stdin is not None and process.stdout is not None
    while True:
        try:
            number = todo.get_nowait()
        except queue.Empty:
            break
        job = jobs[number]
        given = {"config": job.config, "folder": str(job.folder), "recipe": job.recipe, "root": _text(job.root)}
        with contextlib.suppress(OSError):
            process.stdin.write(dumps(given) + "\n")
            process.stdin.flush()
        event = {"said": "lost"}
        for line in process.stdout:
            event = json.loads(line)
            said.put((number, event))
            if event["said"] != "row":
                break
        if event["said"] in ("row", "lost"):  # it ended in the middle of something
            said.put((number, {"said": "lost", "code": process.wait(), "folder": str(job.folder)}))
        if event["said"] != "done":
            return


def _stop(processes: Sequence[subprocess.Popen[str]], threads: Sequence[threading.Thread], todo: Any) -> None:
    """Ends all workers; those at work save first."""
    with contextlib.suppress(queue.Empty):
        while True:
            todo.get_nowait()
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    for process in processes:
        process.wait()
    for thread in threads:
        thread.join()
    for process in processes:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def _error(event: dict[str, Any]) -> Exception:
    if event["said"] == "refused":
        return Refused(*event["problems"])
    if event["said"] == "failed":
        return Aborted(event["reason"])
    if event["said"] == "lost":
        return Aborted(
            f"{event['folder']}: its process ended (code {event['code']}; -9 may mean that memory ran out); "
            "go on with --resume, and with --jobs 1 for less memory"
        )
    return RuntimeError(event.get("trace", "a worker was stopped"))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def main() -> None:
    """The worker."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what a user's model prints is not for the parent to read
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for given in _given(sys.stdin):
            _work(given, out)
    except KeyboardInterrupt:
        os._exit(130)


def _given(lines: IO[str]) -> Iterator[dict[str, Any]]:
    """Jobs as they come. The end of the input ends the process, at once, whatever it does."""
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in lines:
            jobs.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        yield json.loads(jobs.get())


def _work(given: dict[str, Any], out: IO[str]) -> None:
    def say(said: str, **more: Any) -> None:
        print(dumps({"said": said, **more}), file=out, flush=True)

    root = None if given["root"] is None else Path(given["root"])
    job = Job(given["config"], Path(given["folder"]), given["recipe"], root)
    try:
        say("done", damaged=play(job, lambda row: say("row", row=row)))
    except Refused as error:
        say("refused", problems=error.problems)
    except NormfedError as error:
        say("failed", reason=str(error))
    except Exception:
        import traceback

        say("broken", trace=traceback.format_exc())
