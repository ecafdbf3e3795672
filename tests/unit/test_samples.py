"""Samples as users have them: any kind of array, and never written to."""

import numpy as np
import pytest
import torch
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.testing import ResidualNet, largest_difference, same_bits, seeded, toy_federation

X, Y = toy_federation((9,))["a"].train
SETTINGS = {"rounds": 2, "batch_size": 4, "lr": 0.05, "shuffle": False}


def run(x, y, model=ResidualNet, **settings):
    clients = {"a": nf.ClientData(train=(x, y), test=(x, y)), "b": nf.ClientData(train=(X, Y))}
    return nf.simulate(seeded(model), clients, m.fedavg(), **{**SETTINGS, **settings})


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint64])
def test_labels_may_be_whole_numbers_of_any_type(dtype):
    assert same_bits(run(X, Y.to(dtype)), run(X, Y))


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x.numpy(),
        lambda x: x.numpy()[::-1].copy()[::-1],  # negative strides
        lambda x: x.numpy().astype(">f8"),  # another machine's bytes
        lambda x: x.numpy().transpose(1, 2, 3, 0).copy().transpose(3, 0, 1, 2),
        lambda x: x.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2),
        lambda x: x.clone().requires_grad_(),
    ],
    ids=["numpy", "reversed", "big-endian", "numpy view", "torch view", "requires grad"],
)
def test_samples_may_lie_in_memory_as_they_like(made):
    assert same_bits(run(made(X), Y), run(X, Y))


def test_samples_may_be_read_only():
    x = X.numpy().copy()
    x.flags.writeable = False
    assert same_bits(run(x, Y), run(X, Y))  # and no warning, which would be an error here


class Greedy(ResidualNet):
    """Writes into its input, as a first layer with inplace=True does."""

    def forward(self, x):
        return super().forward(nn.functional.relu_(x.sub_(0.5)))


class Thrifty(ResidualNet):
    def forward(self, x):
        return super().forward(nn.functional.relu(x - 0.5))


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("method", [m.fedavg(), m.greg(), m.hbn(), m.fedplvm(), m.fedfa()], ids=str)
def test_a_model_that_writes_into_its_input_finds_samples_as_they_were(method, engine):
    before, clients = X.clone(), {"a": nf.ClientData(train=(X, Y), test=(X, Y))}
    a, b = (nf.simulate(seeded(net), clients, method, **SETTINGS, engine=engine) for net in (Greedy, Thrifty))
    assert torch.equal(X, before)
    assert largest_difference(a.global_state, b.global_state) == 0
    assert a.history == b.history


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.tensor])
def test_settings_may_be_numpys_numbers(kind):
    a = run(X, Y, rounds=np.int64(2), batch_size=np.int32(4), lr=lambda round: kind(0.25), seed=np.int64(0))
    b = run(X, Y, lr=0.25, device=torch.device("cpu"))
    assert same_bits(a, b) and a.device == b.device == "cpu"


class Scaled(ResidualNet):
    """Weights of one type, a buffer of a wider one in front of them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.tensor(2.0, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x * self.by.to(x.dtype))


def test_samples_come_in_the_type_of_the_weights():
    torch.manual_seed(0)
    model = Scaled()
    result = nf.simulate(model, {"a": nf.ClientData(train=(X, Y), test=(X, Y))}, m.fedbn(), **SETTINGS)
    assert {n: t.dtype for n, t in result.global_state.items()} == {n: t.dtype for n, t in model.state_dict().items()}
    assert result.global_state["head.weight"].dtype is torch.float32
