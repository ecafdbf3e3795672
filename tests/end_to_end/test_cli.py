"""The command line: results on stdout, reasons on stderr, exit code 2 for a wrong value, never a traceback."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

import normfed as nf

from command import normfed, process, sets

COMMANDS = ("run", "compare", "demo", "reproduce", "explain", "report", "evaluate", "export", "data", "bench", "list")


def test_explain_json_has_the_documented_form():
    done = normfed("explain", "fedbn+fedprox(mu=0.1)", "--model", "mnist_mlp", "--json")
    document = json.loads(done.out)
    assert done.code == 0 and done.err == ""
    assert document["method"] == "fedbn+fedprox(mu=0.1)" and document["model"] == "mnist_mlp"
    assert {"name", "role", "scope", "reduce", "wire"} <= set(document["entries"][0])
    assert all(isinstance(document[key], int) for key in ("bytes_up", "bytes_down", "messages"))


def test_explain_says_who_owns_what():
    done = normfed("explain", "fedbn", "--model", "mnist_mlp", "--clients", "4")
    assert "layers.bn1.running_mean" in done.out and "with 4 clients, the broadcast counted once" in done.out
    assert "needs a model that has BatchNorm layers to keep at home (fedbn): holds" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "fedbm"], "unknown method 'fedbm'; did you mean 'fedbn' or 'fedbs'?"),
        (["explain", "fedbn", "--model", "digit_cnn"], "unknown model 'digit_cnn'; did you mean 'digits_cnn'?"),
        (["explain", "fedbn", "--model", "torch.nn:Lineer"], "has no attribute 'Lineer'"),
        (["explain", "fedbn", "--model", "nopackage.here:net"], "No module named 'nopackage'"),
        (["explain", "fedbn", "--model", "zoo:resnet18"], "pip install 'normfed[zoo]'"),
        (["explain", "fedbn", "--input", "3,x"], "input '3,x' is not a shape; write for example 3,224,224"),
        (["explain", "fedbn", "--input", "5,5"], "the model's forward fails on input of shape (2, 5, 5)"),
        (["explain", "groupnorm+fedbn", "--model", "mnist_mlp"], "fedbn needs a model that has BatchNorm layers to keep at home; after groupnorm the model has none: it has 1 GroupNorm"),
        (["list", "method"], "nothing called 'method' to list; did you mean 'methods'?"),
        (["explain"], "Missing argument"),
        (["explan"], "No such command 'explan'"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_clear_message(arguments, said):
    done = normfed(*arguments)
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    assert said in " ".join(done.err.split())


def test_a_network_of_ones_own_may_lie_where_the_command_is_typed(tmp_path):
    text = (
        "from torch import nn\ndef net(classes=10):\n    return nn.Sequential(nn.Flatten(), nn.Linear(12, classes))\n"
    )
    (tmp_path / "mine.py").write_text(text + "def wrong():\n    return {}['net']\n")
    (tmp_path / "damaged.py").write_text("net = (")

    def explained(model):
        command = [sys.executable, "-c", "import sys; sys.path.remove(''); from normfed.cli import main; main()"]
        arguments = ["explain", "fedavg", "--input", "3,2,2", "--model", model]
        return subprocess.run([*command, *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=120)

    assert "1.weight" in explained("mine:net").stdout
    for model, said in {
        "mine:wrong": "its factory fails: KeyError: 'net' (mine.py, line 5)",
        "damaged:net": "its module fails: SyntaxError: '(' was never closed (damaged.py, line 1)",
    }.items():
        done = explained(model)
        assert done.returncode == 2 and "Traceback" not in done.stderr and said in done.stderr, done.stderr


def test_lists():
    methods = json.loads(normfed("list", "methods", "--json").out)
    assert {"fedavg", "fedbn"} <= {row["name"] for row in methods} and all(row["about"] for row in methods)
    assert "digits_cnn" in normfed("list", "models").out


def test_version():
    assert normfed("--version").out.strip() == nf.__version__
    done = process("--version")  # in a process of its own too
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, nf.__version__, "")


def test_every_command_has_a_help_with_an_example():
    whole = normfed("--help").out
    for name in COMMANDS:
        assert f"│ {name} " in whole
        if name != "data":  # a group of commands
            assert f"Example: normfed {name}" in " ".join(normfed(name, "--help").out.split()), name


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["run", "de"], {"demo"}),
        (["compare", "dem"], {"demo"}),
        (["run", "demo", "--method", "fedb"], {"fedbn", "fedbs"}),
        (["explain", "greg+fedprox"], {"greg+fedprox"}),
        (["exp"], {"explain", "export"}),
    ],
)
def test_a_shell_completes(monkeypatch, words, found):
    monkeypatch.setenv("_NORMFED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["normfed", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    assert set(normfed().out.split()) == found


def test_completion_can_be_shown(monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")  # whatever shell runs the tests
    done = normfed("--show-completion", "bash")
    assert done.code == 0 and "_NORMFED_COMPLETE=complete_bash" in done.out


def test_a_terminal_sees_progress_and_nothing_else_does(tmp_path):
    """Rounds, clients, loss, accuracy and time left, on stderr."""
    mine, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "normfed.cli",
        "run",
        "demo",
        "--seeds",
        "0",
        *sets(rounds=30),
        "--out",
        tmp_path / "run",
    ]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "140"}
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(mine, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(mine)
    out = running.communicate(timeout=60)[0].decode()
    assert running.returncode == 0 and out.startswith("method") and "\x1b" not in out
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert re.search(r"fedavg, seed 0: 5 clients, loss \d\.\d+, accuracy \d+\.\d %", text), text[-500:]
    assert re.search(r"\d+/30 rounds, \d:\d\d:\d\d left", text), text[-500:]


def test_importing_needs_no_extras_and_no_network():
    code = (
        "import sys, normfed, normfed.cli\n"
        "heavy = {'torchvision', 'timm', 'flwr', 'datasets', 'sklearn', 'matplotlib', 'pandas', 'mlflow', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
