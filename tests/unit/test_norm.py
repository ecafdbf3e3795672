"""Driven layers give the stock layers' numbers, mutate nothing, and refuse what they cannot drive."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normfed as nf
from normfed.keys import normal
from normfed.net import Net, probe
from normfed.norm import BATCH, RUNNING, Pass, moments
from normfed.testing import largest_difference, toy_federation


class FusedByCall(nn.BatchNorm2d):
    """As timm's BatchNormAct2d: an activation behind the norm."""

    def __init__(self, n):
        super().__init__(n)
        self.act = nn.PReLU(n)

    def forward(self, x):
        if self.training:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return self.act(x)


class FusedBySuper(nn.BatchNorm2d):
    def forward(self, x):
        return torch.relu(super().forward(x))


class Frozen(nn.BatchNorm2d):
    def forward(self, x):
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)


class ByHand(nn.BatchNorm2d):
    def forward(self, x):
        return (x - x.mean((0, 2, 3), keepdim=True)) / (x.std((0, 2, 3), keepdim=True) + self.eps)


LAYERS = {
    "1d": (lambda: nn.BatchNorm1d(3), (4, 3)),
    "1d, sequences": (lambda: nn.BatchNorm1d(3), (4, 3, 5)),
    "2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 5)),
    "3d": (lambda: nn.BatchNorm3d(3), (4, 3, 2, 2, 2)),
    "cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (4, 3, 5, 5)),
    "no affine": (lambda: nn.BatchNorm2d(3, affine=False), (4, 3, 5, 5)),
    "no statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (4, 3, 5, 5)),
    "fused by super": (lambda: FusedBySuper(3), (4, 3, 5, 5)),
    "fused by call": (lambda: FusedByCall(3), (4, 3, 5, 5)),
    "frozen": (lambda: Frozen(3), (4, 3, 5, 5)),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_a_driven_layer_gives_the_stock_numbers(kind, training):
    make, shape = LAYERS[kind]
    stock = nn.Sequential(make()).double().train(training)
    for p in stock.parameters():
        nn.init.normal_(p, generator=torch.Generator().manual_seed(1))
    net = Net(copy.deepcopy(stock))
    state = net.initial
    for i in range(3):
        x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) * 2 + 1
        params, rest = net.split(state)
        now = Pass(BATCH if training else RUNNING, training=training)
        before = {name: t.clone() for name, t in rest.items()}
        assert torch.equal(net(params, rest, x, now), stock(x))
        assert largest_difference(before, rest) == 0  # emitted, not written
        state = {**state, **now.emitted}
        assert largest_difference(dict(state), dict(stock.state_dict())) == 0


def test_a_layer_used_twice_moves_its_statistics_twice():
    shared = nn.BatchNorm1d(3)
    stock = nn.Sequential(nn.Linear(3, 3), shared, nn.ReLU(), shared).double()
    net = Net(copy.deepcopy(stock))
    x = torch.randn(6, 3, dtype=torch.float64)
    now = Pass(BATCH)
    assert torch.equal(net(*net.split(net.initial), x, now), stock(x))
    assert largest_difference({**net.named({**net.initial, **now.emitted})}, dict(stock.state_dict())) == 0
    assert probe(net, x).values == {"1": [1, 1]} and probe(net, x).norm_calls == 2


def test_a_pass_that_emits_nothing_computes_the_same():
    net = Net(nn.Sequential(nn.BatchNorm2d(3)).double())
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    loud, quiet = Pass(BATCH), Pass(BATCH, emit=False)
    assert torch.equal(net(*net.split(net.initial), x, loud), net(*net.split(net.initial), x, quiet))
    assert loud.emitted and not quiet.emitted


def test_the_common_path_keeps_the_fused_kernel(monkeypatch):
    calls = []
    real = F.batch_norm
    monkeypatch.setattr(F, "batch_norm", lambda *a, **k: calls.append(1) or real(*a, **k))
    net = Net(nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3)))
    net(*net.split(net.initial), torch.randn(4, 3, 2, 2), Pass(BATCH))
    assert len(calls) == 2


def test_gradients_are_the_stock_layers():
    stock = nn.Sequential(nn.Conv2d(3, 4, 3), FusedByCall(4), nn.Flatten(), nn.Linear(36, 2)).double()
    net = Net(copy.deepcopy(stock))
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    params, rest = net.split(net.initial)
    for p in params.values():
        p.requires_grad_()
    ours = torch.autograd.grad(net(params, rest, x, Pass(BATCH)).square().sum(), list(params.values()))
    theirs = torch.autograd.grad(stock(x).square().sum(), list(stock.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (ByHand(3), "'0' (ByHand) cannot be driven"),
        (
            nn.InstanceNorm2d(3, track_running_stats=True),
            "'0' (InstanceNorm2d with track_running_stats) cannot be driven",
        ),
    ],
)
def test_a_layer_that_cannot_be_driven_is_named(layer, said):
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(108, 4)).double()
    with pytest.raises(nf.Refused) as refused:
        nf.simulate(model, toy_federation(), nf.methods.fedavg(), rounds=1)
    assert said in str(refused.value)


@pytest.mark.parametrize("method", ["fedavg", "fedbn"])
def test_lazy_layers_are_found_once_they_have_a_shape(method):
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)).double()
    result = nf.simulate(model, toy_federation(), getattr(nf.methods, method)(), rounds=1)
    assert result.global_state["1.running_mean"].shape == (4,)
    assert model[0].has_uninitialized_params()  # the user's model is as it was
    again = nf.simulate(model, toy_federation(), getattr(nf.methods, method)(), rounds=1)
    assert largest_difference(result.global_state, again.global_state) == 0


def test_syncbatchnorm_runs_where_there_is_one_process():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4), nn.Flatten(), nn.Linear(64, 4)).double()
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 4)).double()
    plain.load_state_dict(model.state_dict())
    a, b = (nf.simulate(m, toy_federation(), nf.methods.fedbn(), rounds=2) for m in (model, plain))
    assert largest_difference(a.client_states, b.client_states) == 0


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 1e-5)])
def test_moments_are_torchs_also_far_from_zero(dtype, tolerance):
    x = normal(0, (8, 3, 5, 5), torch.float64) + torch.tensor([0.0, 1.0, 100.0], dtype=torch.float64).view(1, 3, 1, 1)
    var, mean = torch.var_mean(x, [0, 2, 3], correction=0)
    ours_mean, ours_var = moments(x.to(dtype), [0, 2, 3])
    torch.testing.assert_close(ours_mean.double(), mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(ours_var.double(), var, rtol=tolerance, atol=tolerance)
