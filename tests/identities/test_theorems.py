"""What each method of the papers must satisfy, as a theorem or an identity."""

import copy
import itertools

import pytest
import torch
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.finch import assign, finch, partition
from normfed.keys import normal
from normfed.method import Method
from normfed.methods.fedwon import WSConv, standardise
from normfed.models import make
from normfed.net import Net, materialise
from normfed.norm import BATCH, RUNNING, Pass
from normfed.plan import build
from normfed.surgery import branches, stages
from normfed.testing import ResidualNet, difference, largest_difference, same_bits, seeded, toy_federation, toy_mlp


def run(method, clients=None, model=ResidualNet, **settings):
    chosen = {"rounds": 3, "batch_size": 4, "lr": 0.1, **settings}
    return nf.simulate(seeded(model), clients or toy_federation(), method, **chosen)


IDENTITIES = [
    (m.greg(alpha=0.0, rho=1.0), m.fedavg()),
    (m.fedplvm(weight=0.0), m.fedavg()),
    (m.mixstats(weight=1.0), m.globalstats()),
    (m.fedtan_ii(99), m.fedtan()),
    (m.fedtan_ii(0), m.fixbn(0)),
    (m.partialfed("norm & stats | counters"), m.partialfed("(norm & stats) | counters")),
]


@pytest.mark.parametrize(("one", "other"), IDENTITIES, ids=str)
def test_identity(one, other, engine):
    assert same_bits(run(one, engine=engine), run(other, engine=engine))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (m.mixstats(weight=0.0), m.fedavg()),
        (m.greg(0.0, 1.0) | m.fedprox(0.3), m.fedprox(0.3)),
        (m.hbn(), m.hbn() | m.fedprox(0.0)),
    ],
    ids=str,
)
def test_identity_to_rounding(one, other):
    """Explicit moments instead of the fused kernel."""
    assert difference(run(one), run(other)) < 1e-12


def test_partialfed_keeping_norm_layers_trains_as_fedbn():
    """What is loaded is the same; only the server's average of the norm layers differs, which nobody loads."""
    kept, local = run(m.partialfed("norm")), run(m.fedbn())
    assert largest_difference(kept.client_states, local.client_states) == 0
    assert largest_difference(kept.global_state, local.global_state) > 1e-3


def test_partialfed_keeping_everything_is_training_alone():
    assert largest_difference(run(m.partialfed("everything")).client_states, run(m.singleset()).client_states) == 0


def test_partialfed_adaptive_learns_its_gates():
    result = run(m.partialfed_adaptive(), rounds=5)
    gates = [state["partialfed_gates"] for state in result.client_states.values()]
    assert all(gate.abs().max() > 0 for gate in gates) and not torch.equal(gates[0], gates[1])
    assert result.global_state["partialfed_gates"].abs().max() == 0  # local: the server's copy never moves
    first = run(m.partialfed_adaptive(), rounds=1)
    plain = run(m.fedavg(), rounds=1)  # in round 0 there is nothing of one's own to choose
    assert all(torch.equal(first.global_state[n], t) for n, t in plain.global_state.items())


# ------------------------------------------------------------------------------------------------- FedTAN


@pytest.mark.parametrize("model", ["resnet20", "mobilenetv2"])
def test_one_round_of_fedtan_is_one_centralised_step(model):
    """Remark 3, forward and backward: parameters and running means (variances too, ours being over all values)."""
    clients = toy_federation((4, 4, 4), shape=(3, 32, 32), classes=10)
    settings = {"rounds": 1, "steps": 1, "lr": 0.05, "shuffle": False}

    def net():
        made = make(model)
        for module in made.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return made

    ours = nf.simulate(seeded(net), clients, m.fedtan(), batch_size=4, engine="stacked", **settings)
    pooled = nf.simulate(seeded(net), clients, m.centralized(), batch_size=12, **settings)
    assert largest_difference(ours.global_state, pooled.global_state) < 1e-11
    plain = nf.simulate(seeded(net), clients, m.fedavg(), batch_size=4, **settings)
    assert largest_difference(plain.global_state, pooled.global_state) > 1e-3


# ------------------------------------------------------------------------------------------------- FedWon


def transformed(method, model, shape=(3, 6, 6)):
    return build(method, model, normal(0, (2, *shape), torch.float64)).net


def test_standardised_weights_do_not_see_shift_and_scale():
    w = normal(1, (5, 3, 3, 3), torch.float64)
    torch.testing.assert_close(standardise(3 * w + 7), standardise(w), rtol=1e-10, atol=1e-12)
    for unbiased in (True, False):
        hat = standardise(w, unbiased=unbiased).flatten(1)
        torch.testing.assert_close(hat.mean(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-15)
        torch.testing.assert_close(hat.var(1, correction=int(unbiased)) * 27, torch.ones(5, dtype=torch.float64))


@pytest.mark.parametrize("name", ["digits_cnn", "resnet18", "mobilenetv2", "alexnet_fedwon"])
def test_fedwon_transforms_any_convolutional_network(name):
    shape = {"digits_cnn": (3, 28, 28), "alexnet_fedwon": (3, 64, 64)}.get(name, (3, 32, 32))
    before = make(name)
    plan = build(m.fedwon(), before, normal(0, (2, *shape)))
    convolutions = [c for c in plan.net.module.modules() if isinstance(c, nn.Conv2d)]
    assert len(convolutions) == sum(isinstance(c, nn.Conv2d) for c in before.modules())
    assert all(
        isinstance(c, WSConv) and c.bias is not None and c.gain.shape == (c.out_channels, 1, 1, 1) for c in convolutions
    )
    assert not any(isinstance(c, nn.modules.batchnorm._BatchNorm) for c in plan.net.module.modules())
    assert {e.role for e in plan.net.entries} == {"weight"}


def test_fedwon_keeps_the_function_of_pretrained_weights():
    """Norm layers that have seen data: scale and shift are folded into gain and bias. With filters of zero mean the
    function is kept; in general it moves by what the means contribute."""
    trained = seeded(ResidualNet).train()
    with torch.no_grad():
        for conv in (c for c in trained.modules() if isinstance(c, nn.Conv2d)):
            conv.weight -= conv.weight.mean((1, 2, 3), keepdim=True)
        for i in range(20):
            trained(normal(i, (16, 3, 6, 6), torch.float64) * 2 + 1)
    x = normal(99, (8, 3, 6, 6), torch.float64)
    for method in (m.fedwon(), m.fedwon(unbiased=False)):
        net = transformed(method, trained)
        torch.testing.assert_close(net.predict(net.initial, x), trained.eval()(x), rtol=1e-10, atol=1e-12)
    fresh = transformed(m.fedwon(), seeded(ResidualNet))
    assert all((t == 1).all() for n, t in fresh.initial.items() if n.endswith("gain"))


def test_fedwon_equation_3_has_no_gain():
    net = transformed(m.fedwon(gain=False), seeded(ResidualNet))
    assert not any(name.endswith("gain") for name in net.initial)


def test_fedwon_with_clipping_is_fedwon_and_clipping():
    assert same_bits(run(m.fedwon(agc=0.05)), run(m.fedwon() | m.agc(0.05)))
    assert not same_bits(run(m.fedwon(agc=0.05)), run(m.fedwon()))


def test_fedwon_trains_at_batch_size_one():
    clients = toy_federation((5, 4))
    assert run(m.fedwon(), clients, batch_size=1).history[0]["skipped"] == {}


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)),
            "it standardises convolutions, and the model has none",
        ),
        (
            lambda: nn.Sequential(
                type("Odd", (nn.Conv2d,), {"forward": lambda self, x: super(type(self), self).forward(x) * 2})(3, 4, 3),
                nn.Flatten(),
                nn.Linear(64, 4),
            ),
            "'0' (Odd) has a forward of its own",
        ),
    ],
)
def test_fedwon_refuses_what_it_cannot_transform(model, said):
    with pytest.raises(nf.Refused) as refused:
        run(m.fedwon(), model=model)
    assert said in str(refused.value)


# --------------------------------------------------------------------------------------------------- GReg


def test_the_second_pass_moves_no_statistics_and_draws_the_same_noise():
    seen = []

    def look(step):
        before = {n: t.clone() for n, t in step.rest.items()}
        again = step.forward(norm=BATCH)
        seen.append(torch.equal(again.detach(), step.logits.detach()))  # same statistics, same noise: the same pass
        seen.append(not torch.equal(step.forward(norm=BATCH, fresh_noise=True).detach(), step.logits.detach()))
        seen.append(all(torch.equal(t, step.rest[n]) for n, t in before.items()))

    method = Method("look", loss=(look,))
    clients = toy_federation((9, 8), shape=(6,))
    plain = run(m.fedavg(), clients, lambda: toy_mlp(dropout=0.4), engine="serial")
    watched = run(method, clients, lambda: toy_mlp(dropout=0.4), engine="serial")
    assert seen and all(seen) and same_bits(plain, watched)


def test_the_broadcast_statistics_are_used_after_the_first_local_step_too():
    seen = []

    def look(step):
        if step.round == 1:
            with_broadcast = step.forward(norm=RUNNING, rest=step.anchor)
            drifted = step.forward(norm=RUNNING)
            seen.append((step.step, torch.equal(with_broadcast, drifted)))

    run(Method("look", loss=(look,)), engine="serial", rounds=2)
    assert {same for number, same in seen if number == 0} == {True}
    assert {same for number, same in seen if number > 0} == {False}


def test_greg_smooths_statistics_from_round_0_on():
    one, plain = run(m.greg(rho=0.1), rounds=1), run(m.fedavg(), rounds=1)
    for name, tensor in one.global_state.items():
        if name.endswith("running_var"):
            torch.testing.assert_close(tensor, 0.9 + 0.1 * plain.global_state[name], rtol=1e-13, atol=0)
        elif "running" not in name:
            assert torch.equal(tensor, plain.global_state[name])


@pytest.mark.parametrize(
    "other", [m.fedprox(1e-3), m.fedplvm(), m.fedfa(), m.fedrdn(), m.scaffold(), m.agc(0.1)], ids=str
)
def test_greg_composes_in_either_order(other):
    clients = toy_federation(shape=(3, 12, 12))
    assert difference(run(m.greg() | other, clients), run(other | m.greg(), clients)) < 1e-10


# --------------------------------------------------------------------- HBN, FBN, PN, batch renormalization, FixUp


def test_statistics_of_a_pass_are_exact_whatever_the_batches():
    """MEASURE: with the first layer's input not depending on the mode, one pass gives the data's own moments."""
    from normfed.method import Segment
    from normfed.norm import MEASURE
    from normfed.state import norm, stats

    measuring = Method("measuring", plan=(Segment(norm=MEASURE, train=False),))
    clients = {"a": toy_federation((23,))["a"]}
    for batch_size in (4, 7, 23):
        result = run(measuring, clients, rounds=1, batch_size=batch_size)
        values = seeded(ResidualNet).stem[0](clients["a"].train[0])
        torch.testing.assert_close(
            result.global_state["stem.1.running_mean"], values.mean((0, 2, 3)), rtol=1e-12, atol=1e-13
        )
        torch.testing.assert_close(
            result.global_state["stem.1.running_var"], values.var((0, 2, 3), correction=0), rtol=1e-12, atol=0
        )
        assert torch.equal(result.global_state["head.weight"], seeded(ResidualNet).head.weight)  # nothing was trained
        assert (
            result.history[0]["bytes_up"]
            == sum(
                e.nbytes
                for e in build(measuring, seeded(ResidualNet), clients["a"].train[0]).net.entries
                if (norm & stats)(e)
            )
            + 3 * 8
        )


def test_hbn_counts_the_exchange_before_an_evaluation():
    every, once = run(m.hbn(), rounds=4), run(m.hbn(), rounds=4, evaluate_every=4)
    assert [row["messages"] for row in every.history] == [2, 2, 2, 2]
    assert [row["messages"] for row in once.history] == [1, 1, 1, 2]
    assert largest_difference(every.global_state, once.global_state) == 0  # what is measured for it is not kept


def test_fbn_trains_and_evaluates_alike():
    """Its training pass is its evaluation pass: with one client and the whole as batch, the loss of round t in training
    is the loss the broadcast model has in evaluation."""
    data = toy_federation((12,))["a"]
    clients = {"a": nf.ClientData(train=data.train, test=data.train)}
    result = run(m.fbn(), clients, batch_size=12)
    evaluated = [row["test_loss"]["a"] for row in result.history]
    trained = [row["train_loss"]["a"] for row in result.history]
    torch.testing.assert_close(torch.tensor(evaluated[:-1]), torch.tensor(trained[1:]), rtol=1e-12, atol=0)


def test_population_norm_keeps_the_function_of_pretrained_weights():
    trained = seeded(ResidualNet).train()
    for i in range(9):
        trained(normal(i, (16, 3, 6, 6), torch.float64) * 2 + 1)
    net = transformed(m.popnorm(), trained)
    x = normal(99, (8, 3, 6, 6), torch.float64)
    torch.testing.assert_close(net.predict(net.initial, x), trained.eval()(x), rtol=1e-11, atol=1e-12)
    assert {e.role for e in net.entries} == {"weight", "norm_affine"}
    assert run(m.popnorm(), toy_federation((5, 4), shape=(6,)), toy_mlp, batch_size=1).history[0]["skipped"] == {}


def test_batch_renormalization_starts_as_batch_normalization_and_ends_as_the_running_one():
    net = transformed(m.batchrenorm(), seeded(ResidualNet))
    layer = net.module.stem[1]
    x = normal(3, (16, 4, 5, 5), torch.float64) * 2 + 1

    def out(counter, mode):
        state = {**net.initial, "stem.1.num_batches_tracked": torch.tensor(counter)}
        net(*net.split(state), normal(4, (4, 3, 6, 6), torch.float64), Pass(mode))  # binds the state
        layer._wire.now = now = Pass(mode)
        try:
            return layer(x), now
        finally:
            layer._wire.now = None

    dims = (0, 2, 3)
    centred = (x - x.mean(dims, keepdim=True)) / (x.var(dims, correction=0, keepdim=True).sqrt() + 1e-3)
    first, now = out(0, BATCH)  # rmax = 1, dmax = 0
    torch.testing.assert_close(first, centred, rtol=1e-12, atol=1e-13)
    late, _ = out(10**6, BATCH)  # rmax = 3, dmax = 5: r and d make up for the batch, up to the eps in std
    running, _ = out(10**6, RUNNING)
    torch.testing.assert_close(late, running, rtol=1e-11, atol=1e-11)
    assert now.emitted["stem.1.num_batches_tracked"] == 1


def test_batch_renormalization_averages_squares_of_deviations():
    clients = toy_federation((8, 8))
    result, alone = run(m.batchrenorm(), clients, rounds=1), run(m.batchrenorm() | m.singleset(), clients, rounds=1)
    stds = [state["stem.1.running_std"] for state in alone.client_states.values()]
    torch.testing.assert_close(
        result.global_state["stem.1.running_std"], ((stds[0] ** 2 + stds[1] ** 2) / 2).sqrt(), rtol=1e-13, atol=0
    )


@pytest.mark.parametrize(("name", "count"), [("resnet20", 9), ("resnet18", 8), ("resnet50", 16)])
def test_fixup_finds_the_branches_and_starts_them_at_zero(name, count):
    model = make(name)
    found = branches(model)
    assert len(found) == count and {len(branch) for branch in found} == ({3} if name == "resnet50" else {2})
    net = build(m.fixup(), model, normal(0, (2, 3, 32, 32))).net
    assert net.predict(net.initial, normal(1, (3, 3, 32, 32))).abs().max() == 0  # the classifier starts at zero
    for branch in found:
        assert net.initial[f"{branch[-1]}.weight"].abs().max() == 0
    first = net.initial[f"{found[0][0]}.weight"]
    fan = first.shape[0] * first[0, 0].numel()
    expected = (2 / fan) ** 0.5 * count ** (-1 / (2 * len(found[0]) - 2))
    assert abs(first.std().item() / expected - 1) < 0.1
    scalars = [e for e in net.entries if e.name.endswith("multiplier")]
    assert len(scalars) == count


def test_fixup_refuses_a_network_without_branches():
    def plain():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 4))

    with pytest.raises(nf.Refused, match="it initialises residual branches, and the model has none"):
        run(m.fixup(), model=plain)


# --------------------------------------------------------------------------------------------- FedFA, FedRDN, FedPLVM


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("alexnet", [64, 192, 384, 256, 256]),
        ("digits_cnn", [64, 64, 128]),
        ("resnet18", [64, 64, 128, 256, 512]),
        ("resnet50", [64, 256, 512, 1024, 2048]),
    ],
)
def test_fedfa_sits_behind_each_stage(name, channels):
    size = {"digits_cnn": 28}.get(name, 64)
    assert [stage.channels for stage in stages(make(name), normal(0, (2, 3, size, size)))] == channels


def test_fedfa_is_the_identity_in_evaluation_and_acts_half_of_the_time():
    def two_stages():
        return nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4),
        )  # fmt: skip

    x = normal(0, (6, 3, 12, 12), torch.float64)
    net = transformed(m.fedfa(), seeded(two_stages), (3, 12, 12))
    assert torch.equal(net.predict(net.initial, x), seeded(two_stages).eval()(x))
    plain = Net(materialise(seeded(two_stages), x, 0))
    reference = plain(*plain.split(plain.initial), x, Pass(BATCH))
    acted = 0
    for key in range(200):
        now = Pass(BATCH, key=lambda key=key: key)
        acted += not torch.equal(net(*net.split(net.initial), x, now), reference)
        moved = {n for n, t in now.emitted.items() if "fedfa" in n and not torch.equal(t, net.initial[n])}
        assert len(moved) in (0, 2, 4)  # per layer: both running means move, or none
    assert 0.65 < acted / 200 < 0.85  # two layers, each with probability 1/2


def test_fedrdn_with_one_client_is_plain_standardisation():
    data = toy_federation((12,))["a"]
    x, y = data.train
    pixels = x.flatten(2)
    mean, std = pixels.mean(2).mean(0).view(1, 3, 1, 1), pixels.std(2).mean(0).view(1, 3, 1, 1)
    one = run(m.fedrdn(), {"a": data})
    other = run(
        m.fedavg(), {"a": nf.ClientData(train=((x - mean) / std, y), test=((data.test[0] - mean) / std, data.test[1]))}
    )
    assert largest_difference(one.global_state, other.global_state) < 1e-12
    assert one.history[-1]["test_accuracy"] == other.history[-1]["test_accuracy"]
    assert abs(one.history[-1]["test_loss"]["a"] - other.history[-1]["test_loss"]["a"]) < 1e-12


def test_fedrdn_asks_every_client_once_before_round_0():
    rows = run(m.fedrdn(), toy_federation((8,) * 6), participation=0.5).history
    assert [row["messages"] for row in rows] == [2, 1, 1]
    assert rows[0]["bytes_up"] - rows[1]["bytes_up"] == 6 * 2 * 3 * 8


def brute_force_finch_level(points):
    """First neighbours by cosine; connected components of i -- its first neighbour."""
    unit = nn.functional.normalize(points, dim=1)
    similarity = unit @ unit.T
    first = [
        max((j for j in range(len(points)) if j != i), key=lambda j: similarity[i, j].item())
        for i in range(len(points))
    ]
    groups = [{i} for i in range(len(points))]
    for i, j in enumerate(first):
        a, b = next(g for g in groups if i in g), next(g for g in groups if j in g)
        if a is not b:
            groups.remove(b)
            a |= b
    return {frozenset(group) for group in groups}


@pytest.mark.parametrize("n", [1, 2, 3, 7, 30, 100])
def test_finch_against_brute_force(n):
    points = normal(n, (n, 5), torch.float64)
    ours = partition(points)
    groups = {frozenset(torch.nonzero(ours == c).flatten().tolist()) for c in ours.unique()}
    assert groups == (brute_force_finch_level(points) if n > 1 else {frozenset([0])})


def test_finch_finds_what_is_there():
    centres = torch.eye(4, dtype=torch.float64) * 5
    points = torch.cat([centre + 0.1 * normal(i, (20, 4), torch.float64) for i, centre in enumerate(centres)])
    first, coarsest = partition(points), assign(points)
    for i, j in itertools.product(range(80), repeat=2):
        assert bool(first[i] == first[j]) <= (i // 20 == j // 20)  # the first level never joins two groups
        assert bool(first[i] == first[j]) <= bool(coarsest[i] == coarsest[j])  # and coarser levels only join
    assert 2 <= int(coarsest.max()) + 1 <= 4 <= int(first.max()) + 1
    means = finch(points)
    for c in range(len(means)):
        torch.testing.assert_close(means[c], points[coarsest == c].mean(0), rtol=1e-12, atol=1e-14)
    assert torch.equal(finch(points[:1]), points[:1])


def test_fedplvm_knows_prototypes_of_varying_number():
    clients = toy_federation((9, 16, 13), classes=4)
    one = {
        **clients,
        "a": nf.ClientData(train=(clients["a"].train[0], torch.zeros(9, dtype=torch.long)), test=clients["a"].test),
    }
    run_ = nf.Run(seeded(ResidualNet), one, m.fedplvm(), rounds=3, batch_size=4, lr=0.05)
    sizes = []
    while not run_.done:
        run_.play()
        sizes.append(len(run_.state.slots["fedplvm"]["prototypes"]["labels"]))
    assert all(size >= 4 for size in sizes) and len(set(sizes)) >= 1
    assert set(run_.state.slots["fedplvm"]["prototypes"]["labels"].tolist()) <= {0, 1, 2, 3}


def test_a_class_nobody_has_prototypes_of_does_no_harm():
    """Two clients in turns, each with one class: at each round the other's class is missing."""
    base = toy_federation((8, 8))
    clients = {n: nf.ClientData(train=(c.train[0], torch.full((8,), i))) for i, (n, c) in enumerate(base.items())}
    result = run(m.fedplvm(), clients, participation=0.5, rounds=6)
    assert all(torch.isfinite(t).all() for t in result.global_state.values())


def test_methods_do_not_touch_the_users_model():
    for text in ("fedwon", "fixup", "fedfa", "hbn", "popnorm", "groupnorm"):
        model = seeded(ResidualNet)
        before = copy.deepcopy(model)
        build(getattr(m, text)(), model, normal(0, (2, 3, 6, 6), torch.float64))
        assert [type(a) for a in model.modules()] == [type(b) for b in before.modules()]
        assert list(model.state_dict()) == list(before.state_dict())
