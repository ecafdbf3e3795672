"""FINCH clustering: Sarfraz, Sharma, Stiefelhagen, CVPR 2019. No parameters.

Every point is linked to its first neighbour (cosine), and to points that share it; connected components are clusters;
their means are clustered again, until everything would be one cluster or nothing merges. The library `finch-clust` does
the same with four heavy dependencies and for millions of points; this is for the features of a class at a client.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


def partition(points: Tensor) -> Tensor:
    """One level: the cluster number of each point, numbered by first appearance."""
    n = len(points)
    if n == 1:
        return torch.zeros(1, dtype=torch.long, device=points.device)
    unit = normalize(points, dim=1)
    similarity = unit @ unit.T
    similarity.fill_diagonal_(-torch.inf)
    first = similarity.argmax(1)
    # Points that share a first neighbour are linked through it: components of i -- first(i).
    label = torch.arange(n, device=points.device)
    while True:  # the smallest index spreads over each component
        lower = torch.minimum(label, label[first])
        lower = lower.scatter_reduce(0, first, lower, "amin")
        lower = lower[lower]
        if torch.equal(lower, label):
            break
        label = lower
    return label.unique(return_inverse=True)[1]


def _means(points: Tensor, clusters: Tensor) -> Tensor:
    count = int(clusters.max()) + 1
    total = points.new_zeros(count, points.shape[1]).index_add_(0, clusters, points)
    return total / torch.bincount(clusters, minlength=count)[:, None]


def assign(points: Tensor) -> Tensor:
    """The coarsest partition that has more than one cluster; the first level where there is no such."""
    clusters = partition(points)
    while True:
        means = _means(points, clusters)
        if len(means) == 1:
            return clusters
        coarser = partition(means)
        count = int(coarser.max()) + 1
        if count in (1, len(means)):
            return clusters
        clusters = coarser[clusters]


def finch(points: Tensor) -> Tensor:
    """Means of the clusters of the coarsest partition, [clusters, features]."""
    return _means(points, assign(points))
