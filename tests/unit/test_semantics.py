"""What docs/semantics.md says and no other test holds."""

import torch
from torch.nn.functional import cross_entropy

import normfed as nf
import normfed.methods as m
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
