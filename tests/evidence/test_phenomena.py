"""The phenomena: what a run is worth, what is said of a claim, and a figure that is drawn when it must be."""

import dataclasses
import json
import random

import pytest

import normfed as nf
from normfed.evidence import phenomena, phenomena_page

ROUNDS = ("5", "10", "15", "20")


def made_up(of):
    """Runs of every experiment; `of(arm, measure)` is the value that its seeds scatter about."""
    noise = random.Random(0)
    return {
        name: {
            arm: {
                measure: {str(s): {r: of(arm, measure) + noise.gauss(0, 0.002) for r in ROUNDS} for s in range(4)}
                for measure in ("accuracy", "gap")
            }
            for arm in experiment.arms
        }
        for name, experiment in phenomena.EXPERIMENTS.items()
    }


def as_the_papers(arm, measure):
    if measure == "gap":
        return {"FedAvg": 0.3, "GReg": 0.1}.get(arm, 0.2)
    return {"FedBN": 0.9, "FedTAN": 0.95, "FedAvg, IID": 0.97, "FedWon, batches of 1": 0.9}.get(arm, 0.8)


def test_a_run_counts_by_its_last_quarter():
    assert phenomena_page.value({"1": 0.0, "30": 0.0, "31": 0.4, "40": 0.6}) == pytest.approx(0.5)


def test_a_claim_is_shown_beyond_noise_or_not_at_all():
    shift = made_up(as_the_papers)["shift"]
    claim = phenomena_page.CLAIMS[0]
    assert "FedBN: 90." in phenomena_page.row(claim, shift) and "yes (p < 0.001, 4 seeds)" in phenomena_page.row(
        claim, shift
    )
    the_other_way = dataclasses.replace(claim, more=claim.less, less=claim.more)
    assert "not shown at this size" in phenomena_page.row(the_other_way, shift)
    alike = made_up(lambda arm, measure: 0.8)["shift"]
    assert "not shown at this size" in phenomena_page.row(claim, alike)


def test_every_claim_is_of_arms_that_are_played():
    rows = phenomena_page.table(made_up(as_the_papers))
    assert len(rows) == 2 + len(phenomena_page.CLAIMS) and {"FedTAN", "FedWon", "GReg", "FedBN"} <= set(
        " ".join(rows).split()
    )


@pytest.fixture
def home(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("before\n<!-- phenomena -->\nstale\n<!-- end -->\nafter\n")
    return tmp_path


def write(home, of):
    (home / phenomena.FILE).write_text(json.dumps({"cpu_seconds": 120, "runs": made_up(of)}))
    return phenomena_page.page(home / "results")


def test_the_figure_is_drawn_anew_only_for_new_results(home, monkeypatch):
    first = write(home, as_the_papers)
    figure = first["docs/phenomena.svg"]
    assert (
        first["README.md"].startswith("before\n<!-- phenomena -->\n\n| phenomenon |")
        and "stale" not in first["README.md"]
    )
    assert first["README.md"].endswith("<!-- end -->\nafter\n")
    assert "2 minutes" in first["docs/phenomena.md"] and "<svg" in figure and "FedTAN" in figure
    (home / "docs" / "phenomena.svg").write_text(figure)
    monkeypatch.setattr(phenomena_page, "draw", lambda runs: "drawn again\n")
    assert write(home, as_the_papers)["docs/phenomena.svg"] == figure
    assert write(home, lambda arm, measure: 0.5)["docs/phenomena.svg"].startswith("drawn again")


def test_without_results_the_command_is_named(home):
    with pytest.raises(nf.Refused, match=r"python -m normfed\.evidence\.phenomena makes it"):
        phenomena_page.page(home / "results")


@pytest.mark.parametrize(
    "name, arm, measures", [("shift", "GReg", {"accuracy", "gap"}), ("classes", "FedBN", {"accuracy"})]
)
def test_a_run_is_played_to_the_same_numbers(monkeypatch, name, arm, measures):
    short = dataclasses.replace(
        phenomena.EXPERIMENTS[name], train=20, settings={**phenomena.EXPERIMENTS[name].settings, "rounds": 2}
    )
    monkeypatch.setitem(phenomena.EXPERIMENTS, name, short)
    curves, seconds = phenomena.play(name, arm, 1)
    assert set(curves) == measures and list(curves["accuracy"]) == [1, 2] and seconds > 0
    assert phenomena.play(name, arm, 1)[0] == curves


def test_main_plays_all_and_writes_what_the_page_reads(home, monkeypatch):
    todo = [("batch", arm, seed) for arm in list(phenomena.EXPERIMENTS["batch"].arms)[:2] for seed in (0, 1)]
    monkeypatch.setattr(phenomena, "jobs", lambda: iter(todo))
    monkeypatch.setattr(phenomena, "ProcessPoolExecutor", InThisProcess)
    monkeypatch.setattr(phenomena, "play", lambda name, arm, seed: ({"accuracy": {20: seed / 2}}, 1.5))
    phenomena.main(home / phenomena.FILE)
    document = json.loads((home / phenomena.FILE).read_text())
    assert document["cpu_seconds"] == 6
    assert document["runs"]["batch"][todo[0][1]] == {"accuracy": {"0": {"20": 0.0}, "1": {"20": 0.5}}}


class InThisProcess:
    def __init__(self, workers, context, initializer):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def map(self, f, *arguments):
        return map(f, *arguments)
