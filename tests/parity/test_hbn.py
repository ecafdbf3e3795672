"""Hongyao-Chen/HybridBN. Its quirk: statistics are those of the first batch of 64 and of the *hybrid* moments."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

import normfed as nf
from normfed.method import Segment
from normfed.methods.hbn import Hybrid, MeasureHybrid, hybrid

from hbn_net import data, held_out, net
from support import PARITY, golden, losses, worst


@dataclass(frozen=True)
class FirstHybrid(MeasureHybrid):
    """Accumulates what it normalises with, not the batch's own moments."""

    def __call__(self, layer, x):
        mean, var = hybrid(layer, *layer.moments(x))
        layer.emit(mean.detach(), var.detach())
        return layer.normalise(x, mean, var)


def reference():
    """hbn() with the statistics pass of its code."""
    made = nf.methods.hbn()
    measure = Segment(norm=FirstHybrid(), train=False, batch_size=64)
    refresh = dataclasses.replace(made.view.refresh, plan=(measure,))
    return dataclasses.replace(
        made, plan=(measure, Segment(norm=Hybrid())), view=dataclasses.replace(made.view, refresh=refresh), calls=()
    )


def test_parity(engine):
    rounds = golden("hbn")["float64"]
    result = nf.simulate(
        net(), data(), reference(), rounds=3, batch_size=8, drop_last=True, lr=lambda r: 0.05 * 0.998**r, momentum=0.9,
        clip_norm=10.0, shuffle=False, engine=engine,
    )  # fmt: skip
    for r, expected in enumerate(rounds):
        np.testing.assert_allclose(losses(result, r), expected["train_loss"], atol=PARITY, rtol=0)
    last = rounds[-1]
    names = {"global_mean": "running_mean", "global_var": "running_var"}

    def ours(state, name):
        layer, _, attribute = name.rpartition(".")
        return state[f"{layer}.{names.get(attribute, attribute)}"]

    server = {n: v for n, v in last["server"].items() if not n.endswith(("running_mean", "running_var", "running_num"))}
    assert worst(server, {n: ours(result.global_state, n) for n in server if "num_batches" not in n}) < PARITY
    fresh = result.client_states["client 0"]
    assert worst(last["fresh_statistics"], {n: ours(fresh, n) for n in last["fresh_statistics"]}) < PARITY
    x, y = (torch.cat([torch.as_tensor(pair[i]) for pair in held_out()]) for i in (0, 1))
    for key, state in (
        ("test_with_fresh_statistics", fresh),
        ("test_with_stored_global_statistics", result.global_state),
    ):
        model = net().eval()
        model.load_state_dict({n: t for n, t in state.items() if not n.endswith("distribution_factor")})
        assert abs(torch.nn.functional.cross_entropy(model(x), y).item() - last[key]["loss_mean"]) < PARITY
    assert result.history[0]["messages"] == 2  # training, and the exchange before the evaluation
