import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import normfed as nf
from normfed import state
from normfed.models import MODELS, make
from normfed.state import Role, describe, select
from normfed.testing import ResidualNet


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.gn, self.ln, self.inn = nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.InstanceNorm1d(4, affine=True)
        self.sync, self.frozen = nn.SyncBatchNorm(4), nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("table", torch.arange(3))
        self.register_buffer("ema", torch.zeros(2))
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.tied = self.frozen


def roles(model):
    return {e.name: e.role for e in describe(model)}


def test_roles_come_from_types():
    found = roles(Odd())
    assert found == {
        "gn.weight": Role.NORM_AFFINE, "gn.bias": Role.NORM_AFFINE, "ln.weight": Role.NORM_AFFINE,
        "ln.bias": Role.NORM_AFFINE, "inn.weight": Role.NORM_AFFINE, "inn.bias": Role.NORM_AFFINE,
        "sync.weight": Role.NORM_AFFINE, "sync.bias": Role.NORM_AFFINE, "sync.running_mean": Role.NORM_STAT,
        "sync.running_var": Role.NORM_STAT, "sync.num_batches_tracked": Role.COUNTER, "frozen.weight": Role.WEIGHT,
        "frozen.bias": Role.WEIGHT, "table": Role.BUFFER, "ema": Role.BUFFER,
    }  # fmt: skip


def test_tied_names_are_one_entry_and_come_back_as_two():
    entries = {e.name: e for e in describe(Odd())}
    assert entries["frozen.weight"].aliases == ("tied.weight",) and not entries["frozen.weight"].trainable


@pytest.mark.parametrize("name", [n for n in MODELS if n not in ("alexnet", "alexnet_fedwon", "resnet50")])
def test_every_entry_of_a_model_is_described_once(name):
    model = make(name)
    assert [e.name for e in describe(model)] == list(model.state_dict())


def test_norm_entries_by_type_and_by_substring():
    """What the mission starts from: by name, FedBN on MobileNetV2 is FedAvg."""
    entries = describe(make("mobilenetv2"))
    by_type = [e for e in entries if state.norm(e)]
    assert len(by_type) == 5 * 52 and not any("bn" in e.name for e in by_type)
    shortcut = [e.name for e in describe(make("resnet18")) if state.norm(e) and "bn" not in e.name]
    assert shortcut and all("downsample.1" in name for name in shortcut)


selectors = st.recursive(
    st.sampled_from([state.norm, state.stats, state.affine, state.weights, state.counters, state.under("main"), state.of("Conv2d")]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] & p[1]), st.tuples(inner, inner).map(lambda p: p[0] | p[1]), inner.map(lambda s: ~s)
    ),
    max_leaves=6,
)  # fmt: skip
ENTRIES = describe(ResidualNet())


@given(selectors, selectors)
def test_selectors_are_a_boolean_algebra_and_read_back(a, b):
    for e in ENTRIES:
        assert a(e) + (~a)(e) == 1  # a selector and its complement partition the entries
        assert (~(a & b))(e) == (~a | ~b)(e)
        assert select(a.text)(e) == a(e)
    assert select(str(a)) == a


@pytest.mark.parametrize(
    "text", ["normm", "norm &", "under(3)", "norm + stats", "f('x')", "norm.stats", "under('a', 'b')"]
)
def test_bad_selectors_are_refused(text):
    with pytest.raises(nf.Refused, match="selector"):
        select(text)


def test_under_takes_whole_path_components():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.ModuleList([nn.Linear(1, 1) for _ in range(12)])

    names = [e.name for e in describe(Net()) if state.under("features.1")(e)]
    assert names == ["features.1.weight", "features.1.bias"]
