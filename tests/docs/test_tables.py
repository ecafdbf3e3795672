"""Generated pages say what results and code say now."""

from pathlib import Path

import pytest

import normfed as nf
from normfed import tables

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", tables.TABLES)
def test_generated_pages_are_up_to_date(name):
    assert list(tables.stale(ROOT, [name])) == [], "make results rebuilds them"


@pytest.fixture
def table(monkeypatch, tmp_path):
    monkeypatch.setitem(tables.TABLES, "numbers", lambda results: {"docs/n.md": (results / "n.txt").read_text() + "\n"})
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "n.txt").write_text("41")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_stale_is_rebuilt_and_what_is_not_is_left_alone(table, capsys):
    assert tables.main(["--check", "numbers"]) == 1
    assert not (table / "docs").exists(), "a check changes nothing"
    assert tables.main(["numbers"]) == 0
    assert (table / "docs" / "n.md").read_text() == "41\n"
    assert "docs/n.md" in capsys.readouterr().out
    assert tables.main(["--check", "numbers"]) == 0
    written = (table / "docs" / "n.md").stat().st_mtime_ns
    assert tables.rebuild(table, ["numbers"]) == []
    assert (table / "docs" / "n.md").stat().st_mtime_ns == written


def test_an_unknown_table_is_refused(table, capsys):
    assert tables.main(["number"]) == 2
    assert "did you mean 'numbers'?" in capsys.readouterr().err
    with pytest.raises(nf.Refused):
        tables.stale(table, ["number"])
