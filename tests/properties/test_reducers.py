"""Reducers are commutative monoids, and a common scale of the weights does not matter."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normfed as nf
from normfed.reducers import Maximum, PooledMoments, Total, WeightedMean
from normfed.testing import largest_difference

REDUCERS = {
    "mean": WeightedMean(),
    "maximum": Maximum(),
    "total": Total(),
    "pooled": PooledMoments(pairs=(("mean", "var"),)),
}


def clients(seed, n):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(n, 3, generator=g, dtype=torch.float64) * 5
    return {"mean": mean, "var": torch.rand(n, 3, generator=g, dtype=torch.float64) + 0.1}, torch.rand(
        n, generator=g, dtype=torch.float64
    ) + 0.1


def reduced(reducer, values, weights, parts):
    """One accumulator per part, merged from left to right."""
    accs = [reducer.add(reducer.start(), {k: v[p] for k, v in values.items()}, weights[p]) for p in parts]
    total = reducer.start()
    for acc in accs:
        total = reducer.merge(total, acc)
    return reducer.finish(total)


@pytest.mark.parametrize("name", REDUCERS)
@given(
    seed=st.integers(0, 10_000),
    order=st.permutations(range(6)),
    cuts=st.sets(st.integers(1, 5)),
    scale=st.floats(1e-3, 1e3),
)
@settings(max_examples=40, deadline=None)
def test_laws(name, seed, order, cuts, scale):
    reducer, (values, weights) = REDUCERS[name], clients(seed, 6)
    whole = reduced(reducer, values, weights, [list(range(6))])
    edges = [0, *sorted(cuts), 6]
    parts = [list(order[a:b]) for a, b in itertools.pairwise(edges)]
    assert largest_difference(whole, reduced(reducer, values, weights, parts)) < 1e-12
    left = reduced(reducer, values, weights, parts)
    right = reducer.start()
    for part in reversed(parts):
        right = reducer.merge(
            reducer.add(reducer.start(), {k: v[part] for k, v in values.items()}, weights[part]), right
        )
    assert largest_difference(left, reducer.finish(right)) < 1e-12
    assert largest_difference(whole, reduced(reducer, values, weights * scale, [list(range(6))])) < 1e-12


@given(sizes=st.lists(st.integers(2, 9), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_pooled_moments_are_those_of_the_pooled_samples(sizes, seed):
    g = torch.Generator().manual_seed(seed)
    samples = [torch.randn(n, 3, generator=g, dtype=torch.float64) * (i + 1) + 100 * i for i, n in enumerate(sizes)]
    values = {
        "mean": torch.stack([x.mean(0) for x in samples]),
        "var": torch.stack([x.var(0, correction=0) for x in samples]),
    }
    out = reduced(
        REDUCERS["pooled"], values, torch.tensor(sizes, dtype=torch.float64), [[i] for i in range(len(sizes))]
    )
    pooled = torch.cat(samples)
    torch.testing.assert_close(out["mean"], pooled.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(out["var"], pooled.var(0, correction=0), rtol=1e-11, atol=1e-11)


def test_a_mean_of_one_type_stays_of_that_type_and_is_summed_wider():
    half = torch.full((4096, 1), 0.1, dtype=torch.bfloat16)
    out = reduced(REDUCERS["mean"], {"w": half}, torch.ones(4096, dtype=torch.float64), [[i] for i in range(4096)])
    assert out["w"].dtype is torch.bfloat16 and out["w"] == half[0]


@pytest.mark.parametrize("name", ["mean", "pooled"])
@pytest.mark.parametrize("weights", [[0.0, 0.0], [float("nan"), 1.0], [-1.0, 0.5]])
def test_weights_that_cannot_be_normalised_abort(name, weights):
    values, _ = clients(0, 2)
    with pytest.raises(nf.Aborted, match="sum to"):
        reduced(REDUCERS[name], values, torch.tensor(weights, dtype=torch.float64), [[0, 1]])
