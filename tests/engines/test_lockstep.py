"""The one operator that talks inside a step: theorem, adjoint, replay, messages."""

import pytest
import torch
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.cohort import Cohort, Suspend, cohort_mean, cohort_moments, lockstep
from normfed.method import Method, Segment
from normfed.norm import COHORT
from normfed.testing import TOLERANCE, ResidualNet, check_method, difference, largest_difference, seeded, toy_federation


def together():
    """The skeleton of FedTAN: the first step in lock-step, the others alone."""
    return Method("together", plan=(Segment(1, COHORT, lockstep=True), Segment()))


def one_step(method, clients, engine="serial", batch_size=8, **settings):
    return nf.simulate(
        seeded(ResidualNet), clients, method, rounds=1, steps=1, batch_size=batch_size, lr=1.0, shuffle=False,
        engine=engine, **settings,
    )  # fmt: skip


def test_the_averaged_gradient_is_the_pooled_one(engine):
    """Three norm layers, one in a shortcut; equal batches: forward and backward equal one pooled step."""
    clients = toy_federation((8, 8, 8))
    ours, pooled = one_step(together(), clients, engine), one_step(m.centralized(), clients, batch_size=24)
    assert largest_difference(ours.global_state, pooled.global_state) < TOLERANCE
    assert largest_difference(one_step(m.fedavg(), clients).global_state, pooled.global_state) > 1e-3


def test_sizes_as_weights_make_unequal_batches_exact_too(engine):
    """Weights proportional to the batches, here the whole of each client's data."""
    clients = toy_federation((3, 9, 6))
    ours, pooled = one_step(together(), clients, engine, 16), one_step(m.centralized(), clients, batch_size=18)
    assert largest_difference(ours.global_state, pooled.global_state) < TOLERANCE


@pytest.mark.parametrize("sizes", [(8, 8, 8), (9, 16, 13), (3, 17, 8, 5)])
@pytest.mark.parametrize("extra", [m.fedavg(), m.fedprox(0.3) | m.scaffold(), m.agc(0.1)], ids=str)
def test_replay_equals_stacked(sizes, extra):
    check_method(together() | extra, clients=toy_federation(sizes), batch_size=6)


def test_chunks_of_a_lockstep_meet():
    clients = toy_federation((9, 16, 13, 9, 8))
    runs = [
        nf.simulate(seeded(ResidualNet), clients, together(), rounds=2, batch_size=4, lr=0.1, engine="stacked", stack=k)
        for k in (2, 5)
    ]
    assert difference(*runs) < TOLERANCE


def test_messages_and_bytes_are_counted(engine):
    """2L + 1 messages with fused moments; 4 numbers per channel in both directions beside the model."""
    clients = toy_federation((8, 8, 8))
    row, plain = (one_step(method, clients, engine).history[0] for method in (together(), m.fedavg()))
    channels = 4 + 6 + 6
    assert row["messages"] == 2 * 3 + 1 and plain["messages"] == 1
    assert row["bytes_up"] - plain["bytes_up"] == row["bytes_down"] - plain["bytes_down"] == 3 * 4 * channels * 8


def test_a_net_that_uses_a_norm_layer_twice(engine):
    class Shared(ResidualNet):
        def forward(self, x):
            x = self.stem(x)
            x = self.stem[1](x)
            return self.head(torch.relu(self.main(x) + self.shortcut(x)).mean((2, 3)))

    clients = toy_federation((8, 8))
    settings = {"rounds": 1, "steps": 1, "lr": 1.0, "shuffle": False}
    ours = nf.simulate(seeded(Shared), clients, together(), batch_size=8, engine=engine, **settings)
    pooled = nf.simulate(seeded(Shared), clients, m.centralized(), batch_size=16, **settings)
    assert largest_difference(ours.global_state, pooled.global_state) < TOLERANCE
    assert ours.history[0]["messages"] == 2 * 4 + 1


WEIGHTS = torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64)


def stacked(f, *tensors):
    cohort = Cohort(samples=12, own_samples=4)
    return torch.vmap(lambda *args: f(*args, cohort))(*tensors, WEIGHTS)


def test_the_operator_is_self_adjoint_in_the_weighted_inner_product():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 5, generator=g, dtype=torch.float64)

    def inner(a, b):
        return (WEIGHTS[:, None] * a * b).sum()

    ax, ay = stacked(cohort_mean, x), stacked(cohort_mean, y)
    assert abs(inner(ax, y) - inner(x, ay)) < 1e-14
    assert torch.allclose(stacked(cohort_mean, ax), ax, rtol=1e-15)  # and a projection

    def pulled_back(x):
        return torch.func.vjp(lambda x: stacked(cohort_mean, x), x)[1](y)[0]

    assert torch.equal(pulled_back(x), ay)  # its backward is itself, differentiated around vmap …
    inside = torch.vmap(lambda x, y, w, c: torch.func.vjp(lambda x: cohort_mean(x, w, c), x)[1](y)[0], (0, 0, 0, None))(
        x, y, WEIGHTS, Cohort(samples=12, own_samples=4)
    )
    assert torch.equal(inside, ay)  # … and inside


def test_moments_are_the_pooled_ones_and_their_gradients_too():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(3, 7, 2, generator=g, dtype=torch.float64) * 3 + 50
    p = WEIGHTS / WEIGHTS.sum()

    def own(x):
        return x.mean(0), x.var(0, correction=0)

    def ours(x, w, cohort):
        mean, var = cohort_moments(*own(x), w, cohort)
        return ((x - mean) / var.sqrt()).pow(3).sum()

    def pooled(x):  # weights inside: what the cohort computes, as one graph
        mean = (p[:, None] * x.mean(1)).sum(0)
        var = (p[:, None] * ((x - mean) ** 2).mean(1)).sum(0)
        return (p * ((x - mean) / var.sqrt()).pow(3).sum((1, 2))).sum()

    cohort = Cohort(samples=21, own_samples=7)
    grads = torch.vmap(lambda x, w: torch.func.grad(ours)(x, w, cohort))(x, WEIGHTS)
    whole = torch.func.grad(pooled)(x)
    assert largest_difference(grads * p[:, None, None], whole) < 1e-11


def test_groups_meet_in_any_number():
    x = torch.randn(4, 3, dtype=torch.float64)
    w = torch.tensor([1.0, 2, 3, 4], dtype=torch.float64)

    def group(rows):
        def step(cohort):
            first = torch.vmap(lambda a, b: cohort_mean(a, b, cohort))(x[rows], w[rows])
            return torch.vmap(lambda a, b: cohort_mean(a, b, cohort))(first * x[rows], w[rows])

        return step

    whole, sizes = lockstep([group([0, 1, 2, 3])], [1], [4])
    halves, again = lockstep([group([0, 2]), group([1, 3])], [1, 1], [2, 2])
    assert sizes == again == [24, 24]
    torch.testing.assert_close(whole[0][0], halves[1][0], rtol=1e-14, atol=1e-15)


def test_a_collective_outside_of_a_lockstep_does_not_pass_silently():
    cohort = Cohort(samples=2, own_samples=1, alone=False)
    with pytest.raises(Suspend):
        cohort_mean(torch.ones(2), torch.tensor(1.0), cohort)


def test_clients_that_ask_differently_are_an_error():
    asks = [lambda cohort: 0, lambda cohort: cohort_mean(torch.ones(1), torch.tensor(1.0), cohort)]
    with pytest.raises(AssertionError, match="different numbers"):
        lockstep(asks, [1, 1], [1, 1])


def test_weighing_after_the_round_and_talking_inside_it_are_refused():
    with pytest.raises(nf.Refused, match="fedbs and together cannot be combined: fedbs weighs clients after the round"):
        one_step(m.fedbs() | together(), toy_federation((8, 8)))


def test_the_norm_layers_of_a_lockstep_count_and_move_once():
    clients = toy_federation((8, 8, 8))
    state = one_step(together(), clients).global_state
    assert state["stem.1.num_batches_tracked"] == 1
    x = torch.cat([c.train[0] for c in clients.values()])
    stem = nn.Sequential(*list(seeded(ResidualNet).stem)[:1])
    values = stem(x)
    torch.testing.assert_close(state["stem.1.running_mean"], 0.1 * values.mean((0, 2, 3)), rtol=1e-12, atol=1e-13)
    # running variance: pooled biased variance x M / (M - 1), M = all values of the cohort: torch's unbiased variance
    torch.testing.assert_close(state["stem.1.running_var"], 0.9 + 0.1 * values.var((0, 2, 3)), rtol=1e-12, atol=1e-13)
