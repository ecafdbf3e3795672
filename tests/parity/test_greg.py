"""GReg, from the published equations, in both readings."""

import numpy as np
import pytest
import torch

import normfed as nf
from normfed.method import Method

from hbn_net import SCALES, SHIFTS, SIZES, data, held_out, net
from support import PARITY, golden, worst


def recorder(seen):
    """Notes each step's task loss and the term of GReg, whose piece it calls."""
    greg = nf.methods.greg

    def wrapped(detach):
        made = greg(detach=detach)
        (term,) = made.loss

        def noted(step):
            value = term(step.of("greg"))
            seen.append((step.task_loss(step.logits).item(), 0.0 if value is None else value.item()))
            return value

        return Method("greg", loss=(noted,), server=made.server)

    return wrapped


@pytest.mark.parametrize(
    ("key", "detach"), [("greg_gradient_through_both", False), ("greg_global_branch_detached", True)]
)
def test_parity(key, detach, engine):
    rounds = golden("formulas")[key]
    settings = {"rounds": 3, "batch_size": 8, "lr": 0.05, "shuffle": False}
    result = nf.simulate(net(), data(), nf.methods.greg(detach=detach), engine=engine, **settings)
    last = rounds[-1]
    flat = {n: t.reshape(-1) for n, t in result.global_state.items()}
    assert worst(last["server_weights"], flat) < PARITY
    for layer, moments in last["server_statistics"].items():
        assert worst(moments, {"mean": flat[f"{layer}.running_mean"], "var": flat[f"{layer}.running_var"]}) < PARITY
    for r, expected in enumerate(rounds):
        ours = np.array(list(result.history[r]["train_loss"].values()))
        np.testing.assert_allclose(ours, [np.mean(steps) for steps in expected["ce_per_step"]], atol=PARITY, rtol=0)
    model = net().eval()
    model.load_state_dict(result.global_state)
    x, y = (torch.cat([torch.as_tensor(pair[i]) for pair in held_out()]) for i in (0, 1))
    assert abs(torch.nn.functional.cross_entropy(model(x), y).item() - last["test_loss"]) < PARITY


def test_the_term_of_every_step():
    seen = []
    nf.simulate(net(), data(), recorder(seen)(False), rounds=3, batch_size=8, lr=0.05, shuffle=False, engine="serial")
    rounds = golden("formulas")["greg_gradient_through_both"]
    expected = [
        pair
        for r in rounds
        for client in range(3)
        for pair in zip(r["ce_per_step"][client], r["reg_per_step"][client], strict=True)
    ]
    steps = sum(-(-n // 8) for n in SIZES)
    assert len(seen) == 3 * steps and len(SCALES) == len(SHIFTS)
    np.testing.assert_allclose(seen, expected, atol=PARITY, rtol=0)
