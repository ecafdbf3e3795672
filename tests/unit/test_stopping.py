"""Early stopping and callbacks: a pure function of the history, the same after a cut, never of test data."""

import pytest

import normfed as nf
from normfed import recipe, runs
from normfed.stopping import parse
from normfed.testing import seeded, toy_federation, toy_mlp

from command import normfed, sets


def stopped(text, values):
    """The round after which training ends; None: not before the last."""
    stop = parse(text)
    metric = stop.metric
    rows = [{metric: None if value is None else {"a": value, "b": value}} for value in values]
    ends = [i for i in range(len(rows)) if stop.after(rows[: i + 1])]
    return ends[0] if ends else None


@pytest.mark.parametrize(
    ("text", "values", "end"),
    [
        ("val_accuracy(patience=2)", [0.1, 0.2, 0.2, 0.1, 0.9], 3),
        ("val_accuracy(patience=2)", [0.1, 0.2, 0.1, 0.3, 0.2, 0.3], 5),  # as good is not better
        ("val_accuracy(2)", [0.5, None, None, 0.4, None, 0.3], 5),  # rounds without the metric do not count
        ("train_loss(patience=1)", [3.0, 2.0, 1.0], None),
        ("train_loss(patience=1)", [3.0, 2.0, 2.5], 2),
        ("train_loss(patience=2, min_delta=0.5)", [3.0, 2.8, 2.6, 2.4], 2),  # no step of 0.5 from the best
        ("train_loss(patience=2, min_delta=0.5)", [3.0, 2.8, 2.4, 2.3, 2.2], 4),
        ("val_loss", [1.0] * 6, 5),  # patience 5
        ("val_accuracy(patience=1)", [0.5, float("nan")], 1),
    ],
)
def test_when(text, values, end):
    assert stopped(text, values) == end


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("test_accuracy", "stop: test_accuracy would choose by test data; choose by validation data or train_loss"),
        ("val_acuracy", "stop: unknown metric 'val_acuracy'; did you mean 'val_accuracy'?"),
        ("val_loss(patience=0)", "stop: patience=0 must be a whole number, 1 or more"),
        ("val_loss(patience=1.5)", "stop: patience=1.5 must be a whole number, 1 or more"),
        ("val_loss(min_delta=-1.0)", "stop: min_delta=-1.0 must be a number, 0 or more"),
        ("val_loss(patients=3)", "stop: unknown argument 'patients'; did you mean 'patience'?"),
        ("val_loss(3, 0.1)", "stop: name the arguments, val_accuracy(patience=5, min_delta=0.001)"),
        ("val_loss(3", "'val_loss(3' cannot be read"),
    ],
)
def test_what_is_refused(text, said):
    with pytest.raises(nf.Refused) as raised:
        nf.simulate(seeded(toy_mlp), toy_federation(shape=(6,)), nf.methods.fedavg(), rounds=2, batch_size=4, stop=text)
    assert raised.value.problems[0].startswith(said)


def simulate(**more):
    data = {name: nf.ClientData(client.train, client.test, client.train) for name, client in toy_federation(shape=(6,)).items()}  # fmt: skip
    return nf.simulate(seeded(toy_mlp), data, nf.methods.fedavg(), **{"rounds": 40, "batch_size": 4, "lr": 2.0, **more})


def test_a_run_that_stops_is_the_beginning_of_one_that_does_not():
    whole, short = simulate(), simulate(stop="val_accuracy(patience=3)")
    assert 4 <= short.rounds == len(short.history) < 40
    assert short.history == whole.history[: short.rounds]
    assert parse("val_accuracy(patience=3)").after(short.history)
    assert short.final["selected_round"][0] == short.rounds - 4  # the best on validation data, three before the end


def test_a_callback_sees_every_round_as_it_ends():
    seen = []
    result = simulate(rounds=3, on_round=lambda row: seen.append(dict(row)))
    assert seen == result.history and [row["round"] for row in seen] == [0, 1, 2]


def test_a_callback_may_end_a_run_by_raising():
    class Enough(Exception):
        pass

    def on_round(row):
        if row["round"] == 1:
            raise Enough

    with pytest.raises(Enough):
        simulate(on_round=on_round)


STOP = "train_loss(patience=1, min_delta=100.0)"  # nothing is that much better: ends after the second round


def test_a_kept_run_stops_in_the_same_round_after_a_cut(tmp_path):
    def config(**changed):
        keys = {
            "data": "embedded(train=20)",
            "rounds": 6,
            "steps": 1,
            "batch_size": 4,
            "seeds": [0],
            "evaluate_every": 3,
        }
        return recipe.resolve(recipe.find("demo"), {**keys, **changed})

    def cut(method, row):
        rounds.append(row["round"])
        if row["round"] == 0:
            raise KeyboardInterrupt

    rounds = []
    with pytest.raises(KeyboardInterrupt):
        runs.run(config(stop=STOP), tmp_path / "cut", on_round=cut)
    document = runs.run(config(stop=STOP), tmp_path / "cut", resume=True, on_round=lambda m, row: rounds.append(row["round"]))  # fmt: skip
    assert rounds == [0, 1] and document["rounds"] == 2
    whole = runs.run(config(), tmp_path / "whole")
    assert [r["train_loss"] for r in document["history"]] == [r["train_loss"] for r in whole["history"][:2]]
    assert document["history"][-1]["test_accuracy"]  # the last round is evaluated, whichever it is


def test_at_the_command_line(tmp_path):
    done = normfed("run", "demo", "--seeds", "0", *sets(rounds=6, stop=STOP), "--out", tmp_path / "run")
    assert done.code == 0 and "2 rounds; model evaluated" in done.out
