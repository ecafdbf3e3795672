"""What `explain` says is what a run does; a snapshot for every method shows any change of it."""

import os
from pathlib import Path

import pytest
import torch

import normfed as nf
from normfed.explain import explain, render
from normfed.expression import parse
from normfed.methods import METHODS
from normfed.models import make
from normfed.testing import ResidualNet, seeded, toy_federation

SNAPSHOT = Path(__file__).parents[1] / "snapshots" / "explain.txt"
UPDATE = os.environ.get("UPDATE_SNAPSHOTS")  # set it, run, and read the diff


def toy(text):
    return explain(parse(text), seeded(ResidualNet), "a residual net", (3, 6, 6))


def test_snapshot():
    text = "\n\n\n".join(render(toy(name), clients=5) for name in sorted(METHODS)) + "\n"
    if UPDATE:
        SNAPSHOT.write_text(text)
    assert text == SNAPSHOT.read_text(), "explain has changed: run with UPDATE_SNAPSHOTS=1 and read the diff"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_what_is_explained_is_what_is_counted_in_a_run(name):
    found = toy(name).first
    clients = toy_federation((8, 8, 8))
    row = nf.simulate(seeded(ResidualNet), clients, parse(name), rounds=4, batch_size=8, evaluate_every=9).history[1]
    if name in ("fedplvm", "fedrdn"):  # what is gathered is as large as the data have it
        assert row["messages"] == found.messages and row["bytes_up"] >= 3 * found.wire["model_up"]
        assert found.gathers
        return
    sent = 0 if name == "centralized" else 3
    assert (row["bytes_up"], row["bytes_down"]) == (sent * found.bytes_up, sent * found.bytes_down)
    assert row["messages"] == found.messages


def test_fedbn_on_the_digits_network():
    found = explain(nf.methods.fedbn(), make("digits_cnn"), "digits_cnn").to_dict()
    state = make("digits_cnn").state_dict()
    local = {e["name"] for e in found["entries"] if e["scope"] == "local"}
    assert local == {n for n in state if n.startswith("bn")} and len(local) == 25
    shared = [n for n in state if n not in local]
    assert found["bytes_up"] == found["bytes_down"] == sum(state[n].nbytes for n in shared)
    assert found["messages"] == 1
    assert all(
        e["wire"] == (e["scope"] == "shared") and (e["reduce"] is None) == (e["scope"] == "local")
        for e in found["entries"]
    )
    assert {e["role"] for e in found["entries"]} == {"weight", "norm_affine", "norm_stat", "counter"}


def test_fedavg_shares_all_and_counters_take_the_maximum():
    found = explain(nf.methods.fedavg(), make("digits_cnn"), "digits_cnn").to_dict()
    assert found["bytes_up"] == sum(t.nbytes for t in make("digits_cnn").state_dict().values())
    reducers = {e["role"]: e["reduce"] for e in found["entries"]}
    assert reducers == {
        "weight": "weighted_mean",
        "norm_affine": "weighted_mean",
        "norm_stat": "weighted_mean",
        "counter": "maximum",
    }


def test_by_name_fedbn_would_be_fedavg_on_mobilenet():
    found = explain(nf.methods.fedbn(), make("mobilenetv2"), "mobilenetv2", (3, 32, 32)).to_dict()
    local = [e["name"] for e in found["entries"] if e["scope"] == "local"]
    assert len(local) == 5 * 52 and not any("bn" in name for name in local)


def test_whose_functions_act_is_said_in_their_order():
    assert toy("fedavg").first.pieces == toy("fedbn").first.pieces == []
    assert toy("agc+fedprox+scaffold+greg").first.pieces == [
        "terms beside the task's loss: fedprox, greg",
        "gradients: changed by agc, then scaffold",
    ]
    before, after = toy("fedbs").phases
    assert before.pieces == ["clients are weighed by fedbs"]
    assert after.pieces == ["terms beside the task's loss: fedprox", "clients are weighed by fedbs"]
    assert "a client starts the round from what partialfed loads" in render(toy("partialfed"))
    assert toy("fedrdn").to_dict()["pieces"] == [
        "samples and labels of a step: changed by fedrdn", "evaluation: samples as fedrdn prepares them",
    ]  # fmt: skip


def test_frozen_statistics_are_not_sent_back():
    before, after = toy("fixbn").phases
    statistics = sum(e["bytes"] for e in before.entries if e["role"] in ("norm_stat", "counter"))
    assert before.bytes_up - after.bytes_up == statistics and before.bytes_down == after.bytes_down


def test_scaffold_doubles_what_is_trained():
    plain, scaffold = toy("fedavg").first, toy("scaffold").first
    trained = sum(t.nbytes for t in dict(seeded(ResidualNet).named_parameters()).values())
    assert scaffold.bytes_up - plain.bytes_up == scaffold.bytes_down - plain.bytes_down == trained


def test_it_leaves_the_model_and_torchs_generator_alone():
    model, generator = seeded(ResidualNet), torch.get_rng_state()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    explain(nf.methods.fedbn(), model, "", (3, 6, 6))
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
