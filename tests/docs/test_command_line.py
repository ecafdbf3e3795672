"""The page on the command line names every command, every option, every key with its default."""

import re
from pathlib import Path

import typer

from normfed.cli.app import app
from normfed.recipe import OWN, _settings

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()


def commands(group, prefix="normfed"):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def test_every_command_and_every_option_is_there():
    import normfed.cli  # noqa: F401 (registers the commands)

    text = " ".join(PAGE.split())
    found = dict(commands(typer.main.get_command(app)))
    assert {"normfed run", "normfed data check"} <= set(found)
    lost = [name for name in found if name not in text]
    options = {o for c in found.values() for p in c.params for o in p.opts if o.startswith("--")}
    lost += [option for option in sorted(options - {"--help"}) if not re.search(rf"{option}\b", text)]
    assert not lost, lost


def test_every_key_is_there_with_its_default():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \| .*\|$", PAGE.partition("| key |")[2].partition("\n\n")[0], re.M))
    keys = {**OWN, **_settings()}
    assert list(rows) == list(keys)
    for key, default in keys.items():
        if default is not None:
            said = rows[key].strip("`")
            assert said in (str(default), str(default).lower(), str(list(default) if isinstance(default, tuple) else "").replace("'", '"')), key  # fmt: skip
