"""A process that has imported everything, and forks one that plays a run for every line it reads: killing that one
costs no start-up. Prints its pid, and how it ended."""

import json
import os
import sys
from pathlib import Path

import torch

import normfed.methods  # noqa: F401
from normfed import recipe, runs

torch.set_num_threads(1)

for line in sys.stdin:
    given = json.loads(line)
    pid = os.fork()
    if pid == 0:
        config = recipe.resolve(recipe.find("demo"), given["config"])
        runs.run(config, Path(given["out"]), resume=True, jobs=1)
        os._exit(0)
    print(pid, flush=True)
    _, status = os.waitpid(pid, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
