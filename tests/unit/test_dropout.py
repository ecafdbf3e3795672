import pytest
import torch
from torch import nn

from normfed.net import Net
from normfed.norm import BATCH, Pass

KINDS = [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]
SHAPES = {nn.Dropout1d: (64, 50, 7), nn.Dropout2d: (64, 50, 4, 4), nn.Dropout3d: (64, 50, 2, 2, 2), nn.FeatureAlphaDropout: (64, 50, 4, 4)}  # fmt: skip


def drop(layer, x, key=1, training=True):
    net = Net(nn.Sequential(layer))
    return net({}, {}, x, Pass(BATCH, training=training, key=lambda: key))


@pytest.mark.parametrize("kind", KINDS)
def test_keyed_dropout_does_what_the_stock_layer_does(kind):
    shape = SHAPES.get(kind, (64, 500))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, theirs = drop(kind(0.4), x), kind(0.4).train()(x)
    assert abs(ours.mean() - theirs.mean()) < 0.05 and abs(ours.std() - theirs.std()) < 0.05
    assert torch.equal(ours, drop(kind(0.4), x)) and not torch.equal(ours, drop(kind(0.4), x, key=2))
    assert drop(kind(0.4), x, training=False) is x and drop(kind(0.0), x) is x
    same_on = {nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3, nn.FeatureAlphaDropout: 2}.get(kind, 0)
    if same_on:  # a channel is dropped as a whole
        kept = (ours != ours.flatten(-same_on)[..., :1].reshape(*ours.shape[:-same_on], *[1] * same_on)).flatten(2)
        stock = (theirs != theirs.flatten(-same_on)[..., :1].reshape(*theirs.shape[:-same_on], *[1] * same_on)).flatten(
            2
        )
        assert abs(kept.any(-1).double().mean() - stock.any(-1).double().mean()) < 0.05


def test_values_are_scaled_by_the_stock_layers_factor():
    x = torch.ones(1000, 10, dtype=torch.float64)
    assert set(drop(nn.Dropout(0.25), x).unique().tolist()) == {0.0, 1 / 0.75}
    ours, theirs = drop(nn.AlphaDropout(0.25), x).unique(), nn.AlphaDropout(0.25).train()(x).unique()
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert drop(nn.Dropout(1.0), x).abs().max() == 0


def test_two_layers_and_two_calls_draw_different_masks():
    shared = nn.Dropout(0.5)
    net = Net(nn.Sequential(shared, nn.Identity()))
    x = torch.ones(100, 10)
    now = Pass(BATCH, key=lambda: 1)
    first = net({}, {}, x, now)
    second = net({}, {}, x, now)  # the same pass goes on: another call of the same layer
    assert not torch.equal(first, second)
