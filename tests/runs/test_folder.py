"""What a run's folder holds, what is refused, and what is told of a disk that fails."""

import errno
import json

import numpy as np
import pytest
import safetensors.torch
import torch

import normfed as nf
from normfed import recipe, runs
from normfed.runs import disk
from normfed.runs.config import config_hash, read_config
from normfed.runs.play import slugs
from normfed.runs.records import Log, facts, rows

TINY = {"rounds": 3, "steps": 1, "batch_size": 4, "seeds": [0]}


def config(**changed):
    return recipe.resolve(recipe.find("demo"), {**TINY, **changed})


def play(folder, resume=False, on_round=None, **changed):
    return runs.run(config(**changed), folder, resume=resume, recipe="demo", jobs=1, on_round=on_round)


def refused(*arguments, **named):
    with pytest.raises(nf.Refused) as raised:
        play(*arguments, **named)
    return raised.value.problems


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def untimed(found):
    return {
        name: data if not name.endswith("result.json") else {**json.loads(data), "timing": None}
        for name, data in found.items()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "fedbn"
    return folder, play(folder, method="fedbn", seeds=[3])


def test_a_folder_holds_what_is_documented(finished):
    folder, document = finished
    assert json.loads((folder / "result.json").read_text()) == document
    assert {"schema", "recipe", "method", "seeds", "engine", "device", "rounds", "clients", "history", "final", "timing", "environment"} <= set(document)  # fmt: skip
    assert (document["schema"], document["recipe"], document["method"], document["seeds"]) == (1, "demo", "fedbn", [3])
    assert document["final"]["view"] == "own" and document["final"]["selected_round"] == {"3": 2}
    score = document["final"]["test_accuracy"]["ink"]
    assert score == {"mean": document["history"][-1]["test_accuracy"]["ink"], "std": 0.0}
    sites = {f"clients/{name}.safetensors" for name in document["clients"]}
    assert set(files(folder)) == {"config.toml", "records.jsonl", "result.json", "model.safetensors", "checkpoint.safetensors", *sites}  # fmt: skip
    own = safetensors.torch.load_file(folder / "clients" / "ink.safetensors")
    model = safetensors.torch.load_file(folder / "model.safetensors")
    assert set(own) == {f"{layer}.{name}" for layer in (1, 5) for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")}  # fmt: skip
    assert set(own) < set(model)


def test_the_folder_of_one_seed_holds_the_numbers_of_simulate(finished):
    folder, document = finished
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = nf.models.make("normfed.demo:demo_cnn")
    data = nf.data.open_federation("embedded")
    result = nf.simulate(model, data, nf.methods.fedbn(), rounds=3, steps=1, batch_size=4, lr=0.1, seed=3)
    assert document["history"] == json.loads(disk.dumps(result.history))
    own = safetensors.torch.load_file(folder / "clients" / "ink.safetensors")
    assert all(torch.equal(tensor, result.client_states["ink"][name]) for name, tensor in own.items())
    model = safetensors.torch.load_file(folder / "model.safetensors")
    assert all(torch.equal(tensor, result.global_state[name]) for name, tensor in model.items())


def test_the_config_of_a_folder_runs_again_to_the_same_numbers(finished, tmp_path):
    folder, document = finished
    again = recipe.resolve(recipe.find(str(folder / "config.toml")))
    assert config_hash(again) == config_hash(config(method="fedbn", seeds=[3]))
    assert runs.run(again, tmp_path / "again", jobs=1)["history"] == document["history"]


def test_a_finished_folder_stays_as_it_is(finished):
    folder, document = finished
    before = files(folder)
    assert play(folder, resume=True, method="fedbn", seeds=[3]) == document
    assert files(folder) == before
    problems = refused(folder, method="fedbn", seeds=[3])
    assert problems == (f"{folder} is there already: --resume goes on with what is in it, --out names another folder",)
    assert files(folder) == before


def test_another_config_is_refused_naming_the_keys(finished):
    folder, _ = finished
    problems = refused(folder, resume=True, method="fedbn", seeds=[3], lr=0.2, clip_norm=1.0)
    assert problems == (
        f"{folder} holds another run: lr is 0.1 there, 0.2 here",
        f"{folder} holds another run: clip_norm is not set there, 1.0 here",
    )


def test_resume_starts_where_nothing_is(tmp_path, finished):
    (tmp_path / "empty").mkdir()
    assert "is there already" in refused(tmp_path / "empty")[0]
    play(tmp_path / "empty", resume=True, method="fedbn", seeds=[3])
    play(tmp_path / "absent", resume=True, method="fedbn", seeds=[3])
    assert untimed(files(tmp_path / "empty")) == untimed(files(tmp_path / "absent")) == untimed(files(finished[0]))


def test_what_is_not_a_run_is_not_written_into(tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    assert refused(tmp_path, resume=True) == (f"{tmp_path} is not a run's folder: it has no config.toml",)
    assert refused(tmp_path / "letters.txt") == (f"{tmp_path / 'letters.txt'} is a file, not a folder",)
    assert "cannot be written: a part of the path is a file" in refused(tmp_path / "letters.txt" / "run")[0]
    assert list(tmp_path.iterdir()) == [tmp_path / "letters.txt"]


def test_a_refused_run_leaves_no_folder(tmp_path):
    assert len(refused(tmp_path / "out", batch_size=200, drop_last=True)) == 5  # no client has a batch
    assert refused(tmp_path / "out", method="groupnorm+fedbn")[0].startswith("fedbn needs a model that has BatchNorm")
    assert not (tmp_path / "out").exists()


def stop_after(round, how=KeyboardInterrupt):
    def on_round(method, row):
        if row["round"] == round:
            raise how

    return on_round


@pytest.mark.parametrize("how", [KeyboardInterrupt, ConnectionError])
def test_a_run_that_is_cut_short_is_saved_and_goes_on(finished, tmp_path, monkeypatch, how):
    monkeypatch.setattr("normfed.runs.trial.SHARE", 1e-9)  # nothing is saved but for a reason
    with pytest.raises(how):
        play(tmp_path / "cut", on_round=stop_after(1, how), method="fedbn", seeds=[3])
    assert not (tmp_path / "cut" / "result.json").exists()
    seen = []
    play(tmp_path / "cut", resume=True, on_round=lambda _, row: seen.append(row["round"]), method="fedbn", seeds=[3])
    assert seen == [2]
    assert untimed(files(tmp_path / "cut")) == untimed(files(finished[0]))


def damage(path, how):
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes({"cut": data[:half], "flip": data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :]}[how])


@pytest.mark.parametrize(("how", "said"), [("cut", "it is cut short"), ("flip", "do not have the SHA-256")])
def test_a_damaged_checkpoint_is_told_and_the_one_before_goes_on(finished, tmp_path, monkeypatch, how, said):
    monkeypatch.setattr("normfed.runs.trial.SHARE", 1e9)  # save every round
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        play(folder, on_round=stop_after(1), method="fedbn", seeds=[3])
    damage(folder / "checkpoint.safetensors", how)
    with pytest.warns(UserWarning, match=said):
        play(folder, resume=True, method="fedbn", seeds=[3])
    assert untimed(files(folder)) == untimed(files(finished[0]))


def test_records_are_cut_back_to_the_checkpoint_and_damaged_ones_told(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("normfed.runs.trial.SHARE", 1e9)
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        play(folder, on_round=stop_after(0), method="fedbn", seeds=[3])
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"seed": 3, "round": 1, "met')
    with pytest.raises(KeyboardInterrupt):
        play(folder, resume=True, on_round=stop_after(1), method="fedbn", seeds=[3])
    records = (folder / "records.jsonl").read_bytes()
    (folder / "records.jsonl").write_bytes(b"[" + records[1:])
    before = files(folder)
    problems = refused(folder, resume=True, method="fedbn", seeds=[3])
    assert "records.jsonl is damaged" in problems[0] and "nothing was changed" in problems[-1]
    assert files(folder) == before
    (folder / "records.jsonl").write_bytes(records)
    play(folder, resume=True, method="fedbn", seeds=[3])
    assert untimed(files(folder)) == untimed(files(finished[0]))


@pytest.mark.parametrize(("number", "when"), [(errno.ENOSPC, 3), (errno.ENOSPC, 12), (errno.EROFS, 16), (errno.EACCES, 17)])  # fmt: skip
def test_a_disk_that_fails_is_told_and_loses_nothing(finished, tmp_path, monkeypatch, number, when):
    monkeypatch.setattr("normfed.runs.trial.SHARE", 1e9)
    folder, real, written = tmp_path / "run", disk.os.fsync, []

    def fsync(handle):
        written.append(handle)
        if len(written) == when:
            raise OSError(number, "no")
        real(handle)

    monkeypatch.setattr(disk.os, "fsync", fsync)
    with pytest.raises(nf.NormfedError, match=r"cannot be written: (the disk is full|the file system|no permission)"):
        play(folder, method="fedbn", seeds=[3])
    assert not list(folder.rglob("*.part"))
    play(folder, resume=True, method="fedbn", seeds=[3])
    assert untimed(files(folder)) == untimed(files(finished[0]))


def test_data_that_changed_since_are_read_anew(tmp_path):
    def sites(*names):
        x, y = torch.rand(8, 1, 4, 4).numpy(), np.arange(8) % 2
        np.savez(tmp_path / "mine.npz", x=x, label=y, site=np.repeat(names, 4), split=["train", "test"] * 4)

    given = {"data": str(tmp_path / "mine.npz"), "model": "mnist_mlp", "batch_size": 2}
    sites("a", "b")
    assert play(tmp_path / "one", **given)["clients"] == ["a", "b"]
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "cut", on_round=stop_after(0), **given)
    sites("c", "d")
    assert play(tmp_path / "two", **given)["clients"] == ["c", "d"]
    assert "began on other data: the partition's hash was" in refused(tmp_path / "cut", resume=True, **given)[0]


def test_seeds_have_a_folder_each_and_one_document_in_the_end(finished, tmp_path):
    document = play(tmp_path / "run", method="fedbn", seeds=[3, 4])
    assert untimed(files(tmp_path / "run" / "seed-3")) == untimed(files(finished[0]))
    assert document["seeds"] == [3, 4] and document["final"]["selected_round"] == {"3": 2, "4": 2}
    each = [json.loads((tmp_path / "run" / f"seed-{s}" / "result.json").read_text()) for s in (3, 4)]
    values = [d["final"]["average"]["mean"] for d in each]
    assert document["final"]["average"]["mean"] == pytest.approx(sum(values) / 2)
    assert document["final"]["average"]["std"] == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    parts = [(tmp_path / "run" / f"seed-{s}" / "records.jsonl").read_bytes() for s in (3, 4)]
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == b"".join(parts)


def test_a_comparison_has_a_folder_for_each_method_whoever_plays_it(finished, tmp_path):
    configs = [config(method=method, seeds=[3]) for method in ("fedbn", "fedprox(mu=0.1)")]
    rounds = []
    one = runs.compare(configs, tmp_path / "one", recipe="demo", jobs=1)
    two = runs.compare(configs, tmp_path / "two", recipe="demo", jobs=2, on_round=lambda m, row: rounds.append((m, row["round"])))  # fmt: skip
    assert one["schema"] == 1 and [d["method"] for d in two["results"]] == ["fedbn", "fedprox(mu=0.1)"]
    assert sorted(rounds) == [(d["method"], r) for d in two["results"] for r in range(3)]
    of = {name: untimed(files(tmp_path / name)) for name in ("one", "two")}
    for found in of.values():
        found.pop("comparison.json")
    assert of["one"] == of["two"]
    assert untimed(files(tmp_path / "two" / "fedbn")) == untimed(files(finished[0]))
    assert runs.compare(configs, tmp_path / "one", resume=True, recipe="demo") == one
    with pytest.raises(nf.Refused, match="holds another run: runs is"):
        runs.compare(configs[:1], tmp_path / "one", resume=True)


def test_folders_are_named_by_their_methods():
    methods = ["fedbn", "fedprox(mu=0.01)", "fedbn", "fedbn", 'partialfed(keep="norm & ~stats")+greg']
    assert slugs([{"method": m} for m in methods]) == [
        "fedbn", "fedprox-mu-0.01", "fedbn-2", "fedbn-3", "partialfed-keep-norm-stats-greg",
    ]  # fmt: skip


def test_facts_hold_the_history(tmp_path):
    row = {
        "seed": 1, "round": 0, "train_loss": {"b": float("nan"), "a": 2.0}, "test_accuracy": {"a": 0.5, "b": 1.0},
        "bytes_up": 3, "bytes_down": 4, "messages": 1, "skipped": {"a": 2}, "latched": {"fixbn": True}, "view": "own",
        "test_loss": {"a": 0.1}, "val_accuracy": {"a": 0.25},
        "views": {"own": {"a": {"accuracy": 0.5}, "b": {"accuracy": 1.0}}, "pooled": {"all": {"accuracy": 0.75, "loss": 1.0}}},
    }  # fmt: skip
    row["views"]["own"]["a"]["loss"] = 0.1
    plain = {"seed": 1, "round": 1, "train_loss": {"a": 1.0}, "test_accuracy": {}, "bytes_up": 3, "bytes_down": 4, "messages": 1, "skipped": {}, "latched": {"fixbn": True}}  # fmt: skip
    log = Log(tmp_path / "records.jsonl")
    for each in (row, plain):
        log.append(facts(each))
    log.append([{"seed": 1, "round": 1, "metric": "divergence", "layer": "bn1", "value": 0.1}])
    again = rows(log.read(), ["own", "pooled"])
    assert disk.strict(again[0]) == disk.strict(row) and again[1] == plain
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert lines[0] == {"seed": 1, "round": 0, "metric": "loss", "split": "train", "client": "b", "value": None}
    assert len({json.dumps(line) for line in lines}) == len(lines)


def test_a_folder_in_use_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "PATIENCE", 0.1)
    with (
        disk.alone(tmp_path),
        pytest.raises(nf.Refused, match="another process is at work there"),
        disk.alone(tmp_path),
    ):
        pass


def test_what_a_run_began_with_is_in_its_config(finished):
    _, began = read_config(finished[0])
    assert began["classes"] == [str(digit) for digit in range(10)] and began["input"] == [3, 16, 16]
    assert began["partition_hash"] == nf.data.open_federation("embedded").hash
