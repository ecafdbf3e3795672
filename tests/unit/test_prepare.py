"""From stored images to a model's input: against Pillow and plain formulas, and equal on every engine."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import normfed as nf
from normfed import methods, prepare
from normfed.keys import fold, uniform
from normfed.testing import difference, seeded

EXACT = torch.float64


def images(n=6, channels=3, height=12, width=12, seed=0):
    draw = np.random.default_rng(seed)
    return torch.from_numpy(draw.integers(0, 256, (n, channels, height, width), dtype=np.uint8))


def refused(text, like=None):
    with pytest.raises(nf.Refused) as raised:
        prepare.parse(text, like)
    return raised.value.problems


def test_without_a_chain_bytes_become_numbers_between_0_and_1_and_nothing_else_changes():
    x = images()
    assert torch.equal(prepare.PLAIN(x, EXACT), x.double() / 255)
    tokens, floats = torch.arange(4), torch.randn(2, 3)
    assert prepare.PLAIN(tokens, EXACT) is tokens and prepare.PLAIN(floats, EXACT).dtype == EXACT


def test_normalize_takes_numbers_lists_and_names():
    x = images()
    assert torch.equal(prepare.parse("normalize(0.5, 0.25)")(x, EXACT), (x.double() / 255 - 0.5) / 0.25)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    by_channel = prepare.parse(f"normalize({mean}, {std})")(x, EXACT)
    for c in range(3):
        torch.testing.assert_close(by_channel[:, c], (x[:, c].double() / 255 - mean[c]) / std[c], rtol=0, atol=1e-15)
    named = prepare.parse('normalize("imagenet")')(x, EXACT)
    torch.testing.assert_close(named[:, 0], (x[:, 0].double() / 255 - 0.485) / 0.229, rtol=0, atol=1e-15)


@pytest.mark.parametrize("side", [5, 12, 31])
def test_resize_is_torchs_antialiased_bilinear(side):
    x = images(height=12, width=17)
    expected = F.interpolate(x.double() / 255, (side, side), mode="bilinear", antialias=True, align_corners=False)
    torch.testing.assert_close(prepare.parse(f"resize({side})")(x, EXACT), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("degrees", [-30.0, -7.3, 0.0, 12.9, 30.0, 90.0])
@pytest.mark.parametrize("shape", [(16, 16), (15, 22)])
def test_rotation_picks_the_pixels_that_pillow_picks(degrees, shape):
    x = images(1, 3, *shape)
    picture = Image.fromarray(x[0].permute(1, 2, 0).numpy()).rotate(degrees, Image.Resampling.NEAREST)
    ours = prepare.turned(x.double(), torch.tensor([math.radians(degrees)], dtype=EXACT))
    assert torch.equal(ours[0].permute(1, 2, 0), torch.from_numpy(np.asarray(picture).copy()).double())


def test_random_steps_act_in_training_only_and_on_each_sample_by_itself():
    x = images(400, 1, 8, 8)
    plain = x.double() / 255
    chain = prepare.parse("flip + rotate(30) + crop(8, padding=2)")
    assert torch.equal(chain(x, EXACT), plain)
    assert torch.equal(chain(x, EXACT, 5), chain(x, EXACT, 5)) and not torch.equal(
        chain(x, EXACT, 5), chain(x, EXACT, 6)
    )
    flipped = prepare.parse("flip")(x, EXACT, 5)
    turned = [bool(torch.equal(a, b.flip(-1))) for a, b in zip(flipped, plain, strict=True)]
    kept = [bool(torch.equal(a, b)) for a, b in zip(flipped, plain, strict=True)]
    assert all(t != k for t, k in zip(turned, kept, strict=True)) and 150 < sum(turned) < 250
    angles = (2 * uniform(fold(5, "rotate", 0), (400,), EXACT) - 1) * math.radians(30)
    assert torch.equal(prepare.parse("rotate(30)")(x, EXACT, 5), prepare.turned(plain, angles))
    assert angles.abs().max() < math.radians(30) and angles.std() > math.radians(15)


def test_a_crop_is_a_window_of_the_padded_image_and_the_middle_in_evaluation():
    x = images(200, 2, 6, 7)
    padded = F.pad(x.double() / 255, (2, 2, 2, 2))
    cropped = prepare.parse("crop(5, padding=2)")(x, EXACT, 1)
    windows = set()
    for image, whole in zip(cropped, padded, strict=True):
        found = [(a, b) for a in range(6) for b in range(7) if torch.equal(image, whole[:, a : a + 5, b : b + 5])]
        assert len(found) == 1
        windows.add(found[0])
    assert {a for a, _ in windows} == set(range(6)) and {b for _, b in windows} == set(range(7))
    assert torch.equal(prepare.parse("crop(5)")(x, EXACT), x.double()[:, :, 0:5, 1:6] / 255)


def test_channels():
    x = images(2, 3)
    grey = prepare.parse("gray")(x, EXACT)
    torch.testing.assert_close(
        grey[:, 0], (0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2]).double() / 255, rtol=1e-6, atol=0
    )
    again = prepare.parse("rgb")(images(2, 1), EXACT)
    assert again.shape[1] == 3 and torch.equal(again[:, 0], again[:, 2])
    assert (
        prepare.parse("gray")(images(2, 1), EXACT).shape[1]
        == prepare.parse("rgb + gray")(images(2, 1), EXACT).shape[1]
        == 1
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flop", "prepare: unknown step 'flop'; did you mean 'flip'?"),
        ("flip(2)", "flip: too many positional arguments; its arguments are ()"),
        ("rotate", "rotate: missing a required argument: 'degrees'; its arguments are (degrees: float)"),
        ('rotate("a")', "rotate: degrees='a' is not a number"),
        ("rotate(angle=3)", "rotate: unknown argument 'angle'; choose from: degrees"),
        ("rotate(200)", "rotate(200): must be from 0 to 180"),
        ("resize(0)", "resize(0): must be 1 or more"),
        ("crop(13)", "crop(13): the images are 12x12"),
        ("resize(8) + crop(9)", "crop(9): the images are 8x8"),
        ("crop(4, padding=-1)", "crop: padding=-1 must be 0 or more"),
        ('normalize("imagnet")', "normalize: unknown name 'imagnet'; did you mean 'imagenet'?"),
        ("normalize(0.5)", "normalize(mean, std): std is missing"),
        ("normalize(0.5, 0)", "normalize: std must be above 0"),
        ("normalize([0.5, 0.5], 1)", "normalize: 2 numbers for 3 channels"),
        ('normalize("mnist", 0.5)', 'normalize("mnist") has its own std'),
        ("normalize([], 1)", "normalize: mean=[] must be a number or a list of numbers"),
        ("", "'' cannot be read; write for example flip + normalize(0.5, 0.5)"),
    ],
)  # fmt: skip
def test_a_bad_chain_is_refused(text, said):
    assert said in refused(text, images())


def test_a_chain_needs_stored_images():
    about = "prepare is for images stored as uint8 [channels, height, width]; these are"
    assert refused("flip", torch.zeros(2, 3, 4, 4)) == (f"{about} (3, 4, 4) of torch.float32",)
    assert refused("flip", torch.zeros(2, 5, dtype=torch.uint8)) == (f"{about} (5,) of torch.uint8",)
    assert refused(3) == ('prepare=3: must be a text, "flip + normalize(0.5, 0.5)"',)


# ------------------------------------------------------------------------------------------------- in a run


def net(channels=3, side=8):
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * (side - 2) ** 2, 3)
    )  # fmt: skip


def clients(sizes=(9, 14, 11), side=12, seed=0):
    draw = np.random.default_rng(seed)
    return {
        name: nf.ClientData(
            train=(images(n, 3, side, side, seed=k), torch.from_numpy(draw.integers(0, 3, n))),
            test=(images(6, 3, side, side, seed=10 + k), torch.from_numpy(draw.integers(0, 3, 6))),
        )
        for k, (name, n) in enumerate(zip("abc", sizes, strict=True))
    }


CHAIN = "resize(10) + flip + rotate(30) + crop(8, padding=1) + normalize(0.5, 0.5)"
SETTINGS = {"rounds": 3, "epochs": 2, "batch_size": 4, "lr": 0.05, "seed": 7, "prepare": CHAIN}


@pytest.mark.parametrize("method", ["fedavg", "hbn", "fedrdn", "fedplvm", "fedtan", "greg"])
def test_engines_agree_on_augmented_bytes(method):
    made = getattr(methods, method)()
    model = seeded(net)
    serial, stacked = (nf.simulate(model, clients(), made, engine=e, **SETTINGS) for e in ("serial", "stacked"))
    assert difference(serial, stacked) <= 1e-12
    for a, b in zip(serial.history, stacked.history, strict=True):
        assert a["test_accuracy"] == b["test_accuracy"]


def test_bytes_train_to_the_bits_of_the_same_images_prepared_beforehand():
    chain = prepare.parse("resize(8) + normalize(0.5, 0.5)")
    before = {
        name: nf.ClientData(train=(chain(c.train[0], EXACT), c.train[1]), test=(chain(c.test[0], EXACT), c.test[1]))
        for name, c in clients().items()
    }
    given = {**SETTINGS, "prepare": None, "engine": "serial"}
    stored = nf.simulate(
        seeded(net), clients(), methods.fedbn(), **{**given, "prepare": "resize(8) + normalize(0.5, 0.5)"}
    )
    loaded = nf.simulate(seeded(net), before, methods.fedbn(), **given)
    assert difference(stored, loaded) == 0
    assert [row["test_loss"] for row in stored.history] == [row["test_loss"] for row in loaded.history]


def test_augmentation_changes_training_by_the_key_and_not_evaluation():
    def run(**changes):
        return nf.simulate(seeded(net), clients(), methods.fedavg(), **{**SETTINGS, "engine": "serial", **changes})

    still = "resize(10) + crop(8) + normalize(0.5, 0.5)"
    assert difference(run(), run()) == 0
    assert difference(run(), run(prepare=still)) > 1e-3
    first, other = (run(rounds=1, lr=0.0, prepare=p) for p in (CHAIN, still))
    assert first.history[0]["test_loss"].keys() == other.history[0]["test_loss"].keys()
    model, x = seeded(net), clients()["a"].test[0]
    assert torch.equal(prepare.parse(CHAIN)(x, EXACT), prepare.parse(still)(x, EXACT))
    assert model(prepare.parse(CHAIN)(x, EXACT)).shape == (6, 3)


@pytest.mark.parametrize("view", ["own/pooled", "global", "pooled", "batch"])
def test_every_view_sees_prepared_samples(view):
    chain = prepare.parse("resize(8) + normalize(0.5, 0.5)")
    before = {
        name: nf.ClientData(train=(chain(c.train[0], EXACT), c.train[1]), test=(chain(c.test[0], EXACT), c.test[1]))
        for name, c in clients().items()
    }
    common = {"rounds": 1, "batch_size": 4, "engine": "serial", "views": view}
    stored = nf.simulate(seeded(net), clients(), methods.fedbn(), prepare="resize(8) + normalize(0.5, 0.5)", **common)
    loaded = nf.simulate(seeded(net), before, methods.fedbn(), **common)
    assert stored.history[0]["views"] == loaded.history[0]["views"]


def test_pictures_and_an_unseen_client_see_prepared_samples():
    chain = prepare.parse("resize(8) + normalize(0.5, 0.5)")
    stored = clients()
    stored["c"] = nf.ClientData(stored["c"].train, stored["c"].test, role="unseen")
    loaded = {
        name: nf.ClientData((chain(c.train[0], EXACT), c.train[1]), (chain(c.test[0], EXACT), c.test[1]), role=c.role)
        for name, c in stored.items()
    }
    common = {"rounds": 1, "batch_size": 4, "engine": "serial", "views": "unseen", "pictures": "all"}
    a = nf.simulate(seeded(net), stored, methods.fedavg(), prepare="resize(8) + normalize(0.5, 0.5)", **common)
    b = nf.simulate(seeded(net), loaded, methods.fedavg(), **common)
    assert a.history[0]["views"] == b.history[0]["views"] and a.history[0]["pictures"] == b.history[0]["pictures"]


def test_a_run_refuses_a_chain_that_does_not_fit():
    floats = {"a": nf.ClientData(train=(torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 0])))}
    with pytest.raises(nf.Refused) as raised:
        nf.simulate(net(), floats, methods.fedavg(), rounds=1, prepare="flip", lr=-1)
    assert len(raised.value.problems) == 2 and "stored as uint8" in raised.value.problems[1]
    with pytest.raises(nf.Refused, match="unknown step 'flop'"):
        nf.simulate(net(), clients(), methods.fedavg(), rounds=1, prepare="flop")
