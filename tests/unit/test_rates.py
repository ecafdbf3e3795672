"""Learning rates that fall in stages."""

import pytest
import torch

import normfed as nf
from normfed import rates


def test_a_stage_ends_where_the_next_begins():
    rate = rates.parse("stages(0.5, 0.05, 0.005, at=[3, 5])")
    assert [rate(r) for r in range(7)] == [0.5, 0.5, 0.5, 0.05, 0.05, 0.005, 0.005]
    assert rates.parse("stages(0.1)")(99) == 0.1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stage(0.5, 0.1, at=[3])", "lr: unknown schedule 'stage'; did you mean 'stages'?"),
        ("stages(0.5, 0.1, a=[3])", "lr: stages has no argument 'a'; did you mean 'at'?"),
        ("stages(0.5, -0.1, at=[3])", "lr: -0.1 must be a number, 0 or more"),
        ("stages(0.5, 0.1, 0.01, at=[3])", "lr: 3 rates and 1 rounds to change in: one more rate than rounds, stages(0.5, 0.05, at=[6000])"),
        ("stages(0.5, 0.1, 0.01, at=[5, 3])", "lr: at=[5, 3] must be rounds above 0, each later than the one before: stages(0.5, 0.05, at=[6000])"),
        ("stages(0.5, 0.1, at=3)", "lr: at=3 must be rounds above 0, each later than the one before: stages(0.5, 0.05, at=[6000])"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(text, said):
    with pytest.raises(nf.Refused) as raised:
        rates.parse(text)
    assert said in raised.value.problems
    with pytest.raises(nf.Refused):
        nf.settings.Settings.of(rounds=1, lr=text)


def test_a_run_follows_it():
    """Rate 0 from round 1 on: nothing moves any more."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).double()
    clients = {
        "a": nf.ClientData(
            train=(
                torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
                torch.arange(8) % 3,
            )
        )
    }
    common = {"batch_size": 4, "seed": 1}
    one = nf.simulate(model, clients, nf.methods.fedavg(), rounds=1, lr=0.5, **common)
    three = nf.simulate(model, clients, nf.methods.fedavg(), rounds=3, lr="stages(0.5, 0.0, at=[1])", **common)
    assert not torch.equal(one.global_state["1.weight"], model.state_dict()["1.weight"])
    assert torch.equal(one.global_state["1.weight"], three.global_state["1.weight"])
