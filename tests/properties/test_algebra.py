"""The laws of composition: `|` is associative with FedAvg as its unit; text reads back; clashes are refused when built."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import normfed as nf
import normfed.methods as m
from normfed.expression import parse
from normfed.method import Method, Segment, from_round, switch
from normfed.norm import RUNNING
from normfed.reducers import pooled_moments, weighted_mean
from normfed.state import counters, norm, stats, trainable
from normfed.testing import ResidualNet, same_bits, seeded, toy_federation
from normfed.text import split

ATOMS = [
    m.fedavg(),
    m.fedbn(),
    m.silobn(),
    m.fedprox(0.3),
    m.scaffold(),
    m.agc(0.5),
    m.fedbs(),
    m.fixbn(2),
    m.pooled(),
    m.fedadam(),
]
methods = st.sampled_from(ATOMS)


@given(methods, methods, methods)
def test_associative_with_fedavg_as_unit(a, b, c):
    assert (a | b) | c == a | (b | c)
    assert m.fedavg() | a == a == a | m.fedavg()
    assert Method() | a == a
    assert str((a | b) | c) == str(a | (b | c))
    assert hash((a | b) | c) == hash(a | (b | c))


@given(st.lists(methods, min_size=1, max_size=4))
def test_text_reads_back(chosen):
    method = chosen[0]
    for other in chosen[1:]:
        method = method | other
    assert parse(str(method)) == method


def run(method, **settings):
    chosen = {"rounds": 4, "batch_size": 4, "lr": 0.1, **settings}
    return nf.simulate(seeded(ResidualNet), toy_federation(), method, **chosen)


def test_associativity_and_unit_hold_in_numbers():
    a, b, c = m.fedbn(), m.fedprox(0.3), m.scaffold()
    assert same_bits(run((a | b) | c), run(a | (b | c)))
    assert same_bits(run(m.fedavg() | b), run(b | m.fedavg()))


def test_order_does_not_matter_for_pieces_that_add():
    assert same_bits(run(m.fedprox(0.3) | m.fedbn()), run(m.fedbn() | m.fedprox(0.3)))
    assert same_bits(run(m.fixbn(2) | m.fedprox(0.3)), run(m.fedprox(0.3) | m.fixbn(2)))


def test_a_switch_distributes_over_composition():
    a, b, c = m.fedprox(0.5), Method("still", plan=(Segment(norm=RUNNING),)), m.silobn()
    when = from_round(2)
    assert same_bits(run(switch("s", when, a, b) | c), run(switch("s", when, a | c, b | c)))
    assert not same_bits(run(switch("s", when, a, b) | c), run(a | c))


def test_a_switch_is_latched():
    def once(server):
        return server.round == 1

    still = Method("still", plan=(Segment(norm=RUNNING),))
    result = run(switch("s", once, m.fedavg(), still))
    assert [row["latched"]["s"] for row in result.history] == [False, True, True, True]


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (m.fedbn() | m.pooled(), "pooled needs a model that shares running statistics; fedbn keeps them on the clients (stem.1.running_mean, …)"),
        (m.fedbn() | m.fixbn(), "fixbn needs a model that shares running statistics; fedbn keeps them on the clients"),
        (m.fedavgm() | m.fedadam(), "fedavgm and fedadam cannot be combined: both set 'stem.0.weight' on the server"),
        (m.fedbs() | Method("other", weigh=lambda reply: reply.n_samples), "cannot be combined: both decide how clients are weighed"),
        (m.scaffold() | m.scaffold(), "two methods called 'scaffold' both keep 'own'"),
        (m.groupnorm() | m.nonorm(), "nonorm: it replaces BatchNorm layers and the model has none; it has 3 GroupNorm"),
        (m.groupnorm() | m.fedbn(), "fedbn needs a model that has BatchNorm layers to keep at home; after groupnorm the model has none: it has 3 GroupNorm"),
        (Method("a", scope=((norm, "local"),)) | Method("b", scope=((stats, "shared"),)), "a and b cannot be combined: 'stem.1.running_mean' is owned by local (a), shared (b)"),
        (Method("a", reduce=((trainable, pooled_moments),)), "reducer pooled_moments: pooled moments need running mean and variance of layer"),
        (Method("a", reduce=((counters, weighted_mean),)), "reducer weighted_mean: integers are not averaged"),
    ],
)  # fmt: skip
def test_clashes_are_refused_before_round_0(method, said):
    with pytest.raises(nf.Refused) as refused:
        run(method)
    assert any(said in problem for problem in refused.value.problems), refused.value.problems


def test_all_clashes_are_listed_at_once():
    with pytest.raises(nf.Refused) as refused:
        run(m.fedbn() | m.pooled() | m.fixbn() | m.fedavgm() | m.fedyogi())
    assert len(refused.value.problems) == 3


def test_methods_are_equal_by_what_made_them():
    assert m.fedprox(0.1) == m.fedprox(mu=0.1) != m.fedprox(0.2)
    assert m.fedprox() == m.fedprox(0.01) and str(m.fedprox()) == "fedprox" and str(m.fedprox(0.1)) == "fedprox(mu=0.1)"
    by_hand = Method("mine", weigh=lambda reply: torch.ones(3))
    assert by_hand == by_hand and by_hand != Method("mine", weigh=lambda reply: torch.ones(3))
    assert m.fedbn() != m.silobn() and m.fedbn() != "fedbn"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fedbm", "unknown method 'fedbm'; did you mean 'fedbn' or 'fedbs'?"),
        ("fedprox(nu=1)", "fedprox: unknown argument 'nu'; did you mean 'mu'?"),
        ("fedbn(mu=1)", "fedbn: unknown argument 'mu'; it takes none"),
        ('fedprox(mu="a")', "fedprox: mu='a' is not a number"),
        ("fedprox(mu=true)", "fedprox: mu=True is not a number"),
        ("fedprox(mu=-1)", "fedprox: mu=-1 must not be negative"),
        ("fedprox(mu=)", "fedprox:  is not a TOML value"),
        ("fedprox(1, 2)", "fedprox: too many positional arguments"),
        ("fedprox(mu=1, mu=2)", "fedprox: argument 'mu' is given twice"),
        ("fedprox(mu=1", "cannot be read"),
        ("fedbn+", "cannot be read"),
        ("fixbn(t=1.5)", "fixbn: t=1.5 is not a whole number or none"),
        ("", "cannot be read"),
    ],
)
def test_bad_expressions(text, said):
    with pytest.raises(nf.Refused) as refused:
        parse(text)
    assert said in str(refused.value)


def test_every_problem_of_an_expression_is_listed():
    with pytest.raises(nf.Refused) as refused:
        parse("fedbm+fedprox(nu=1)+silobn")
    assert len(refused.value.problems) == 2


def test_commas_and_plus_signs_in_brackets_and_strings_do_not_split():
    assert split('a(x=[1, 2], y="p,q"),b', ",") == ['a(x=[1, 2], y="p,q")', "b"]
    assert split('a(keep="norm+x")+b', "+") == ['a(keep="norm+x")', "b"]


@pytest.mark.parametrize("factory", [m.fedavgm, m.fedadam, m.agc, m.fedbs, m.groupnorm])
def test_values_out_of_range_are_refused(factory):
    bad = {m.fedavgm: {"momentum": 1.0}, m.fedadam: {"tau": 0}, m.agc: {"threshold": 0}, m.fedbs: {"patience": 0}, m.groupnorm: {"groups": 0}}  # fmt: skip
    with pytest.raises(nf.Refused, match="must"):
        factory(**bad[factory])
