"""med-air/FedBN, digits and office scripts, on a small perceptron: all twelve runs, all tensors."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

import normfed as nf
from normfed.method import Method
from normfed.state import squared_distance

from support import PARITY, federation, golden, golden_weights, losses, scaled_normals, worst

SIZES, SCALES, SHIFTS = [24, 40, 16], [0.5, 1, 1.6], [0, 0.4, -0.3]


def perceptron(named="bn"):
    layers = [
        ("fc1", nn.Linear(12, 8)), (f"{named}1", nn.BatchNorm1d(8)), ("relu1", nn.ReLU()), ("fc2", nn.Linear(8, 6)),
        (f"{named}2", nn.BatchNorm1d(6)), ("relu2", nn.ReLU()), ("fc3", nn.Linear(6, 5)),
    ]  # fmt: skip
    return golden_weights(nn.Sequential(OrderedDict(layers)), lambda name: name.replace(named, "bn"))


def reference_fedprox(squared, mu=1.0):
    """FedProx as the reference has it: no term in round 0 nor on the first batch of any epoch; the reported loss
    includes the term; the office script takes the distance, not its square."""

    def task(step):
        loss = step.task_loss(step.logits)
        if step.round == 0:
            return loss
        on = torch.as_tensor(step.position > 0)
        square = squared_distance(step.params, step.anchor)
        distance = square if squared else torch.where(on, square, 1.0).sqrt()
        return loss + mu / 2 * torch.where(on, distance, 0.0)

    return Method("fedprox as in the reference", task=task)


def data():
    train = scaled_normals(40, SIZES, SCALES, SHIFTS, (12,), 5)
    return federation(train, scaled_normals(41, SIZES, SCALES, SHIFTS, (12,), 5))


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("method", ["fedavg", "fedbn", "fedprox"])
@pytest.mark.parametrize("script", ["digits", "office"])
@pytest.mark.parametrize("named", ["bn", "layer"])  # what the norm layers are called must not matter
def test_parity(script, method, epochs, named, engine):
    rounds = golden("tiny_fedbn_family")["float64"][f"{script}_{method}_E{epochs}"]
    made = reference_fedprox(script == "digits") if method == "fedprox" else getattr(nf.methods, method)()
    result = nf.simulate(
        perceptron(named), data(), made, rounds=3, epochs=epochs, batch_size=8, lr=0.05, shuffle=False,
        weighting="equal", engine=engine,
    )  # fmt: skip

    def ours(state):
        return {name.replace(named, "bn"): tensor for name, tensor in state.items()}

    for r, expected in enumerate(rounds):
        np.testing.assert_allclose(losses(result, r), np.mean(expected["train_loss"], axis=0), atol=PARITY, rtol=0)
        for k, client in enumerate(result.clients):
            assert abs(result.history[r]["test_accuracy"][client] - expected["eval_test"][k]["acc"]) < PARITY
    assert worst(rounds[-1]["server"], ours(result.global_state)) < PARITY
    for k, client in enumerate(result.clients):
        assert worst(rounds[-1]["clients_bn"][k], ours(result.client_states[client])) < PARITY


def test_evaluation_loss():
    """The loss of each client's model on its own test set after aggregation."""
    expected = golden("tiny_fedbn_family")["float64"]["digits_fedbn_E1"][-1]["eval_test"]
    result = nf.simulate(
        perceptron(), data(), nf.methods.fedbn(), rounds=3, batch_size=8, lr=0.05, shuffle=False, weighting="equal"
    )
    test = scaled_normals(41, SIZES, SCALES, SHIFTS, (12,), 5)
    for k, client in enumerate(result.clients):
        model = perceptron().eval()
        model.load_state_dict(result.client_states[client])
        x, y = map(torch.as_tensor, test[k])
        batches = [nn.functional.cross_entropy(model(a), b) for a, b in zip(x.split(8), y.split(8), strict=True)]
        assert abs(torch.stack(batches).mean().item() - expected[k]["loss"]) < PARITY
