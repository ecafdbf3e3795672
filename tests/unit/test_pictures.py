"""Each picture against what its definition gives by hand, on a net small enough to write out."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed import pictures
from normfed.server import play
from normfed.testing import ResidualNet, same_bits, seeded, toy_federation

TINY = {"rounds": 2, "batch_size": 4, "lr": 0.1, "pictures": "all"}


class Tiny(nn.Module):
    """One convolution, one norm layer, one classifier: every number below can be computed in the open."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv2d(3, 5, 3, padding=1)
        self.two = nn.BatchNorm2d(5)
        self.three = nn.Linear(5, 4)

    def forward(self, x):
        return self.three(torch.relu(self.two(self.one(x))).mean((2, 3)))


def kl(mean, var, other_mean, other_var):
    """KL(N(mean, var) || N(other_mean, other_var)) as in any textbook."""
    return 0.5 * ((var + (mean - other_mean) ** 2) / other_var - 1 + (other_var / var).log())


def symmetric(a, b):
    return (kl(*a, *b) + kl(*b, *a)) / 2


def facts_of(run, metric):
    found = [fact for fact in run.history[-1]["pictures"] if fact["metric"] == metric]
    assert found, metric
    return found


def playing(method, model=Tiny, clients=None, **settings):
    run = nf.Run(seeded(model), clients or toy_federation(), method, **{**TINY, **settings})
    while not run.done:
        broadcast = run.state.model
        run.play()
    return run, broadcast


def forward(state, x, batch=False):
    """(logits, output of the convolution, features): the tiny net written out."""
    conv = F.conv2d(x, state["one.weight"], state["one.bias"], padding=1)
    var, mean = torch.var_mean(conv, (0, 2, 3), correction=0)
    if not batch:
        mean, var = state["two.running_mean"], state["two.running_var"]
    y = (conv - mean.view(1, -1, 1, 1)) / (var.view(1, -1, 1, 1) + 1e-5).sqrt()
    y = y * state["two.weight"].view(1, -1, 1, 1) + state["two.bias"].view(1, -1, 1, 1)
    features = torch.relu(y).mean((2, 3))
    return features @ state["three.weight"].T + state["three.bias"], conv, features


def all_pairs(values):
    return list(itertools.combinations(values, 2))


def test_divergence_variance_and_mismatch():
    run, _ = playing(m.silobn())
    tests = {name: data.test[0] for name, data in run.clients.items()}
    own = {name: run.state_of(name) for name in tests}
    moments = []
    for name, x in tests.items():
        var, mean = torch.var_mean(forward(own[name], x)[1], (0, 2, 3), correction=0)
        moments.append((mean, var + 1e-5))
    (fact,) = facts_of(run, "divergence")
    expected = torch.stack([symmetric(a, b).mean() for a, b in all_pairs(moments)]).mean()
    assert fact["layer"] == "two" and fact["value"] == pytest.approx(expected.item(), rel=1e-9)
    (fact,) = facts_of(run, "statistic_variance")
    assert fact["value"] == pytest.approx(torch.stack([mean for mean, _ in moments]).var(0).mean().item(), rel=1e-9)
    (fact,) = facts_of(run, "mismatch")
    used = [(s["two.running_mean"], s["two.running_var"] + 1e-5) for s in own.values()]
    expected = torch.stack([symmetric(a, b).mean() for a, b in zip(moments, used, strict=True)]).mean()
    assert fact["value"] == pytest.approx(expected.item(), rel=1e-9)


def test_gap_on_test_data():
    run, _ = playing(m.fedavg())
    state = run.result().global_state
    for fact in facts_of(run, "gap/test"):
        x, y = run.clients[fact["client"]].test
        losses = [F.cross_entropy(forward(state, x, batch)[0], y) for batch in (False, True)]
        assert fact["value"] == pytest.approx((losses[0] - losses[1]).item(), rel=1e-9)


def test_gap_in_training_uses_the_broadcast_statistics_and_the_clients_own_weights():
    """The clients' models at the end of a round are those that a run of one client ends with."""
    run, broadcast = playing(m.fedavg())
    found = {fact["client"]: fact["value"] for fact in facts_of(run, "gap/train")}
    assert set(found) == set("abc")
    begin = seeded(Tiny)
    begin.load_state_dict(broadcast)
    for name, data in run.clients.items():
        alone = nf.Run(begin, {name: data}, m.fedavg(), **{**TINY, "pictures": ()})
        alone.state = replace(alone.state, round=1)  # the same keys, so the same order of samples
        alone.play()
        mine = alone.result().global_state
        x, y = data.train
        x, y = (part[torch.arange(min(32, len(x))) * len(x) // min(32, len(x))] for part in (x, y))
        held = {**mine, **{k: broadcast[k] for k in ("two.running_mean", "two.running_var")}}
        expected = F.cross_entropy(forward(held, x)[0], y) - F.cross_entropy(forward(mine, x, True)[0], y)
        assert found[name] == pytest.approx(expected.item(), rel=1e-9)


def test_feature_cosine():
    seen = {}
    run, _ = playing(m.fedavg(), rounds=1)
    again = nf.Run(seeded(Tiny), toy_federation(), m.fedavg(), **{**TINY, "rounds": 1, "pictures": ()})
    play(again.plan, again.state, again.engine, again.federation, again.sizes, again.rules, seen.__setitem__)
    tests = [data.test[0] for data in run.clients.values()]
    probes = torch.cat([x[:: len(x) // 2][:2] for x in tests])
    maps = [forward(state, probes)[1].flatten(1) for state in seen.values()]
    cosines = [((a * b).sum(1) / a.norm(dim=1) / b.norm(dim=1)).mean() for a, b in all_pairs(maps)]
    (fact,) = facts_of(run, "feature_cosine")
    assert fact["layer"] == "one" and fact["value"] == pytest.approx(torch.stack(cosines).mean().item(), rel=1e-9)


def test_representation_divergence():
    run, _ = playing(m.fedbn())
    moments = {}
    for name, data in run.clients.items():
        features = forward(run.state_of(name), data.test[0])[2]
        moments[name] = features.mean(0), features.var(0, correction=0)
    means, variances = (torch.stack(parts) for parts in zip(*moments.values(), strict=True))
    floor = 0.01 * (variances.mean(0) + means.var(0, correction=0)) + 1e-5
    found = facts_of(run, "representation_divergence")
    assert [(f["client"], f["other"]) for f in found] == all_pairs(moments)
    for fact in found:
        a, b = ((moments[name][0], moments[name][1] + floor) for name in (fact["client"], fact["other"]))
        assert fact["value"] == pytest.approx(symmetric(a, b).mean().item(), rel=1e-9)


def test_where_clients_are_identical_nothing_differs():
    """Full batches in stored order: three copies of one client train alike."""
    data = toy_federation()["a"]
    run, _ = playing(m.fedavg(), ResidualNet, dict.fromkeys("abc", data), batch_size=32, shuffle=False)
    for metric in ("divergence", "statistic_variance", "representation_divergence"):
        assert all(fact["value"] == pytest.approx(0, abs=1e-12) for fact in facts_of(run, metric))
    cosines = facts_of(run, "feature_cosine")
    assert all(fact["value"] == pytest.approx(1, abs=1e-12) for fact in cosines)
    assert [fact["layer"] for fact in cosines] == ["stem.0", "main.0", "shortcut.0"]


def test_what_stays_home_fits_and_what_is_averaged_does_not():
    fedavg, _ = playing(m.fedavg(), ResidualNet, rounds=20, lr=0.02)
    fedbn, _ = playing(m.fedbn(), ResidualNet, rounds=20, lr=0.02)
    ours, theirs = (facts_of(run, "mismatch")[0] for run in (fedbn, fedavg))  # the layer nearest to the data
    assert ours["layer"] == theirs["layer"] == "stem.1" and ours["value"] < 0.5 * theirs["value"]


@pytest.mark.parametrize(
    ("method", "metrics"),
    [
        (m.groupnorm(2), {"feature_cosine", "representation_divergence"}),
        (m.fedwon(), {"feature_cosine", "representation_divergence"}),
        (m.fedbn(), {"divergence", "statistic_variance", "mismatch", "gap/test", "feature_cosine", "representation_divergence"}),
        (m.centralized(), {"divergence", "statistic_variance", "mismatch", "gap/test", "gap/train", "representation_divergence"}),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value),
)  # fmt: skip
def test_what_a_method_leaves_nothing_to_see_of_is_left_out(method, metrics):
    run, _ = playing(method, ResidualNet)
    assert {fact["metric"] for fact in run.history[-1]["pictures"]} == metrics


def test_by_name_and_by_round():
    run, _ = playing(m.fedavg(), pictures="gap", rounds=3, evaluate_every=2)
    assert [("pictures" in row) for row in run.history] == [False, True, True]
    assert {fact["metric"] for fact in run.history[-1]["pictures"]} == {"gap/test", "gap/train"}
    taken = [r for r in range(300) if pictures.due(r, 300, 5)]
    assert taken[-1] == 299 and len(taken) <= pictures.TIMES and {(r + 1) % 5 for r in taken} == {0}
    assert [r for r in range(5) if pictures.due(r, 5, 1)] == list(range(5))
    with pytest.raises(nf.Refused, match="unknown picture 'gaps'; did you mean 'gap'"):
        playing(m.fedavg(), pictures="gaps")


def test_taking_pictures_changes_no_number(engine):
    plain = nf.simulate(seeded(ResidualNet), toy_federation(), m.greg(), **{**TINY, "pictures": ()}, engine=engine)
    run, _ = playing(m.greg(), ResidualNet, engine=engine)
    assert same_bits(plain, run.result())


def test_engines_see_the_same():
    serial, _ = playing(m.fedbn(), ResidualNet, engine="serial")
    stacked, _ = playing(m.fedbn(), ResidualNet, engine="stacked")
    for a, b in zip(serial.history[-1]["pictures"], stacked.history[-1]["pictures"], strict=True):
        assert {**a, "value": 0} == {**b, "value": 0}
        assert a["value"] == pytest.approx(b["value"], rel=1e-9, abs=1e-12)


def test_many_clients_are_seen_through_the_first():
    clients = toy_federation((4,) * 15)
    run, _ = playing(m.fedavg(), clients=clients, rounds=1)
    assert {fact["client"] for fact in facts_of(run, "gap/test")} == set(list(clients)[: pictures.CLIENTS])
