"""What a round costs, as a ratio to FedAvg's: `python -m normfed.evidence.cost` measures it into results/cost.json.

All methods play a round in turn, again and again; a method's ratio is the median over the turns of its seconds over
those of FedAvg in the same turn. Seconds are CPU time of one thread, so that other work on the machine disturbs little.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from normfed.data.store import ClientData
from normfed.demo import demo_cnn
from normfed.errors import Refused
from normfed.experiment import Run
from normfed.expression import parse
from normfed.keys import integers, normal
from normfed.methods import METHODS
from normfed.models import make

FILE = Path("results/cost.json")
TURNS, WARM = 5, 2  # terms that start in the second round are there
SECOND_PHASE = {"fixbn": "fixbn(t=0)"}  # before its switch it is FedAvg


SLOW = 1.25  # from here on a reason is due
WHY = {
    "batchrenorm": "written out in elementary operations, each kept for the way back; BatchNorm is one kernel.",
    "centralized": "one client has all data: with `stacked` there is nothing to put side by side.",
    "ensemblestats": "two normalised activations in every layer, from moments taken outside of the kernel.",
    "feddna": "as `fedtan`.",
    "fedfa": "redraws the statistics of every sample after each stage, forward and backward.",
    "fedplvm": "a pass over all data for the prototypes, their clustering class by class, and two terms in the loss. "
    "The first two are paid once a round: the more steps, the less.",
    "fedtan": "one after another, clients play the first step again at each of the 2L exchanges, with the answers so "
    "far; stacked, which `auto` chooses, they answer one another, and pay for moments outside of the kernel.",
    "fedtan_ii": "as `fedtan`, until its switch.",
    "globalstats": "as `mixstats`.",
    "greg": "a second forward and backward pass over every batch, under the broadcast statistics.",
    "hbn": "a pass over all data before training, forward only; and as `mixstats`.",
    "mixstats": "moments of every batch taken and mixed outside of the kernel, with gradients through them.",
}


@dataclass(frozen=True)
class Case:
    """A network, its input, and a federation of random pictures."""

    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    samples: int  # of a client
    engine: str
    batch_size: int = 16

    def federation(self) -> dict[str, ClientData]:
        pairs = [
            (normal(k, (self.samples, *self.shape)), integers(k, (self.samples,), 10)) for k in range(self.clients)
        ]
        return {f"client {k}": ClientData(train=pair) for k, pair in enumerate(pairs)}


CASES = {
    "two convolutions, serial": Case(demo_cnn, (3, 16, 16), 5, 96, "serial"),
    "two convolutions, stacked": Case(demo_cnn, (3, 16, 16), 5, 96, "stacked"),
    "ResNet-20, auto": Case(lambda: make("resnet20"), (3, 32, 32), 2, 32, "auto"),
}


def started(case: Case, method: str) -> Run | None:
    """A run that is never evaluated; None where the method has nothing to act on in the network."""
    rounds = 1_000  # none of the switches is thrown on the way
    try:
        return Run(
            case.model(), case.federation(), parse(method), rounds=rounds, engine=case.engine, evaluate_every=rounds,
            batch_size=case.batch_size, lr=0.01,
        )  # fmt: skip
    except Refused:
        return None


def seconds(run: Run) -> float:
    """Of a round."""
    begun = time.process_time()
    run.play()
    return time.process_time() - begun


def measure(case: Case, methods: Mapping[str, str], turns: int = TURNS) -> dict[str, Any]:
    """FedAvg's seconds, and method -> ratio."""
    made = {name: started(case, method) for name, method in methods.items()}
    runs = {name: run for name, run in made.items() if run is not None}
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(WARM + turns):
        for name, run in runs.items():
            taken[name].append(seconds(run))
    usual = taken["fedavg"][WARM:]
    ratios = {
        name: statistics.median(mine / theirs for mine, theirs in zip(own[WARM:], usual, strict=True))
        for name, own in taken.items()
    }
    return {"fedavg_seconds": round(statistics.median(usual), 4), "ratios": {n: round(r, 2) for n, r in ratios.items()}}


# ---------------------------------------------------------------------------------------------------------------
# The page


def read(results: Path) -> dict[str, dict[str, Any]]:
    """What was measured: case -> FedAvg's seconds and ratios."""
    path = results.parent / FILE
    if not path.exists():
        raise Refused(f"{FILE} is missing: python -m normfed.evidence.cost makes it")
    cases: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cases"]
    return cases


def ratio(name: str, case: Mapping[str, Any]) -> str:
    found = case["ratios"].get(name)
    return "–" if found is None else f"{found:.2f}"


def shown(name: str, cases: Mapping[str, Mapping[str, Any]]) -> str:
    """The ratio of a method in the last case, where every method has one."""
    return ratio(name, list(cases.values())[-1])


def lines(name: str, cases: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A method's cost for its card."""
    found = [f"- {about}: {ratio(name, case)}" for about, case in cases.items() if name in case["ratios"]]
    why = ["", f"Why: {WHY[name]}"] if name in WHY else []
    return ["Seconds of a round over FedAvg's, on a CPU:", "", *found, *why]


def page(results: Path) -> Mapping[str, str]:
    """docs/cost.md"""
    cases = read(results)
    usual = ", ".join(f"{about}: {case['fedavg_seconds']:.2f} s" for about, case in cases.items())
    rows = [f"| [{n}](methods/{n}.md) | {' | '.join(ratio(n, case) for case in cases.values())} |" for n in METHODS]
    table = [f"| method | {' | '.join(cases)} |", "|---|" + "---:|" * len(cases), *rows]
    why = "\n".join(f"- `{name}`: {reason}" for name, reason in WHY.items())
    return {"docs/cost.md": TEXT.format(usual=usual, table="\n".join(table), why=why)}


TEXT = """# What a round costs

```bash
python -m normfed.evidence.cost
make results
```

Seconds of a round over those of FedAvg, on a CPU, evaluation left out; "–" where a method finds nothing to act on.
FedAvg's own rounds take {usual}.

{table}

All methods play a round in turn; a ratio is the median over the turns. Seconds are CPU time of one thread, so they say
what a method has to compute; how long one waits also depends on the engine, the device and the network. The first two
rounds, before terms such as GReg's begin, are not counted. `fixbn` is measured after its switch, `fedtan_ii` before.

GReg's paper (2024, Table 10) has 1.45 for GReg, 1.92 for HBN and 1.75 for FedWon: seconds of an epoch of ResNet-18 on
PACS, where reading images is a part of every method's time. FedWon is no slower than FedAvg here: its standardisation
touches kernels, which are smaller than the activations that a norm layer touches.

## Why the slower ones are slower

{why}

The engines compute the same. `stacked` puts many clients into one kernel: on a CPU that changes little but for
lock-steps, where nothing has to be played again. `auto` is what a run takes that asks for no engine.
"""


def main(path: Path = FILE) -> None:
    """Measures every method on every network."""
    torch.set_num_threads(1)
    cases = {}
    for name, case in CASES.items():
        cases[name] = found = measure(case, {m: SECOND_PHASE.get(m, m) for m in METHODS})
        print(name, found, flush=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"torch": torch.__version__, "cases": cases}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
