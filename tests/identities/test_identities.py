"""Degenerate cases equal FedAvg (or one another) to the bit."""

import pytest
import torch

import normfed as nf
import normfed.methods as m
from normfed.method import Method
from normfed.testing import ResidualNet, difference, largest_difference, same_bits, seeded, toy_federation


def run(method, clients=None, **settings):
    chosen = {"rounds": 3, "batch_size": 4, "lr": 0.1, **settings}
    return nf.simulate(seeded(ResidualNet), clients or toy_federation(), method, **chosen)


IDENTITIES = [
    (m.fedprox(0.0), m.fedavg()),
    (m.agc(1e9), m.fedavg()),
    (m.fixbn(99), m.fedavg()),
    (m.fedbs(mu=0.0, eps=1e9, patience=99), Method("by loss", weigh=lambda reply: reply.mean_loss)),
    (m.fedbn() | m.silobn(), m.fedbn()),
    (m.singleset() | m.fedbn(), m.singleset()),
]


@pytest.mark.parametrize(("one", "other"), IDENTITIES, ids=lambda x: str(x))
def test_identity(one, other, engine):
    assert same_bits(run(one, engine=engine), run(other, engine=engine))


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedbn", "silobn", "scaffold", "pooled"])
def test_one_client_is_plain_sgd(name):
    """With one client, sharing or keeping makes no difference."""
    alone = toy_federation((12,))
    factory = getattr(m, name)
    method = factory(0.0) if name == "fedprox" else factory()
    plain = run(m.singleset(), alone, rounds=3)
    ours = run(method, alone, rounds=3)
    assert largest_difference(ours.client_states, plain.client_states) < 1e-13


def test_centralized_is_one_client_with_all_the_data():
    clients = toy_federation()
    x, y = (torch.cat([c.train[i] for c in clients.values()]) for i in (0, 1))
    one = {"pooled": nf.ClientData(train=(x, y), test=clients["a"].test)}
    a = run(m.centralized(), clients)
    b = run(m.fedavg(), one)
    assert largest_difference(a.global_state, b.global_state) == 0
    assert a.history[0]["bytes_up"] == a.history[0]["messages"] == 0
    assert set(a.client_states) == set(clients) == set(a.history[0]["train_loss"])
    assert a.history[-1]["test_accuracy"]["a"] == b.history[-1]["test_accuracy"]["pooled"]


def test_server_momentum_zero_is_fedavg():
    assert difference(run(m.fedavgm(momentum=0.0)), run(m.fedavg())) < 1e-14


def test_statistics_never_meet_a_server_optimizer():
    """The defect of other frameworks: an adaptive step on a falling variance makes it negative."""
    from normfed.plan import build
    from normfed.state import Role

    for method in (m.fedavgm(), m.fedadam(lr=10.0), m.fedyogi(lr=10.0)):
        plan = build(method, seeded(ResidualNet), toy_federation()["a"].train[0])
        touched = {name for _, names, _ in plan.first.server for name in names}
        roles = {e.role for e in plan.net.entries if e.name in touched}
        assert roles == {Role.WEIGHT, Role.NORM_AFFINE}
        result = run(method, rounds=4)
        assert all((t > 0).all() for n, t in result.global_state.items() if n.endswith("running_var"))


def test_fedavg_averages_what_the_papers_average():
    clients = toy_federation()
    result = run(m.fedavg(), clients, rounds=1)
    alone = run(m.singleset(), clients, rounds=1)
    sizes = [len(c.train[0]) for c in clients.values()]
    for name, tensor in result.global_state.items():
        states = [s[name] for s in alone.client_states.values()]
        if tensor.dtype is torch.int64:  # counters keep their type and are never averaged
            assert tensor == max(states)
        else:
            mean = sum(n * s for n, s in zip(sizes, states, strict=True)) / sum(sizes)
            torch.testing.assert_close(tensor, mean, rtol=1e-13, atol=1e-14)


def test_pooled_differs_from_fedavg_in_variances_alone():
    one, other = run(m.pooled(), rounds=1).global_state, run(m.fedavg(), rounds=1).global_state
    moved = {name for name in one if not torch.allclose(one[name], other[name], rtol=1e-12, atol=1e-13)}
    assert moved == {n for n in one if n.endswith("running_var")}
    assert all((one[name] >= other[name] - 1e-12).all() for name in moved)


def test_scaffold_against_a_plain_loop():
    """Karimireddy et al., Algorithm 1, option II, written out."""
    clients, lr = toy_federation(), 0.1
    result = run(m.scaffold(), clients, shuffle=False)
    worker = seeded(ResidualNet).train()
    server = {n: t.clone() for n, t in worker.state_dict().items()}
    names = [n for n, _ in worker.named_parameters()]
    c = {n: torch.zeros_like(server[n]) for n in names}
    own = [{n: torch.zeros_like(server[n]) for n in names} for _ in clients]
    sizes = [len(d.train[0]) for d in clients.values()]
    for _ in range(3):
        uploads, drifts = [], []
        for k, data in enumerate(clients.values()):
            worker.load_state_dict(server)
            steps = 0
            for x, y in zip(data.train[0].split(4), data.train[1].split(4), strict=True):
                worker.zero_grad()
                torch.nn.functional.cross_entropy(worker(x), y).backward()
                with torch.no_grad():
                    for n, p in worker.named_parameters():
                        p -= lr * (p.grad - own[k][n] + c[n])
                steps += 1
            new = {n: own[k][n] - c[n] + (server[n] - worker.state_dict()[n]) / (steps * lr) for n in names}
            drifts.append({n: new[n] - own[k][n] for n in names})
            own[k] = new
            uploads.append({n: t.clone() for n, t in worker.state_dict().items()})
        server = {
            n: sum(s * u[n] for s, u in zip(sizes, uploads, strict=True)) / sum(sizes)
            if server[n].is_floating_point()
            else max(u[n] for u in uploads)
            for n in server
        }
        c = {n: c[n] + sum(d[n] for d in drifts) / len(clients) for n in names}
    assert largest_difference(result.global_state, server) < 1e-12


def test_fedbs_against_a_plain_rule():
    clients = toy_federation()
    first = run(m.fedbs(eps=0.0), clients, rounds=1)
    alone = run(m.singleset(), clients, rounds=1)
    losses = list(first.history[0]["train_loss"].values())
    for name, tensor in first.global_state.items():
        if tensor.is_floating_point():
            states = [s[name] for s in alone.client_states.values()]
            mean = sum(f * s for f, s in zip(losses, states, strict=True)) / sum(losses)
            torch.testing.assert_close(tensor, mean, rtol=1e-12, atol=1e-13)


def test_fedbs_turns_after_patience_rounds_in_a_row():
    """Round t is the patience-th in a row: still weighted by loss; phase 2 begins with t + 1, for good."""
    result = run(m.fedbs(eps=1e9, patience=3), rounds=5)
    assert [row["latched"]["fedbs"] for row in result.history] == [False, False, False, True, True]
    never = run(m.fedbs(eps=0.0, patience=1), rounds=3)
    assert not never.history[-1]["latched"]["fedbs"]


def test_fixbn_freezes_statistics_and_only_statistics():
    a, b = run(m.fixbn(2), rounds=2), run(m.fixbn(2), rounds=4)
    for name in a.global_state:
        frozen = "running" in name or "num_batches" in name
        assert torch.equal(a.global_state[name], b.global_state[name]) == frozen, name
