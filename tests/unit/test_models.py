"""Networks by name: sizes worked out by hand, starts as published, and a zoo that is only asked when it is named."""

import math
import subprocess
import sys
import types

import pytest
import torch
from torch import nn

import normfed as nf
from normfed import models
from normfed.explain import explain
from normfed.expression import parse
from normfed.state import batchnorms

SHAPES = {"alexnet": (3, 64, 64), "alexnet_fedwon": (3, 64, 64), "resnet18": (3, 64, 64), "resnet50": (3, 64, 64), "mobilenetv2": (3, 64, 64)}  # fmt: skip


def conv(before, after, kernel, bias=True):
    return before * after * kernel**2 + bias * after


def fc(before, after):
    return before * after + after


def bn(*channels):
    return 2 * sum(channels)


DIGITS = conv(3, 64, 5) + conv(64, 64, 5) + conv(64, 128, 5) + bn(64, 64, 128) + fc(6272, 2048) + fc(2048, 512)
ALEXNET = conv(3, 64, 11) + conv(64, 192, 5) + conv(192, 384, 3) + conv(384, 256, 3) + conv(256, 256, 3)
ALEXNET += bn(64, 192, 384, 256, 256) + fc(9216, 4096) + fc(4096, 4096)
COUNTS = {
    "digits_cnn": DIGITS + bn(2048, 512) + fc(512, 10),
    "digits_cnn_fedwon": DIGITS + fc(512, 10),
    "alexnet": ALEXNET + bn(4096, 4096) + fc(4096, 10),
    "alexnet_fedwon": ALEXNET + fc(4096, 10),
    "fedbs_cifar": conv(3, 100, 5) + conv(100, 150, 3) + conv(150, 250, 3) + conv(250, 500, 3) + bn(100, 150, 250, 500)
    + fc(4500, 270) + fc(270, 150) + fc(150, 10),
    "fedbs_mnist": conv(1, 16, 5) + conv(16, 32, 5) + bn(16, 32) + fc(1568, 10),
    "mnist_mlp": fc(784, 30) + bn(30) + fc(30, 10),
    "abide_mlp": fc(5995, 16) + fc(16, 16) + bn(16, 16) + fc(16, 2),
    "resnet20": 269_722,  # FedTAN; 271,098 numbers with the statistics
    "resnet18": 11_689_512 - fc(512, 1000) + fc(512, 10),  # torchvision's counts are for 1000 classes
    "resnet50": 25_557_032 - fc(2048, 1000) + fc(2048, 10),
    "mobilenetv2": 3_504_872 - fc(1280, 1000) + fc(1280, 10),
    "two_layer_mlp": fc(10, 100) + bn(100) + fc(100, 2),
}  # fmt: skip
NORMS = {"digits_cnn": 5, "digits_cnn_fedwon": 3, "alexnet": 7, "alexnet_fedwon": 5, "fedbs_cifar": 4, "fedbs_mnist": 2, "mnist_mlp": 1, "abide_mlp": 2, "resnet20": 19, "resnet18": 20, "resnet50": 53, "mobilenetv2": 52, "two_layer_mlp": 1}  # fmt: skip


@pytest.mark.parametrize("name", models.MODELS)
def test_parameters_norm_layers_and_output(name):
    with torch.device("meta"):
        model = models.make(name)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]
    assert len(batchnorms(model)) == NORMS[name]
    known = models.find(name)
    x = torch.randn(2, *SHAPES.get(name, known.shape))
    assert models.make(name, 7).eval()(x).shape == (2, 7)
    assert known.classes == (2 if name in ("abide_mlp", "two_layer_mlp") else 10)


def test_resnet20_transmits_what_the_paper_counts():
    state = models.make("resnet20").state_dict()
    assert sum(t.numel() for t in state.values() if t.is_floating_point()) == 271_098
    assert sum(p.numel() for p in models.make("resnet20").parameters()) == 269_722


@pytest.mark.parametrize(
    ("name", "shape"),
    [("digits_cnn", (1, 16, 16)), ("digits_cnn_fedwon", (3, 32, 32)), ("alexnet", (1, 64, 64)), ("alexnet_fedwon", (1, 64, 64)),
     ("fedbs_cifar", (1, 28, 28)), ("fedbs_mnist", (3, 32, 32)), ("mnist_mlp", (3, 8, 8)), ("abide_mlp", (100,)),
     ("resnet20", (1, 28, 28)), ("resnet18", (1, 32, 32)), ("resnet50", (1, 32, 32)), ("mobilenetv2", (1, 32, 32))],
)  # fmt: skip
def test_networks_fit_themselves_to_the_samples(name, shape):
    assert models.make(name, 3, shape).eval()(torch.randn(2, *shape)).shape == (2, 3)


def test_an_argument_in_the_name_goes_before_what_the_samples_say():
    known = models.find("abide_mlp(features=19900)")
    assert known.shape == (19900,) and known.about.startswith("FedBN's network for ABIDE")
    assert models.make("abide_mlp(features=19900)", 2, (7,)).layers.fc1.in_features == 19900
    assert models.find("digits_cnn(channels=1, size=16)").shape == (1, 16, 16)
    with torch.device("meta"):
        assert models.make("alexnet_fedwon(dropout=0.2)").classifier.drop1.p == 0.2
    assert models.make("digits_cnn_fedwon(dropout=0.2)").drop.p == 0.2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("abide_mlp(feature=3)", "model 'abide_mlp(feature=3)': unknown argument 'feature'; did you mean 'features'?"),
        ("abide_mlp(3)", "model 'abide_mlp(3)': arguments go by name, abide_mlp(features=19900)"),
        ("digits_cnn(size=2)", "model 'digits_cnn(size=2)': size=2 must be 4 or more"),
        ("abide_mlp(features=3", "'model(features=3' cannot be read; write for example abide_mlp(features=19900)"),
        ("math:floor", "model 'math:floor': math.floor() takes exactly one argument (0 given)"),
        ("math:pi", "model 'math:pi' is not a function that makes a model"),
        ("nowhere:net", "model 'nowhere:net': No module named 'nowhere'"),
        ("alexnett", "unknown model 'alexnett'; did you mean 'alexnet'?; or package.module:factory for your own"),
    ],
)  # fmt: skip
def test_a_bad_name_is_refused_in_one_line(name, said):
    with pytest.raises(nf.Refused) as raised:
        models.make(name, 10)
    assert raised.value.problems == (said,)


def own_net():
    return nn.Linear(4, 2)


def own_net_with_classes(classes, channels=3):
    return nn.Sequential(nn.Conv2d(channels, 4, 1), nn.Flatten(), nn.LazyLinear(classes))


def test_factories_of_ones_own_are_told_what_they_take(monkeypatch):
    monkeypatch.setitem(sys.modules, "mine", types.ModuleType("mine"))
    sys.modules["mine"].net, sys.modules["mine"].with_classes = own_net, own_net_with_classes
    assert models.make("mine:net", 5, (9, 9, 9)).out_features == 2
    made = models.make("mine:with_classes", 5, (1, 2, 2))
    assert made(torch.zeros(1, 1, 2, 2)).shape == (1, 5)


# ---- how they start ----------------------------------------------------------------------------------------------


def test_residual_networks_start_as_published():
    for name in ("resnet18", "resnet50", "mobilenetv2", "resnet20"):
        model = models.make(name)
        weights = [m.weight.detach() for m in model.modules() if isinstance(m, nn.Conv2d)]
        large = [w for w in weights if w.numel() > 10_000]
        for w in large:
            fan_out = w.shape[0] * w[0, 0].numel()
            assert abs(float(w.std()) / math.sqrt(2 / fan_out) - 1) < 0.05, name
        assert all((m.weight == 1).all() and (m.bias == 0).all() for m in batchnorms(model).values())
    head = models.make("mobilenetv2", 1000).classifier[1]
    assert abs(float(head.weight.detach().std()) - 0.01) < 1e-4 and (head.bias == 0).all()
    fc = models.make("resnet18", 1000).fc.weight.detach()
    assert abs(float(fc.abs().max()) - 1 / math.sqrt(512)) < 1e-3  # uniform, as torch's linear layers start


def test_fedtans_code_starts_scales_between_0_and_1():
    norms = batchnorms(models.make("resnet20(uniform_gamma=true)")).values()
    scales = torch.cat([m.weight.detach() for m in norms])
    assert 0 <= scales.min() < 0.05 and 0.95 < scales.max() <= 1 and abs(float(scales.mean()) - 0.5) < 0.05
    assert all((m.bias == 0).all() for m in norms)


def test_fedwons_convolutions_start_after_glorot():
    for name in ("digits_cnn_fedwon", "alexnet_fedwon"):
        for wanted in (True, False):
            model = models.make(f"{name}(xavier={str(wanted).lower()})")
            w = next(m.weight for m in list(model.modules())[::-1] if isinstance(m, nn.Conv2d)).detach()
            glorot = math.sqrt(2 / ((w.shape[0] + w.shape[1]) * w[0, 0].numel()))
            assert (abs(float(w.std()) / glorot - 1) < 0.02) == wanted


# ---- torchvision and timm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ours", "theirs"), [("resnet18", "resnet18"), ("resnet50", "resnet50"), ("mobilenetv2", "mobilenet_v2")])  # fmt: skip
def test_equal_to_torchvision_weight_for_weight(ours, theirs):
    vision = pytest.importorskip("torchvision.models", reason="torchvision is not installed", exc_type=ImportError)
    torch.manual_seed(0)
    reference = vision.get_model(theirs, weights=None, num_classes=13).double()
    for layer in batchnorms(reference).values():
        nn.init.normal_(layer.running_mean, 0, 0.1), nn.init.uniform_(layer.running_var, 0.5, 1.5)
    model = models.make(ours, 13).double()
    mine, other = model.state_dict(), reference.state_dict()
    assert {n: t.shape for n, t in mine.items()} == {n: t.shape for n, t in other.items()}
    model.load_state_dict(other)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    for training in (False, True):
        torch.manual_seed(1)
        expected = reference.train(training)(x)
        torch.manual_seed(1)
        assert torch.allclose(model.train(training)(x), expected, rtol=1e-12, atol=1e-12)


def names_and_shapes_of_resnet18():
    """Worked out by hand from the published architecture: what a file of torchvision's must hold."""
    found = {"conv1.weight": (64, 3, 7, 7), "fc.weight": (10, 512), "fc.bias": (10,)}

    def norm(name, width):
        found.update({f"{name}.{part}": (width,) for part in ("weight", "bias", "running_mean", "running_var")})
        found[f"{name}.num_batches_tracked"] = ()

    norm("bn1", 64)
    before = 64
    for stage, width in enumerate((64, 128, 256, 512), 1):
        for block in (0, 1):
            path = f"layer{stage}.{block}"
            found[f"{path}.conv1.weight"], found[f"{path}.conv2.weight"] = (width, before, 3, 3), (width, width, 3, 3)
            norm(f"{path}.bn1", width), norm(f"{path}.bn2", width)
            if before != width:
                found[f"{path}.downsample.0.weight"] = (width, before, 1, 1)
                norm(f"{path}.downsample.1", width)
            before = width
    return found


def test_names_of_torchvisions_files():
    state = {name: tuple(t.shape) for name, t in models.make("resnet18").state_dict().items()}
    assert state == names_and_shapes_of_resnet18()
    mobile = models.make("mobilenetv2").state_dict()
    known = {"features.0.0.weight": (32, 3, 3, 3), "features.1.conv.0.0.weight": (32, 1, 3, 3), "features.1.conv.1.weight": (16, 32, 1, 1),
             "features.2.conv.1.0.weight": (96, 1, 3, 3), "features.17.conv.2.weight": (320, 960, 1, 1), "features.17.conv.3.running_var": (320,),
             "features.18.1.bias": (1280,), "classifier.1.weight": (10, 1280)}  # fmt: skip
    assert {name: tuple(mobile[name].shape) for name in known} == known and len(mobile) == 314
    assert len(models.make("resnet50").state_dict()) == 320


@pytest.mark.parametrize("name", ["efficientnet_b0", "densenet121", "levit_128s", "mobilevit_s"])
def test_the_papers_networks_of_the_zoo(name):
    pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
    model = models.make(f"zoo:{name}", 7)
    size = 256 if name == "mobilevit_s" else 224
    with torch.no_grad():
        assert model.eval()(torch.zeros(1, 3, size, size)).shape == (1, 7)
    assert batchnorms(model)
    found = explain(nf.methods.fedbn(), model, name, (3, size, size))
    assert {e["scope"] for e in found.first.entries} == {"shared", "local"}


class FakeZoo(types.ModuleType):
    """What timm and torchvision.models have in common."""

    def __init__(self, name, **nets):
        super().__init__(name)
        self.nets = nets

    def list_models(self):
        return list(self.nets)

    def create_model(self, name, pretrained, num_classes, in_chans):
        assert pretrained is False
        return self.nets[name](num_classes, in_chans)

    def get_model(self, name, weights, num_classes):
        assert weights is None
        return self.nets[name](num_classes)


def net(classes, channels=3):
    return nn.Sequential(nn.Conv2d(channels, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def test_the_zoo_asks_timm_then_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", FakeZoo("timm", efficientnet_b0=net))
    monkeypatch.setitem(sys.modules, "torchvision", types.ModuleType("torchvision"))
    monkeypatch.setitem(
        sys.modules, "torchvision.models", FakeZoo("torchvision.models", vgg11_bn=net, efficientnet_b0=net)
    )
    assert models.make("zoo:efficientnet_b0", 7, (1, 8, 8))(torch.zeros(1, 1, 8, 8)).shape == (1, 7)
    assert models.make("zoo:vgg11_bn", 7)(torch.zeros(1, 3, 8, 8)).shape == (1, 7)
    with pytest.raises(nf.Refused, match="unknown model 'zoo:efficientnet_b1'; did you mean 'efficientnet_b0'"):
        models.find("zoo:efficientnet_b1")


def test_without_the_extra_the_zoo_is_one_clear_line(monkeypatch):
    for name in ("timm", "torchvision", "torchvision.models"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it is an ImportError
    with pytest.raises(nf.Refused) as raised:
        models.find("zoo:efficientnet_b0")
    assert raised.value.problems == (
        "model 'zoo:efficientnet_b0' needs timm or torchvision: pip install 'normfed[zoo]'",
    )


def test_naming_a_network_of_ours_imports_no_zoo():
    code = "import sys, normfed.models as m; m.make('digits_cnn'); print(sorted({'timm', 'torchvision'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- norm layers of a zoo that do more than normalise --------------------------------------------------------------


class BatchNormAct2d(nn.BatchNorm2d):
    """As timm has it: normalisation and activation in one, through the functional call."""

    def __init__(self, channels):
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x):
        training = self.training or (self.running_mean is None and self.running_var is None)
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        keep = not self.training or self.track_running_stats
        x = nn.functional.batch_norm(
            x, self.running_mean if keep else None, self.running_var if keep else None, self.weight, self.bias,
            training, self.momentum, self.eps,
        )  # fmt: skip
        return self.act(self.drop(x))


def fused_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), BatchNormAct2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def plain_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    )


@pytest.mark.parametrize("method", ["fedavg", "fedbn", "silobn", "fixbn(t=1)", "greg", "fedtan", "groupnorm(groups=2)", "fedwon", "nonorm"])  # fmt: skip
def test_a_fused_norm_layer_is_driven_as_a_plain_one_is(method, engine):
    torch.manual_seed(1)
    clients = {
        name: nf.ClientData(train=(torch.randn(n, 3, 6, 6).double() + k, torch.arange(n) % 3), test=(torch.randn(4, 3, 6, 6).double() + k, torch.arange(4) % 3))
        for k, (name, n) in enumerate({"a": 8, "b": 6}.items())
    }  # fmt: skip
    results = [
        nf.simulate(model.double(), clients, parse(method), rounds=2, batch_size=4, lr=0.1, engine=engine)
        for model in (fused_net(), plain_net())
    ]
    ours, theirs = (r.client_states["b"] for r in results)
    assert len(ours) == len(theirs)
    assert all(
        torch.allclose(a.double(), b.double(), atol=1e-12) for a, b in zip(ours.values(), theirs.values(), strict=True)
    )


class Caching(nn.Module):
    """Keeps a product of its weight while it evaluates, as LeViT keeps its attention biases."""

    def __init__(self):
        super().__init__()
        self.weight, self.kept = nn.Parameter(torch.eye(3)), {}

    def train(self, mode=True):
        if mode:
            self.kept = {}
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return x @ self.weight.exp()
        if "product" not in self.kept:
            self.kept["product"] = self.weight.exp()
        return x @ self.kept["product"]


def test_a_layer_that_caches_while_it_evaluates_shows_no_client_anothers_weights():
    torch.manual_seed(0)
    clients = {name: nf.ClientData(train=(torch.randn(9, 3), torch.arange(9) % 3), test=(torch.randn(30, 3), torch.arange(30) % 3)) for name in "ab"}  # fmt: skip
    result = nf.simulate(Caching(), clients, nf.methods.singleset(), rounds=3, lr=1.0, batch_size=3)
    for name, data in clients.items():
        x, y = data.test
        logits = x @ result.client_states[name]["weight"].exp()
        assert result.history[-1]["test_accuracy"][name] == float((logits.argmax(1) == y).double().mean())
