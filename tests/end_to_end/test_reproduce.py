"""A paper's table played and set beside the paper; finished runs set beside it afterwards; what cannot run, said."""

import contextlib
import json
import shutil

import pytest

import normfed as nf
from normfed import recipe
from normfed.data.copies import differences
from normfed.reproduce import overview
from normfed.reproduce.beside import changes, outcome
from normfed.reproduce.obstacles import brief, obstacle

import command
import files


def normfed(*arguments, cwd="."):
    with contextlib.chdir(cwd):
        return command.normfed(*arguments)


TINY = ["--set", "steps=1", "--set", "rounds=2", "--set", "evaluate_every=1"]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A table in its full form, over two seeds, with fewer rounds."""
    home = tmp_path_factory.mktemp("played")
    done = normfed("reproduce", "fedbn/appendix-f", *TINY, "--seeds", "0,1", "--jobs", "1", "--json", cwd=home)
    return home, done


def test_every_line_is_played_and_set_beside_the_paper(played):
    home, done = played
    assert done.code == 0, done.err
    (table,) = json.loads(done.out)["tables"]
    assert (table["recipe"], table["form"], table["unit"], table["tolerance"]) == (
        "fedbn/appendix-f",
        "full",
        "percent",
        1.0,
    )
    assert [row["row"] for row in table["rows"]] == ["fedavg", "fedbn"]
    for row in table["rows"]:
        assert (
            row["paper"] == {"average": {"mean": 100.0, "std": None}} and row["seeds"] == [0, 1] and row["rounds"] == 2
        )
        result = json.loads((home / "runs/reproduce/full/fedbn/appendix-f" / row["row"] / "result.json").read_text())
        ours = row["ours"]["average"]
        assert ours["mean"] == pytest.approx(100 * result["final"]["average"]["mean"])
        assert ours["std"] == pytest.approx(100 * result["final"]["average"]["std"])
        assert row["average"]["average"]["difference"] == pytest.approx(ours["mean"] - 100)
        assert row["verdict"] == "not comparable" and "rounds is 2, the recipe's 600" in row["why"]
        assert result["recipe"] == f"fedbn/appendix-f/{row['row']}"
    kept = json.loads((home / "runs/reproduce/full/fedbn/appendix-f/reproduction.json").read_text())
    assert kept == table


def test_it_is_not_written_over_and_resumes_to_the_same(played):
    home, done = played
    again = normfed("reproduce", "fedbn/appendix-f", *TINY, "--seeds", "0,1", cwd=home)
    assert again.code == 2 and "is there already: --resume goes on" in again.err
    shutil.rmtree(home / "runs/reproduce/full/fedbn/appendix-f/fedbn")
    resumed = normfed(
        "reproduce", "fedbn/appendix-f", *TINY, "--seeds", "0,1", "--jobs", "1", "--resume", "--json", cwd=home
    )
    assert resumed.code == 0 and json.loads(resumed.out) == json.loads(done.out)


def test_the_list_of_tables_knows_what_has_run(played, tmp_path):
    home, _ = played
    states = {row["name"]: row for row in overview("", home / "runs/reproduce", tmp_path)}
    assert (
        states["fedbn/appendix-f"]["full"] == "ran: 2 of 2 rows, agrees 0"
        and states["fedbn/appendix-f"]["quick"] == "can run"
    )
    assert states["fedbn/table11"]["full"] == "no data: digits"
    assert states["greg/table2"]["quick"] == "no data: pacs, domainnet, vlcs, camelyon17"
    assert states["fedtan/table3"]["full"] == "counted at once"
    assert len(states) == len(recipe.tables())


def test_the_list_of_tables_is_printed(played, tmp_path):
    home, _ = played
    arguments = ["reproduce", "--out", str(home / "runs/reproduce"), "--data", str(tmp_path)]
    lines = normfed(*arguments, cwd=tmp_path).out.splitlines()
    assert lines[0].split() == ["table", "in", "the", "paper", "short", "form", "in", "full"]
    (line,) = [line for line in lines if line.startswith("fedbn/appendix-f ")]
    assert line.split("  ")[-1].strip() == "ran: 2 of 2 rows, agrees 0"
    rows = json.loads(normfed(*arguments, "--json", cwd=tmp_path).out)["tables"]
    assert [row["name"] for row in rows] == [table.name for table in recipe.tables()] and len(lines) == len(rows) + 1


def test_another_place_and_a_device(tmp_path):
    done = normfed(
        "reproduce",
        "fedbn/toy-cosine",
        *TINY,
        "--seeds",
        "3",
        "--jobs",
        "1",
        "--out",
        "here",
        "--device",
        "cpu",
        cwd=tmp_path,
    )
    assert (
        done.code == 0 and "1 seed, 2 rounds" in done.out and "±" not in done.out and not (tmp_path / "runs").exists()
    )
    result = json.loads((tmp_path / "here/full/fedbn/toy-cosine/fedbn/result.json").read_text())
    assert (result["device"], result["seeds"]) == ("cpu", [3])
    refused = normfed("reproduce", "fedbn/toy-cosine", "--device", "gpu", cwd=tmp_path)
    assert refused.code == 2 and "gpu" in refused.err


def test_finished_runs_are_set_beside_the_paper(played, tmp_path):
    home, done = played
    ours = json.loads(done.out)["tables"][0]["rows"]
    (table,) = json.loads(normfed("reproduce", str(home / "runs/reproduce"), "--json", cwd=tmp_path).out)["tables"]
    assert table["form"] == "runs" and table["rows"] == ours
    one = normfed("reproduce", str(home / "runs/reproduce/full/fedbn/appendix-f/fedavg"), cwd=tmp_path)
    assert one.code == 0 and "from finished runs" in one.out and "FedBN " not in one.out
    mean, std = (ours[0]["ours"]["average"][key] for key in ("mean", "std"))
    assert f"{mean:.1f} ± {std:.1f}" in one.out
    compared = normfed(
        "compare",
        "fedbn/appendix-f",
        "--methods",
        "fedbn,fedavg",
        "--quick",
        *TINY,
        "--jobs",
        "1",
        "--out",
        "both",
        cwd=tmp_path,
    )
    assert compared.code == 0, compared.err
    (table,) = json.loads(normfed("reproduce", "both", "--json", cwd=tmp_path).out)["tables"]
    assert [row["row"] for row in table["rows"]] == ["fedbn", "fedavg"]


def test_counted_tables_agree_at_once(tmp_path):
    for number in (3, 4, 5):
        done = normfed("reproduce", f"fedtan/table{number}", "--json", cwd=tmp_path)
        (table,) = json.loads(done.out)["tables"]
        assert {row["verdict"] for row in table["rows"]} == {"agrees"}
        assert all(row["ours"] == row["paper"] and row["ours"] for row in table["rows"])
    timed = normfed("reproduce", "greg/table10", cwd=tmp_path)
    assert "ours come from: python -m normfed.evidence.cost" in timed.out and not (tmp_path / "runs").exists()


def test_lines_that_cannot_run_are_skipped_loudly(tmp_path):
    root = tmp_path / "data"
    files.write_dataset(root, "pacs", 60)
    arguments = ["reproduce", "greg/table9", "--quick", "--data", str(root), "--jobs", "1", *TINY]
    done = normfed(*arguments, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "normfed: skipped greg/table9 (domainnet-fedavg, domainnet-global" in done.err
    assert "no data: domainnet (it is not under" in done.err
    assert done.out.count("cannot run") >= 6 and "GReg, pacs" in done.out
    full = normfed("reproduce", "greg/table9", "--data", str(root), cwd=tmp_path)
    assert full.code == 2 and "no weights: resnet18.safetensors (looked for as" in full.err
    assert not (tmp_path / "runs/reproduce/full").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedbn/tabel1-office"], "unknown table 'fedbn/tabel1-office'; did you mean 'fedbn/table1-office'?"),
        (["gregg"], "unknown table 'gregg'; did you mean 'greg'?"),
        (["fedbn/appendix-f", "--set", "round=2"], "unknown key 'round'; did you mean 'rounds'?"),
        (["fedbn/appendix-f", "--seeds", "a"], "seeds 'a' cannot be read"),
        (["fedbn/table17"], "no data: Morpho-MNIST"),
        (["fedbn/table1-domainnet", "--data", "nowhere"], "no data: domainnet (it is not under nowhere"),
        (["empty"], "empty holds no finished run"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_clear_message(arguments, said, tmp_path):
    (tmp_path / "empty").mkdir()
    done = normfed("reproduce", *arguments, cwd=tmp_path)
    assert done.code == 2 and done.out == "" and "Traceback" not in done.err
    assert said in " ".join(done.err.split()) and list(tmp_path.rglob("*")) == [tmp_path / "empty"]


def test_a_run_of_no_paper_has_no_table(tmp_path):
    normfed("run", "demo", *TINY, "--out", "mine", cwd=tmp_path)
    done = normfed("reproduce", "mine", cwd=tmp_path)
    said = "a run of recipe 'demo' has no paper's table to be set beside"
    assert done.code == 2 and said in done.err
    normfed("run", "fedbn/appendix-f/fedbn", "--quick", *TINY, "--out", "both/fedbn", cwd=tmp_path)
    shutil.copytree(tmp_path / "mine", tmp_path / "both" / "mine")
    done = normfed("reproduce", "both", cwd=tmp_path)
    assert done.code == 0 and f"left out: {said}" in done.err and "fedbn/appendix-f: Appendix F" in done.out


def test_recipes_are_listed_with_what_is_here(tmp_path):
    files.write_dataset(tmp_path, "pacs", 4)
    rows = {row["name"]: row for row in json.loads(normfed("list", "recipes", "--data", str(tmp_path), "--json").out)}
    assert all(
        set(row) == {"name", "paper", "item", "dataset", "data_present", "quick"} and row["quick"]
        for row in rows.values()
    )
    present = {name for name, row in rows.items() if row["data_present"]}
    assert {"demo", "fedbn/appendix-f", "greg/table7-pacs", "fedtan/table3"} <= present
    assert not {"greg/table2", "fedbn/table11", "fedbn/table17"} & present
    assert rows["fedbn/table11"] | {"data_present": None} == {
        "name": "fedbn/table11", "paper": "FedBN", "item": "Table 11, Figure 5", "dataset": "digits", "data_present": None, "quick": True,
    }  # fmt: skip


def test_the_list_says_what_is_in_the_way(tmp_path):
    files.write_dataset(tmp_path, "pacs", 4)
    said = dict(line.split("  ", 1) for line in normfed("list", "recipes", "--data", str(tmp_path)).out.splitlines())
    assert said["fedbn/table11"].strip() == "FedBN, Table 11, Figure 5, digits; no data: digits"
    assert said["greg/table7-pacs"].strip() == "GReg, Table 7, pacs; no weights: resnet18.safetensors"
    assert said["fedtan/table3"].strip() == "FedTAN, Table 3, none" and "needs no files" in said["demo"]


# ---- What is compared with what, on documents written by hand.


def document(scores, views=None, seeds=(0,), metric="accuracy"):
    history = [
        {"seed": s, "round": 4, "view": "own", f"test_{metric}": {c: v + 0.02 * s for c, v in scores.items()},
         **({"views": {"batch": {c: {metric: v} for c, v in views.items()}}} if views else {})}
        for s in seeds
    ]  # fmt: skip
    final = {"view": "own", "selected_round": {str(s): 4 for s in seeds}}
    return {
        "method": "fedbn",
        "seeds": list(seeds),
        "rounds": 5,
        "clients": list(scores),
        "history": history,
        "final": final,
    }


def line(expected, columns, **more):
    return recipe._row_of(
        recipe.read(
            f'data = "embedded"\nmodel = "digits_cnn"\nrounds = 5\nmethod = "fedbn"\ncolumns = {columns}\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
            + f'rows = [{{name = "a", expected = {expected}}}]', "mine",
        ), "a",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("expected", "columns", "scores", "ours", "difference", "verdict"),
    [
        ("[80.0, 90.0]", '["a", "b"]', {"a": 0.81, "b": 0.9}, {"a": 81.0, "b": 90.0}, 0.5, "agrees"),
        ("[80.0, 90.0]", '["a", "b"]', {"a": 0.84, "b": 0.9}, {"a": 84.0, "b": 90.0}, 2.0, "differs"),
        ("[80.0, 91.0]", '["a", "average"]', {"a": 0.91, "b": 0.9}, {"a": 91.0, "average": 90.5}, 0.0, "agrees"),
        ("[80.0]", '["a"]', {"a-0": 0.7, "a-1": 0.9, "ab": 0.1}, {"a": 80.0}, 0.0, "agrees"),
        ("[80.0, 90.0]", '["a", "b"]', {"a": 0.8}, {"a": 80.0, "b": None}, None, "not comparable"),
        ("{a = 80.0}", '["a", "b"]', {"a": 0.8, "b": 0.1}, {"a": 80.0, "b": 10.0}, 0.0, "agrees"),
        ("{}", '["a"]', {"a": 0.8}, {"a": 80.0}, None, "nothing printed"),
        ("{}", "[]", {"a": 0.8, "b": 0.6}, {"a": 80.0, "b": 60.0}, None, "nothing printed"),
        ("[80.0]", '["c"]', {"a": 0.8, "b": 0.6}, {"c": None, "a": 80.0, "b": 60.0}, None, "not comparable"),
    ],
)  # fmt: skip
def test_verdicts(expected, columns, scores, ours, difference, verdict):
    row = line(expected, columns)
    found = outcome(row, recipe.resolve(row), document(scores))
    assert {c: v and pytest.approx(v["mean"]) for c, v in found["ours"].items()} == ours
    gap = found["average"]["average"]["difference"]
    assert gap == (None if difference is None else pytest.approx(difference)) and found["verdict"] == verdict


def test_seeds_views_and_other_metrics():
    row = line("[80.0, 70.0]", '["average", "average@batch"]', metric="f1")
    found = outcome(
        row, recipe.resolve(row), document({"a": 0.8, "b": 0.8}, {"a": 0.6, "b": 0.7}, seeds=(0, 1), metric="f1")
    )
    assert found["ours"]["average"] == {"mean": pytest.approx(81.0), "std": pytest.approx(2**0.5)}
    assert found["ours"]["average@batch"]["mean"] == pytest.approx(65.0)
    assert found["verdict"] == "differs", "one of the two averages is 5 points off"


def test_an_unseen_client_is_shown_under_the_view_that_was_asked_for():
    row = line("{}", "[]", view="unseen/batch")
    found = document({"a": 0.8})
    found["history"][0]["views"] = {
        "unseen/batch": {"new": {"accuracy": 0.5}},
        "unseen/averaged": {"new": {"accuracy": 0.1}},
    }
    shown = outcome(row, recipe.resolve(row), found)
    assert list(shown["ours"]) == ["new"] and shown["ours"]["new"]["mean"] == 50.0 and shown["view"] == "unseen/batch"


def test_what_makes_a_run_another_experiment():
    table = recipe.find("fedbn/table11/fedbn")
    full, short = recipe.resolve(table), recipe.resolve(table, quick=True)
    free = recipe.resolve(table, {"seeds": [7], "threads": 2, "engine": "serial"})
    assert changes(free, full) == {} and changes({**full, "lr": 0.1}, full) == {"lr": 0.01}
    assert outcome(table, short, document({"usps": 0.9}))["why"][0] == "short form"
    shorter = outcome(table, {**short, "rounds": 2}, document({"usps": 0.9}))["why"]
    assert shorter[:2] == ["short form", f"rounds is 2, the short form's {short['rounds']}"]
    assert "svhn_mini" not in str(outcome(table, full, document({"svhn": 0.9}))["ours"])
    assert outcome(table, full, document({"svhn_mini": 0.5}))["ours"]["svhn"]["mean"] == 50.0


def test_copies_that_are_not_the_originals(tmp_path):
    for domain, kind in (("mnist", "PNG"), ("usps", "PNG"), ("mnist_m", "PNG"), ("svhn_mini", "PNG")):
        files.write_images(tmp_path / "digits" / domain / "train.parquet", files.pictures(2, 9, 3), [0, 1], kind=kind)
    files.write_images(tmp_path / "cifar10" / "train.parquet", files.pictures(2, 32, 3), [0, 1], kind="JPEG")
    assert differences("digits", tmp_path) == ["svhn_mini stands in for svhn", "synth missing from digits"]
    assert differences("cifar10", tmp_path) == ["this copy of cifar10 is JPEG: its pixels are not the original's"]
    assert differences("pacs", tmp_path) == differences("embedded", tmp_path) == []


def test_weights_are_looked_for_where_the_data_lie(tmp_path):
    import torch
    from safetensors.torch import save_file

    from normfed import models
    from normfed.runs.inputs import model

    files.write_dataset(tmp_path, "pacs", 4)
    row = recipe.find("greg/table7-pacs/fedavg")
    assert obstacle(row, False, tmp_path).startswith(
        f"no weights: resnet18.safetensors (looked for as {tmp_path / 'weights'}"
    )
    assert obstacle(row, True, tmp_path) == ""
    trained = models.make("resnet18", 1000).state_dict()
    (tmp_path / "weights").mkdir()
    save_file({name: t.contiguous() for name, t in trained.items()}, tmp_path / "weights" / "resnet18.safetensors")
    assert obstacle(row, False, tmp_path) == ""
    made = model(recipe.resolve(row), 0, 7, (3, 64, 64), tmp_path).state_dict()
    assert (
        torch.equal(made["layer1.0.conv1.weight"], trained["layer1.0.conv1.weight"]) and made["fc.weight"].shape[0] == 7
    )
    with pytest.raises(nf.Refused, match="there is no such file"):
        model(recipe.resolve(row), 0, 7, (3, 64, 64), tmp_path / "elsewhere")


def test_reasons_in_a_few_words():
    reasons = [
        "no data: vlcs (it is not under x)",
        "no data: pacs (it is not under x)",
        "no weights: a.pt (looked for as y)",
    ]
    assert brief(reasons) == "no data: vlcs, pacs; no weights: a.pt"
