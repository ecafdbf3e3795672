"""A finished run given back: the same states, logits that score what was recorded, other data, unseen clients."""

import csv
import json

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import normfed as nf
from normfed import recipe, runs
from normfed.data import open_federation
from normfed.runs.evaluate import evaluate

from command import normfed, refused, sets, tiny

SHARED, LOCAL, STATEFUL = "fedavg", "fedbn", "scaffold"
# Shared, local, transformed, stateful; and those whose evaluation is more than a state: an exchange before it (hbn),
# samples changed on their way in (fedrdn), one model of all (centralized), statistics loaded anew.
METHODS = (SHARED, LOCAL, "fedwon", STATEFUL, "hbn", "fedfa", "fedrdn", "centralized")
MORE = ("silobn", "fbn", "partialfed_adaptive", "batchrenorm", "greg+fedplvm", "fedwon+fedprox(mu=0.1)")
UNSEEN = ["unseen/averaged", "unseen/reestimated", "unseen/batch", "unseen/nearest"]


def played(method, folder, **keys):
    given = {"data": "embedded(train=20)", "rounds": 2, "steps": 2, "batch_size": 4, "seeds": [5], **keys}
    config = recipe.resolve(recipe.find("demo"), {"method": method, **given})
    return config, runs.run(config, folder, recipe="demo", jobs=1)


@pytest.mark.parametrize("method", [*METHODS, *(pytest.param(m, marks=pytest.mark.full) for m in MORE)])
def test_what_is_loaded_is_what_was_trained(method, tmp_path):
    config, document = played(method, tmp_path / "run", metrics=["accuracy", "f1"])
    run = nf.load(tmp_path / "run")
    assert str(run.method) == config["method"] and run.seed == 5 and run.clients == document["clients"]
    assert run.history == document["history"] and run.final == document["final"]

    data = open_federation("embedded(train=20)")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = nf.models.make("normfed.demo:demo_cnn")
    settings = {key: config[key] for key in ("rounds", "steps", "batch_size", "lr")}
    result = nf.simulate(model, data, nf.expression.parse(method), seed=5, **settings)
    assert set(run.global_state) == set(result.global_state)
    assert all(torch.equal(run.global_state[name], tensor) for name, tensor in result.global_state.items())
    assert set(run.client_states) == set(result.client_states)
    for client, state in result.client_states.items():
        assert all(torch.equal(run.client_states[client][name], tensor) for name, tensor in state.items()), client

    for client in run.clients:  # the recorded accuracy, again, from the folder alone
        x, y = data[client].test
        accuracy = (run.predict(x, client).argmax(1) == y).double().mean().item()
        assert accuracy == pytest.approx(run.final["test_accuracy"][client]["mean"], abs=1e-12), client
    elsewhere, _ = evaluate(run, "embedded(train=20)")
    for client, scores in elsewhere["views"]["own"].items():
        assert scores["accuracy"] == pytest.approx(run.final["test_accuracy"][client]["mean"], abs=1e-12)
        assert scores["f1"] == pytest.approx(document["history"][-1]["test_f1"][client], abs=1e-12)


@pytest.mark.parametrize("method", [SHARED, LOCAL, "fedwon"])
def test_the_network_by_itself_predicts_the_same(method, tmp_path):
    played(method, tmp_path / "run")
    run = nf.load(tmp_path / "run")
    x, _ = open_federation("embedded(train=20)")["neon"].test
    model = run.model_of("neon")
    assert not model.training and torch.allclose(model(x), run.predict(x, "neon"), atol=1e-5)
    assert set(run.model.state_dict()) == set(run.global_state)
    if method != LOCAL:  # nothing stays at home: one model for all
        assert torch.equal(run.predict(x), run.predict(x, "ink"))
    else:
        assert not torch.equal(run.predict(x), run.predict(x, "ink"))


def test_of_several_seeds_each_is_given_back(tmp_path):
    played("fedbn", tmp_path / "run", seeds=[5, 6])
    first, second = nf.load(tmp_path / "run"), nf.load(tmp_path / "run", seed=6)
    assert (first.seed, second.seed) == (5, 6) and repr(second).endswith("seed-6: fedbn, seed 6, 2 rounds>")
    assert not torch.equal(first.global_state["0.weight"], second.global_state["0.weight"])
    with pytest.raises(nf.Refused, match="has no seed 7; it has 5, 6"):
        nf.load(tmp_path / "run", seed=7)
    with pytest.raises(nf.Refused, match="no client 'inc'"):
        first.predict(torch.zeros(1, 3, 16, 16), "inc")
    with pytest.raises(KeyError):
        first.client_states["inc"]


def test_what_is_not_finished_or_a_comparison_is_said(tmp_path):
    config, _ = played("fedbn", tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(nf.Refused, match="is not finished: go on with it"):
        nf.load(tmp_path / "run")
    runs.compare([config], tmp_path / "all", jobs=1)
    with pytest.raises(nf.Refused, match=r"is a comparison; one of its runs is .*fedbn"):
        nf.load(tmp_path / "all")


# ---------------------------------------------------------------------------------------------------------------
# normfed evaluate


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}
    for method in ("fedavg", "fedbn"):
        made[method] = tmp_path_factory.mktemp("evaluate") / method
        assert tiny("--method", method, "--out", made[method]).code == 0
    return made


def views(done):
    assert done.code == 0 and done.err == "", done.err
    return json.loads(done.out)["views"]


def test_known_clients_are_served_by_their_own_model(folders):
    for method, folder in folders.items():
        found = views(normfed("evaluate", folder, "--dataset", "embedded(train=20)", "--json"))
        recorded = json.loads((folder / "result.json").read_text())["final"]["test_accuracy"]
        assert set(found) == {"own"}
        assert {c: s["accuracy"] for c, s in found["own"].items()} == {c: s["mean"] for c, s in recorded.items()}, (
            method
        )
    done = normfed("evaluate", folders["fedbn"], "--dataset", "embedded(train=20)")
    assert done.out.splitlines()[0].split() == ["view", "ink", "neon", "blueprint", "scan", "cloth"]
    assert "Accuracy in percent of fedbn, seed 0" in done.out


def test_an_unseen_client_is_served_in_every_way_there_is(folders):
    for folder in folders.values():
        typed = ["evaluate", folder, "--dataset", "embedded(train=20, unseen=true)", "--partition", 'domain / only("chalk")', "--json"]  # fmt: skip
        found = views(normfed(*typed))
        assert list(found) == UNSEEN and all(list(scores) == ["chalk"] for scores in found.values())
        run = nf.load(folder)
        x, y = open_federation("embedded(train=20, unseen=true)", 'domain / only("chalk")')["chalk"].test
        accuracy = (run.predict(x).argmax(1) == y).double().mean().item()
        assert found["unseen/averaged"]["chalk"]["accuracy"] == pytest.approx(accuracy, abs=1e-12)


def test_split_seed_and_partition_say_what_is_looked_at(folders, tmp_path):
    typed = ["evaluate", folders["fedbn"], "--dataset", "embedded(train=20)", "--json"]
    whole, tested = (json.loads(normfed(*typed, "--split", split).out) for split in ("all", "test"))
    assert set(whole["samples"].values()) == {220} and set(tested["samples"].values()) == {200}
    alone = json.loads(normfed(*typed, "--partition", 'domain / only("ink")').out)
    assert alone["samples"] == {"ink": 200} and alone["views"]["own"]["ink"] == tested["views"]["own"]["ink"]
    two = tmp_path / "two"
    assert tiny("--jobs", "1", "--out", two, seeds="0,1").code == 0
    seeds = [json.loads(normfed("evaluate", two, *typed[2:], *more).out) for more in ([], ["--seed", "1"])]
    assert [d["seed"] for d in seeds] == [0, 1] and seeds[0]["views"] != seeds[1]["views"]
    assert "has no seed 7" in refused("evaluate", two, *typed[2:], "--seed", "7")[0]
    assert "unknown split 'tset'; did you mean 'test'?" in refused(*typed, "--split", "tset")[0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_predictions_are_a_file(folders, tmp_path, suffix):
    path = tmp_path / f"predictions{suffix}"
    typed = ["evaluate", folders["fedbn"], "--dataset", "embedded(train=20, unseen=true)", "--predictions", path]
    found = views(normfed(*typed, "--json"))
    if suffix == ".csv":
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    else:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    assert list(rows[0]) == ["client", "view", "sample", "label", "predicted", "probability"]
    for view, scores in found.items():
        for client, score in scores.items():
            mine = [row for row in rows if (row["client"], row["view"]) == (client, view)]
            assert [int(row["sample"]) for row in mine] == list(range(len(mine)))
            right = np.mean([row["label"] == row["predicted"] for row in mine])
            assert right == pytest.approx(score["accuracy"], abs=1e-12)
            assert all(0.1 <= float(row["probability"]) <= 1 for row in mine)  # the likeliest of ten
    assert refused(*typed) == [f"normfed: {path} is there already"]
    assert "predictions are written as .csv or .parquet" in refused(*typed[:-1], tmp_path / "p.txt")[0]
    assert "there is no folder" in refused(*typed[:-1], tmp_path / "gone" / "p.csv")[0]


# ---------------------------------------------------------------------------------------------------------------
# Data of one's own


def picture(draw, value, side, colour):
    """Pictures that tell their class by how bright they are."""
    noise = draw.integers(0, 40, (side, side, 3 if colour else 1))
    return Image.fromarray((noise + 70 * value).astype(np.uint8).squeeze())


def photos(root, sites, classes, each=8, side=8, colour=True):
    draw = np.random.default_rng(0)
    for site in sites:
        for name in classes:
            folder = root / site / name
            folder.mkdir(parents=True)
            for i in range(each):
                picture(draw, "abc".index(name), side, colour).save(folder / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    root = tmp_path_factory.mktemp("mine")
    data = photos(root / "photos", ("north", "south"), "abc")
    keys = sets(data=data, model="mnist_mlp", rounds=8, steps=8, batch_size=6)
    done = normfed("run", "demo", "--seeds", "0", *keys, "--out", root / "run")
    assert done.code == 0, done.err
    return root


def test_a_new_site_is_read_as_the_run_read_its_own(mine, tmp_path):
    """Another size, grey, and only two of the three classes: the run's size, colours and numbers of classes hold."""
    photos(tmp_path / "new", ("west",), "bc", side=12, colour=False)
    done = normfed("evaluate", mine / "run", "--data", tmp_path / "new", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["split"] == "all"  # nobody has split them
    assert document["samples"] == {"west": 16} and document["views"]["unseen/averaged"]["west"]["accuracy"] == 1.0


def test_a_path_is_a_path_even_where_it_has_a_name(mine, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos(tmp_path / "embedded", ("west",), "abc")
    document = json.loads(normfed("evaluate", mine / "run", "--data", "embedded", "--json").out)
    assert list(document["samples"]) == ["west"] and document["data"] == "./embedded"


def test_data_that_do_not_fit_are_refused(mine, folders, tmp_path):
    photos(tmp_path / "new", ("west",), "ab")
    (tmp_path / "new" / "west" / "b").rename(tmp_path / "new" / "west" / "zebra")
    (line, *_) = refused("evaluate", mine / "run", "--data", tmp_path / "new")
    assert "unknown class 'zebra'" in line
    (line,) = refused("evaluate", folders["fedbn"], "--data", f"{tmp_path / 'new'}(side=16)")
    assert line == "normfed: the data have classes that the run did not learn: a, zebra"
    rows = {"label": np.arange(4), "site": np.array(["x"] * 4)}
    np.savez(tmp_path / "bytes.npz", x=np.zeros((4, 3, 16, 16), np.uint8), **rows)
    assert "their range is another" in refused("evaluate", folders["fedbn"], "--data", tmp_path / "bytes.npz")[-1]
    np.savez(tmp_path / "small.npz", x=np.zeros((4, 3, 8, 8), np.float32), **rows)
    assert "samples have the shape (3, 8, 8); the run learnt (3, 16, 16)" in refused("evaluate", folders["fedbn"], "--data", tmp_path / "small.npz")[-1]  # fmt: skip


def test_datasets_are_looked_for_under_root(folders, tmp_path):
    lines = refused("evaluate", folders["fedbn"], "--dataset", "digits", "--root", tmp_path)
    assert str(tmp_path) in " ".join(lines)


def test_without_its_own_data_a_run_is_evaluated_all_the_same(mine, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for path in (mine / "run").iterdir():
        if path.is_file():
            text = path.read_bytes()
            (run / path.name).write_bytes(text.replace(b"/photos", b"/gone") if path.name == "config.toml" else text)
    photos(tmp_path / "new", ("west",), "abc")
    done = normfed("evaluate", run, "--data", tmp_path / "new")
    assert done.code == 0 and "unseen/nearest" not in done.out
    assert "without the run's own data there is no nearest client" in done.out
