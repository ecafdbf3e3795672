import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normfed import keys


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), max_size=3))
def test_numbers_and_tensors_agree(key, data):
    as_tensor = torch.tensor(keys.signed(key))
    folded = keys.fold(key, *data)
    assert keys.signed(folded) == int(keys.fold(as_tensor, *data))
    if data:
        assert keys.signed(folded) == int(keys.fold(key, *map(torch.tensor, data)))
    assert torch.equal(keys.bits(folded, (5,)), keys.bits(torch.tensor(keys.signed(folded)), (5,)))


def test_keys_never_repeat_across_round_client_step_site():
    seen = {
        keys.fold(0, r, client, "noise", step, site)
        for r, client, step, site in itertools.product(range(20), "abcdefgh", range(20), ("drop1", "drop2"))
    }
    assert len(seen) == 20 * 8 * 20 * 2


def test_stacked_keys_draw_what_each_draws_alone():
    many = [keys.fold(3, k) for k in range(4)]
    stacked = torch.vmap(lambda key: keys.normal(key, (2, 3), torch.float64))(
        torch.tensor([keys.signed(k) for k in many])
    )
    for alone, row in zip(many, stacked, strict=True):
        assert torch.equal(keys.normal(alone, (2, 3), torch.float64), row)


def test_uniform_is_uniform_and_normal_is_normal():
    u = keys.uniform(1, (200_000,), torch.float64)
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003 and abs(u.var() - 1 / 12) < 0.001
    n = keys.normal(1, (200_000,), torch.float64)
    assert abs(n.mean()) < 0.008 and abs(n.std() - 1) < 0.008 and abs((n**4).mean() - 3) < 0.1
    neighbours = torch.corrcoef(torch.stack([keys.uniform(k, (100_000,)) for k in (1, 2)]))[0, 1]
    assert abs(neighbours) < 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_uniform_stays_below_one(dtype):
    assert keys.uniform(5, (100_000,), dtype).max() < 1


def test_permutation_and_integers():
    assert sorted(keys.permutation(9, 50).tolist()) == list(range(50))
    assert keys.permutation(9, 50).tolist() != keys.permutation(10, 50).tolist()
    drawn = keys.integers(4, (6000,), 6)
    assert set(drawn.tolist()) == set(range(6)) and min(torch.bincount(drawn)) > 850


def test_subset_keeps_order_and_depends_on_names_alone():
    names = [f"client {i}" for i in range(30)]
    drawn = keys.subset(11, names, 10)
    assert drawn == [n for n in names if n in drawn] and len(drawn) == 10
    assert set(keys.subset(11, names[::-1], 10)) == set(drawn)
    counts = {n: sum(n in keys.subset(k, names, 10) for k in range(300)) for n in names}
    assert min(counts.values()) > 60  # every client's turn comes: 100 expected
