"""A number is recorded with its view: whose model, whose data, whose statistics."""

import pytest
import torch

import normfed as nf
import normfed.methods as m
from normfed.evaluate import measured, predict
from normfed.net import Net
from normfed.norm import BATCH
from normfed.testing import ResidualNet, largest_difference, seeded, toy_federation


def run(method, clients=None, **settings):
    chosen = {"rounds": 3, "batch_size": 4, "lr": 0.1, "views": "all", **settings}
    return nf.simulate(seeded(ResidualNet), clients or toy_federation(), method, **chosen)


def with_unseen(labelled=True):
    clients = toy_federation((9, 16, 13, 12))
    d = clients["d"]
    clients["d"] = nf.ClientData(train=d.train if labelled else None, test=d.test, role="unseen")
    return clients


def accuracy(state, x, y):
    model = seeded(ResidualNet).eval()
    model.load_state_dict(state)
    return (model(x).argmax(1) == y).double().mean().item()


def test_own_global_pooled_batch_of_a_shared_model():
    clients = toy_federation()
    result = run(m.fedavg(), clients)
    views = result.history[-1]["views"]
    assert result.view == "global" and set(views) == {"own", "own/pooled", "global", "pooled", "batch"}
    assert views["own"] == views["global"]
    for name, scores in views["global"].items():
        assert scores["accuracy"] == accuracy(result.global_state, *clients[name].test)
    x, y = (torch.cat([c.test[i] for c in clients.values()]) for i in (0, 1))
    assert views["pooled"]["all"]["accuracy"] == pytest.approx(accuracy(result.global_state, x, y))
    assert views["own/pooled"] == dict.fromkeys("abc", views["pooled"]["all"])
    net = Net(seeded(ResidualNet))
    for name, scores in views["batch"].items():
        x, y = clients[name].test
        logits = predict(net, result.global_state, x, BATCH, 4)
        assert scores["accuracy"] == (logits.argmax(1) == y).double().mean()


def test_the_global_model_of_fedbn_averages_what_stays_home():
    """The server's copy of the norm layers is the initial one and must not be evaluated."""
    clients = toy_federation()
    result = run(m.fedbn(), clients)
    sizes = [len(c.train[0]) for c in clients.values()]
    states = list(result.client_states.values())
    averaged = {
        n: sum(k * s[n] for k, s in zip(sizes, states, strict=True)) / sum(sizes)
        if states[0][n].is_floating_point()
        else states[0][n]
        for n in states[0]
    }
    views = result.history[-1]["views"]
    assert result.view == "own"
    for name, client in clients.items():
        assert views["own"][name]["accuracy"] == accuracy(result.client_states[name], *client.test)
        assert views["global"][name]["accuracy"] == accuracy(averaged, *client.test)


def test_further_views_are_looked_at_as_often_as_asked_and_in_the_last_round():
    def rounds_with_views(**settings):
        history = run(m.fedbn(), with_unseen(), **{"rounds": 5, "views": "global", **settings}).history
        return [row["round"] for row in history if "views" in row]

    assert rounds_with_views() == [0, 1, 2, 3, 4]
    assert rounds_with_views(views_every=2) == [1, 3, 4]
    assert rounds_with_views(views_every=2, evaluate_every=4) == [3, 4]
    assert rounds_with_views(views_every=99, stop="train_loss(patience=1, min_delta=1e9)") == [1], "it stopped there"


@pytest.mark.parametrize("method", [m.fedavg(), m.fedbn(), m.silobn(), m.partialfed(), m.hbn(), m.scaffold()], ids=str)
def test_an_unseen_client_is_scored_under_four_statistics(method):
    clients = with_unseen()
    result = run(method, clients)
    views = result.history[-1]["views"]
    assert {v for v in views if v.startswith("unseen/")} == {
        f"unseen/{s}" for s in ("averaged", "reestimated", "batch", "nearest")
    }
    assert all(set(views[v]) == {"d"} for v in views if v.startswith("unseen/"))
    assert "d" not in result.client_states and "d" not in result.history[-1]["test_accuracy"]
    assert "d" not in result.history[0]["train_loss"] and result.clients == ("a", "b", "c")


def test_training_does_not_see_the_unseen():
    known = {n: c for n, c in with_unseen().items() if n != "d"}
    a, b = run(m.fedbn(), with_unseen()), run(m.fedbn(), known)
    assert largest_difference(a.global_state, b.global_state) == 0


def test_reestimated_statistics_need_no_labels_and_are_the_clients_own():
    clients = with_unseen()
    with_train, with_test = run(m.fedavg(), clients), run(m.fedavg(), with_unseen(labelled=False))
    net = Net(seeded(ResidualNet))
    from normfed.plan import build

    net = build(m.fedavg(), seeded(ResidualNet), clients["a"].train[0]).net
    for result, x in ((with_train, clients["d"].train[0]), (with_test, clients["d"].test[0])):
        own = measured(net, result.global_state, x, 4)
        expected = accuracy({**result.global_state, **own}, *clients["d"].test)
        assert result.history[-1]["views"]["unseen/reestimated"]["d"]["accuracy"] == expected


def test_the_nearest_client_is_the_one_that_looks_alike():
    """The unseen site is a copy of client b: under FedBN it gets b's norm layers, and scores as b does."""
    clients = toy_federation((12, 12, 12))
    clients["twin"] = nf.ClientData(train=clients["b"].train, test=clients["b"].test, role="unseen")
    views = run(m.fedbn(), clients, rounds=4).history[-1]["views"]
    assert views["unseen/nearest"]["twin"] == views["own"]["b"]


def test_without_running_statistics_there_is_nothing_to_choose():
    views = run(m.groupnorm(2), with_unseen()).history[-1]["views"]
    assert {v for v in views if v.startswith("unseen/")} == {"unseen/averaged"}


def test_a_client_that_only_evaluates():
    clients = toy_federation((9, 16, 13, 12))
    clients["d"] = nf.ClientData(test=clients["d"].test, role="evaluate")
    result = run(m.fedbn(), clients)
    assert set(result.history[-1]["test_accuracy"]) == set("abcd") and result.clients == tuple("abcd")
    assert set(result.history[0]["train_loss"]) == set("abc")
    assert (
        accuracy(result.client_states["d"], *clients["d"].test)
        == result.history[-1]["views"]["global"]["d"]["accuracy"]
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"d": nf.ClientData(train=toy_federation()["a"].train, role="unseen")},
            "client 'd', test: missing; with role 'unseen' it is there to be tested on",
        ),
        (
            {"d": nf.ClientData(train=toy_federation()["a"].train, role="unsen")},
            "client 'd': unknown role 'unsen'; did you mean 'unseen'?",
        ),
    ],
)
def test_bad_roles(change, said):
    with pytest.raises(nf.Refused) as refused:
        run(m.fedavg(), {**toy_federation(), **change})
    assert said in refused.value.problems


def test_someone_must_train():
    clients = {n: nf.ClientData(test=c.test, role="evaluate") for n, c in toy_federation().items()}
    with pytest.raises(nf.Refused, match="no client has the role 'train'"):
        run(m.fedavg(), clients)


def test_the_best_round_on_validation_data_is_selected():
    clients = {
        n: nf.ClientData(train=c.train, test=c.test, val=(c.test[0][:4], c.test[1][:4]))
        for n, c in toy_federation().items()
    }
    result = run(m.fedavg(), clients, rounds=8, lr=0.3, views=())
    means = [sum(row["val_accuracy"].values()) / 3 for row in result.history]
    best = means.index(max(means))
    assert result.final["selected_round"] == {0: best}
    assert result.final["test_accuracy"]["a"]["mean"] == result.history[best]["test_accuracy"]["a"]
    plain = run(m.fedavg(), toy_federation(), rounds=8, lr=0.3, views=())
    assert plain.final["selected_round"] == {0: 7} and largest_difference(plain.global_state, result.global_state) == 0


def test_views_by_name():
    assert set(run(m.fedavg(), views=("pooled",)).history[0]["views"]) == {"pooled"}
    with pytest.raises(nf.Refused, match="unknown view 'poled'; did you mean 'pooled'"):
        run(m.fedavg(), views=("poled",))


def test_a_resumed_finished_run_evaluates_the_same():
    run_ = nf.Run(seeded(ResidualNet), toy_federation(), m.hbn(), rounds=2, batch_size=4)
    while not run_.done:
        run_.play()
    again = nf.Run(seeded(ResidualNet), toy_federation(), m.hbn(), rounds=2, batch_size=4, resume=run_.save())
    assert largest_difference(run_.result().client_states, again.result().client_states) == 0


def test_under_fedrdn_every_client_is_seen_through_its_own_statistics():
    clients = with_unseen()
    result = run(m.fedrdn(), clients)
    views = result.history[-1]["views"]

    def normalised(name, x):
        train = clients[name].train[0].flatten(2)
        mean, std = train.mean((0, 2)), train.std(2, correction=1).mean(0)
        return (x - mean.view(1, -1, 1, 1)) / std.view(1, -1, 1, 1)

    def seen(name):
        x, y = clients[name].test
        return normalised(name, x), y

    for name in "abc":
        expected = accuracy(result.global_state, *seen(name))
        assert views["own"][name]["accuracy"] == views["global"][name]["accuracy"] == expected
    together = [torch.cat(parts) for parts in zip(*map(seen, "abc"), strict=True)]
    assert views["pooled"]["all"]["accuracy"] == pytest.approx(accuracy(result.global_state, *together))
    assert views["unseen/averaged"]["d"]["accuracy"] == accuracy(result.global_state, *seen("d"))


def test_under_hbn_clients_are_seen_through_statistics_measured_afresh():
    clients = toy_federation()
    result = run(m.hbn(), clients)
    views = result.history[-1]["views"]
    for name, client in clients.items():
        state = {n: t for n, t in result.client_states[name].items() if not n.endswith("distribution_factor")}
        assert views["own"][name]["accuracy"] == accuracy(state, *client.test)
    assert largest_difference(*(result.client_states[n]["stem.1.running_mean"] for n in "ab")) == 0
    gap = result.client_states["a"]["stem.1.running_mean"] - result.global_state["stem.1.running_mean"]
    assert gap.abs().max() > 1e-3  # the smoothed ones lag behind


def test_under_partialfed_the_own_view_has_what_a_client_keeps():
    clients = toy_federation()
    result = run(m.partialfed(), clients)
    views = result.history[-1]["views"]
    for name, client in clients.items():
        assert views["own"][name]["accuracy"] == accuracy(result.client_states[name], *client.test)
        assert views["global"][name]["accuracy"] == accuracy(result.global_state, *client.test)
    assert result.view == "own" and not torch.equal(
        result.client_states["a"]["stem.1.weight"], result.client_states["b"]["stem.1.weight"]
    )
