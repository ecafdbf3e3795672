"""The network and data of the golden files hbn, fixbn_hbnrepo and formulas."""

from collections import OrderedDict

from torch import nn

from support import federation, golden_weights, scaled_normals

SIZES, SCALES, SHIFTS = [20, 33, 18], [0.6, 1, 1.4], [0, 0.5, -0.4]


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


def net():
    layers = [
        ("conv1", nn.Conv2d(3, 6, 3, padding=1)), ("n1", nn.BatchNorm2d(6)), ("relu", nn.ReLU()),
        ("conv2", nn.Conv2d(6, 8, 3, padding=1, stride=2)), ("n2", nn.BatchNorm2d(8)), ("relu2", nn.ReLU()),
        ("mean", Mean()), ("fc", nn.Linear(8, 5)),
    ]  # fmt: skip
    return golden_weights(nn.Sequential(OrderedDict(layers)))


def data():
    """The reference tests on the pooled test sets."""
    return federation(scaled_normals(20, SIZES, SCALES, SHIFTS, (3, 8, 8), 5), held_out())


def held_out():
    return scaled_normals(21, [10] * 3, SCALES, SHIFTS, (3, 8, 8), 5)
