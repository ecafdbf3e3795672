"""Recipes: found by name or path, every key checked, resolved so that nothing is left to a default."""

import pytest

import normfed as nf
from normfed import recipe

TABLE = """
about = "A table"
paper = "FedBN"
item = "Table 1"
data = "embedded"
model = "digits_cnn"
rounds = 30
lr = 0.1
[quick]
rounds = 2
[[rows]]
name = "bn"
label = "FedBN"
method = "fedbn"
lr = 0.5
[rows.quick]
rounds = 3
[rows.expected]
ink = [90.5, 0.1]
average = 91
[[rows]]
name = "prox"
method = "fedprox(mu=0.1)"
"""


def refused(call, *arguments, **named):
    with pytest.raises(nf.Refused) as raised:
        call(*arguments, **named)
    return raised.value.problems


def test_every_recipe_of_the_package_reads_and_resolves():
    assert "demo" in recipe.names()
    for name in recipe.names():
        found = recipe.find(name)
        assert found.about, name
        if not found.command:
            for quick in (False, True):
                config = recipe.resolve(found, quick=quick)
                assert recipe.resolve(recipe.Recipe("again", config)) == config, name


def test_resolved_keys_are_complete_and_a_row_goes_before_its_table():
    table = recipe.read(TABLE, "mine")
    config = recipe.resolve(table)
    assert config["rounds"] == 30 and config["method"] == "fedavg" and config["momentum"] == 0.0
    assert config["seeds"] == [0] and "clip_norm" not in config and "partition" not in config
    row = recipe._row_of(table, "bn")
    assert (row.name, row.rows[0].expected) == ("mine/bn", {"ink": (90.5, 0.1), "average": (91.0, None)})
    assert recipe.resolve(row)["lr"] == 0.5 and recipe.resolve(row)["method"] == "fedbn"
    assert recipe.resolve(row, quick=True)["rounds"] == 3
    assert recipe.resolve(row, {"lr": 1, "seed": 4})["lr"] == 1.0
    assert recipe.resolve(row, {"seed": 4})["seeds"] == [4]
    assert refused(recipe._row_of, table, "bm") == ("recipe 'mine' has no row 'bm'; did you mean 'bn'?",)


def test_by_path(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TABLE)
    assert recipe.find(str(path)).paper == "FedBN"
    assert "cannot be read: No such file" in refused(recipe.find, str(tmp_path / "none.toml"))[0]
    (said,) = refused(recipe.find, "xyzzy")
    assert said.startswith("unknown recipe 'xyzzy'; choose from: demo, ") and "… (" in said and len(said) < 300
    (tmp_path / "photos").mkdir()
    assert refused(recipe.find, str(tmp_path / "photos"))[0].endswith(
        f"is a folder, not a recipe; to train on it: normfed run RECIPE --set data={tmp_path / 'photos'}"
    )
    assert refused(recipe.find, "dmo") == ("unknown recipe 'dmo'; did you mean 'demo'?; or the path of a .toml file",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("round = 3", "recipe 'mine': unknown key 'round'; did you mean 'rounds'?"),
        ("compares = 1", "recipe 'mine': compares=1 must be true or false"),
        ("cost = true", "recipe 'mine': cost=True must be a number"),
        ("quick = 3", "recipe 'mine': quick must be a table of keys"),
        ("quick.round = 3", "recipe 'mine, quick': unknown key 'round'; did you mean 'rounds'?"),
        ("rows = 3", "recipe 'mine': rows must be tables, [[rows]]"),
        ('rows = [{name = "A b"}]', "recipe 'mine/A b': a row needs a name of letters a to z, digits and hyphens"),
        ('rows = [{name = "a", lrr = 1}]', "recipe 'mine/a': unknown key 'lrr'; did you mean 'lr'?"),
        ('rows = [{name = "a"}, {name = "a"}]', "recipe 'mine': two rows are called 'a'"),
        ("columns = 3", "recipe 'mine': columns=3 must be a list of texts"),
        ('columns = ["ink"]\nrows = [{name = "a", expected = [1, 2]}]', "recipe 'mine/a': expected has 2 numbers for 1 columns"),
        ('rows = [{name = "a", expected = {ink = "x"}}]', "recipe 'mine/a': expected ink='x' must be a number or [mean, std]"),
        ("rounds =", "recipe 'mine' is not TOML: Invalid value (at end of document)"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused(change, said):
    assert said in refused(recipe.read, change, "mine")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"data": None}, "data: missing"),
        ({"model": None}, "model: missing"),
        ({"rounds": None}, "rounds=None: must be a whole number, 1 or more"),
        ({"epoch": 2}, "unknown key 'epoch'; did you mean 'epochs'?"),
        ({"lr": "fast"}, "lr='fast': must be a number at least 0"),
        ({"seeds": [0, 0]}, "seeds=[0, 0]: one is there twice"),
        ({"seeds": 3}, "seeds=3: must be a list of whole numbers, [0, 1, 2]"),
        ({"seeds": []}, "seeds=[]: must be a list of whole numbers, [0, 1, 2]"),
        ({"model": "digit_cnn"}, "unknown model 'digit_cnn'; did you mean 'digits_cnn'?; or package.module:factory for your own"),
        ({"method": "fedbm"}, "unknown method 'fedbm'; did you mean 'fedbn' or 'fedbs'?"),
        ({"data": 3}, "data=3: must be a text"),
        ({"partition_seed": "a"}, "partition_seed='a': must be a whole number"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused(keys, said):
    assert said in refused(recipe.resolve, recipe.find("demo"), keys)


def test_every_problem_is_said_at_once():
    found = refused(recipe.resolve, recipe.find("demo"), {"lr": -1, "epoch": 1, "method": "fedbm", "model": "x"})
    assert len(found) == 4


def test_columns_a_view_for_all_rows_and_a_key_that_the_short_form_takes_away():
    table = recipe.read(
        'data = "embedded"\nmodel = "digits_cnn"\nweights = "some.pt"\nrounds = 3\ncolumns = ["ink", "average@batch"]\n'
        'view = "unseen/batch"\n[quick]\nweights = ""\n[[rows]]\nname = "a"\nexpected = [[1, 2], 3]\n'
        '[[rows]]\nname = "b"\nview = "global"', "mine",
    )  # fmt: skip
    row = recipe._row_of(table, "a")
    assert row.rows[0].expected == {"ink": (1.0, 2.0), "average@batch": (3.0, None)}
    assert row.rows[0].view == "unseen/batch" and recipe._row_of(table, "b").rows[0].view == "global"
    assert recipe.resolve(row)["weights"] == "some.pt" and "weights" not in recipe.resolve(row, quick=True)


def test_a_table_that_trains_nothing_says_where_its_numbers_come_from():
    said = refused(recipe.resolve, recipe.find("fedtan/table3"))
    assert said == ("recipe 'fedtan/table3' trains nothing; its numbers come from: python -m normfed.evidence.traffic",)


def test_tables_by_paper_by_table_and_by_the_datasets_of_one():
    names = [table.name for table in recipe.tables("fedbn")]
    assert names.index("fedbn/table1-office") < names.index("fedbn/table11") and "greg/table1" not in names
    assert {t.name for t in recipe.tables("fedbn/table1")} == {n for n in names if n.startswith("fedbn/table1-")}
    assert [t.name for t in recipe.tables("fedbn/table11")] == ["fedbn/table11"]
    assert refused(recipe.tables, "fedbn/tabel1-office") == (
        "unknown table 'fedbn/tabel1-office'; did you mean 'fedbn/table1-office'?",
    )


def test_set_takes_toml_literals_and_plain_words():
    given = recipe.overrides(
        ["lr=0.5", "steps=3", "seeds=[1, 2]", "engine=serial", "method=fedprox(mu=0.1)", 'loss="x"']
    )
    assert given == {
        "lr": 0.5, "steps": 3, "seeds": [1, 2], "engine": "serial", "method": "fedprox(mu=0.1)", "loss": "x",
    }  # fmt: skip
    assert recipe.overrides(["lr=stages(0.5, 0.1, at=[3])"]) == {"lr": "stages(0.5, 0.1, at=[3])"}
    assert refused(recipe.overrides, ["lr"]) == ("--set lr: write key=value",)
    assert refused(recipe.overrides, ["lr=fast"])[0].startswith("--set lr: fast is not a TOML value")
    assert refused(recipe.overrides, ["lr=1", "lr=2"]) == ("--set lr: given twice",)


def test_the_default_of_each_key_is_the_one_of_simulate():
    config = recipe.resolve(recipe.read('data = "embedded"\nmodel = "digits_cnn"\nrounds = 1', "mine"))
    settings = nf.settings.Settings(rounds=1)
    for key, value in config.items():
        if key not in recipe.OWN:
            default = getattr(settings, key)
            assert value == (list(default) if isinstance(default, tuple) else default), key
