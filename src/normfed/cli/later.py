"""Commands whose names are kept free: diagnose, advise."""

from __future__ import annotations

import typer

from normfed.cli.app import app
from normfed.errors import Refused

LATER = {
    "diagnose": "What normalization does in your federation (not yet).",
    "advise": "Which method to use for your federation (not yet).",
}


def _reserve(name: str, about: str) -> None:
    @app.command(name, help=about, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def later(context: typer.Context) -> None:
        raise Refused(f"{name}: not yet")


for _name, _about in LATER.items():
    _reserve(_name, _about)
