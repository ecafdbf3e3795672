"""What docs/semantics.md says and no other test holds."""

import torch
from torch.nn.functional import cross_entropy

import normfed as nf
import normfed.methods as m
from normfed.method import Method
from normfed.state import scale
from normfed.testing import ResidualNet, seeded, toy_federation


def test_an_evaluations_loss_is_of_all_samples_at_once():
    clients = toy_federation()
    result = nf.simulate(seeded(ResidualNet), clients, m.fedbn(), rounds=2, batch_size=4, lr=0.1, seed=3)
    for client, state in result.client_states.items():
        net = seeded(ResidualNet).eval()
        net.load_state_dict(state)
        x, y = clients[client].test
        assert abs(cross_entropy(net(x), y).item() - result.history[-1]["test_loss"][client]) < 1e-12


def test_a_client_that_never_took_part_has_what_it_began_with_and_the_new_rest():
    clients, start = toy_federation((8,) * 5), seeded(ResidualNet).state_dict()
    result = nf.simulate(seeded(ResidualNet), clients, m.fedbn(), rounds=1, batch_size=4, lr=0.1, participation=0.4)
    absent = set(clients) - set(result.history[0]["train_loss"])
    assert len(absent) == 3 and set(result.client_states) == set(clients)
    for client, state in result.client_states.items():
        for name, tensor in state.items():
            local = ".1." in name
            if not local:
                assert torch.equal(tensor, result.global_state[name])
            elif client in absent or "num_batches" in name:
                assert torch.equal(tensor, start[name]) == (client in absent)
        assert torch.equal(state["stem.1.running_mean"], start["stem.1.running_mean"]) == (client in absent)


def test_training_alone_sends_nothing():
    row = nf.simulate(seeded(ResidualNet), toy_federation(), m.singleset(), rounds=1, batch_size=4).history[0]
    assert row["bytes_up"] == row["bytes_down"] == row["messages"] == 0


def test_methods_change_gradients_in_their_order_and_clipping_comes_last():
    twice = Method("twice", grad=(lambda grads, step: scale(grads, 2.0),))
    more = Method("more", grad=(lambda grads, step: {name: grad + 1 for name, grad in grads.items()},))
    clients, settings = toy_federation((8,)), {"rounds": 1, "batch_size": 8, "lr": 1.0, "shuffle": False}
    start, net = dict(seeded(ResidualNet).named_parameters()), seeded(ResidualNet).train()
    x, y = clients["a"].train
    cross_entropy(net(x), y).backward()
    for method, expected in ((twice | more, lambda g: 2 * g + 1), (more | twice, lambda g: 2 * (g + 1))):
        clone = seeded(ResidualNet)
        for own, theirs in zip(clone.parameters(), net.parameters(), strict=True):
            own.grad = expected(theirs.grad)
        torch.nn.utils.clip_grad_norm_(clone.parameters(), 0.3, foreach=False)
        end = nf.simulate(seeded(ResidualNet), clients, method, clip_norm=0.3, **settings).global_state
        for name, parameter in clone.named_parameters():
            torch.testing.assert_close(end[name], start[name] - parameter.grad, rtol=1e-12, atol=1e-13)
