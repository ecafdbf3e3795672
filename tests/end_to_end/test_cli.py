"""The command line: results on stdout, reasons on stderr, exit code 2 for a wrong value, never a traceback."""

import json
import subprocess
import sys

import pytest


def normfed(*arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-m", "normfed.cli", *arguments], capture_output=True, text=True, cwd=cwd, timeout=120
    )


def test_explain_json_has_the_documented_form():
    done = normfed("explain", "fedbn+fedprox(mu=0.1)", "--model", "mnist_mlp", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 0 and done.stderr == ""
    assert document["method"] == "fedbn+fedprox(mu=0.1)" and document["model"] == "mnist_mlp"
    assert {"name", "role", "scope", "reduce", "wire"} <= set(document["entries"][0])
    assert all(isinstance(document[key], int) for key in ("bytes_up", "bytes_down", "messages"))


def test_explain_says_who_owns_what():
    done = normfed("explain", "fedbn", "--model", "mnist_mlp", "--clients", "4")
    assert "layers.bn1.running_mean" in done.stdout and "with 4 clients, the broadcast counted once" in done.stdout
    assert "needs a model that has BatchNorm layers to keep at home (fedbn): holds" in done.stdout


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
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert said in " ".join(done.stderr.split())


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
    methods = json.loads(normfed("list", "methods", "--json").stdout)
    assert {"fedavg", "fedbn"} <= {row["name"] for row in methods} and all(row["about"] for row in methods)
    assert "digits_cnn" in normfed("list", "models").stdout


def test_version_and_help():
    import normfed as nf

    assert normfed("--version").stdout.strip() == nf.__version__
    assert "Example: normfed explain" in normfed("explain", "--help").stdout


def test_importing_needs_no_extras_and_no_network():
    code = (
        "import sys, normfed, normfed.cli\n"
        "heavy = {'torchvision', 'timm', 'flwr', 'datasets', 'sklearn', 'matplotlib', 'pandas', 'mlflow', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
