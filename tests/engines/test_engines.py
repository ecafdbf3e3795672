"""Engines equal each other in float64, however the clients' data lie."""

import itertools

import pytest
import torch
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.data.store import ClientData
from normfed.method import Method
from normfed.testing import TOLERANCE, ResidualNet, difference, seeded, toy_federation, toy_mlp


def both(model, clients, method, **settings):
    chosen = {"rounds": 3, "batch_size": 4, "lr": 0.05, **settings}
    return [nf.simulate(seeded(model), clients, method, engine=e, **chosen) for e in ("serial", "stacked")]


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 17, 8), (5, 9, 13, 21, 2), (9, 9, 10, 10, 11)])
@pytest.mark.parametrize("settings", [{}, {"epochs": 3}, {"steps": 7}, {"drop_last": True, "batch_size": 2}, {"shuffle": False}])  # fmt: skip
def test_unequal_sizes_and_short_batches(sizes, settings):
    a, b = both(ResidualNet, toy_federation(sizes), m.scaffold() | m.silobn(), **settings)
    assert difference(a, b) < TOLERANCE


@pytest.mark.parametrize("at_once", [1, 2, 3, 5])
def test_more_clients_than_fit_at_once(at_once):
    clients = toy_federation((5, 9, 13, 21, 8))
    a, _ = both(ResidualNet, clients, m.fedbn())
    b = nf.simulate(
        seeded(ResidualNet), clients, m.fedbn(), rounds=3, batch_size=4, lr=0.05, engine="stacked", stack=at_once
    )
    assert difference(a, b) < TOLERANCE


def test_a_large_batch_where_a_client_has_less():
    a, b = both(ResidualNet, toy_federation((3, 17, 8)), m.fedavg(), batch_size=16)
    assert difference(a, b) < TOLERANCE


def test_batches_of_one_sample_are_skipped_where_they_cannot_be_normalised():
    """A perceptron's norm layer would see one value per channel; a convolution's sees one per pixel."""
    clients = toy_federation((9, 8, 5), shape=(6,))
    a, b = both(toy_mlp, clients, m.fedavg())
    assert difference(a, b) < TOLERANCE
    assert a.history[0]["skipped"] == b.history[0]["skipped"] == {"a": 1, "c": 1}
    assert a.global_state["1.num_batches_tracked"] == 3 * 2
    a, b = both(ResidualNet, toy_federation((9, 8, 5)), m.fedavg())
    assert a.history[0]["skipped"] == {} and a.global_state["stem.1.num_batches_tracked"] == 3 * 3
    without = both(toy_mlp, clients, m.layernorm())[0]
    assert without.history[0]["skipped"] == {}  # no statistics, nothing to skip


def test_skipped_batches_do_not_count_as_steps():
    a, b = both(toy_mlp, toy_federation((9, 8, 5), shape=(6,)), m.fedavg(), steps=4)
    assert difference(a, b) < TOLERANCE
    assert a.global_state["1.num_batches_tracked"] == 3 * 4
    assert a.history[0]["skipped"] == {"a": 1, "c": 3}  # 4 4 (1) 4 4, and 4 (1) 4 (1) 4 (1) 4
    one = both(toy_mlp, toy_federation((9, 8, 5), shape=(6,)), m.fedavg(), steps=1)[0]
    assert one.history[0]["skipped"] == {}  # nobody came to a short one


def test_a_mean_loss_counts_every_batch_once():
    data = toy_federation((9,))["a"]
    result = nf.simulate(seeded(ResidualNet), {"a": data}, m.fedavg(), rounds=1, batch_size=4, lr=1e-300, shuffle=False)
    net = seeded(ResidualNet).train()
    parts = [
        nn.functional.cross_entropy(net(x), y)
        for x, y in zip(data.train[0].split(4), data.train[1].split(4), strict=True)
    ]
    assert abs(result.history[0]["train_loss"]["a"] - torch.stack(parts).mean().item()) < 1e-12


def test_weights_are_sizes_whatever_was_skipped():
    clients = toy_federation((9, 8), shape=(6,))
    result = nf.simulate(seeded(toy_mlp), clients, m.fedavg(), rounds=1, batch_size=4)
    alone = nf.simulate(seeded(toy_mlp), clients, m.singleset(), rounds=1, batch_size=4)
    states = list(alone.client_states.values())
    mean = (9 * states[0]["0.weight"] + 8 * states[1]["0.weight"]) / 17
    torch.testing.assert_close(result.global_state["0.weight"], mean, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("weighting", ["equal", {"a": 2.0, "b": 0.0, "c": 1.0}])
def test_weighting(weighting):
    clients = toy_federation()
    a, b = both(ResidualNet, clients, m.fedavg(), weighting=weighting, rounds=1)
    assert difference(a, b) < TOLERANCE
    states = [s["head.weight"] for s in both(ResidualNet, clients, m.singleset(), rounds=1)[0].client_states.values()]
    w = [1, 1, 1] if weighting == "equal" else [2, 0, 1]
    mean = sum(k * s for k, s in zip(w, states, strict=True)) / 3
    torch.testing.assert_close(a.global_state["head.weight"], mean, rtol=1e-13, atol=1e-14)


def test_participation_samples_clients_by_key():
    clients = toy_federation((8,) * 10)
    a, b = both(ResidualNet, clients, m.fedbn(), participation=0.3, rounds=6)
    assert difference(a, b) < TOLERANCE
    cohorts = [tuple(row["train_loss"]) for row in a.history]
    assert all(len(c) == 3 for c in cohorts) and len(set(cohorts)) > 3
    again = nf.simulate(seeded(ResidualNet), clients, m.fedbn(), participation=0.3, rounds=6, batch_size=4, lr=0.05)
    assert [tuple(row["train_loss"]) for row in again.history] == cohorts
    other = nf.simulate(seeded(ResidualNet), clients, m.fedbn(), participation=0.3, rounds=6, batch_size=4, seed=1)
    assert [tuple(row["train_loss"]) for row in other.history] != cohorts
    assert set(a.client_states) == set(clients)  # those who never took part evaluate with the initial norm layers


def test_adamw_is_torchs():
    """And equal on both engines; without a bias in front of a norm layer, whose gradient is rounding alone."""

    def net():
        return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    clients = toy_federation((8, 13), shape=(6,))
    a, b = both(net, clients, m.fedbn(), optimizer="adamw", weight_decay=0.01)
    assert difference(a, b) < 1e-9
    one = {"a": clients["a"]}
    ours = nf.simulate(seeded(net), one, m.fedavg(), rounds=1, epochs=4, batch_size=4, lr=0.05, shuffle=False, optimizer="adamw", weight_decay=0.01)  # fmt: skip
    theirs = seeded(net).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.01)
    for _, (x, y) in itertools.product(range(4), zip(*(part.split(4) for part in clients["a"].train), strict=True)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        optimizer.step()
    torch.testing.assert_close(ours.global_state, dict(theirs.state_dict()), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.01}, {"weight_decay": 0.01}, {"clip_norm": 0.3}])  # fmt: skip
def test_sgd_is_torchs_to_the_bit(options):
    clients = toy_federation((9,))
    ours = nf.simulate(seeded(ResidualNet), clients, m.singleset(), rounds=1, epochs=2, batch_size=4, lr=0.05, shuffle=False, **options)  # fmt: skip
    theirs = seeded(ResidualNet).train()
    clip_norm = options.pop("clip_norm", None)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.05, **options)
    for _, (x, y) in itertools.product(range(2), zip(*(part.split(4) for part in clients["a"].train), strict=True)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(x), y).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs.parameters(), clip_norm, foreach=False)
        optimizer.step()
    state = ours.client_states["a"]
    assert all(torch.equal(state[name], tensor) for name, tensor in theirs.state_dict().items())


def test_the_learning_rate_may_be_a_function_of_the_round():
    a = nf.simulate(seeded(ResidualNet), toy_federation(), m.fedavg(), rounds=3, lr=lambda r: 0.1 * 0.5**r)
    b = nf.simulate(seeded(ResidualNet), toy_federation(), m.fedavg(), rounds=3, lr=0.1)
    assert a.history[0]["train_loss"] == b.history[0]["train_loss"]
    assert a.history[2]["train_loss"] != b.history[2]["train_loss"]


class DrawsItself(ResidualNet):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.3, training=self.training)


class Branches(ResidualNet):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(2 * x)


class SpectralNorm(ResidualNet):
    def __init__(self):
        super().__init__()
        self.head = nn.utils.parametrizations.spectral_norm(self.head)


@pytest.mark.parametrize("model", [DrawsItself, Branches, SpectralNorm])
def test_a_model_that_cannot_be_stacked_says_why_and_runs_serially(model):
    with pytest.raises(nf.Refused, match=r"engine 'stacked' cannot run this model: .+; use serial"):
        nf.simulate(seeded(model), toy_federation(), m.fedavg(), rounds=1, engine="stacked")
    lock = Method("lock", plan=m.fedavg().plan)
    result = nf.simulate(seeded(model), toy_federation(), m.fedavg() | lock, rounds=2)
    again = nf.simulate(seeded(model), toy_federation(), m.fedavg(), rounds=2, engine="serial")
    assert result.engine == "serial" and difference(result, again) == 0


def test_buffers_written_in_place_are_state_and_resume():
    run = nf.Run(seeded(SpectralNorm), toy_federation(), m.fedavg(), rounds=4, lr=0.1)
    run.play()
    saved = run.save()
    assert run.plan.net.stateful  # the power iteration's vectors
    while not run.done:
        run.play()
    again = nf.Run(seeded(SpectralNorm), toy_federation(), m.fedavg(), rounds=4, lr=0.1, resume=saved)
    while not again.done:
        again.play()
    assert run.save() == again.save()


def test_a_buffer_replaced_in_forward_is_refused():
    class Replaces(ResidualNet):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen = self.seen + 1
            return super().forward(x)

    with pytest.raises(nf.Refused, match="buffer 'seen' is replaced during forward"):
        nf.simulate(seeded(Replaces), toy_federation(), m.fedavg(), rounds=1)


def test_tied_weights_stay_tied():
    class Tied(ResidualNet):
        def __init__(self):
            super().__init__()
            self.again = self.head

    a, b = both(Tied, toy_federation(), m.fedavg())
    assert difference(a, b) < TOLERANCE
    assert torch.equal(a.global_state["again.weight"], a.global_state["head.weight"])
    assert set(a.global_state) == set(Tied().state_dict())


def test_frozen_parameters_are_shared_and_not_trained():
    def net():
        model = ResidualNet()
        model.stem.requires_grad_(False)
        return model

    a, b = both(net, toy_federation(), m.fedprox(0.1) | m.fedadam())
    assert difference(a, b) < TOLERANCE
    assert torch.equal(a.global_state["stem.0.weight"], seeded(net).state_dict()["stem.0.weight"])


def test_auto_says_which_and_why():
    conv = nf.simulate(seeded(ResidualNet), toy_federation(), m.fedavg(), rounds=1)
    assert (conv.engine, conv.engine_reason) == ("serial", "one client after another is fastest here")
    mlp = nf.simulate(seeded(toy_mlp), toy_federation(shape=(6,)), m.fedavg(), rounds=1)
    assert mlp.engine == "stacked" and "many clients per kernel" in mlp.engine_reason


def test_float32_is_trained_in_float32_and_input_is_cast():
    clients = toy_federation(dtype=torch.float64)
    result = nf.simulate(seeded(ResidualNet, dtype=torch.float32), clients, m.fedavg(), rounds=1)
    assert {t.dtype for t in result.global_state.values()} == {torch.float32, torch.int64}


def test_a_lazy_mapping_is_loaded_client_by_client():
    from collections.abc import Mapping

    whole = toy_federation((5, 9, 6))
    held = []

    class Lazy(Mapping):
        def __getitem__(self, name):
            held.append(name)
            return whole[name]

        def __iter__(self):
            return iter(whole)

        def __len__(self):
            return len(whole)

    a = nf.simulate(seeded(ResidualNet), Lazy(), m.fedbn(), rounds=2, lr=0.05)
    b = nf.simulate(seeded(ResidualNet), whole, m.fedbn(), rounds=2, lr=0.05)
    assert difference(a, b) == 0 and held.count("b") > 3


def test_numpy_arrays_will_do():
    clients = toy_federation()
    arrays = {n: ClientData(train=tuple(t.numpy() for t in c.train), test=tuple(t.numpy() for t in c.test)) for n, c in clients.items()}  # fmt: skip
    a, b = (nf.simulate(seeded(ResidualNet), c, m.fedavg(), rounds=1) for c in (clients, arrays))
    assert difference(a, b) == 0


@pytest.mark.parametrize("evaluate_every", [1, 2, 5])
def test_evaluation_cadence(evaluate_every):
    result = nf.simulate(seeded(ResidualNet), toy_federation(), m.fedavg(), rounds=5, evaluate_every=evaluate_every)
    evaluated = [row["round"] for row in result.history if row["test_accuracy"]]
    assert evaluated == sorted({*range(evaluate_every - 1, 5, evaluate_every), 4})
    assert result.final["selected_round"] == {0: 4}


def test_a_client_without_a_test_set_is_trained_and_not_scored():
    clients = toy_federation()
    clients["b"] = ClientData(train=clients["b"].train)
    result = nf.simulate(seeded(ResidualNet), clients, m.fedavg(), rounds=1)
    assert set(result.history[0]["test_accuracy"]) == {"a", "c"} and set(result.client_states) == set(clients)


class Complex(ResidualNet):
    def __init__(self):
        super().__init__()
        self.turn = nn.Parameter(torch.polar(torch.ones(6), torch.arange(6.0)).to(torch.complex128))
        self.register_buffer("still", torch.ones(6, dtype=torch.complex128))

    def forward(self, x):
        return super().forward(x) + (self.turn * self.still).real.sum()


def test_complex_entries():
    """Averaged, trained, saved and read back; and the loss is a real number."""
    clients, settings = toy_federation(), {"rounds": 3, "batch_size": 4, "lr": 0.05}
    torch.manual_seed(0)
    model = Complex()
    for p in (p for p in (*model.parameters(), *model.buffers()) if p.is_floating_point()):
        p.data = p.data.double()
    a, b = (nf.simulate(model, clients, m.fedavg(), engine=e, **settings) for e in ("serial", "stacked"))
    assert max((a.global_state[n] - t).abs().max() for n, t in b.global_state.items()) < TOLERANCE
    run = nf.Run(model, clients, m.fedavg(), engine="serial", **settings)
    run.play()
    again = nf.Run(model, clients, m.fedavg(), engine="serial", resume=run.save(), **settings)
    while not again.done:
        again.play()
    assert all(torch.equal(again.result().global_state[n], t) for n, t in a.global_state.items())


def test_a_norm_layer_without_anything_gets_parameters_of_the_models_type():
    def net():
        return nn.Sequential(
            nn.Linear(6, 5), nn.BatchNorm1d(5, affine=False, track_running_stats=False), nn.BatchNorm1d(5), nn.Linear(5, 4)
        )  # fmt: skip

    a, b = both(net, toy_federation((8, 9), shape=(6,)), m.hbn())
    assert a.global_state["1.distribution_factor"].dtype is torch.float64
    assert difference(a, b) < TOLERANCE


class Forks(nn.Module):
    """Has a head that is never used."""

    def __init__(self):
        super().__init__()
        self.body, self.one, self.other = nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(5, 4)

    def forward(self, x):
        return self.one(torch.tanh(self.body(x)))


def test_an_entry_that_a_step_does_not_use_has_the_gradient_zero():
    clients = toy_federation((8, 9), shape=(6,))
    for result in both(Forks, clients, m.fedavg(), rounds=1, weight_decay=0.1, lr=0.5, batch_size=16):
        expected = seeded(Forks).other.weight * (1 - 0.5 * 0.1)
        torch.testing.assert_close(result.global_state["other.weight"], expected.detach(), rtol=1e-14, atol=1e-15)


class Counting(nn.BatchNorm2d):
    """A foreign norm layer with a statistic of its own."""

    def __init__(self, channels):
        super().__init__(channels)
        self.register_buffer("seen", torch.zeros(channels))


@pytest.mark.parametrize("method", [m.fbn(), m.hbn(), m.pooled(), m.greg(), m.silobn()], ids=str)
def test_a_norm_layer_may_have_more_statistics_than_two(method):
    def net(norm):
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), norm(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
        )

    a, b = both(lambda: net(Counting), toy_federation(), method)
    assert difference(a, b) < TOLERANCE
    stock = both(lambda: net(nn.BatchNorm2d), toy_federation(), method)[0].global_state
    assert all(torch.equal(a.global_state[name], tensor) for name, tensor in stock.items())
