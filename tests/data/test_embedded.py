"""The embedded federation: what it is made of, and that it shows what it is there to show."""

from __future__ import annotations

import statistics

import pytest
import torch

import normfed as nf
from normfed.data import open_federation
from normfed.data.embedded import STYLES, TEST, embedded
from normfed.demo import demo_cnn


def accuracies(method, seed, rounds=20):
    torch.manual_seed(seed)
    result = nf.simulate(
        demo_cnn(), embedded(), method, rounds=rounds, batch_size=16, lr=0.1, seed=seed, evaluate_every=rounds
    )
    return {client: score["mean"] for client, score in result.final["test_accuracy"].items()}


def test_five_sites_of_a_hundred_and_an_unseen_one_of_the_digits_left_over():
    clients = embedded(unseen=True)
    assert {name: client.role for name, client in clients.items()} == {
        **dict.fromkeys(STYLES, "train"),
        "chalk": "unseen",
    }
    sizes = {name: (len(client.train[1]), len(client.test[1])) for name, client in clients.items()}
    assert sizes == {**dict.fromkeys(STYLES, (100, TEST)), "chalk": (97, TEST)}
    assert sum(a + b for a, b in sizes.values()) == 1797  # every digit of the source once
    for client in clients.values():
        for x, y in (client.train, client.test):
            assert x.shape[1:] == (3, 16, 16) and x.dtype == torch.float32 and x.min() >= -1 and x.max() <= 1
            assert set(y.tolist()) == set(range(10))


def test_an_unseen_site_changes_nothing_at_the_others():
    alone, together = embedded(), embedded(unseen=True)
    for name in alone:
        assert torch.equal(alone[name].train[0], together[name].train[0])
        assert torch.equal(alone[name].test[1], together[name].test[1])


def test_as_a_federation_by_name():
    federation = open_federation("embedded(train=50, unseen=true)")
    assert {name: client.role for name, client in federation.items()}["chalk"] == "unseen"
    assert torch.equal(federation["scan"].train[0], embedded(50)["scan"].train[0])
    assert set(open_federation("embedded")) == set(STYLES)


def test_a_seed_deals_other_digits():
    assert not torch.equal(embedded(seed=0)["ink"].train[1], embedded(seed=1)["ink"].train[1])


@pytest.mark.parametrize(("train", "unseen", "most"), [(0, False, 159), (160, False, 159), (101, True, 100)])
def test_more_images_than_there_are(train, unseen, most):
    with pytest.raises(nf.Refused, match=f"from 1 to {most}"):
        embedded(train, unseen=unseen)


def test_sites_differ_in_look_and_not_in_labels():
    clients = embedded()
    means = {name: client.train[0].mean((0, 2, 3)) for name, client in clients.items()}
    names = list(means)
    assert min((means[a] - means[b]).abs().max() for i, a in enumerate(names) for b in names[:i]) > 0.05
    counts = torch.stack([client.test[1].bincount(minlength=10) for client in clients.values()])
    assert counts.min() >= 10 and counts.max() <= 32


def test_fedbn_is_ahead_of_fedavg_which_is_not_helpless():
    shared, own = accuracies(nf.methods.fedavg(), 0), accuracies(nf.methods.fedbn(), 0)
    assert min(shared.values()) > 0.6
    assert statistics.fmean(own.values()) - statistics.fmean(shared.values()) > 0.03  # 5 to 10 points, std 2 over seeds
