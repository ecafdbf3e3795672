"""Pretrained weights: by name, the classifier anew where classes differ, everything else that differs told or refused."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import normfed as nf
from normfed import models
from normfed.models.weights import load


def state(seed=0, classes=10):
    torch.manual_seed(seed)
    return models.make("resnet20", classes).state_dict()


@pytest.mark.parametrize("kind", ["safetensors", "pt", "wrapped", "parallel"])
def test_every_entry_comes_from_the_file(tmp_path, kind):
    there = state(seed=1)
    path = tmp_path / ("net.safetensors" if kind == "safetensors" else "net.pt")
    if kind == "safetensors":
        save_file(there, path)
    elif kind == "parallel":
        torch.save({f"module.{name}": tensor for name, tensor in there.items()}, path)
    else:
        torch.save({"state_dict": there, "epoch": 3} if kind == "wrapped" else there, path)
    model = models.make("resnet20")
    said = load(model, path)
    assert all(torch.equal(t, there[n]) for n, t in model.state_dict().items())
    assert (len(said.loaded), said.head, said.missing, said.unexpected) == (len(there), (), (), ())
    assert said.lines() == [f"{path}: {len(there)} entries loaded"]


def test_a_classifier_of_other_classes_starts_anew_and_it_is_said(tmp_path):
    save_file(state(classes=1000), tmp_path / "net.safetensors")
    model = models.make("resnet20", 7)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    said = load(model, tmp_path / "net.safetensors")
    after = model.state_dict()
    assert said.head == ("linear.weight", "linear.bias")
    assert all(torch.equal(after[name], before[name]) for name in said.head)
    assert not torch.equal(after["conv0.weight"], before["conv0.weight"])
    assert said.lines()[1] == "the classifier has other classes and starts anew: linear.weight, linear.bias"


def test_what_is_missing_and_what_is_too_much_is_said(tmp_path):
    there = state(seed=1)
    del there["bn0.running_mean"], there["bn0.num_batches_tracked"]
    there["extra.weight"] = torch.zeros(2)
    save_file(there, tmp_path / "net.safetensors")
    model = models.make("resnet20")
    said = load(model, tmp_path / "net.safetensors")
    assert (said.missing, said.unexpected) == (("bn0.running_mean",), ("extra.weight",))
    assert said.lines()[1:] == [
        "not in the file, left as they start: bn0.running_mean",
        "in the file, not in the model, ignored: extra.weight",
    ]
    assert (model.bn0.running_mean == 0).all()


def test_values_are_converted_to_the_models_type(tmp_path):
    there = state(seed=1)
    save_file({name: t.half() if t.is_floating_point() else t for name, t in there.items()}, tmp_path / "n.safetensors")
    model = models.make("resnet20").double()
    load(model, tmp_path / "n.safetensors")
    assert model.conv0.weight.dtype == torch.float64
    assert torch.equal(model.conv0.weight.detach(), there["conv0.weight"].half().double())


class Trap:
    def __reduce__(self):
        return (print, ("this ran",))


def _other_network(path):
    there = state()
    there["conv0.weight"] = torch.zeros(16, 3, 5, 5)
    save_file(there, path)


def _other_width(path):
    net = models.make("mnist_mlp").layers
    net[0], net[1], net[3] = nn.Linear(784, 40), nn.BatchNorm1d(40), nn.Linear(40, 10)
    save_file({f"layers.{name}": t for name, t in net.state_dict().items()}, path)


CASES = {
    "none.pt": (lambda path: None, "weights '{path}': there is no such file"),
    "trap.pt": (lambda path: path.write_bytes(pickle.dumps({"a": Trap()})), "weights '{path}' hold more than tensors; no pickle is read: save state_dict() alone"),
    "object.pt": (lambda path: torch.save(nn.Linear(2, 2), path), "weights '{path}' hold more than tensors; no pickle is read: save state_dict() alone"),
    "text.safetensors": (lambda path: path.write_text("hello there"), "weights '{path}' cannot be read: "),
    "text.pt": (lambda path: path.write_text("hello there"), "weights '{path}' "),
    "empty.pt": (lambda path: path.write_bytes(b""), "weights '{path}' cannot be read: "),
    "list.pt": (lambda path: torch.save([torch.zeros(2)], path), "weights '{path}' hold no named tensors"),
    "other.safetensors": (_other_network, "weights '{path}' are of another network: conv0.weight is 16x3x5x5 there and 16x3x3x3 here"),
    "foreign.safetensors": (lambda path: save_file({"a.weight": torch.zeros(2)}, path), "weights '{path}' fit nowhere: they have a.weight; the model has conv0.weight, bn0.weight,"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_is_refused_in_one_line_and_changes_nothing(name, tmp_path, capsys):
    make, said = CASES[name]
    make(tmp_path / name)
    model = models.make("resnet20")
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with pytest.raises(nf.Refused) as raised:
        load(model, tmp_path / name)
    (line,) = raised.value.problems
    assert line.startswith(said.format(path=tmp_path / name)) and "\n" not in line
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert "this ran" not in capsys.readouterr().out


def test_a_hidden_layer_of_another_width_is_no_classifier(tmp_path):
    _other_width(tmp_path / "wide.safetensors")
    with pytest.raises(nf.Refused, match=r"another network: layers.fc1.weight is 40x784 there and 30x784 here"):
        load(models.make("mnist_mlp"), tmp_path / "wide.safetensors")
