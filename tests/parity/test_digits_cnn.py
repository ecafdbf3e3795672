"""med-air/FedBN, digits script, on its own network."""

import numpy as np
import pytest

import normfed as nf
from normfed.models import make

from support import PARITY, federation, golden, golden_weights, losses, scaled_normals, worst
from test_fedbn_family import reference_fedprox

SIZES, SCALES, SHIFTS = [32, 24, 16, 40, 24], [0.5, 0.8, 1.0, 1.3, 0.3], [0, 0.3, -0.2, 0.1, 0.6]


def run(method, engine):
    train = scaled_normals(1, SIZES, SCALES, SHIFTS, (3, 28, 28), 10, np.float32)
    test = scaled_normals(2, [16] * 5, SCALES, SHIFTS, (3, 28, 28), 10, np.float32)
    return nf.simulate(
        golden_weights(make("digits_cnn")), federation(train, test), method, rounds=3, batch_size=16, lr=0.01,
        shuffle=False, weighting="equal", engine=engine,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("fedavg", nf.methods.fedavg()),
        ("fedbn", nf.methods.fedbn()),
        pytest.param("fedprox", reference_fedprox(True, 0.01), marks=pytest.mark.full),
    ],
)
def test_parity(name, method, engine):
    rounds = golden(name)["float64"]
    result = run(method, engine)
    for r, expected in enumerate(rounds):
        reported = np.mean([[client["loss"] for client in epoch] for epoch in expected["train"]], axis=0)
        np.testing.assert_allclose(losses(result, r), reported, atol=PARITY, rtol=0)
        for k, client in enumerate(result.clients):
            assert abs(result.history[r]["test_accuracy"][client] - expected["eval_test"][k]["acc"]) < PARITY
    assert worst(rounds[-1]["server"], result.global_state) < PARITY
    for k, client in enumerate(result.clients):
        assert worst(rounds[-1]["after_aggregation_client_bn"][k], result.client_states[client]) < PARITY
