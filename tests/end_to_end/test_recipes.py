"""Recipes of the papers: every line of every table is a run, in full and in its short form."""

import math
import os
from pathlib import Path

import pytest

import normfed as nf
from normfed import recipe
from normfed.data import DATASETS, partition
from normfed.reproduce import outcome
from normfed.reproduce.obstacles import needed, obstacle
from normfed.runs.inputs import open_run

import files

REAL = Path(os.environ.get("NORMFED_DATA") or Path(__file__).parents[3] / "shared" / "data")
TRAINED = [table for table in recipe.tables() if not table.command]
ONCE = {"rounds": 1, "steps": 1, "evaluate_every": 1, "seeds": [0]}
FEW = {"cifar10": 500, "digits": 200}  # samples of a domain's split, where the short form wants more than 60
MANY = {"cifar10": 10_000, "cifar100": 1000, "mnist": 10_000, "fashion_mnist": 10_000, "digits": 200, "domainnet": 300}
SAMPLE = [  # one of each kind: every method family, dataset layout, way of dealing and of looking
    "fedbn/table11/fedprox", "fedbn/table1-abide/fedbn", "fedbn/table1-office/fedavg", "fedbn/table17/fedbn",
    "fedbn/appendix-f/fedbn", "fedwon/table12/fedwon", "fedwon/table16/fedwon", "fedwon/table11/fedbn",
    "fedtan/table1/fedtan-noniid", "fedtan/figure12/m1000", "greg/table7-pacs/fedplvm-greg", "greg/table2/vlcs-hbn",
    "greg/table3-pacs/fedfa-greg-sketch", "greg/figure3/greg", "greg/table4/levit-pacs-greg",
]  # fmt: skip


@pytest.mark.parametrize("table", TRAINED, ids=lambda table: table.name)
def test_every_line_resolves_in_both_forms(table):
    assert table.about and table.item and table.dataset and table.quick and table.cost > 0
    for row in (table, *recipe.rows_of(table)):
        for quick in (False, True):
            try:
                config = recipe.resolve(row, quick=quick)
            except nf.Refused as refusal:
                assert all("pip install 'normfed[zoo]'" in problem for problem in refusal.problems) and not quick
                continue
            if "partition" in config:
                partition.parse(config["partition"])
            if quick:
                full = recipe.resolve(row) if "zoo" not in row.keys["model"] else config
                assert config["rounds"] <= full["rounds"] and "weights" not in config and config["seeds"] == [0]


@pytest.mark.parametrize("table", TRAINED, ids=lambda table: table.name)
def test_what_is_printed_is_there_to_be_compared(table):
    for row in table.rows:
        assert set(row.expected) <= set(table.columns)
        assert all(0 < mean <= 100 and math.isfinite(mean) for mean, _ in row.expected.values())
        average = row.expected.get("average")
        clients = [mean for column, (mean, _) in row.expected.items() if not column.startswith("average")]
        if average is not None and clients:
            assert abs(average[0] - sum(clients) / len(clients)) < 0.7, "the printed average is of the printed numbers"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Small files of noise in the layout of a dataset, made when they are asked for."""
    folder = tmp_path_factory.mktemp("stand-ins")

    def home(name, classes=None, many=False):
        where = folder / (f"{classes} classes" if classes else "many" if many else "few")
        if name in DATASETS and not (where / name).exists():
            if classes:
                names = (*DATASETS[name].classes, *(f"class {i}" for i in range(classes - len(DATASETS[name].classes))))
                for domain in DATASETS[name].domains:
                    for split in ("train", "test"):
                        path = where / name / domain / f"{split}.parquet"
                        files.write_images(path, files.pictures(2 * classes, 9, 3), [*range(classes)] * 2, names)
            else:
                files.write_dataset(where, name, MANY.get(name, 60) if many else FEW.get(name, 60))
        return where

    return home


def play_once(row, root, many=False):
    config = recipe.resolve(row, ONCE, quick=True)
    home = root(needed(row, True), 100 if "classes=100" in config["data"] else None, many)
    run = open_run(config, home)
    played = run.play()
    assert played["test_accuracy"] and all(math.isfinite(loss) for loss in played["train_loss"].values())
    found = outcome(row, config, run.result().to_dict(row.name), home)
    assert found["verdict"] == "not comparable" and "no number" not in str(found["average"])
    ours = [score["mean"] for score in found["ours"].values() if score is not None]
    assert all(0 <= mean <= 100 for mean in ours)
    named = [column for column in found["paper"] if found["ours"].get(column) is None]
    stood_in = home == REAL and "synth" in named  # nobody has it
    assert not named or row.missing or stood_in, f"the short form has no number for {named}"


@pytest.mark.parametrize("name", SAMPLE)
def test_a_round_of_a_short_form(name, root):
    play_once(recipe.find(name), root)


@pytest.mark.full
@pytest.mark.parametrize("table", TRAINED, ids=lambda table: table.name)
def test_a_round_of_every_short_form(table, root):
    for row in recipe.rows_of(table):
        try:
            play_once(row, root, many=True)
        except nf.Refused as refusal:
            pytest.fail(f"{row.name}: {refusal}")


@pytest.mark.full
@pytest.mark.parametrize("table", TRAINED, ids=lambda table: table.name)
def test_a_round_of_the_short_form_on_the_data_at_hand(table):
    ready = [row for row in recipe.rows_of(table) if not obstacle(row, True, REAL)]
    if not ready:
        pytest.skip(obstacle(recipe.rows_of(table)[0], True, REAL))
    play_once(ready[-1], lambda *_: REAL)
