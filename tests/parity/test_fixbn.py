"""FixBN as the HBN repository has it. Its quirk (the whole network in evaluation mode) shows only with dropout."""

import numpy as np
import torch

import normfed as nf

from hbn_net import data, held_out, net
from support import PARITY, golden, losses, worst


def test_parity(engine):
    rounds = golden("fixbn_hbnrepo")["float64"]
    result = nf.simulate(
        net(), data(), nf.methods.fixbn(), rounds=4, batch_size=8, drop_last=True, lr=lambda r: 0.05 * 0.998**r,
        momentum=0.9, clip_norm=10.0, shuffle=False, engine=engine,
    )  # fmt: skip
    assert [row["latched"]["fixbn"] for row in result.history] == [False, False, True, True]
    for r, expected in enumerate(rounds):
        np.testing.assert_allclose(losses(result, r), expected["train_loss"], atol=PARITY, rtol=0)
    assert worst(rounds[-1]["server"], result.global_state) < PARITY
    model = net().eval()
    model.load_state_dict(result.global_state)
    x, y = (torch.cat([torch.as_tensor(pair[i]) for pair in held_out()]) for i in (0, 1))
    assert abs(torch.nn.functional.cross_entropy(model(x), y).item() - rounds[-1]["test"]["loss_mean"]) < PARITY
    assert abs((model(x).argmax(1) == y).double().mean().item() - rounds[-1]["test"]["acc"]) < PARITY
