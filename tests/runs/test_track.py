"""Numbers passed on to TensorBoard and MLflow, read back with their own readers."""

import json
import os
import sys

import pytest

from command import normfed, sets, tiny

KEYS = {"metrics": '["accuracy", "f1"]', "rounds": 2}


def history(folder):
    return json.loads((folder / "result.json").read_text())["history"]


def wanted(rows):
    """(name, round) -> value of everything that is passed on."""
    found = {}
    for row in rows:
        for name in ("bytes_up", "bytes_down", "messages"):
            found[name, row["round"]] = row[name]
        for key in ("train_loss", "test_accuracy", "test_f1", "test_loss"):
            for client, value in row[key].items():
                found[f"{key}/{client}", row["round"]] = value
            found[f"{key}/mean", row["round"]] = sum(row[key].values()) / len(row[key])
    return found


def test_tensorboard_reads_every_number(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = tiny("compare", "--methods", "fedavg,fedprox(mu=0.1)", "--jobs", "1", "--track", "tensorboard", "--out", tmp_path / "all", **KEYS)  # fmt: skip
    assert done.code == 0 and done.err == "", done.err
    for method in ("fedavg", "fedprox-mu-0.1"):
        events = EventAccumulator(str(tmp_path / "all" / "tensorboard" / f"{method}-seed-0"))
        events.Reload()
        found = {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}
        assert found == pytest.approx(wanted(history(tmp_path / "all" / method)), rel=1e-6)  # it keeps float32


@pytest.fixture
def mlflow(monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # put back afterwards
    os.environ.pop("MLFLOW_ALLOW_FILE_STORE")
    return MlflowClient


def tracked(client):
    """name -> (run, (metric, round) -> value)"""
    (experiment,) = [e for e in client.search_experiments() if e.name == "normfed"]
    found = {}
    for run in client.search_runs([experiment.experiment_id]):
        points = [p for name in run.data.metrics for p in client.get_metric_history(run.info.run_id, name)]
        found[run.info.run_name] = (run, {(p.key, p.step): p.value for p in points})
    return found


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_reads_every_number_of_every_seed(tmp_path, mlflow):
    done = tiny("--track", "mlflow", "--jobs", "1", "--out", tmp_path / "run", seeds="0,1", **KEYS)
    assert done.code == 0 and done.err == "", done.err
    runs = tracked(mlflow((tmp_path / "run" / "mlruns").as_uri()))
    assert set(runs) == {"fedavg-seed-0", "fedavg-seed-1"}
    for seed in (0, 1):
        run, found = runs[f"fedavg-seed-{seed}"]
        assert found == pytest.approx(wanted(history(tmp_path / "run" / f"seed-{seed}")), rel=1e-12)
        assert run.data.params == {"method": "fedavg", "seed": str(seed)} and run.info.status == "FINISHED"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_mlflow_goes_on_with_the_run_it_knows_where_it_is_told_to(tmp_path, mlflow, monkeypatch):
    from normfed.cli.progress import Progress

    def interrupt(self, method, row):
        raise KeyboardInterrupt

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "server").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # whoever names a place of files has to ask for it
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "on_round", interrupt)
        typed = ["run", "demo", "--seeds", "0", *sets(**KEYS), "--track", "mlflow", "--out", tmp_path / "run"]
        assert normfed(*typed).code == 130
    assert normfed(*typed, "--resume").code == 0 and not (tmp_path / "run" / "mlruns").exists()
    runs = tracked(mlflow((tmp_path / "server").as_uri()))
    _, found = runs.pop("fedavg-seed-0")
    assert not runs and {step for _, step in found} == {1}  # the first round was not yet passed on when it was cut
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    done = normfed(*typed[:-1], tmp_path / "other")
    assert done.code == 2 and done.err.startswith("normfed: --track mlflow: ") and "Traceback" not in done.err


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_names_that_mlflow_does_not_take_are_made_plain(tmp_path, mlflow):
    from normfed.runs.track import Tracker

    row = {
        "seed": 0,
        "round": 0,
        "bytes_up": 1,
        "bytes_down": 1,
        "messages": 1,
        "train_loss": {"Zürich (A)": 0.5, "b": None},
    }
    with Tracker("mlflow", tmp_path) as tracker:
        tracker.on_round("fedbn", row)
    (_, found), *_ = tracked(mlflow((tmp_path / "mlruns").as_uri())).values()
    assert found["train_loss/Zürich _A_", 0] == found["train_loss/mean", 0] == 0.5


@pytest.mark.parametrize(("kind", "library"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.tracking")])  # fmt: skip
def test_without_the_extra_it_is_one_line_that_says_which(tmp_path, monkeypatch, kind, library):
    monkeypatch.setitem(sys.modules, library, None)
    done = tiny("--track", kind, "--out", tmp_path / "run")
    assert done.code == 2 and "pip install 'normfed[track]'" in done.err and len(done.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()
