"""FedRDN: Yan et al., 2024; its code is IAMJackYan/FedRDN.

Before training every client shares per-channel mean (of its images' means) and standard deviation (mean over images of
the unbiased per-image one). In training each batch is normalised with the mean of one client and the standard deviation
of another, drawn at random, once per batch and independently; evaluation uses the client's own. FedAvg otherwise.

Deviations: statistics are taken from the stored images, not from one augmented pass. A client that is not in the
federation uses the statistics of its own data.
"""

import torch

from normfed.keys import integers
from normfed.method import Expression, Gather, Method, View, When, factory


def image_statistics(x):
    """Per channel: mean over images of their mean, and of their unbiased standard deviation."""
    pixels = x.flatten(2) if x.dim() > 2 else x[:, :, None]
    std = pixels.std(2, correction=1) if pixels.shape[2] > 1 else pixels.std(0, correction=1, keepdim=True)
    return {"mean": pixels.mean(2).mean(0), "std": std.mean(0)}


def standardise(x, mean, std):
    shape = (1, -1, *[1] * (x.dim() - 2))
    return (x - mean.view(shape)) / std.view(shape)


@factory
def fedrdn() -> Expression:
    """Normalises each training batch with the image statistics of clients drawn at random.

    Use it when sites differ in brightness, contrast or colour, and a drawn look is as good as an own one.
    It cannot undo differences beyond a scale and shift per channel, and every client's image statistics are seen by
    all.
    """

    def combine(values, before):
        return {name: torch.stack([value[name] for value in values]) for name in ("mean", "std")}

    bank = Gather("bank", lambda alone: image_statistics(alone.x), combine, {}, When.SETUP)

    def inject(x, y, step):
        def drawn(name):
            rows = step.slots["bank"][name]
            return rows.index_select(0, integers(step.key(name), (1,), len(rows), rows.device))[0]

        return standardise(x, drawn("mean"), drawn("std")), y

    def own(x, viewer):
        if viewer.index is None:
            return standardise(x, **image_statistics(x if viewer.x is None else viewer.x))
        return standardise(x, *(viewer.slots["bank"][name][viewer.index] for name in ("mean", "std")))

    return Method("fedrdn", gather=(bank,), batch=(inject,), view=View(inputs=own))
