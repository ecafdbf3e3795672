"""Above a thousand clients result.json holds summaries, and the records the rest."""

import json

import numpy as np
import pytest

from normfed.compare import condensed

from command import normfed, sets

MANY = 1001


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("many")
    draw = np.random.default_rng(0)
    x = draw.standard_normal((4 * MANY, 1, 2, 2)).astype(np.float32)
    site = np.repeat([f"site {i}" for i in range(MANY)], 4)
    split = np.tile(["train", "train", "test", "test"], MANY)
    np.savez(root / "many.npz", x=x, label=(x.sum((1, 2, 3)) > 0).astype(int), site=site, split=split)
    keys = sets(data=root / "many.npz", model="mnist_mlp", rounds=1, views='["own", "pooled"]', steps=1, batch_size=2)
    done = normfed("run", "demo", "--seeds", "0,1", "--method", "fedbn", "--jobs", "1", *keys, "--out", root / "run", "--json")  # fmt: skip
    assert done.code == 0, done.err
    assert json.loads(done.out) == json.loads((root / "run" / "result.json").read_text())
    return root / "run"


NAMES = ["mean", "worst", *(f"decile {i}" for i in range(1, 10))]


def test_the_result_is_small_and_the_records_have_everyone(folder):
    document = json.loads((folder / "result.json").read_text())
    assert len(document["clients"]) == MANY and (folder / "result.json").stat().st_size < 60_000
    assert list(document["final"]["test_accuracy"]) == NAMES
    facts = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for row in document["history"]:
        assert list(row["test_accuracy"]) == list(row["train_loss"]) == NAMES
        mine = [f for f in facts if (f["seed"], f["round"]) == (row["seed"], row["round"])]
        accuracy = [f["value"] for f in mine if f.get("split") == "test" and f["metric"] == "accuracy" and f["view"] == "own"]  # fmt: skip
        loss = [f["value"] for f in mine if f.get("split") == "train"]
        assert len(accuracy) == len(loss) == MANY
        assert row["test_accuracy"]["mean"] == pytest.approx(np.mean(accuracy))
        assert row["test_accuracy"]["worst"] == min(accuracy) and row["train_loss"]["worst"] == max(loss)
        deciles = np.quantile(accuracy, np.arange(1, 10) / 10)
        assert [row["test_accuracy"][name] for name in NAMES[2:]] == pytest.approx(deciles.tolist())
        assert list(row["views"]["own"]) == NAMES and list(row["views"]["pooled"]) == ["all"]
    final = [row["test_accuracy"]["mean"] for row in document["history"] if row["round"] == 0]
    assert document["final"]["test_accuracy"]["mean"]["mean"] == pytest.approx(np.mean(final))
    assert document["final"]["average"]["mean"] == pytest.approx(np.mean(final))


def test_it_is_shown_exported_and_reported(folder):
    done = normfed("export", folder, "--as", "csv")
    assert [line.split(",")[4] for line in done.out.splitlines()[1:]] == [*NAMES, "average"]
    assert normfed("report", folder).code == 0 and (folder / "report.html").stat().st_size < 2_000_000


def test_a_thousand_clients_are_not_condensed():
    def document(count):
        clients = {f"c{i}": float(i) for i in range(count)}
        scores = {name: {"mean": value, "std": 0.0} for name, value in clients.items()}
        row = {"test_accuracy": clients, "train_loss": clients, "skipped": {"c1": 2}, "latched": {"fixbn": True}}
        return {"clients": list(clients), "history": [row], "final": {"test_accuracy": scores}}

    assert condensed(document(1000)) == document(1000)
    small = condensed(document(1001))
    assert small["history"][0]["skipped"] == {"c1": 2} and small["history"][0]["latched"] == {"fixbn": True}
    assert small["final"]["test_accuracy"]["worst"] == {"mean": 0.0, "std": 0.0}
