"""wangyanmeng/FedTAN on its own ResNet-20, with the one wrong variable of its backward pass repaired."""

from dataclasses import dataclass

import numpy as np

import normfed as nf
from normfed.method import Method, Segment
from normfed.models import make
from normfed.norm import CohortMode

from support import PARITY, federation, golden, golden_weights, losses, scaled_normals, worst


@dataclass(frozen=True)
class AsPublished(CohortMode):
    """The quirk: the running variance of the common step uses B / (B - 1), B images of one client's batch."""

    def bessel(self, pooled, cohort):
        return cohort.own_samples / (cohort.own_samples - 1)


def test_parity(engine):
    rounds = golden("fedtan_E1")["float64"]
    method = Method("fedtan as published", plan=(Segment(1, AsPublished(), lockstep=True), Segment()))
    clients = federation(scaled_normals(7, [24] * 3, [0.5, 1, 1.5], [0, 0.4, -0.3], (3, 16, 16), 10, np.float32))
    result = nf.simulate(
        golden_weights(make("resnet20")), clients, method, rounds=3, steps=1, batch_size=8, lr=0.005, shuffle=False,
        engine=engine,
    )  # fmt: skip
    for r, expected in enumerate(rounds):
        np.testing.assert_allclose(losses(result, r), expected["first_step_loss_per_client"], atol=PARITY, rtol=0)
        assert result.history[r]["messages"] == 2 * 19 + 1
    assert worst(rounds[-1]["server"], result.global_state) < PARITY
