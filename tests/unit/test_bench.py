"""The bench measures what it says: the same training on both sides, in the documented form."""

import dataclasses
import json
import sys
import time
import types

import pytest
import torch
from torch import nn

import normfed as nf
from normfed import bench, prepare
from normfed.cli import main
from normfed.testing import same_bits, seeded


def net():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 10))


def small():
    return seeded(net).float()


PLAIN = bench.Scenario("tiny", small, (3, 6, 6), 2, 8, 4)
BYTES = bench.Scenario("tiny, on bytes", small, (3, 6, 6), 2, 8, 4, bench.NORMALIZE)


def test_bytes_and_prepared_floats_train_alike():
    clients = bench.federation(BYTES, "cpu")
    assert all(client.train[0].dtype is torch.uint8 for client in clients.values())
    settings = {"rounds": 2, "batch_size": 4, "lr": 0.01, "engine": "serial"}
    stored = nf.simulate(small(), clients, nf.methods.fedbn(), prepare=BYTES.prepare, **settings)
    loaded = nf.simulate(small(), bench.prepared(clients), nf.methods.fedbn(), **settings)
    assert same_bits(stored, loaded)


@pytest.mark.parametrize("name", ["input", "augment"])
def test_the_chains_of_the_input_scenarios_fit_their_images(name):
    scenario = bench.SCENARIOS[name]
    x = torch.zeros(2, *scenario.shape, dtype=torch.uint8)
    assert prepare.parse(scenario.prepare, like=x)(x, torch.float32, 0).shape == x.shape


def test_the_document_has_the_documented_form(monkeypatch, capsys):
    monkeypatch.setattr(bench, "SCENARIOS", {"S1": PLAIN, "input": BYTES})
    monkeypatch.setattr(sys, "argv", ["normfed", "bench", "--methods", "fedavg", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    document = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and document["device"] == "cpu" and list(document["scenarios"]) == ["S1", "input"]
    for found in document["scenarios"].values():
        assert {"ratio", "seconds", "plain_seconds", "peak_mb"} <= set(found["fedavg"])
        assert found["fedavg"]["ratio"] == found["fedavg"]["seconds"] / found["fedavg"]["plain_seconds"] > 0


def test_a_line_says_what_it_is_measured_against(monkeypatch, capsys):
    monkeypatch.setattr(bench, "SCENARIOS", {"S1": PLAIN, "input": BYTES})
    monkeypatch.setattr(sys, "argv", ["normfed", "bench", "--methods", "fedavg"])
    with pytest.raises(SystemExit):
        main()
    plain, stored = capsys.readouterr().out.splitlines()
    assert " of the plain loop, " in plain and " of prepared floats, " in stored


@pytest.mark.full
def test_a_round_on_bytes_has_95_percent_of_the_speed_of_one_on_prepared_floats(monkeypatch):
    """In seconds of the processor, which other processes do not take."""
    monkeypatch.setattr(bench, "time", types.SimpleNamespace(perf_counter=time.process_time))
    found = bench.measure(dataclasses.replace(bench.SCENARIOS["input"], clients=2), "fedavg", repeats=9)
    assert found["ratio"] < 1 / 0.95, found


def test_an_unknown_scenario_is_refused():
    with pytest.raises(nf.Refused, match=r"unknown scenario 'imput'; did you mean 'input'\?"):
        bench.bench(["imput"])
