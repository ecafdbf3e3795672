"""Sweeps: every value of a setting tried, the best chosen on validation data, and never silently on test data."""

import json

import pytest

import normfed as nf
from normfed import runs
from normfed.runs.sweep import grid_of, score

from command import refused, tiny

VAL = {"partition": "domain / hold_out(0, val=0.5)", "data": "embedded(train=40)"}
LR = ["--sweep", "lr=0.001,0.2", "--jobs", "1"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sweep") / "all"
    done = tiny("compare", "--methods", "fedavg,fedbn", *LR, "--out", folder, **VAL, rounds=8, steps=4)
    assert done.code == 0 and done.err == "", done.err
    return folder, done


def read(path):
    return json.loads(path.read_text())


def test_the_best_on_validation_data_is_chosen(swept):
    folder, done = swept
    document = read(folder / "sweep.json")
    assert document["select"] == "val" and [(row["method"], row["set"]["lr"]) for row in document["runs"]] == [
        ("fedavg", 0.001), ("fedavg", 0.2), ("fedbn", 0.001), ("fedbn", 0.2),
    ]  # fmt: skip
    for row in document["runs"]:  # the best validation accuracy of any round
        history = read(folder / row["folder"] / "result.json")["history"]
        best = max(sum(r["val_accuracy"].values()) / 5 for r in history)
        assert row["score"] == pytest.approx(best)
    assert [row["chosen"] for row in document["runs"]] == [False, True, False, True]
    assert "Chosen by val" in done.out and done.out.count("chosen") == 2


def test_the_chosen_runs_are_a_comparison_that_says_their_settings(swept):
    folder, _ = swept
    comparison = read(folder / "comparison.json")
    assert [d["method"] for d in comparison["results"]] == ["fedavg", "fedbn"]
    assert "settings" not in comparison  # the same for both
    assert comparison["results"][1] == read(folder / "fedbn" / "lr-0.2" / "result.json")
    assert (folder / "report.html").exists()
    assert runs.join([folder]) == comparison  # of a sweep only what it chose


def test_a_finished_sweep_stays_as_it_is_and_another_is_refused(swept):
    folder, done = swept
    typed = ["compare", "--methods", "fedavg,fedbn", *LR, "--out", folder]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    again = tiny(*typed, "--resume", **VAL, rounds=8, steps=4)
    assert (again.code, again.out) == (0, done.out)
    assert "is there already" in tiny(*typed, **VAL, rounds=8, steps=4).err
    assert "select is" in tiny(*typed, "--resume", "--select", "test", **VAL, rounds=8, steps=4).err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_sweep_that_is_cut_is_not_a_comparison_yet(swept, tmp_path):
    folder, _ = swept
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    with pytest.raises(nf.Refused, match="is not finished: go on with it"):
        runs.join([tmp_path / "cut"])


@pytest.mark.parametrize("select", ["train_loss", "test"])
def test_other_choices_are_made_only_where_they_are_asked_for(tmp_path, select):
    assert "no client has validation data to choose by" in tiny(*LR, "--out", tmp_path / "none").err
    assert not (tmp_path / "none").exists()
    done = tiny(*LR, "--select", select, "--out", tmp_path / "run", "--json")
    document = json.loads(done.out)
    chosen = [row["chosen"] for row in document["runs"]]
    results = [read(tmp_path / "run" / row["folder"] / "result.json") for row in document["runs"]]
    if select == "test":
        values = [d["final"]["average"]["mean"] for d in results]
    else:
        values = [-sum(d["history"][-1]["train_loss"].values()) / 5 for d in results]
    assert [row["score"] for row in document["runs"]] == pytest.approx(values)
    assert chosen == [value == max(values) for value in values] and chosen.count(True) == 1


def test_several_settings_make_a_grid(tmp_path):
    grid = ["--sweep", "batch_size=4,8", "--sweep", "lr=0.1,0.2", "--select", "train_loss", "--jobs", "1"]
    done = tiny(*grid, "--method", "fedbn", "--dry-run", "--json", batch_size=2)  # a point goes before --set
    assert [(p["config"]["batch_size"], p["config"]["lr"]) for p in json.loads(done.out)] == [
        (4, 0.1), (4, 0.2), (8, 0.1), (8, 0.2),
    ]  # fmt: skip
    assert grid_of(["loss=focal(gamma=1.0),cross_entropy"]) == {"loss": ["focal(gamma=1.0)", "cross_entropy"]}
    assert tiny(*grid, "--out", tmp_path / "run").code == 0
    assert {p.name for p in (tmp_path / "run" / "fedavg").iterdir()} == {f"batch_size-{b}_lr-{lr}" for b in (4, 8) for lr in (0.1, 0.2)}  # fmt: skip


def test_a_run_that_diverged_is_never_chosen():
    row = {"seed": 0, "round": 0, "train_loss": {"a": None, "b": 1.0}, "val_accuracy": {"a": 0.5}}
    document = {"history": [row], "clients": ["a", "b"], "final": {"average": {"mean": None}}}
    assert score(document, "train_loss") is None and score(document, "test") is None and score(document, "val") == 0.5


def test_without_out_the_folder_is_named_by_what_is_swept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for values in ("0.1", "0.2"):
        assert tiny("--sweep", f"lr={values}", "--select", "train_loss").code == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2
    assert "is there already" in refused("run", "demo", "--sweep", "lr=0.1", "--out", tmp_path / "runs")[0]
