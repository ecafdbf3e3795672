"""What a method makes of a network is what one would have written by hand; server optimizers against their formulas."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.keys import normal
from normfed.models import make
from normfed.plan import build
from normfed.testing import ResidualNet, largest_difference, same_bits, seeded, toy_federation, toy_mlp


def run(method, model=ResidualNet, clients=None, **settings):
    chosen = {"rounds": 2, "epochs": 2, "batch_size": 4, "lr": 0.05, "momentum": 0.9, **settings}
    return nf.simulate(seeded(model), clients or toy_federation(), method, **chosen)


def by_hand(norm):
    """ResidualNet written with other norm layers; convolutions and classifier as they are there."""

    def net():
        model = ResidualNet()
        model.stem[1], model.main[1], model.shortcut[1] = norm(4), norm(6), norm(6)
        return model

    return net


class Population(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.mean, self.log_std = nn.Parameter(torch.zeros(channels)), nn.Parameter(torch.full((channels,), 5e-6))
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        shape = (1, -1, 1, 1)
        y = (x - self.mean.view(shape)) / self.log_std.exp().view(shape)
        return y * self.weight.view(shape) + self.bias.view(shape)


@pytest.mark.parametrize(
    ("method", "norm", "tolerance"),
    [
        (m.groupnorm(2), lambda c: nn.GroupNorm(2, c), 0.0),
        (m.groupnorm(32), lambda c: nn.GroupNorm(c, c), 0.0),
        (m.groupnorm(5), lambda c: nn.GroupNorm({4: 4, 6: 3}[c], c), 0.0),
        (m.layernorm(), lambda c: nn.GroupNorm(1, c), 0.0),
        (m.nonorm(), lambda c: nn.Identity(), 0.0),
        (m.popnorm(), Population, 1e-9),  # log(sqrt(1 + 1e-5)) is 5e-6 to 2.5e-11
    ],
    ids=["two groups", "a group a channel", "largest divisor", "layernorm", "nonorm", "popnorm"],
)
def test_a_replaced_layer_is_the_layer(method, norm, tolerance):
    a, b = run(method), run(m.fedavg(), by_hand(norm))
    assert largest_difference(a.global_state, b.global_state) <= tolerance


def test_fixup_on_resnet20_is_the_network_of_its_paper():
    """Scalars in front of every convolution and of every ReLU, one multiplier at the end of a branch, no norm layer."""
    net = build(m.fixup(), seeded(lambda: make("resnet20")), normal(0, (2, 3, 32, 32), torch.float64)).net
    state = {n: normal(i, t.shape, torch.float64) * 0.2 + 0.1 for i, (n, t) in enumerate(net.initial.items())}
    x = normal(5, (2, 3, 16, 16), torch.float64)

    def conv(name, h, stride=1):
        return F.conv2d(h + state[f"conv{name}.input_bias"], state[f"conv{name}.weight"], stride=stride, padding=1)

    h = F.relu(conv("0", x) + state["bn0.bias"])
    for stage in (1, 2, 3):
        for first, second in ((1, 2), (3, 4), (5, 6)):
            stride = 2 if stage > 1 and first == 1 else 1
            y = F.relu(conv(f"{stage}{first}", h, stride) + state[f"bn{stage}{first}.bias"])
            end = f"bn{stage}{second}"
            y = conv(f"{stage}{second}", y) * state[f"{end}.multiplier"] + state[f"{end}.bias"]
            if stride == 2:
                quarter = y.shape[1] // 4
                h = F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter))
            h = F.relu(h + y)
    expected = F.linear(h.mean((2, 3)), state["linear.weight"], state["linear.bias"])
    torch.testing.assert_close(net.predict(state, x), expected, rtol=1e-10, atol=1e-10)
    assert sum(n.endswith("multiplier") for n in state) == 9 and not any("running" in n for n in state)


def test_fedwon_deletes_norm_layers_of_every_kind():
    def mixed():
        model = ResidualNet()
        model.main[1], model.shortcut[1] = nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)
        return model

    a, b = run(m.fedwon(), mixed), run(m.fedwon())
    assert same_bits(a, b)

    class Fused(nn.GroupNorm):
        def forward(self, x):
            return F.relu(super().forward(x))

    with pytest.raises(nf.Refused, match=r"'main.1' \(Fused\).* may do more than normalise"):
        run(m.fedwon(), by_hand(lambda c: Fused(2, c)))


def test_batch_renormalization_skips_what_batch_normalization_skips():
    clients = toy_federation((9, 8, 5), shape=(6,))
    rows = [run(method, toy_mlp, clients).history[0]["skipped"] for method in (m.batchrenorm(), m.fedavg())]
    assert rows[0] == rows[1] == {"a": 2, "c": 2}


def test_the_layers_of_fedfa_are_no_norm_layers():
    """FedBN keeps norm layers at home and GReg smooths their statistics; FedFA's buffers are neither's business."""
    clients = toy_federation(shape=(3, 12, 12))
    for method, others in ((m.fedbn(), m.singleset()), (m.greg(0.0, 0.3), m.fedavg())):
        state = run(method | m.fedfa(), clients=clients, rounds=1).global_state
        plain = run(m.fedfa(), clients=clients, rounds=1).global_state
        names = [n for n in state if "fedfa" in n]
        assert names and all(torch.equal(state[n], plain[n]) for n in names), others


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi"])
def test_server_optimizers(name):
    """Hsu et al.; Reddi et al., Algorithm 2, on trainable entries; running statistics as FedAvg has them."""
    made = {"fedavgm": m.fedavgm(0.7, 0.5), "fedadam": m.fedadam(0.05), "fedyogi": m.fedyogi(0.05)}[name]
    tau, beta1, beta2 = 1e-3, 0.9, 0.99
    run_ = nf.Run(seeded(ResidualNet), toy_federation(), made, rounds=3, batch_size=4, lr=0.05)
    trainable = [n for n, _ in ResidualNet().named_parameters()]
    memory = dict.fromkeys(trainable, 0.0)
    square = {n: torch.tensor(tau**2, dtype=torch.float64) for n in trainable}
    for r in range(3):
        before = {n: t.clone() for n, t in run_.state.model.items()}
        # what plain averaging would have made of this round, from the same global model and with the same batches
        plain = nf.Run(seeded(ResidualNet), toy_federation(), m.fedavg(), rounds=3, batch_size=4, lr=0.05)
        plain.state = plain.state.__class__(r, before, {}, {}, {})
        plain.play()
        run_.play()
        for n in trainable:
            change = plain.state.model[n] - before[n]
            if name == "fedavgm":
                memory[n] = 0.7 * memory[n] + change
                expected = before[n] + 0.5 * memory[n]
            else:
                memory[n] = beta1 * memory[n] + (1 - beta1) * change
                if name == "fedadam":
                    square[n] = beta2 * square[n] + (1 - beta2) * change**2
                else:
                    square[n] = square[n] - (1 - beta2) * change**2 * torch.sign(square[n] - change**2)
                expected = before[n] + 0.05 * memory[n] / (square[n].sqrt() + tau)
            torch.testing.assert_close(run_.state.model[n], expected, rtol=1e-9, atol=1e-11)
        for n, t in plain.state.model.items():
            if n not in trainable:
                assert torch.equal(run_.state.model[n], t)


def test_fedfa_without_its_coin_is_fedavg(monkeypatch):
    monkeypatch.setattr(sys.modules["normfed.methods.fedfa"], "PROBABILITY", 0.0)
    clients = toy_federation(shape=(3, 12, 12))
    a, b = run(m.fedfa(), clients=clients).global_state, run(m.fedavg(), clients=clients).global_state
    assert all(torch.equal(a[n], t) for n, t in b.items())


def test_fedfa_compares_the_clients_channel_by_channel():
    """After a round the server's spread is the unbiased variance, over clients, of each channel's running mean."""
    clients = toy_federation(shape=(3, 12, 12))
    together = run(m.fedfa(), clients=clients, rounds=1).global_state
    alone = [run(m.fedfa(), clients={n: c}, rounds=1).global_state for n, c in clients.items()]
    names = [n for n in together if n.rpartition(".")[2] in ("mean", "std") and "fedfa" in n]
    assert len(names) == 6
    for name in names:
        layer, _, attribute = name.rpartition(".")
        spread = torch.stack([state[name] for state in alone]).var(0, correction=1)
        torch.testing.assert_close(together[f"{layer}.spread_of_{attribute}"], spread, rtol=1e-10, atol=1e-14)
        assert spread.unique().numel() > 1
