"""The defect in FedTAN's published script, measured: `python -m normfed.evidence.defect`.

In the backward pass of the last residual unit of stage 1 the script recomputes that unit with its own output in the
place of its shortcut's input. The unit ends in relu(a + s), so what goes wrong is which pixels the ReLU lets pass:
those where a + relu(a + s) > 0 instead of a + s > 0. Here that mask is applied to one centralised step on ResNet-20,
which a right FedTAN step equals, and the gradients are compared with the true ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from normfed.data.store import ClientData
from normfed.experiment import simulate
from normfed.keys import integers, normal
from normfed.methods import fedtan
from normfed.models import make
from normfed.testing import seeded

LR = 0.005
PARTS = {
    "stem": ("conv0", "bn0"),
    "stage 1": ("conv1", "bn1"),
    "stage 2": ("conv2", "bn2"),
    "stage 3": ("conv3", "bn3"),
    "classifier": ("linear",),
}


def federation() -> dict[str, ClientData]:
    """Three clients with eight images each, of different scale and offset."""
    return {
        f"client {k}": ClientData(train=(normal(k, (8, 3, 16, 16), torch.float64) * s + m, integers(k + 9, (8,), 10)))
        for k, (s, m) in enumerate([(0.5, 0.0), (1.0, 0.4), (1.5, -0.3)])
    }


def net() -> nn.Module:
    return seeded(lambda: make("resnet20"))


def centralised(defective: bool) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one step on the 24 images together."""
    clients = federation().values()
    x, y = (torch.cat([client.train[i] for client in clients]) for i in (0, 1))
    model = net().train()
    branch: list[Tensor] = []

    def mask_again(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        out = inputs[0]  # what the unit gave, and the next one gets
        wrong = branch[0].detach() + out.detach() > 0
        out.register_hook(lambda grad: grad * wrong)

    if defective:
        model.get_submodule("bn16").register_forward_hook(lambda module, inputs, output: branch.append(output))
        model.get_submodule("conv21").register_forward_pre_hook(mask_again)
    loss = F.cross_entropy(model(x), y)
    grads = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), dict(zip((name for name, _ in model.named_parameters()), grads, strict=True))


def ours() -> dict[str, Tensor]:
    """The same gradients as one round of `fedtan` shows them."""
    before = dict(net().named_parameters())
    after = simulate(
        net(), federation(), fedtan(), rounds=1, steps=1, batch_size=8, lr=LR, shuffle=False, engine="stacked"
    ).global_state
    return {name: (p.detach() - after[name]) / LR for name, p in before.items()}


def error(found: dict[str, Tensor], true: dict[str, Tensor], part: str) -> float:
    """Norm of the difference over the norm of the true gradient, for the weights of a part of the network."""
    names = [name for name in true if name.startswith(PARTS[part])]
    apart = torch.cat([(found[name] - true[name]).flatten() for name in names]).norm()
    return float(apart / torch.cat([true[name].flatten() for name in names]).norm())


def errors() -> dict[str, tuple[float, float]]:
    """Part of the network -> relative error of the gradient with the defect, and of ours."""
    loss, true = centralised(False)
    same, wrong = centralised(True)
    assert loss == same, "the forward pass is right in both"
    right = ours()
    return {part: (error(wrong, true, part), error(right, true, part)) for part in PARTS}


def main() -> None:
    print(f"{'relative error of gradients':30}{'as published':>14}{'fedtan':>10}")
    for part, (published, here) in errors().items():
        print(f"{part:30}{published:14.2f}{here:10.0e}")


if __name__ == "__main__":
    main()
