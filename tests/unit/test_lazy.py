"""Clients that are loaded when their turn comes: how often, and with the same numbers."""

from collections import Counter
from collections.abc import Mapping

import pytest
import torch

import normfed as nf
import normfed.methods as m
from normfed.testing import same_bits, seeded, toy_federation, toy_mlp


class Lazy(Mapping):
    def __init__(self, clients):
        self.clients, self.loaded = clients, Counter()

    def __getitem__(self, name):
        self.loaded[name] += 1
        return self.clients[name]

    def __iter__(self):
        return iter(self.clients)

    def __len__(self):
        return len(self.clients)


CLIENTS = toy_federation((9, 8, 6, 7, 5, 10), shape=(6,))
SETTINGS = {"rounds": 4, "batch_size": 4, "lr": 0.05, "participation": 0.5, "evaluate_every": 4}


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("method", [m.fedbn(), m.fedrdn(), m.fedplvm() | m.scaffold()], ids=str)
def test_lazy_clients_give_the_same_numbers(method, engine):
    a, b = (
        nf.simulate(seeded(toy_mlp), clients, method, engine=engine, **SETTINGS) for clients in (Lazy(CLIENTS), CLIENTS)
    )
    assert same_bits(a, b)


def test_a_client_is_loaded_once_to_be_looked_at_and_then_when_it_trains_or_evaluates():
    clients = Lazy(CLIENTS)
    run = nf.Run(seeded(toy_mlp), clients, m.fedavg(), engine="serial", **SETTINGS)
    first = next(iter(CLIENTS))  # the model is tried on its samples
    assert clients.loaded == dict.fromkeys(CLIENTS, 1) | {first: 3}
    clients.loaded.clear()
    trained = Counter()
    while not run.done:
        trained.update(list(run.play()["train_loss"]))
    assert clients.loaded == trained + Counter(
        dict.fromkeys(CLIENTS, 1)
    )  # no one is asked for a split it does not have


def test_a_pooled_federation_in_memory_is_pooled_once(monkeypatch):
    joined, cat = [], torch.cat

    def counted(tensors, *args, **kwargs):
        if len(tensors) == len(CLIENTS):
            joined.append(len(tensors))
        return cat(tensors, *args, **kwargs)

    run = nf.Run(seeded(toy_mlp), CLIENTS, m.centralized(), **{**SETTINGS, "participation": 1.0})
    monkeypatch.setattr("normfed.data.store.torch.cat", counted)
    while not run.done:
        run.play()
    assert len(joined) == 2  # samples, labels


def test_two_thousand_clients():
    x, y = toy_federation((4,), shape=(6,))["a"].train
    clients = Lazy({f"client {i}": nf.ClientData(train=(x + i / 1000, y), test=(x, y)) for i in range(2000)})
    result = nf.simulate(
        seeded(toy_mlp), clients, m.fedbn(), rounds=2, batch_size=4, participation=0.005, evaluate_every=2, metrics="f1"
    )
    assert [len(row["train_loss"]) for row in result.history] == [10, 10]
    assert result.history[0]["test_accuracy"] == {} and len(result.history[1]["test_accuracy"]) == 2000
    assert len(result.client_states) == 2000
