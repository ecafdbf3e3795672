"""Datasets got from the hub, brought from archives, checked: with the hub's own format in small, made by `datasets`."""

import errno
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import normfed as nf
from normfed.data import DATASETS, open_federation
from normfed.library import bring, check, fetch, shelf
from normfed.library.fetch import hub

from files import pictures, write_dataset

datasets = pytest.importorskip("datasets", reason="datasets, the extra hub, is not installed")
FETCHED = [name for name, dataset in DATASETS.items() if dataset.homes]
EACH = 3  # rows of a class, in a split, of a domain


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMFED_CACHE", str(tmp_path / "cache"))


class Hub:
    """Tables in Parquet, as a repository of the hub keeps them, and what was asked of them."""

    def __init__(self, folder, name, **changes):
        self.folder, self.asked = folder, []
        self.dataset = DATASETS[name]
        for k, home in enumerate(self.dataset.homes):
            for j, split in enumerate(dict.fromkeys(s for theirs in home.splits.values() for s in theirs)):
                self.write(home, split, seed=100 * k + 10 * j, **changes)

    def write(self, home, split, seed=0, names=None, drop=(), owners=None):
        classes = names or self.dataset.classes or tuple(f"class {i}" for i in range(100))
        features = {home.image: datasets.Image(), home.label: datasets.ClassLabel(names=list(classes))}
        domains = self.dataset.domains if home.column else ("",)
        labels = np.arange(len(classes) * EACH) % len(classes)
        table = {home.image: [], home.label: np.tile(labels, len(domains)).tolist()}
        for i, _ in enumerate(domains):
            table[home.image] += [Image.fromarray(p) for p in pictures(len(labels), 8, 3, seed + i)]
        if home.column:
            known = owners or (domains if not home.names else range(len(domains)))
            table[home.column] = [value for value in known for _ in labels]
            kind = datasets.Value("string" if isinstance(table[home.column][0], str) else "int64")
            features[home.column] = kind
        for column in drop:
            del table[column], features[column]
        made = datasets.Dataset.from_dict(table, features=datasets.Features(features))
        path = self.path(home.id, home.config) / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        made.to_parquet(str(path))

    def path(self, id, config):
        return self.folder / id.replace("/", "--") / (config or "data")

    def __call__(self, id, config, split):
        self.asked.append((id, split))
        files = {split: str(self.path(id, config) / f"{split}-*.parquet")}
        return datasets.load_dataset("parquet", data_files=files, split=split, cache_dir=str(self.folder / "cache"))


def refused(f, *arguments, **named):
    with pytest.raises(nf.Refused) as raised:
        f(*arguments, **named)
    assert all(problem and "\n" not in problem for problem in raised.value.problems)
    return raised.value.problems


def files_in(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()) if folder.exists() else []


# ------------------------------------------------------------------------------------------------------- from the hub


@pytest.mark.parametrize("name", FETCHED)
def test_every_dataset_with_a_home_is_fetched_into_its_layout_and_loads(name, tmp_path):
    source = Hub(tmp_path / "hub", name)
    found = fetch(name, tmp_path / "data", source)
    dataset = DATASETS[name]
    splits = {home.domain or d: home.splits for home in dataset.homes for d in ([home.domain] if not home.column else dataset.domains)}  # fmt: skip
    expected = {f"{d}/{s}.parquet" if d else f"{s}.parquet" for d, ours in splits.items() for s in ours}
    assert set(found.written) == expected and not found.kept and not found.left
    assert files_in(found.folder) == sorted({*expected, shelf.MANIFEST})
    federation = open_federation(f"{name}(side=8)", "domain", root=tmp_path / "data")
    assert list(federation) == [d for d in dataset.domains if d in splits] or ["client"]
    assert federation.classes == (dataset.classes or tuple(f"class {i}" for i in range(100)))
    checked = check(name, tmp_path / "data")
    assert not checked.problems and {f.file: f.samples for f in checked.files} == found.written
    assert all(set(f.classes.values()) == {found.written[f.file] // len(federation.classes)} for f in checked.files)


@pytest.mark.parametrize("name", ["pacs", "camelyon17", "domainnet", "fed_isic2019"])
def test_one_table_is_split_by_its_column_and_images_keep_their_bytes(name, tmp_path):
    Hub(tmp_path / "hub", name)
    fetch(name, tmp_path / "data", Hub(tmp_path / "hub", name))
    home, dataset = DATASETS[name].homes[0], DATASETS[name]
    for k, domain in enumerate(dataset.domains):
        ours, theirs = next(iter(home.splits.items()))
        n = len(dataset.classes) * EACH
        expected = [p for j in range(len(theirs)) for p in pictures(n, 8, 3, 10 * j + k)]
        block = next(b for b in open_federation(f"{name}(side=8)", "domain", root=tmp_path / "data").source.blocks
                     if (b.domain, b.split) == (domain, ours))  # fmt: skip
        assert np.array_equal(block.read(), np.stack(expected).transpose(0, 3, 1, 2))
        assert block.labels.tolist() == (np.arange(n) % len(dataset.classes)).tolist() * len(theirs)


def test_class_names_of_the_hub_go_before_ours_in_its_order_and_our_spelling(tmp_path):
    names = ("Zebra", "wine glass", "aircraft carrier", *DATASETS["domainnet"].classes[:8])
    fetch("domainnet", tmp_path / "data", Hub(tmp_path / "hub", "domainnet", names=names))
    source = open_federation("domainnet(side=8, classes=11)", "domain", root=tmp_path / "data").source
    assert source.classes[:4] == ("zebra", "wine_glass", "aircraft carrier", "bird")


def test_the_real_loader_reads_the_hub_s_format(tmp_path, monkeypatch):
    """`hub` itself, on a repository in a folder."""
    source = Hub(tmp_path / "hub", "mnist")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    table = hub(str(source.path("ylecun/mnist", None)), None, "train")
    assert len(table) == 30 and table.column_names == ["image", "label"]


def test_datasets_reads_what_was_written(tmp_path):
    fetch("pacs", tmp_path / "data", Hub(tmp_path / "hub", "pacs"))
    bring("vlcs", photos(tmp_path / "VLCS", "vlcs"), tmp_path / "data")
    for name, domain in (("pacs", "photo"), ("vlcs", "sun09")):
        path = tmp_path / "data" / name / domain / "all.parquet"
        table = datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "read"))
        assert tuple(table.features["label"].names) == DATASETS[name].classes
        assert isinstance(table.features["image"], datasets.Image) and table[0]["image"].size == (8, 8)


def test_what_is_whole_stays_and_what_was_damaged_is_written_again(tmp_path):
    source, root = Hub(tmp_path / "hub", "digits"), tmp_path / "data"
    fetch("digits", root, source)
    before = {p: (root / "digits" / p).read_bytes() for p in files_in(root / "digits")}
    source.asked.clear()
    again = fetch("digits", root, source)
    assert not again.written and len(again.kept) == 8 and not source.asked
    damaged = root / "digits/usps/test.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (root / "digits/mnist/train.parquet").unlink()
    repaired = fetch("digits", root, source)
    assert set(repaired.written) == {"usps/test.parquet", "mnist/train.parquet"} and len(repaired.kept) == 6
    assert source.asked == [("ylecun/mnist", "train"), ("flwrlabs/usps", "test")]
    assert {p: (root / "digits" / p).read_bytes() for p in files_in(root / "digits")} == before


def test_a_fetch_that_is_cut_off_leaves_whole_files_only_and_goes_on(tmp_path):
    source, root = Hub(tmp_path / "hub", "digits"), tmp_path / "data"

    def cut(what, done, total):
        if what == "flwrlabs/usps, test":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("digits", root, source, cut)
    written = ["mnist/test", "mnist/train", "svhn/test", "svhn/train", "usps/train"]
    assert files_in(root / "digits") == [shelf.MANIFEST, *(f"{name}.parquet" for name in written)]
    assert set(fetch("digits", root, source).kept) == {f"{name}.parquet" for name in written}


def test_two_processes_write_one_after_the_other(tmp_path):
    first, second = (shelf.Shelf(DATASETS["digits"], tmp_path) for _ in range(2))
    for one, split in ((first, "train"), (second, "test")):
        with one.mine(), shelf.Drafts(one, split, (), "here") as drafts:
            drafts.add("usps", [{"bytes": b"x", "path": None}], np.array([0]))
    assert set(shelf.Shelf(DATASETS["digits"], tmp_path).entries) == {"usps/train.parquet", "usps/test.parquet"}


def test_killed_in_the_middle_of_a_file_it_begins_that_file_anew(tmp_path):
    source, root = Hub(tmp_path / "hub", "pacs"), tmp_path / "data"
    (root / "pacs/photo").mkdir(parents=True)
    (root / "pacs/photo/all.parquet.part").write_bytes(b"PAR1 half")
    fetch("pacs", root, source)
    assert not [name for name in files_in(root) if name.endswith(".part")] and not check("pacs", root).problems


def test_your_own_files_are_left_alone(tmp_path):
    source, root = Hub(tmp_path / "hub", "pacs"), tmp_path / "data"
    write_dataset(root, "pacs")
    shutil.rmtree(root / "pacs/photo")
    before = (root / "pacs/sketch/train.parquet").read_bytes()
    found = fetch("pacs", root, source)
    assert set(found.written) == {"photo/all.parquet"} and "sketch/train.parquet" in found.left
    assert (root / "pacs/sketch/train.parquet").read_bytes() == before


def test_a_home_that_fails_does_not_keep_the_others_away_and_is_said(tmp_path):
    source, root = Hub(tmp_path / "hub", "digits"), tmp_path / "data"

    def load(id, config, split):
        if id == "ufldl-stanford/svhn":
            raise nf.Refused(f"{id} cannot be had")
        return source(id, config, split)

    assert refused(fetch, "digits", root, load) == ("ufldl-stanford/svhn cannot be had",)
    assert list(open_federation("digits", root=root)) == ["mnist", "usps", "mnist_m"]


def test_what_no_home_has_is_said_with_the_steps_to_obtain_it(tmp_path):
    found = fetch("digits", tmp_path / "data", Hub(tmp_path / "hub", "digits"))
    assert found.missing == ["synth"] and found.obtain[-1] == "then: normfed data fetch digits --from FOLDER"
    for name in set(DATASETS) - set(FETCHED):
        said = refused(fetch, name, tmp_path / "none")
        assert said[0] == f"{name} has no home on the hub. To obtain it:" and len(said) > 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drop": ("label",)}, "flwrlabs/pacs, train has no column 'label'; it has image, domain"),
        ({"drop": ("image", "domain")}, "flwrlabs/pacs, train has no column 'image' and none 'domain'; it has label"),
        ({"owners": ("art_painting", "cartoon", "photo", "etching")},
         "flwrlabs/pacs, train: domain 'etching' is none of pacs's: art_painting, cartoon, photo, sketch"),
    ],
)  # fmt: skip
def test_a_table_that_has_changed_is_refused_and_nothing_is_left(changes, said, tmp_path):
    assert refused(fetch, "pacs", tmp_path / "data", Hub(tmp_path / "hub", "pacs", **changes)) == (said,)
    assert not (tmp_path / "data/pacs").exists()


def test_labels_out_of_range_are_refused(tmp_path):
    source = Hub(tmp_path / "hub", "mnist")
    table = source("ylecun/mnist", None, "train")
    wrong = table.cast_column("label", datasets.Value("int64")).map(lambda row: {"label": row["label"] + 5})
    said = refused(fetch, "mnist", tmp_path / "data", lambda *_: wrong)
    assert said == ("ylecun/mnist, train: label 10; labels are whole numbers from 0 to 9",)


def test_classes_that_nobody_names_are_numbers(tmp_path):
    (home,) = DATASETS["cifar100"].homes
    table = Hub(tmp_path / "hub", "cifar100")(home.id, home.config, "train").cast_column(
        home.label, datasets.Value("int64")
    )
    found = fetch("cifar100", tmp_path / "data", lambda *_: table)
    assert found.written["train.parquet"] == len(table)
    below = table.map(lambda row: {home.label: row[home.label] - 1})
    said = refused(fetch, "cifar100", tmp_path / "other", lambda *_: below)
    assert said == (f"{home.id}, train: label -1; labels are whole numbers from 0 on",)


def test_without_the_extra_one_line_says_which(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert refused(fetch, "cifar10", tmp_path) == (
        "datasets of the Hugging Face hub need an extra: pip install 'normfed[hub]'",
    )


def test_a_full_disk_is_said_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    source, root = Hub(tmp_path / "hub", "digits"), tmp_path / "data"
    fetch("digits", root, source)
    (root / "digits/usps/train.parquet").unlink()
    before = files_in(root)

    def full(file, names):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shelf, "_writer", full)
    with pytest.raises(nf.NormfedError, match=r"usps/train.parquet.part cannot be written: the disk is full"):
        fetch("digits", root, source)
    assert files_in(root) == before


@pytest.mark.parametrize("most", [500, 5000])
def test_a_write_that_fails_in_the_middle_of_a_file_leaves_nothing(most, tmp_path):
    """The system itself refuses to write further than `most` bytes into any file."""
    code = (
        "import resource, sys; from pathlib import Path; from normfed.library import bring; import normfed as nf\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))\n"
        "try: bring('vlcs', Path('VLCS'), Path('data'))\n"
        "except nf.NormfedError as error: print(error)"
    )
    photos(tmp_path / "VLCS", "vlcs", n=8)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (
        done.stdout == "data/vlcs/caltech101/all.parquet.part cannot be written: file too large\n" and not done.stderr
    )
    assert not files_in(tmp_path / "data") and not (tmp_path / "data/vlcs").exists()


def test_a_folder_that_cannot_be_is_said(tmp_path):
    (tmp_path / "a file").write_text("in the way")
    said = refused(fetch, "pacs", tmp_path / "a file", Hub(tmp_path / "hub", "pacs"))
    assert said[0].endswith("a file/pacs cannot be written: a part of the path is a file")


# ------------------------------------------------------------------------------------------------ from what you have


def photos(root, name, splits=("",), only=None, n=2):
    """A dataset's images by folder, as its authors name them."""
    dataset = DATASETS[name]
    theirs = {ours: other for other, ours in dataset.spelt.items()}
    number = 0
    for domain in only or dataset.domains or ("",):
        for split in splits:
            for label in dataset.classes:
                home = root / domain.title() / split / theirs.get(label, label.title())
                home.mkdir(parents=True, exist_ok=True)
                for _ in range(n):
                    number += 1
                    Image.fromarray(pictures(1, 8, 3, number)[0]).save(home / f"{number:03d}.png")
    return root


def zipped(folder, path):
    with zipfile.ZipFile(path, "w") as file:
        for one in sorted(folder.rglob("*")):
            file.write(one, f"{folder.name}/{one.relative_to(folder)}")
    return path


@pytest.mark.parametrize("kind", ["folder", "zip"])
@pytest.mark.parametrize("name", ["vlcs", "office_caltech10", "pacs"])
def test_images_by_folder_are_brought_into_the_layout(name, kind, tmp_path):
    made = photos(tmp_path / "VLCS", name)
    given = made if kind == "folder" else zipped(made, tmp_path / "images.zip")
    found = bring(name, given, tmp_path / "data")
    assert set(found.written) == {f"{d}/all.parquet" for d in DATASETS[name].domains}
    source = open_federation(f"{name}(side=8)", "domain", root=tmp_path / "data").source
    assert source.classes == DATASETS[name].classes
    assert source.blocks[0].labels.tolist() == [i for i in range(len(source.classes)) for _ in range(2)]
    expected = [pictures(1, 8, 3, 1 + n)[0].transpose(2, 0, 1) for n in range(2 * len(source.classes))]
    assert np.array_equal(source.blocks[0].read(), np.stack(expected))
    assert not check(name, tmp_path / "data").problems


def test_splits_and_single_domains_are_brought_too(tmp_path):
    found = bring("digits", photos(tmp_path / "made", "digits", ("train", "test"), ["synth"]), tmp_path / "data")
    assert found.written == {"synth/train.parquet": 20, "synth/test.parquet": 20}
    alone = bring("digits", photos(tmp_path / "usps_files", "digits", only=["usps"]) / "Usps", tmp_path / "other")
    assert alone.written == {"usps/all.parquet": 20}
    assert bring("mnist", photos(tmp_path / "flat", "mnist"), tmp_path / "data").written == {"all.parquet": 20}


def test_classes_that_the_catalogue_does_not_fix_are_those_of_the_folders(tmp_path):
    for name in ("aircraft carrier", "zebra", "wine_glass"):
        (tmp_path / "set/clipart" / name).mkdir(parents=True)
        Image.fromarray(pictures(1, 8, 3)[0]).save(tmp_path / "set/clipart" / name / "1.png")
    bring("domainnet", tmp_path / "set", tmp_path / "data")
    assert [*check("domainnet", tmp_path / "data").files[0].classes] == ["aircraft carrier", "wine_glass", "zebra"]


def with_pickles(folder, images_too):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(folder / "opened"),))

    made = photos(folder / "office_caltech_10", "office_caltech10") if images_too else folder / "digit_dataset"
    (made / "MNIST").mkdir(parents=True)
    (made / "MNIST" / "train_part0.pkl").write_bytes(pickle.dumps(Trap()))
    return zipped(made, folder / "archive.zip")


def test_pickles_are_never_opened(tmp_path):
    said = refused(bring, "digits", with_pickles(tmp_path, False), tmp_path / "data")
    assert len(said) == 1 and "holds pickles (1, the first is digit_dataset/MNIST/train_part0.pkl)" in said[0]
    assert not (tmp_path / "opened").exists() and not (tmp_path / "data").exists()


def test_images_beside_pickles_are_taken_with_a_word(tmp_path):
    with pytest.warns(UserWarning, match="never opened: reading one can run any program; only the images are taken"):
        found = bring("office_caltech10", with_pickles(tmp_path, True), tmp_path / "data")
    assert len(found.written) == 4 and not (tmp_path / "opened").exists()


def test_everything_wrong_with_an_archive_is_said_and_nothing_is_written(tmp_path):
    made = photos(tmp_path / "VLCS", "vlcs")
    (made / "Sun09/Bird/broken.png").write_bytes(b"nothing")
    (made / "Sun09/Fish").mkdir()
    for place in ("Sun09/Fish/1.png", "Elsewhere.png"):
        Image.fromarray(pictures(1, 8, 3)[0]).save(made / place)
    said = refused(bring, "vlcs", made, tmp_path / "data")
    assert said == tuple(
        f"{made}: VLCS/{name}: domain/class/image was expected, with the names of vlcs"
        for name in ("Elsewhere.png", "Sun09/Fish/1.png")
    )
    shutil.rmtree(made / "Sun09/Fish")
    (made / "Elsewhere.png").unlink()
    assert refused(bring, "vlcs", made, tmp_path / "data") == (
        f"{made}: VLCS/Sun09/Bird/broken.png: cannot be decoded: cannot identify image file",
    )
    assert not (tmp_path / "data").exists()


def test_cut_off_it_goes_on_and_what_others_wrote_is_not_written_over(tmp_path):
    made, root = photos(tmp_path / "VLCS", "vlcs"), tmp_path / "data"
    bring("vlcs", made, root)
    before = {name: (root / "vlcs" / name).read_bytes() for name in files_in(root / "vlcs")}
    (root / "vlcs/sun09/all.parquet").unlink()
    again = bring("vlcs", made, root)
    assert set(again.written) == {"sun09/all.parquet"} and len(again.kept) == 3
    assert {name: (root / "vlcs" / name).read_bytes() for name in files_in(root / "vlcs")} == before
    more = made / "Voc2007/Dog/more.png"
    Image.fromarray(pictures(1, 8, 3, 99)[0]).save(more)
    assert bring("vlcs", made, root).written == {"voc2007/all.parquet": 11}
    more.unlink()
    bring("vlcs", made, root)
    said = refused(bring, "vlcs", zipped(made, tmp_path / "other.zip"), root)
    assert len(said) == 4 and said[0].endswith("vlcs/caltech101/all.parquet is there already; move it away first")
    assert {name: (root / "vlcs" / name).read_bytes() for name in files_in(root / "vlcs")} == before


@pytest.mark.parametrize("damage", ["missing", "not a zip", "cut", "password", "empty"])
def test_a_bad_archive(damage, tmp_path):
    path = tmp_path / "a.zip"
    if damage == "not a zip":
        path.write_bytes(b"Rar!")
    if damage in ("cut", "password", "empty"):
        (tmp_path / "VLCS").mkdir()
        zipped(photos(tmp_path / "VLCS", "vlcs", n=1) if damage != "empty" else tmp_path / "VLCS", path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:500])
    if damage == "password":  # as a .zip says it: a bit of each member's flags
        data = bytearray(path.read_bytes())
        for head, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            at = data.find(head)
            while at >= 0:
                data[at + flags] |= 1
                at = data.find(head, at + 4)
        path.write_bytes(bytes(data))
    said = refused(bring, "vlcs", path, tmp_path / "data")[0]
    expected = {"missing": "there is no file or folder", "not a zip": "a folder or a .zip was expected", "cut":
                "a folder or a .zip was expected", "password": "has a password", "empty": "there are no images in it"}  # fmt: skip
    assert expected[damage] in said and not (tmp_path / "data").exists()


def test_arrays_are_not_brought(tmp_path):
    assert refused(bring, "abide", tmp_path, tmp_path)[0] == "abide is arrays, not images:"


# ------------------------------------------------------------------------------------------------------------ checking


def test_your_own_data_are_checked_by_their_path(tmp_path):
    made = photos(tmp_path / "photos", "vlcs")
    checked = check(str(made))
    assert not checked.problems and [f.file for f in checked.files] == [
        f"{d.title()}/all" for d in DATASETS["vlcs"].domains
    ]
    assert checked.files[0].samples == 10 and set(checked.files[0].classes.values()) == {2}
    (made / "Sun09/Bird/broken.png").write_bytes(b"nothing")
    assert refused(check, str(made)) == (
        f"{made}/Sun09/Bird/broken.png: cannot be decoded: cannot identify image file",
    )


@pytest.mark.parametrize("name", DATASETS)
def test_a_good_dataset_has_no_problems(name, tmp_path):
    write_dataset(tmp_path, name)
    checked = check(name, tmp_path)
    assert not checked.problems and not checked.missing and sum(f.samples for f in checked.files) > 0
    assert json.loads(json.dumps(checked.to_dict()))["dataset"] == name


def test_all_problems_are_listed(tmp_path):
    source, root = Hub(tmp_path / "hub", "digits"), tmp_path / "data"
    fetch("digits", root, source)
    home = root / "digits"
    from files import write_images

    classes = DATASETS["digits"].classes
    same = pictures(10, 8, 3, seed=7)
    write_images(home / "mnist/train.parquet", same, np.arange(10), classes, spoilt=(3, 4))
    write_images(home / "mnist/test.parquet", [*same[5:6], *pictures(2, 8, 3, seed=8)], [1, 12, -1], classes)
    (home / "usps/test.parquet").unlink()
    (home / "svhn/train.parquet").write_bytes(b"PAR1 nothing")
    (home / "mnist_m/train.parquet.part").write_bytes(b"PAR1")
    problems = check("digits", root).problems
    for said in (
        "mnist/train.parquet: has ", "mnist/test.parquet: has ", "usps/test.parquet: is missing; the manifest has it",
        "svhn/train.parquet: has 12 bytes", "mnist_m/train.parquet.part: was not written to its end",
        "digits/usps: there is no test file", "svhn/train.parquet cannot be read as Parquet",
        "mnist/train.parquet, row 3: the image cannot be decoded", "mnist/train.parquet, row 4: the image cannot be",
        "mnist/test.parquet, row 1: label 12; labels are 0 to 9", "mnist/test.parquet, row 2: label -1",
        "digits/mnist: row 0 of test is the same image as row 5 of train",
    ):  # fmt: skip
        assert len([p for p in problems if said in p]) == 1, (said, problems)
    assert len(problems) == 12


def test_a_changed_byte_is_found(tmp_path):
    root = tmp_path / "data"
    fetch("mnist", root, Hub(tmp_path / "hub", "mnist"))
    path = root / "mnist/test.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(bytes(data))
    assert f"{path}: was changed after it was written: SHA-256 differs" in check("mnist", root).problems


def test_arrays_are_checked(tmp_path):
    write_dataset(tmp_path, "abide")
    x = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
    x[2, 1] = np.nan
    np.savez(tmp_path / "abide/um/all.npz", x=x, label=np.array([0, 1, 0, 1, 2, 0]))
    problems = check("abide", tmp_path).problems
    assert [p.partition("all.npz, ")[2] for p in problems] == [
        "row 4: label 2; labels are 0 to 1",
        "row 2: NaN or infinity",
    ]


def test_a_damaged_manifest_is_refused(tmp_path):
    write_dataset(tmp_path, "pacs")
    for damage in (
        "[]",
        "{}",
        '{"files": []}',
        '{"files": {}}',
        '{"files": {"a": 3}}',
        '{"files": {"a": {"bytes": 3}}}',
    ):
        (tmp_path / "pacs" / shelf.MANIFEST).write_text(damage)
        said = refused(check, "pacs", tmp_path)[0]
        assert said.endswith("manifest.json is damaged: it does not say what each file must be"), damage
    (tmp_path / "pacs" / shelf.MANIFEST).write_text("{")
    assert "manifest.json is damaged" in refused(check, "pacs", tmp_path)[0]


def test_only_fetch_knows_the_hub():
    """Training never downloads: what trains cannot reach the library, and nothing else imports `datasets`."""
    source = Path(nf.__file__).parent
    users = [p for p in source.rglob("*.py") if re.search(r"^\s*(import|from) datasets", p.read_text(), re.M)]
    assert [p.relative_to(source).as_posix() for p in users] == ["library/fetch.py"]
