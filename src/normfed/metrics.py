"""Metrics beyond accuracy: functions of (logits, labels). Absent classes are left out, as scikit-learn does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def accuracy(logits: Tensor, y: Tensor) -> float:
    """Fraction of samples whose largest logit is the label's."""
    return float((logits.argmax(1) == y).double().mean())


def balanced_accuracy(logits: Tensor, y: Tensor) -> float:
    """Mean over classes, of those that occur, of the fraction recognised."""
    hit = (logits.argmax(1) == y).double()
    return float(torch.stack([hit[y == c].mean() for c in y.unique()]).mean())


def f1(logits: Tensor, y: Tensor) -> float:
    """Mean over classes, of those that occur or are predicted, of 2 TP / (2 TP + FP + FN)."""
    predicted = logits.argmax(1)
    scores = []
    for c in torch.cat([y, predicted]).unique():
        hits = int(((predicted == c) & (y == c)).sum())
        scores.append(2 * hits / (int((predicted == c).sum()) + int((y == c).sum())))
    return sum(scores) / len(scores)


def auc(logits: Tensor, y: Tensor) -> float:
    """Area under the ROC curve; with more than two classes the mean of one against the rest, over classes that occur.
    NaN where only one class occurs."""
    present = y.unique().tolist()
    if len(present) < 2:
        return float("nan")
    scores = logits.double().softmax(1)
    if logits.shape[1] == 2:
        return _binary_auc((logits[:, 1] - logits[:, 0]).double(), y == 1)
    return sum(_binary_auc(scores[:, c], y == c) for c in present) / len(present)


def _binary_auc(scores: Tensor, positive: Tensor) -> float:
    """Mann and Whitney's U, ties counted half."""
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts.double() - 1) / 2)[inverse]
    n_positive, n = int(positive.sum()), len(scores)
    u = float(ranks[positive].sum()) - n_positive * (n_positive + 1) / 2
    return u / (n_positive * (n - n_positive))


METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "accuracy": accuracy,
    "auc": auc,
    "balanced_accuracy": balanced_accuracy,
    "f1": f1,
}
