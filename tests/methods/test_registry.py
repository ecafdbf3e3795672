"""What every method owes its users, over the whole registry, and over a fair sample of compositions."""

import inspect
import itertools
import re
from pathlib import Path

import pytest
from torch import nn

import normfed as nf
from normfed.expression import parse
from normfed.methods import METHODS
from normfed.testing import check_method, seeded, toy_federation, toy_mlp

# Arguments that make a method act within the few rounds of a test.
ACTIVE = {
    "fedprox": "fedprox(mu=0.3)",
    "fedbs": "fedbs(mu=0.3, eps=5.0, patience=2)",
    "fixbn": "fixbn(t=2)",
    "agc": "agc(threshold=0.05)",
    "groupnorm": "groupnorm(groups=2)",
}


def active(name):
    return ACTIVE.get(name, name)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_contract(name):
    check_method(parse(active(name)))


CONVOLUTIONAL = {"fedfa", "fedwon", "fixup"}


@pytest.mark.parametrize("name", sorted(set(METHODS) - CONVOLUTIONAL))
def test_contract_on_vectors_with_dropout_and_partial_participation(name):
    clients = toy_federation((9, 16, 13, 5, 8), shape=(6,))
    check_method(
        parse(active(name)), lambda: toy_mlp(dropout=0.3), clients, epochs=2, participation=0.6, momentum=0.9,
        weight_decay=1e-3, clip_norm=2.0, batch_size=6, lr=0.02,
    )  # fmt: skip


def composable(pair, model):
    try:
        nf.Run(model, toy_federation(), parse("+".join(map(active, pair))), rounds=1, engine="serial")
    except nf.Refused as refused:
        assert refused.problems
        return False
    return True


PAIRS = list(itertools.combinations(sorted(METHODS), 2))


@pytest.mark.parametrize("pair", PAIRS[:: len(PAIRS) // 24], ids="+".join)
def test_pairs_compose_or_are_refused(pair):
    _check_pair(pair)


@pytest.mark.full
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_all_pairs_compose_or_are_refused(pair):
    _check_pair(pair)


def _check_pair(pair):
    from normfed.testing import ResidualNet

    if composable(pair, seeded(ResidualNet)):
        check_method(parse("+".join(map(active, pair))), rounds=3)


@pytest.mark.parametrize(
    "text",
    [
        "fedbn+fedprox(mu=0.3)+scaffold", "scaffold+fixbn(t=1)", "fedbs(eps=5.0, patience=1)+agc(threshold=0.05)",
        "silobn+fedadam+agc(threshold=0.1)", "pooled+fedavgm+fedprox(mu=0.1)", "groupnorm(groups=2)+scaffold+fedyogi",
        "fixbn(t=1)+fedbs(eps=5.0, patience=2)",
    ],
)  # fmt: skip
def test_compositions(text):
    check_method(parse(text))


@pytest.mark.parametrize("name", ["fedbn", "silobn", "fixbn", "pooled", "groupnorm", "layernorm", "nonorm"])
def test_a_method_that_finds_nothing_to_act_on_is_refused(name):
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 8), nn.LayerNorm(8), nn.Linear(8, 4)).double()
    with pytest.raises(nf.Refused) as refused:
        nf.simulate(model, toy_federation(), parse(name), rounds=1)
    assert "1 LayerNorm" in str(refused.value)


FILES = sorted(Path(inspect.getfile(nf.methods)).parent.glob("*.py"))


@pytest.mark.parametrize("file", [f for f in FILES if f.name != "__init__.py"], ids=lambda f: f.stem)
def test_a_method_file_has_a_header_and_knows_no_engine(file):
    text = file.read_text()
    header = text.split('"""')[1]
    assert (
        re.search(r"\b(19|20)\d\d\b", header)
        or "Algorithm" in header
        or file.stem in ("singleset", "centralized", "pooled")
    )
    assert "Deviations" in header or file.stem == "pooled"
    assert not re.search(r"normfed\.(engines|server|experiment|dispatch|client)", text)
    lines = "".join(text.split('"""')[::2]).splitlines()  # without docstrings
    code = [line for line in lines if line.strip() and not line.strip().startswith("#")]
    assert len(code) <= 60, f"{len(code)} lines of code"
