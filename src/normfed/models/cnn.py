"""The convolutional networks and perceptrons of FedBN, FedWon, FedBS and FedTAN."""

from __future__ import annotations

import itertools

from torch import Tensor, nn


class DigitsCNN(nn.Module):
    """FedBN, Table 6: three 5x5 convolutions, two hidden linear layers, a norm layer after each.

    FedWon (Table 5) has Dropout before the hidden linear layers instead of a norm behind them, for all its methods.
    """

    def __init__(self, classes: int = 10, channels: int = 3, size: int = 28, dropout: float | None = None) -> None:
        super().__init__()
        _at_least("size", size, 4)
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.conv2, self.bn2 = nn.Conv2d(64, 64, 5, padding=2), nn.BatchNorm2d(64)
        self.conv3, self.bn3 = nn.Conv2d(64, 128, 5, padding=2), nn.BatchNorm2d(128)
        self.pool, self.relu = nn.MaxPool2d(2), nn.ReLU()
        self.drop = nn.Identity() if dropout is None else nn.Dropout(dropout)
        self.fc1 = nn.Linear(128 * (size // 4) ** 2, 2048)
        self.bn4: nn.Module = nn.BatchNorm1d(2048) if dropout is None else nn.Identity()
        self.fc2 = nn.Linear(2048, 512)
        self.bn5: nn.Module = nn.BatchNorm1d(512) if dropout is None else nn.Identity()
        self.fc3 = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.pool(self.relu(self.bn2(self.conv2(x))))
        x = self.relu(self.bn3(self.conv3(x))).flatten(1)
        x = self.relu(self.bn4(self.fc1(self.drop(x))))
        x = self.relu(self.bn5(self.fc2(self.drop(x))))
        return self.fc3(x)


def digits_cnn(classes: int = 10, channels: int = 3, size: int = 28) -> nn.Module:
    """FedBN's network for digits."""
    return DigitsCNN(classes, channels, size)


def digits_cnn_fedwon(
    classes: int = 10, channels: int = 3, size: int = 28, dropout: float = 0.5, xavier: bool = False
) -> nn.Module:
    """FedWon's network for digits; the dropout rate is not in the paper. `xavier`: how its own convolutions start."""
    return _xavier(DigitsCNN(classes, channels, size, dropout), xavier)


class AlexNet(nn.Module):
    """FedBN, Table 7: AlexNet with a norm layer after each layer but the last; FedWon's has Dropout before the hidden
    linear layers and no norm behind them."""

    def __init__(self, classes: int = 10, channels: int = 3, dropout: float | None = None) -> None:
        super().__init__()
        widths = [
            (channels, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1),
        ]  # fmt: skip
        self.features = nn.Sequential()
        for i, (before, after, kernel, stride, padding) in enumerate(widths, 1):
            self.features.add_module(f"conv{i}", nn.Conv2d(before, after, kernel, stride, padding))
            self.features.add_module(f"bn{i}", nn.BatchNorm2d(after))
            self.features.add_module(f"relu{i}", nn.ReLU())
            if i in (1, 2, 5):
                self.features.add_module(f"maxpool{i}", nn.MaxPool2d(3, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential()
        for i, before in enumerate((256 * 6 * 6, 4096), 1):
            if dropout is not None:
                self.classifier.add_module(f"drop{i}", nn.Dropout(dropout))
            self.classifier.add_module(f"fc{i}", nn.Linear(before, 4096))
            if dropout is None:
                self.classifier.add_module(f"bn{5 + i}", nn.BatchNorm1d(4096))
            self.classifier.add_module(f"relu{5 + i}", nn.ReLU())
        self.classifier.add_module("fc3", nn.Linear(4096, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def alexnet(classes: int = 10, channels: int = 3) -> nn.Module:
    """FedBN's network for Office-Caltech-10 and DomainNet."""
    return AlexNet(classes, channels)


def alexnet_fedwon(classes: int = 10, channels: int = 3, dropout: float = 0.5, xavier: bool = False) -> nn.Module:
    """FedWon's network for Office-Caltech-10 and DomainNet; the dropout rate is not in the paper. `xavier`: how its own
    convolutions start."""
    return _xavier(AlexNet(classes, channels, dropout), xavier)


def _xavier(model: nn.Module, wanted: bool) -> nn.Module:
    """Glorot and Bengio's normal start for convolutions: FedWon's listing. Standardised weights do not show their scale
    in the forward pass, but gradients are as much smaller as weights are larger."""
    for module in model.modules():
        if wanted and isinstance(module, nn.Conv2d):
            nn.init.xavier_normal_(module.weight)
    return model


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}={value} must be {least} or more")


class _ConvNet(nn.Module):
    """Blocks of convolution, norm, ReLU, pooling; then linear layers."""

    def __init__(
        self, channels: int, size: int, blocks: list[tuple[int, int]], hidden: list[int], classes: int
    ) -> None:
        super().__init__()
        _at_least("size", size, 2)
        layers: list[nn.Module] = []
        for width, kernel in blocks:
            layers += [nn.Conv2d(channels, width, kernel, padding=2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            channels, size = width, (size + 5 - kernel) // 2
        self.features = nn.Sequential(*layers)
        linear: list[nn.Module] = []
        for before, after in itertools.pairwise([channels * size**2, *hidden, classes]):
            linear += [nn.Linear(before, after), nn.ReLU()]
        self.classifier = nn.Sequential(*linear[:-1])

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))


def fedbs_cifar(classes: int = 10, channels: int = 3, size: int = 32) -> nn.Module:
    """FedBS's network for CIFAR-10; every convolution pads by 2, as its code."""
    return _ConvNet(channels, size, [(100, 5), (150, 3), (250, 3), (500, 3)], [270, 150], classes)


def fedbs_mnist(classes: int = 10, channels: int = 1, size: int = 28) -> nn.Module:
    """FedBS's network for MNIST and Fashion-MNIST."""
    return _ConvNet(channels, size, [(16, 5), (32, 5)], [], classes)


class _MLP(nn.Module):
    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for i, (before, after) in enumerate(itertools.pairwise(widths), 1):
            self.layers.add_module(f"fc{i}", nn.Linear(before, after))
            self.layers.add_module(f"bn{i}", nn.BatchNorm1d(after))
            self.layers.add_module(f"relu{i}", nn.ReLU())
        self.layers.add_module(f"fc{len(widths)}", nn.Linear(widths[-1], classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.flatten(1))


def mnist_mlp(classes: int = 10, features: int = 784) -> nn.Module:
    """FedTAN's network for MNIST: 784-30-10, a norm layer on the hidden one."""
    return _MLP([features, 30], classes)


def abide_mlp(classes: int = 2, features: int = 5995) -> nn.Module:
    """FedBN's network for ABIDE: 5995-16-16-2, a norm layer after the first two."""
    return _MLP([features, 16, 16], classes)


def two_layer_mlp(classes: int = 2, features: int = 10, hidden: int = 100) -> nn.Module:
    """FedBN's network for synthetic data (appendix F): one hidden layer of 100 units with a norm layer."""
    return _MLP([features, hidden], classes)
