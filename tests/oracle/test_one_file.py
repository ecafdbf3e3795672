"""The package equals the textbook loop to the bit."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

import normfed as nf
from normfed.testing import ResidualNet, largest_difference, seeded, toy_federation, toy_mlp

path = Path(__file__).parents[2] / "examples" / "one_file.py"
spec = importlib.util.spec_from_file_location("one_file", path)
one_file = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one_file)


def test_it_imports_nothing_of_ours():
    imports = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert imports and not any("normfed" in line for line in imports)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("model", ["residual", "perceptron"])
@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedbn"])
def test_to_the_bit(method, model, dtype):
    shape = (3, 6, 6) if model == "residual" else (6,)
    net = seeded(ResidualNet if model == "residual" else toy_mlp, dtype=dtype)
    clients = toy_federation((9, 16, 14), shape=shape, dtype=dtype)
    if model == "perceptron":  # a last batch of one cannot be normalised there: the textbook loop would raise
        clients["a"] = nf.ClientData(train=tuple(part[:8] for part in clients["a"].train))
    arguments = {"mu": 0.3} if method == "fedprox" else {}
    state, states, losses = one_file.federate(
        net, [c.train for c in clients.values()], rounds=3, method=method, epochs=2, batch_size=4, lr=0.1, **arguments
    )
    result = nf.simulate(
        net, clients, getattr(nf.methods, method)(**arguments), rounds=3, epochs=2, batch_size=4, lr=0.1, shuffle=False,
        engine="serial",
    )  # fmt: skip
    assert largest_difference(result.global_state, state) == 0
    for ours, textbook in zip(result.client_states.values(), states, strict=True):
        assert largest_difference(ours, textbook) == 0
    tight = 1e-15 if dtype is torch.float64 else 1e-6  # the loop sums Python floats
    for row, textbook in zip(result.history, losses, strict=True):
        assert max(abs(a - b) for a, b in zip(row["train_loss"].values(), textbook, strict=True)) <= tight * 4


def test_the_demonstration_runs(capsys):
    namespace = {"__name__": "__main__"}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    assert "fedbn" in capsys.readouterr().out


def test_its_norm_layers_are_found_by_type():
    net = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    assert one_file.norm_names(net) == {
        f"1.{n}" for n in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }
