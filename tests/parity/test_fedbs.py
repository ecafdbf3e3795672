"""FedBS's weights and switch, from the published equations: played through the method's own pieces."""

import numpy as np
import torch

import normfed as nf
from normfed.client import Reply
from normfed.server import RoundEnd, ServerView

from support import PARITY, golden


def test_weights_and_switch():
    case = golden("formulas")["fedbs"]
    method = nf.methods.fedbs(eps=case["eps"], patience=case["r"])
    (switch,) = method.switches()
    (slot,) = method.atoms({})[0].slots
    slots, thrown = {"fedbs": {"calm": slot.init({})}}, False
    for r, (losses, expected) in enumerate(zip(case["losses_round_by_client"], case["ddof0"], strict=True)):
        losses = torch.tensor(losses, dtype=torch.float64)
        thrown = thrown or switch.when(ServerView(r, 14, slots, "fedbs"))
        assert thrown == (expected["phase"] == 2), f"round {r}"
        (weigh,) = [atom.weigh for atom in method.atoms({"fedbs": thrown}) if atom.weigh]
        weights = weigh(Reply(torch.ones(6, dtype=torch.float64), losses))
        np.testing.assert_allclose((weights / weights.sum()).numpy(), expected["weights"], atol=PARITY, rtol=0)
        assert abs(losses.std(correction=0).item() - expected["std"]) < PARITY
        if not thrown:
            end = RoundEnd(r, {}, {}, slots, {}, losses, weights, torch.ones(6), 6, "fedbs")
            slots = {"fedbs": {"calm": slot.after(end)}}
