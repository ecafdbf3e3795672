"""data fetch, check, show and list datasets: what is printed, what is written, and how bad input ends."""

import io
import json
import os
import re
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest
from PIL import Image

from normfed.cli import main
from normfed.data import DATASETS, MADE
from normfed.library import sheet, shelf

from files import pictures, write_dataset


@pytest.fixture
def normfed(tmp_path, monkeypatch, capsys):
    """The command line in this process, in an empty folder, without data and without a network."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"NORMFED_DATA": "data", "NORMFED_CACHE": "cache", "HF_HUB_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["normfed", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return ended.value.code, printed.out, printed.err

    return call


def test_datasets_are_listed_with_what_is_here(normfed, tmp_path):
    write_dataset(tmp_path / "data", "pacs")
    rows = {row["name"]: row for row in json.loads(normfed("list", "datasets", "--json")[1])}
    assert list(rows) == [*MADE, *DATASETS]
    assert [name for name, row in rows.items() if row["present"]] == [*MADE, "pacs"]
    assert rows["pacs"]["homes"] == ["flwrlabs/pacs"] and rows["vlcs"]["obtain"][-1].endswith("--from VLCS")
    code, out, err = normfed("list", "datasets")
    assert code == 0 and not err and len(out.splitlines()) == len(rows)
    assert [line.split()[0] for line in out.splitlines() if line.endswith("  (here)")] == [*MADE, "pacs"]


# ------------------------------------------------------------------------------------------------------------- fetch


@pytest.mark.parametrize("name", [name for name, dataset in DATASETS.items() if not dataset.homes])
def test_what_nothing_offers_is_said_with_its_steps(normfed, tmp_path, name):
    code, out, err = normfed("data", "fetch", name)
    assert code == 2 and not out
    assert err.splitlines() == [
        f"normfed: {line}"
        for line in (f"{name} has no home on the hub. To obtain it:", *(f"  {step}" for step in DATASETS[name].obtain))
    ]
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_one_line_a_home_and_nothing_is_left(tmp_path):
    pytest.importorskip("datasets", reason="datasets, the extra hub, is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "normfed.cli", "data", "fetch", "pacs", "--data", str(tmp_path)], text=True, timeout=120,
        capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 2 and not done.stdout and not list(tmp_path.iterdir())
    assert done.stderr.startswith("normfed: flwrlabs/pacs cannot be had from the Hugging Face hub: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_zip_becomes_a_dataset_that_checks_out(normfed, tmp_path):
    with zipfile.ZipFile(tmp_path / "mine.zip", "w") as file:
        for i, (domain, label) in enumerate((d, c) for d in DATASETS["vlcs"].domains for c in DATASETS["vlcs"].classes):
            image = io.BytesIO()
            Image.fromarray(pictures(1, 8, 3, i)[0]).save(image, "PNG")
            file.writestr(f"VLCS/{domain}/{label}/{i}.png", image.getvalue())
    code, out, err = normfed("data", "fetch", "vlcs", "--from", "mine.zip")
    assert code == 0 and not err and out.count("written") == 4 and out.splitlines()[-1] == "In data/vlcs"
    code, out, err = normfed("data", "check", "vlcs")
    assert code == 0 and not err
    assert out.splitlines()[1].split() == ["caltech101/all.parquet", "5", *"11111"]
    document = json.loads(normfed("data", "check", "vlcs", "--json")[1])
    assert document["problems"] == [] and document["files"][0]["classes"] == dict.fromkeys(DATASETS["vlcs"].classes, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fetch", "vlsc"], "unknown dataset 'vlsc'; did you mean 'vlcs'?; or the path of your own data"),
        (["fetch", "embedded"], "embedded needs no files: it is made where it is used"),
        (["fetch", "vlcs", "--from", "none.zip"], "there is no file or folder 'none.zip'"),
        (["fetch", "vlcs", "--from", "text"], "text: a folder or a .zip was expected; unpack other archives first"),
        (["fetch", "abide", "--from", "text"], "abide is arrays, not images:"),
        (["fetch", "mnist", "--from", "digits", "--data", "text"], "text/mnist cannot be written: a part of the path is a file"),
        (["check", "pacs"], "pacs is not under data: `normfed data fetch pacs` gets it, or says how to obtain it"),
        (["check", "pac"], "unknown dataset 'pac'; did you mean 'pacs'?"),
        (["check", "text"], "text: a folder, or a file that ends in .csv, .parquet, .npz, was expected"),
        (["show", "embeded"], "unknown dataset 'embeded'; did you mean 'embedded'?"),
        (["show", "embedded", "--partition", "domian"], "unknown step 'domian' of a partition; did you mean 'domain'?"),
        (["show", "embedded(train=0)"], "embedded: train=0 must be a whole number from 1 to 159"),
        (["show", "embedded", "--out", "sheet.jpg"], "--out sheet.jpg: the picture is a .png"),
        (["show", "embedded", "--out", "none/sheet.png"], "--out none/sheet.png: there is no folder none"),
        (["show", "embedded", "--out", "text/sheet.png"], "--out text/sheet.png: there is no folder text"),
        (["show", "./none"], "there is no file or folder './none'"),
    ],
)  # fmt: skip
def test_bad_input_ends_with_2_and_a_line_and_nothing_is_written(normfed, tmp_path, arguments, said):
    (tmp_path / "text").write_text("no archive")
    for digit in range(10):
        (tmp_path / "digits" / str(digit)).mkdir(parents=True)
        Image.fromarray(pictures(1, 8, 1, digit)[0]).save(tmp_path / "digits" / str(digit) / "0.png")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = normfed("data", *arguments)
    assert code == 2 and not out and err.startswith(f"normfed: {said}")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_interrupt_ends_with_130_and_leaves_no_half_file(normfed, tmp_path, monkeypatch):
    add, calls = shelf.Drafts.add, []

    def cut(self, *arguments):
        add(self, *arguments)
        calls.append(list((tmp_path / "data").rglob("*.part")))
        if len(calls) == 2:
            raise KeyboardInterrupt

    for domain in DATASETS["vlcs"].domains:
        for label in DATASETS["vlcs"].classes:
            (tmp_path / "VLCS" / domain / label).mkdir(parents=True)
            Image.fromarray(pictures(1, 8, 3)[0]).save(tmp_path / "VLCS" / domain / label / "1.png")
    monkeypatch.setattr(shelf.Drafts, "add", cut)
    code, out, _ = normfed("data", "fetch", "vlcs", "--from", "VLCS")
    assert code == 130 and not out and all(len(parts) == 1 for parts in calls)
    names = sorted(p.name for p in (tmp_path / "data").rglob("*") if p.is_file())
    assert names == ["all.parquet", "manifest.json"]  # the first domain is whole


def test_a_terminal_sees_how_far_it_is(normfed, tmp_path, monkeypatch):
    write_dataset(tmp_path / "data", "mnist")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    code, out, err = normfed("data", "check", "mnist")
    assert code == 0 and "train.parquet" in out
    assert "test.parquet" in err and "20/20 images," in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", err)


# ------------------------------------------------------------------------------------------------------- check and show


def test_what_is_made_is_checked_too(normfed, tmp_path):
    code, out, err = normfed("data", "check", "embedded")
    assert code == 0 and not err and out.splitlines()[1].split()[:2] == ["ink/train", "100"]


def test_a_check_prints_the_counts_and_ends_with_2_on_problems(normfed, tmp_path):
    write_dataset(tmp_path / "data", "pacs")
    (tmp_path / "data/pacs/photo/test.parquet").write_bytes(b"PAR1")
    code, out, err = normfed("data", "check", "pacs")
    assert code == 2 and "photo/train.parquet" in out
    assert len(err.splitlines()) == 1 and "photo/test.parquet cannot be read as Parquet" in err
    code, out, err = normfed("data", "check", "pacs", "--json")
    assert code == 2 and json.loads(out)["problems"] == [err.removeprefix("normfed: ").rstrip()]


def place(picture, row, column, side=43, i=0):
    """The pixels of a sample on a sheet: as `sheet` lays them out."""
    left = sheet.LEFT + column * ((side + 1) * sheet.EACH + sheet.GAP) + i * (side + 1)
    top = sheet.TOP + row * (side + sheet.GAP)
    return np.asarray(picture)[top : top + side, left : left + side]


def test_a_sheet_shows_clients_in_rows_and_classes_in_columns(normfed, tmp_path):
    from normfed.data import open_federation

    code, out, err = normfed("data", "show", "embedded", "--partition", "clients(3) / classes(4)", "--out", "s.png")
    assert code == 0 and not err and out.splitlines()[-1] == "Picture in s.png"
    federation = open_federation("embedded", "clients(3) / classes(4)")
    assert out.splitlines()[1].split()[:2] == ["client-0", "train"] and out.splitlines()[1].split()[-1] == "4"
    assert federation.hash[:16] in out
    with Image.open("s.png") as picture:
        for row, client in enumerate(federation):
            x, y = federation[client].split("train")
            for label in range(10):
                shown = place(picture, row, label)
                if (y == label).any():
                    first = ((x[y == label][0] + 1) / 2 * 255).round().byte()
                    middle = first[:, 8, 8].tolist()  # each pixel is drawn 43/16 wide
                    assert shown[22, 22].tolist() == middle
                else:
                    assert (shown == shown[0, 0]).all()


@pytest.mark.parametrize("name", ["digits", "abide", "cifar100", "fed_isic2019"])
def test_every_kind_of_data_has_a_sheet(normfed, tmp_path, name):
    write_dataset(tmp_path / "data", name, n=200 if name == "cifar100" else 20)
    partition = ["--partition", "clients(30)"] if name == "cifar100" else []
    code, out, err = normfed("data", "show", f"{name}(side=8)" if DATASETS[name].side else name, *partition)
    assert code == 0 and not err and f"Picture in {name}.png" in out
    with Image.open(f"{name}.png") as picture:
        assert picture.mode == "RGB" and 700 < picture.width < 2200
        assert np.asarray(picture)[sheet.TOP :, sheet.LEFT :].std() > 10
    if name == "cifar100":
        assert len(out.splitlines()) == 31 + 3  # every client is in the table


def test_numbers_are_squares_and_connectomes_their_matrices():
    matrix = np.random.default_rng(0).uniform(size=(60, 60))
    plane = sheet._plane(matrix[np.triu_indices(60, 1)])
    assert np.array_equal(np.triu(plane, 1), np.triu(matrix, 1)) and np.array_equal(plane, plane.T)
    assert np.array_equal(
        sheet._plane(np.arange(10.0)), np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, *[0.5] * 6]).reshape(4, 4)
    )
    assert sheet._plane(np.ones(1)).shape == (1, 1)
    blue, white, red = sheet._coloured(np.array([[0.0, 0.5, 1.0]]))[0]
    assert blue[2] > blue[0] and (white == 1).all() and red[0] > red[2]


def test_your_own_folder_has_a_sheet(normfed, tmp_path):
    seen = []
    for site in ("lyon", "oslo"):
        for label in ("cat", "dog"):
            (tmp_path / "photos" / site / label).mkdir(parents=True)
            for image in pictures(5, 12, 3, len(seen)):
                seen.append(image)
                Image.fromarray(image).save(tmp_path / "photos" / site / label / f"{len(seen)}.png")
    code, out, _ = normfed("data", "show", "photos/")
    assert code == 0 and "Picture in photos.png" in out and (tmp_path / "photos.png").exists()


def test_a_sheet_that_cannot_be_written_is_said(normfed, tmp_path, monkeypatch):
    from pathlib import Path

    from normfed.runs import disk

    def full(path, *_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk.os, "fsync", full)
    code, out, err = normfed("data", "show", "embedded")
    assert code == 2 and not out and err == "normfed: embedded.png cannot be written: the disk is full\n"
    assert not list(Path().glob("embedded*"))
