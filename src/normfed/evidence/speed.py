"""Speed as a page, from results/bench.json: `normfed bench --json > results/bench.json` measures it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from normfed.bench import SCENARIOS
from normfed.errors import Refused

FILE = Path("results/bench.json")


def row(name: str, method: str, found: Mapping[str, Any]) -> str:
    scenario = SCENARIOS[name]
    return (
        f"| {name} | {scenario.about} | `{method}` | {found['engine']} | {found['ratio']:.2f} {scenario.rival} "
        f"| {found['seconds']:.3f} |"
    )


def page(results: Path) -> Mapping[str, str]:
    """docs/speed.md"""
    path = results.parent / FILE
    if not path.exists():
        raise Refused(f"{FILE} is missing: normfed bench --json > {FILE} makes it")
    document = json.loads(path.read_text(encoding="utf-8"))
    rows = [row(name, m, f) for name, methods in document["scenarios"].items() for m, f in methods.items()]
    return {"docs/speed.md": TEXT.format(device=document["device"], torch=document["torch"], rows="\n".join(rows))}


TEXT = """# How fast a round is

```bash
normfed bench --json > results/bench.json
make results
```

Seconds of a round over those of the textbook loop in `examples/one_file.py`, both in one process and in turns: below 1
is faster than a loop written by hand. Only such ratios can be carried from one machine to another. These are of
`{device}`, torch {torch}; the engine is the one that `auto` takes.

| scenario | what | method | engine | ratio | seconds a round |
|---|---|---|---|---:|---:|
{rows}

Stacking pays where a step is small: clients side by side in one kernel save what starting kernels costs, and `auto`
takes it there. On a processor convolutions gain nothing by it, so they run one client after another, which is the loop
by hand with the bookkeeping of a method around it. `input` and `augment` are a round on images kept as bytes over the
same round on floats prepared beforehand.

What a method costs beside FedAvg is on [a page of its own](cost.md).
"""
