"""FedPLVM: Wang et al., ECCV 2024 ("Taming cross-domain representation variance"); code TriStonesWang/FedPLVM.

After training, each client clusters its features class by class (FINCH, coarsest partition) and uploads the clusters'
means; the server clusters those again. From round 1 on the local loss is

    CE + weight (L_con + L_cor)
    L_con = mean_i -log( sum_{p of class y_i} exp(s(z_i, p)^alpha / tau) / sum_p exp(s(z_i, p)^alpha / tau) )
    L_cor = mean_i 2 (s(z_i, mean prototype of y_i) - 1)^2

with s the cosine. Samples of a class that has no prototype take no part in the two.

Deviations: clients start from one common model (the code starts each from its own). Cosines below zero, where s^alpha
has no value, count as 1e-6.
"""

import torch
from torch.nn.functional import normalize

from normfed.finch import finch
from normfed.method import Expression, Gather, Method, factory, require
from normfed.needs import HAS_FEATURES

TINY = 1e-6


def contrast(z, y, vectors, labels, alpha, tau):
    """L_con per sample."""
    cosine = (normalize(z, dim=1) @ normalize(vectors, dim=1).T).clamp(min=TINY)
    logits = cosine.pow(alpha) / tau
    own = labels[None, :] == y[:, None]
    return torch.logsumexp(logits, 1) - torch.logsumexp(logits.masked_fill(~own, -torch.inf), 1)


def correction(z, y, means):
    """L_cor per sample."""
    return 2 * ((normalize(z, dim=1) * normalize(means[y], dim=1)).sum(1) - 1).square()


def cluster(vectors, labels):
    """Means of the clusters of each class, and their class."""
    found = [(finch(vectors[labels == c]), c) for c in labels.unique()]
    return {
        "vectors": torch.cat([means for means, _ in found]),
        "labels": torch.cat([c.repeat(len(means)) for means, c in found]),
    }


@factory
def fedplvm(weight: float = 1.0, alpha: float = 0.25, tau: float = 0.07) -> Expression:
    """Draws features towards the federation's clustered prototypes of their class.

    Use it when classes look different from domain to domain and the model has a feature space worth ordering.
    It cannot hide single clients from the server (clusters of their features are seen one by one), and prototypes cost
    traffic with classes and domains.
    Identities: fedplvm(weight=0.0) = fedavg
    """
    require(weight >= 0 and alpha > 0 and tau > 0, "fedplvm: weight must not be negative, alpha and tau be above 0")

    def combine(values, before):
        all_of = {name: torch.cat([value[name] for value in values]) for name in ("vectors", "labels")}
        return cluster(**all_of)

    def pull(step):
        if step.round == 0:
            return None
        vectors, labels = (step.slots["prototypes"][name] for name in ("vectors", "labels"))
        member = torch.nn.functional.one_hot(labels, step.classes).to(vectors.dtype)  # [prototypes, classes]
        count = member.sum(0)
        means = (member.T @ vectors) / count.clamp(min=1)[:, None]
        known = (count > 0)[step.y]
        # A class without prototypes contributes nothing: its rows are made harmless before they are left out.
        safe = torch.where(known, step.y, labels[0])
        terms = contrast(step.features, safe, vectors, labels, alpha, tau) + correction(step.features, safe, means)
        return weight * torch.where(known, terms, 0.0).sum() / known.sum().clamp(min=1)

    prototypes = Gather("prototypes", lambda alone: cluster(alone.features(), alone.y), combine, {})
    return Method("fedplvm", needs=(HAS_FEATURES,), gather=(prototypes,), loss=(pull,))
