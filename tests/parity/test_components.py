"""Single layers, losses and statistics of FedFA, FedPLVM and FedRDN, from their authors' code; WSConv from the paper."""

import numpy as np
import pytest
import torch
from torch import nn

from normfed.methods.fedfa import redraw
from normfed.methods.fedplvm import contrast, correction
from normfed.methods.fedrdn import image_statistics
from normfed.methods.fedrdn import standardise as normalised
from normfed.methods.fedwon import WSConv, standardise
from normfed.reducers import SpreadOverClients

from support import PARITY, golden


def tensors(section):
    return {k: torch.tensor(v, dtype=torch.float64) for k, v in section.items() if isinstance(v, list)}


def close(ours, expected, tolerance=PARITY):
    np.testing.assert_allclose(ours.detach().numpy(), np.asarray(expected), atol=tolerance, rtol=0)


SINGLE = 3e-7  # the reference computed these in float32


def test_fedfa_layer():
    t = tensors(golden("components")["fedfa_layer"])
    x = t["x"].requires_grad_()
    y, mean, std = redraw(x, t["running_var_mean"], t["running_var_std"], t["noise_for_mean"], t["noise_for_std"])
    close(y, t["y"])
    (grad,) = torch.autograd.grad(y, x, t["upstream"])
    close(grad, t["grad_x"])
    close(0.99 * 0.0 + 0.01 * mean, t["running_mean_after"])
    close(0.99 * 1.0 + 0.01 * std, t["running_std_after"])


def test_fedfa_aggregation():
    """Per channel; the reference takes one variance over clients *and* channels, which makes every weight equal."""
    t = tensors(golden("components")["fedfa_aggregation"])
    reducer = SpreadOverClients("spread_of_")
    values = {"l.mean": t["client_running_mean"], "l.std": t["client_running_std"]}
    values |= {"l.spread_of_mean": torch.ones(3, 3), "l.spread_of_std": torch.ones(3, 3)}
    whole = reducer.finish(reducer.add(reducer.start(), values, torch.ones(3, dtype=torch.float64)))
    close(whole["l.mean"], t["server_running_mean"], SINGLE)
    close(whole["l.std"], t["server_running_std"], SINGLE)
    close(whole["l.spread_of_mean"], t["paper_style_per_channel_unbiased_var_of_mean"])
    close(whole["l.spread_of_std"], t["paper_style_per_channel_unbiased_var_of_std"])
    acc = reducer.start()
    for k in (2, 0, 1):  # any order, one client at a time
        one = {n: v[k : k + 1] for n, v in values.items()}
        acc = reducer.merge(reducer.add(reducer.start(), one, torch.ones(1, dtype=torch.float64)), acc)
    close(reducer.finish(acc)["l.spread_of_mean"], whole["l.spread_of_mean"])
    quirk = t["client_running_mean"].var(correction=1)  # what the reference computes
    close(quirk.expand(3), t["server_running_var_mean"], SINGLE)


def test_fedplvm_losses():
    section = golden("components")["fedplvm"]
    z = torch.tensor(section["features"], dtype=torch.float64).requires_grad_()
    y = torch.tensor(section["labels"])
    vectors = torch.cat([torch.tensor(p, dtype=torch.float64) for p in section["prototypes"].values()])
    labels = torch.cat([torch.full((len(p),), int(c)) for c, p in section["prototypes"].items()])
    means = torch.tensor([section["averaged_prototypes"][str(c)] for c in range(3)], dtype=torch.float64)
    first = contrast(z, y, vectors, labels, section["alpha"], section["tau"]).mean()
    second = correction(z, y, means).mean()
    close(first, section["contrastive_alpha_loss"])
    close(second, section["correction_loss"])
    (grad,) = torch.autograd.grad(first + second, z)
    close(grad, section["grad_features_of_sum"])


def test_fedrdn_statistics():
    section = golden("components")["fedrdn"]
    clients = [torch.tensor(images, dtype=torch.float64) for images in section["images"]]
    found = [image_statistics(images) for images in clients]
    for statistics, mean, std in zip(found, section["means"], section["stds"], strict=True):
        close(statistics["mean"], mean)
        close(statistics["std"], std)
    ours = normalised(clients[0], found[1]["mean"], found[0]["std"])
    close(ours, section["client0_images_normalised_with_mean_of_1_and_std_of_0"])


@pytest.mark.parametrize(
    ("key", "gain", "unbiased"),
    [
        ("listing_unbiased", True, True),
        ("listing_with_biased_variance", True, False),
        ("equation3_biased_gain_as_gamma", True, False),
    ],
)
def test_wsconv(key, gain, unbiased):
    section = golden("wsconv")
    t = tensors(section)
    expected = section[key]
    scale = t["gain"].view(-1, 1, 1, 1) if gain else None
    ours = standardise(t["W"], scale, unbiased)
    close(ours, expected["What"])
    if "What_degenerate" in expected:
        close(standardise(t["W_degenerate"], scale, unbiased), expected["What_degenerate"])
    for stride in (1, 2):
        if f"conv_stride{stride}_pad1" in expected:
            layer = nn.Conv2d(3, 4, 3, stride, 1).double()
            layer.weight, layer.bias = nn.Parameter(t["W"]), nn.Parameter(t["bias"])
            layer.gain, layer.unbiased = nn.Parameter(scale), unbiased
            layer.__class__ = type("WSConv2d", (WSConv, nn.Conv2d), {})
            close(layer(t["x"]), expected[f"conv_stride{stride}_pad1"])


def test_wsconv_gradients():
    t = tensors(golden("wsconv"))
    weight, gain = t["W"].requires_grad_(), t["gain"].requires_grad_()
    total = (standardise(weight, gain.view(-1, 1, 1, 1)) * t["V"]).sum()
    by_weight, by_gain = torch.autograd.grad(total, (weight, gain))
    close(by_weight, t["grad_W_of_sum_What_times_V"])
    close(by_gain, t["grad_gain_of_sum_What_times_V"])
