"""FedBN's synthetic federations: shifted as said, learnable, and easier with BatchNorm at home."""

import numpy as np
import pytest
import torch

import normfed as nf
from normfed import models
from normfed.data import open_federation


def test_gaussians_around_plus_and_minus_one_with_covariances_of_their_own():
    fed = open_federation("fedbn_gaussians(samples=4000, correlation=0.6)")
    assert list(fed) == ["independent", "correlated"]
    for name, correlation in (("independent", 0.0), ("correlated", 0.6)):
        x, y = (part.numpy() for part in fed[name].train)
        assert x.shape == (4000, 10) and x.dtype == np.float32 and np.bincount(y).tolist() == [2000, 2000]
        assert np.abs(x[y == 1].mean(0) - 1).max() < 0.1 and np.abs(x[y == 0].mean(0) + 1).max() < 0.1
        signs = (-1.0) ** np.arange(10)
        found = (np.corrcoef(x[y == 1].T) * signs[:, None] * signs)[np.triu_indices(10, 1)]
        assert np.abs(found - correlation).max() < 0.1
    assert not np.array_equal(fed["correlated"].train[0].numpy(), fed["correlated"].test[0].numpy())


def test_cosine_is_the_same_everywhere_but_for_its_scale():
    fed = open_federation("fedbn_cosine(samples=2000, scales=[0.5, 2.0], frequency=2.0)")
    assert list(fed) == ["x0.5", "x2"]
    for name, scale in (("x0.5", 0.5), ("x2", 2.0)):
        x, y = fed[name].train
        assert abs(float(x.std()) - scale) < 0.05 * scale
        assert float(((torch.cos(2.0 * x[:, 0] / scale) > 0).long() == y).float().mean()) > 0.97


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("fedbn_gaussians(correlation=1.0)", "fedbn_gaussians: correlation=1 must be at least 0 and below 1"),
        ("fedbn_gaussians(samples=1)", "fedbn_gaussians: samples=1 must be 2 or more"),
        ("fedbn_cosine(scales=[1.0])", "fedbn_cosine: scales=[1.0] must be two numbers or more, all above 0"),
        ("fedbn_cosine(scale=[1.0])", "fedbn_cosine: unknown argument 'scale'; did you mean 'scales'?"),
    ],
)
def test_what_cannot_be_is_refused(data, said):
    with pytest.raises(nf.Refused) as raised:
        open_federation(data)
    assert raised.value.problems == (said,)


def accuracy(data, method, **settings):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fed = open_federation(data)
        x, _ = next(iter(fed.values())).train
        model = models.make("two_layer_mlp", 2, x.shape[1:])
    return nf.simulate(model, fed, method, seed=0, weighting="equal", **settings).final["average"]["mean"]


def test_on_the_cosine_fedbn_is_ahead_of_fedavg():
    given = {"rounds": 60, "batch_size": 50, "lr": 0.1, "evaluate_every": 60}
    fedavg, fedbn = (accuracy("fedbn_cosine", m, **given) for m in (nf.methods.fedavg(), nf.methods.fedbn()))
    assert fedbn > 0.85 and fedbn > fedavg + 0.1


def test_on_the_gaussians_both_get_all_but_all_right():
    given = {"rounds": 100, "steps": 1, "batch_size": 100, "lr": 0.01, "evaluate_every": 100}
    assert min(accuracy("fedbn_gaussians", m, **given) for m in (nf.methods.fedavg(), nf.methods.fedbn())) > 0.98
