"""Residual networks: ResNet-20 as FedTAN has it; ResNet-18, ResNet-50 and MobileNetV2 with torchvision's names and
shapes, so that pretrained weights of theirs load here."""

from __future__ import annotations

from typing import TypeVar

import torch.nn.functional as F
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def _kaiming(model: M) -> M:
    """He et al., 2015, for convolutions; as torchvision and FedTAN's code start theirs."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


class ResNet20(nn.Module):
    """He et al., CVPR 2016, for CIFAR: 16, 32, 64 channels, three blocks each. Where a stage begins, the shortcut takes
    every second pixel and pads channels with zeros on both sides. 19 norm layers, names as in FedTAN's code."""

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        self.conv0, self.bn0 = nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        before = 16
        for stage, width in enumerate((16, 32, 64), 1):
            for layer in range(1, 7):
                stride = 2 if stage > 1 and layer == 1 else 1
                self.add_module(f"conv{stage}{layer}", nn.Conv2d(before, width, 3, stride, 1, bias=False))
                self.add_module(f"bn{stage}{layer}", nn.BatchNorm2d(width))
                before = width
        self.linear = nn.Linear(64, classes)

    def _layer(self, x: Tensor, name: str) -> Tensor:
        return self.get_submodule(f"bn{name}")(self.get_submodule(f"conv{name}")(x))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self._layer(x, "0"))
        for stage in (1, 2, 3):
            for layer in (1, 3, 5):
                y = self._layer(F.relu(self._layer(x, f"{stage}{layer}")), f"{stage}{layer + 1}")
                if stage > 1 and layer == 1:
                    quarter = y.shape[1] // 4
                    x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, quarter, quarter))
                x = F.relu(y + x)
        return self.linear(x.mean((2, 3)))


def resnet20(classes: int = 10, channels: int = 3, uniform_gamma: bool = False) -> nn.Module:
    """FedTAN's network for CIFAR-10. `uniform_gamma`: norm layers' scales start between 0 and 1, as in its code."""
    model = _kaiming(ResNet20(classes, channels))
    for module in model.modules():
        if uniform_gamma and isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight)
    return model


class _Basic(nn.Module):
    expansion = 1

    def __init__(self, before: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class _Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, before: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, width * 4, 1, bias=False), nn.BatchNorm2d(width * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x))))))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """He et al., CVPR 2016; the stride of a bottleneck sits in its 3x3 convolution, as torchvision's."""

    def __init__(
        self, block: type[_Basic] | type[_Bottleneck], layers: tuple[int, ...], classes: int, channels: int
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        before = 64
        for stage, count in enumerate(layers, 1):
            width, blocks = 64 * 2 ** (stage - 1), nn.Sequential()
            for i in range(count):
                stride, after = (2 if stage > 1 and i == 0 else 1), width * block.expansion
                downsample = None
                if stride != 1 or before != after:
                    downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
                blocks.append(block(before, width, stride, downsample))
                before = after
            self.add_module(f"layer{stage}", blocks)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(classes: int = 10, channels: int = 3) -> nn.Module:
    """torchvision's resnet18."""
    return _kaiming(ResNet(_Basic, (2, 2, 2, 2), classes, channels))


def resnet50(classes: int = 10, channels: int = 3) -> nn.Module:
    """torchvision's resnet50."""
    return _kaiming(ResNet(_Bottleneck, (3, 4, 6, 3), classes, channels))


def _conv_norm(before: int, after: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU6(inplace=True))


class _Inverted(nn.Module):
    def __init__(self, before: int, after: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = before * expand
        layers: list[nn.Module] = [_conv_norm(before, hidden, 1)] if expand != 1 else []
        layers += [
            _conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.Conv2d(hidden, after, 1, bias=False),
            nn.BatchNorm2d(after),
        ]  # fmt: skip
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Module):
    """Sandler et al., CVPR 2018."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_norm(channels, 32, 3, 2)]
        before = 32
        for expand, width, count, stride in (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for i in range(count):
                layers.append(_Inverted(before, width, stride if i == 0 else 1, expand))
                before = width
        self.features = nn.Sequential(*layers, _conv_norm(before, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


def mobilenetv2(classes: int = 10, channels: int = 3) -> nn.Module:
    """torchvision's mobilenet_v2."""
    model = _kaiming(MobileNetV2(classes, channels))
    head = model.classifier[1]
    assert isinstance(head, nn.Linear)
    nn.init.normal_(head.weight, 0, 0.01)
    nn.init.zeros_(head.bias)
    return model
