"""`normfed run` and `normfed compare` to the letter of what is documented: folders, documents, exit codes."""

import json

import pytest

from normfed import runs
from normfed.cli.progress import Progress
from normfed.runs import disk

from command import TINY, normfed, refused, tiny

NUMBER = (int, float)
ROW = {
    "seed": int, "round": int, "train_loss": dict, "test_accuracy": dict, "bytes_up": int, "bytes_down": int, "messages": int,
}  # fmt: skip
DOCUMENT = {
    "schema": int, "recipe": str, "method": str, "seeds": [int], "engine": str, "device": str, "rounds": int, "clients": [str],
    "history": [ROW],
    "final": {"test_accuracy": dict, "average": {"mean": NUMBER, "std": NUMBER}, "view": str, "selected_round": dict},
    "timing": {"train_s": float, "evaluate_s": float}, "environment": {"normfed": str, "torch": str, "python": str},
}  # fmt: skip
SITES = ["ink", "neon", "blueprint", "scan", "cloth"]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def history(folder):
    return json.loads((folder / "result.json").read_text())["history"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "two-seeds"
    done = tiny("--method", "fedbn", "--jobs", "1", "--out", folder, seeds="3,4")
    assert done.code == 0 and done.err == ""
    return folder, done


def test_result_json_is_as_documented(finished):
    folder, _ = finished
    document = json.loads((folder / "result.json").read_text())
    assert disk.shaped(document, DOCUMENT) is None
    assert (document["schema"], document["recipe"], document["method"], document["seeds"]) == (
        1,
        "demo",
        "fedbn",
        [3, 4],
    )
    assert document["clients"] == SITES and document["rounds"] == 2 and document["device"] == "cpu"
    assert [(row["seed"], row["round"]) for row in document["history"]] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    for row in document["history"]:
        assert list(row["train_loss"]) == list(row["test_accuracy"]) == SITES
        assert all(0 <= value <= 1 for value in row["test_accuracy"].values()) and row["messages"] == 1
    final = document["final"]
    assert final["view"] == "own" and final["selected_round"] == {"3": 1, "4": 1}
    assert list(final["test_accuracy"]) == SITES
    last = [row["test_accuracy"]["neon"] for row in document["history"] if row["round"] == 1]
    assert final["test_accuracy"]["neon"]["mean"] == pytest.approx(sum(last) / 2)
    assert final["test_accuracy"]["neon"]["std"] == pytest.approx(abs(last[0] - last[1]) / 2**0.5)  # n - 1


def test_a_folder_has_what_is_documented_and_no_pickle(finished):
    folder, _ = finished
    found = files(folder)
    each = [
        f"seed-{seed}/{name}"
        for seed in (3, 4)
        for name in ("config.toml", "records.jsonl", "result.json", "model.safetensors", "checkpoint.safetensors", *(f"clients/{c}.safetensors" for c in SITES))
    ]  # fmt: skip
    assert set(found) == {"config.toml", "records.jsonl", "result.json", "report.html", *each}
    assert found["records.jsonl"] == found["seed-3/records.jsonl"] + found["seed-4/records.jsonl"]


def test_stdout_carries_the_result_only(finished):
    folder, done = finished
    header, row, *_ = done.out.splitlines()
    assert header.split() == ["method", *SITES, "average"] and row.startswith("fedbn")
    assert "2 seeds, 2 rounds; model evaluated: own" in done.out and done.out.endswith(f"Kept in {folder}\n")
    shown = tiny("--method", "fedbn", "--out", folder, "--resume", "--json", seeds="3,4")
    assert json.loads(shown.out) == json.loads((folder / "result.json").read_text()) and shown.err == ""


def test_what_is_there_is_refused_and_a_finished_run_stays_as_it_is(finished):
    folder, done = finished
    before = files(folder)
    arguments = ["run", "demo", *TINY, "--method", "fedbn", "--seeds", "3,4", "--out", folder]
    assert refused(*arguments) == [f"normfed: {folder} is there already: --resume goes on with what is in it, --out names another folder"]  # fmt: skip
    again = normfed(*arguments, "--resume")
    assert (again.code, again.out, again.err) == (0, done.out, "")
    assert refused(*arguments, "--resume", "--set", "lr=0.2") == [f"normfed: {folder} holds another run: lr is 0.1 there, 0.2 here"]  # fmt: skip
    assert files(folder) == before


def test_resume_starts_where_nothing_is(finished, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "absent"):
        done = tiny("--method", "fedbn", "--out", tmp_path / name, "--resume", seeds="3")
        assert done.code == 0
        assert history(tmp_path / name) == history(finished[0] / "seed-3")


def test_the_config_of_a_folder_runs_again_to_the_same_numbers(finished, tmp_path):
    done = normfed("run", finished[0] / "config.toml", "--jobs", "1", "--out", tmp_path / "again")
    assert done.code == 0 and history(tmp_path / "again") == history(finished[0])
    done = normfed("run", finished[0] / "seed-4" / "config.toml", "--out", tmp_path / "one")
    assert done.code == 0 and history(tmp_path / "one") == history(finished[0] / "seed-4")


def test_without_out_the_folder_is_named_by_the_hash_of_the_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tiny().code == tiny("--method", "fedprox(mu=0.1)").code == 0
    first, second = sorted((tmp_path / "runs").iterdir())
    assert len(first.name) == len(second.name) == 12
    assert "is there already" in refused("run", "demo", *TINY, "--seeds", "0")[0]
    assert tiny("--resume").code == 0 and len(list((tmp_path / "runs").iterdir())) == 2


def test_options_are_keys_and_keys_are_options(tmp_path):
    by_option = tiny("--method", "fedprox(mu=0.1)", "--engine", "serial", "--device", "cpu", "--out", tmp_path / "a")
    keys = {"method": "fedprox(mu=0.1)", "engine": '"serial"', "device": "cpu"}
    by_set = tiny("--set", "seeds=[0]", "--out", tmp_path / "b", seeds=None, **keys)
    assert by_option.code == by_set.code == 0
    assert (tmp_path / "a" / "config.toml").read_bytes() == (tmp_path / "b" / "config.toml").read_bytes()
    assert history(tmp_path / "a") == history(tmp_path / "b")
    assert "method is set twice" in refused("run", "demo", "--method", "fedbn", "--set", "method=fedavg")[0]


def test_quick_is_the_short_form_of_a_recipe():
    full, short = (json.loads(normfed("run", "demo", "--dry-run", "--json", *more).out)[0]["config"] for more in ([], ["--quick"]))  # fmt: skip
    assert (full["rounds"], short["rounds"]) == (30, 10)
    assert {**full, "rounds": 10} == short


def test_data_are_looked_for_where_data_says(tmp_path):
    lines = refused("run", "demo", "--set", "data=digits", "--data", tmp_path, "--out", tmp_path / "out")
    assert str(tmp_path) in " ".join(lines) and not (tmp_path / "out").exists()


def test_dry_run_says_config_table_time_and_memory_and_writes_nothing(tmp_path):
    done = tiny("--method", "fedtan", "--out", tmp_path / "out", "--dry-run", seeds="0,1")
    assert done.code == 0 and not (tmp_path / "out").exists()
    for said in (
        'method = "fedtan"',
        "1.running_mean",
        "per client and round",
        "time: about",
        "2 seeds, each",
        "memory: about",
    ):
        assert said in done.out
    (found,) = json.loads(tiny("--method", "fedtan", "--dry-run", "--json").out)
    assert found["config"]["method"] == found["explain"]["method"] == "fedtan" and found["explain"]["messages"] == 5
    estimate = found["estimate"]
    assert 0 < estimate["train_s"] < 60 and 0 < estimate["evaluate_s"] < 60 and 2**24 < estimate["memory"] < 2**36
    both = tiny("compare", "--methods", "fedavg,fedbn", "--dry-run", "--json")
    assert [p["config"]["method"] for p in json.loads(both.out)] == ["fedavg", "fedbn"]


def test_the_estimate_is_near_what_a_run_takes(tmp_path):
    more = {"rounds": 6, "steps": 20, "batch_size": 16}
    (found,) = json.loads(tiny("--dry-run", "--json", **more).out)
    timing = json.loads(tiny("--out", tmp_path / "run", "--json", **more).out)["timing"]
    assert timing["train_s"] / 5 < found["estimate"]["train_s"] < 5 * timing["train_s"]


def test_compare_is_one_table_of_the_same_documents(finished, tmp_path):
    arguments = ["--methods", "fedbn, fedprox(mu=0.1), greg+fedprox(mu=0.1)", "--jobs", "1", "--out", tmp_path / "all"]
    done = tiny("compare", *arguments, seeds="3,4")
    assert done.code == 0 and done.err == "" and "model evaluated: own: fedbn; global: fedprox(mu=0.1), greg+fedprox(mu=0.1)" in done.out  # fmt: skip
    document = json.loads((tmp_path / "all" / "comparison.json").read_text())
    assert set(document) == {"schema", "results"} and document["schema"] == 1
    assert [d["method"] for d in document["results"]] == ["fedbn", "fedprox(mu=0.1)", "greg+fedprox(mu=0.1)"]
    assert all(disk.shaped(d, DOCUMENT) is None for d in document["results"])
    assert document["results"][0]["history"] == history(finished[0]) == history(tmp_path / "all" / "fedbn")
    assert (tmp_path / "all" / "report.html").exists()
    before = files(tmp_path / "all")
    again = tiny("compare", *arguments, "--resume", "--json", seeds="3,4")
    assert json.loads(again.out) == document and files(tmp_path / "all") == before
    typed = ["compare", "demo", *TINY, "--seeds", "3,4", *arguments]
    assert "is there already" in refused(*typed)[0]
    other = refused(*typed, "--set", "lr=0.3", "--resume")
    assert other == [f"normfed: {tmp_path / 'all'} holds another run: lr is 0.1 there, 0.3 here"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo"], "compare demo: is no folder; a recipe needs --methods"),
        (["demo", "demo", "--methods", "fedbn"], "compare takes one recipe, not 2: demo, demo"),
        (["demo", "--methods", "fedbn", "--set", "method=fedavg"], "compare takes its methods from --methods, not from --set"),
        (["demo", "--methods", "fedbn", "--select", "val"], "--select: there is nothing to choose from without --sweep"),
    ],
)  # fmt: skip
def test_compare_refuses(arguments, said):
    assert refused("compare", *arguments) == [f"normfed: {said}"]


# ---------------------------------------------------------------------------------------------------------------
# Folders of finished runs


@pytest.fixture(scope="module")
def pair(finished, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair") / "fedavg"
    assert tiny("--method", "fedavg", "--jobs", "1", "--out", folder, seeds="3,4", lr=0.05).code == 0
    return finished[0], folder


def test_finished_runs_are_put_into_one_table_that_says_in_what_they_differ(pair, tmp_path):
    done = normfed("compare", *pair)
    assert done.code == 0 and [line.split("  ")[0] for line in done.out.splitlines()[1:3]] == ["fedbn [lr=0.1]", "fedavg [lr=0.05]"]  # fmt: skip
    kept = normfed("compare", *pair, "--out", tmp_path / "both", "--json")
    document = json.loads(kept.out)
    assert document["settings"] == [{"lr": 0.1}, {"lr": 0.05}]
    assert document["results"] == [json.loads((folder / "result.json").read_text()) for folder in pair]
    assert json.loads((tmp_path / "both" / "comparison.json").read_text()) == document
    assert "fedbn" in (tmp_path / "both" / "report.html").read_text()
    assert normfed("compare", tmp_path / "both").out == done.out  # a comparison's folder, as its runs'
    assert "is there already" in refused("compare", *pair, "--out", tmp_path / "both")[0]
    assert runs.join([tmp_path / "both"]) == document


def test_what_does_not_belong_together_is_not_put_together(pair, tmp_path):
    assert tiny("--jobs", "1", "--out", tmp_path / "short", seeds="3,4", rounds=1).code == 0
    (line,) = refused("compare", pair[0], tmp_path / "short")
    assert line == "normfed: these runs do not belong in one table: rounds is 2 (fedbn), 1 (fedavg)"
    config = (tmp_path / "short" / "config.toml").read_text().replace("rounds = 1", "rounds = 2")
    (tmp_path / "short" / "config.toml").write_text(config.replace('partition_hash = "', 'partition_hash = "0'))
    assert "partition_hash is" in refused("compare", pair[0], tmp_path / "short")[0]
    assert refused("compare", pair[0], pair[0]) == [f"normfed: {pair[0]} is there twice"]
    assert "is not a run's folder: it has no config.toml" in refused("compare", tmp_path)[0]
    (line,) = refused("compare", *pair, "--seeds", "3", "--resume", "--dry-run")
    assert line == "normfed: compare: --seeds, --resume, --dry-run: nothing is trained without --methods"


def test_export(pair):
    csv = normfed("export", pair[1], "--as", "csv").out.splitlines()
    assert csv[0] == "method,view,rounds,seeds,client,mean,std" and len(csv) == 1 + len(SITES) + 1
    final = json.loads((pair[1] / "result.json").read_text())["final"]
    assert csv[1] == f"fedavg,global,2,3 4,ink,{final['test_accuracy']['ink']['mean']},{final['test_accuracy']['ink']['std']}"  # fmt: skip
    assert csv[-1] == f"fedavg,global,2,3 4,average,{final['average']['mean']},{final['average']['std']}"
    average = f"{100 * final['average']['mean']:.1f} ± {100 * final['average']['std']:.1f}"
    markdown = normfed("export", pair[1]).out.splitlines()
    assert markdown[0] == "| method | ink | neon | blueprint | scan | cloth | average |" and markdown[2].endswith(f"| {average} |")  # fmt: skip
    tex = normfed("export", pair[1], "--as", "tex").out
    assert r"\begin{tabular}{lrrrrrr}" in tex and average.replace("±", r"$\pm$") + r" \\" in tex
    assert "mean ± standard deviation over 2 seeds, 2 rounds; model evaluated: global" in tex
    assert refused("export", pair[1], "--as", "xls") == ["normfed: unknown format 'xls'; choose from: csv, md, tex"]


def test_report_is_written_anew(pair):
    page = (pair[0] / "report.html").read_bytes()
    (pair[0] / "report.html").write_text("old")
    done = normfed("report", pair[0])
    assert (done.code, done.out, done.err) == (0, f"{pair[0] / 'report.html'}\n", "")
    assert (pair[0] / "report.html").read_bytes() == page


def test_an_interrupted_demo_says_how_to_go_on(tmp_path, monkeypatch):
    def interrupt(self, method, row):
        raise KeyboardInterrupt

    typed = ["demo", "--quick", "--jobs", "1", "--out", tmp_path / "demo", "--seeds"]
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "on_round", interrupt)
        done = normfed(*typed, "0")
    assert (done.code, done.out) == (130, "")
    assert (
        done.err == f"normfed: interrupted; {tmp_path / 'demo'} keeps what was done, the same command goes on with it\n"
    )
    before = files(tmp_path / "demo")
    assert refused(*typed, "1") == [f"normfed: {tmp_path / 'demo'} holds another run: seeds is [0] there, [1] here"]
    assert refused(*typed, "x") == ["normfed: seeds 'x' cannot be read; write for example 0,1,2"]
    assert files(tmp_path / "demo") == before
