"""The command that measures: bench."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from normfed.cli.app import Json, app


@app.command()
def bench(
    only: Annotated[str | None, typer.Option(help="Scenarios, separated by commas: S1,S3.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = "fedavg,fedprox,fedbn",
    as_json: Json = False,
) -> None:
    """Seconds of a round as a ratio to the textbook loop in examples/one_file.py, in one run.

    `input` and `augment` are a round on stored bytes as a ratio to the same round on floats made beforehand.

    Example: normfed bench --only S2,S3
    """
    from normfed.bench import SCENARIOS
    from normfed.bench import bench as measure
    from normfed.text import split

    def say(scenario: str, method: str, found: dict[str, Any]) -> None:
        if not as_json:
            typer.echo(
                f"{scenario} {SCENARIOS[scenario].about}, {method} ({found['engine']}): {found['ratio']:.2f} "
                f"{SCENARIOS[scenario].rival}, {found['seconds']:.3f} s a round"
            )

    chosen = None if only is None else [part.strip() for part in only.split(",")]
    document = measure(chosen, device, tuple(split(methods, ",")), on_result=say)
    if as_json:
        typer.echo(json.dumps(document, indent=1))
