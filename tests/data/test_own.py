"""Your own data: every kind gives the same federation, and everything wrong with it is said at once."""

from __future__ import annotations

import csv
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import normfed as nf
from normfed.data import open_federation, source_of

SITES, CLASSES = ("lyon", "oslo"), ("cat", "dog")


def picture(number, size=(6, 6), mode="RGB"):
    """A picture that no other number has."""
    values = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def encoded(image, kind="PNG"):
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def rows(each=5, splits=("all",)):
    """(site, split, class, number) of a small federation."""
    number = 0
    for site in SITES:
        for split in splits:
            for name in CLASSES:
                for _ in range(each):
                    yield site, split, name, number
                    number += 1


@pytest.fixture
def folder(tmp_path):
    return made(tmp_path / "photos", rows())


def made(root, found):
    for site, split, name, number in found:
        home = root / site / ("" if split == "all" else split) / name
        home.mkdir(parents=True, exist_ok=True)
        picture(number).save(home / f"{number:03d}.png")
    return root


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMFED_CACHE", str(tmp_path / "cache"))


def refused(data, **options):
    with pytest.raises(nf.Refused) as caught:
        nf.federation(data, **options)
    return caught.value.problems


def facts(federation):
    """All that a run sees."""
    return {
        name: {
            s: (x.tolist(), y.tolist())
            for s in ("train", "test", "val")
            if (pair := client.split(s))
            for x, y in [pair]
        }
        for name, client in federation.items()
    }


# --- kinds ----------------------------------------------------------------------------------------------------


def test_a_folder_is_a_federation_with_a_keyed_test_set_of_a_fifth(folder):
    federation = open_federation(str(folder))
    assert tuple(federation) == SITES and federation.classes == CLASSES
    assert federation.partition == "domain / hold_out(0.2)"
    assert federation.sizes == {site: {"train": 8, "test": 2, "val": 0} for site in SITES}
    x, y = federation["oslo"].train
    assert x.shape == (8, 3, 6, 6) and x.dtype == torch.uint8 and y.tolist() == [0] * 4 + [1] * 4
    assert facts(open_federation(str(folder))) == facts(federation)
    assert open_federation(str(folder), seed=1).hash != federation.hash


def as_csv(tmp_path, found):
    made(tmp_path / "flat", found)
    with (tmp_path / "list.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label", "site", "split"])
        for site, split, name, number in found:
            home = "" if split == "all" else f"{split}/"
            writer.writerow([f"flat/{site}/{home}{name}/{number:03d}.png", name, site, split])
    return tmp_path / "list.csv"


def as_parquet(tmp_path, found):
    columns = {
        "image": [{"bytes": encoded(picture(number)), "path": None} for *_, number in found],
        "label": [name for _, _, name, _ in found],
        "site": [site for site, *_ in found],
        "split": [split for _, split, *_ in found],
    }
    pq.write_table(pa.table(columns), tmp_path / "all.parquet")
    return tmp_path / "all.parquet"


def arrays(found):
    x = np.stack([np.asarray(picture(number)).transpose(2, 0, 1) for *_, number in found])
    return x, np.array([CLASSES.index(name) for _, _, name, _ in found])


def as_npz(tmp_path, found):
    x, y = arrays(found)
    sites, splits = np.array([site for site, *_ in found]), np.array([split for _, split, *_ in found])
    np.savez(tmp_path / "all.npz", x=x, label=y, site=sites, split=splits, classes=np.array(CLASSES))
    return tmp_path / "all.npz"


def as_tables_in_folders(tmp_path, found):
    for site, split in dict.fromkeys((site, split) for site, split, *_ in found):
        x, y = arrays([row for row in found if row[:2] == (site, split)])
        (tmp_path / "tables" / site).mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / "tables" / site / f"{split}.npz", x=x, label=y, classes=np.array(CLASSES))
    return tmp_path / "tables"


@pytest.mark.parametrize("splits", [("all",), ("train", "test"), ("train", "test", "val")])
@pytest.mark.parametrize("kind", [as_csv, as_parquet, as_npz, as_tables_in_folders])
def test_every_kind_of_file_gives_what_the_folder_gives(tmp_path, kind, splits):
    found = list(rows(splits=splits))
    if kind is not as_csv:
        made(tmp_path / "flat", found)
    other = nf.federation(kind(tmp_path, found))
    folder = nf.federation(tmp_path / "flat")
    assert facts(other) == facts(folder) and other.classes == folder.classes
    assert other.hash == folder.hash


class Photos(torch.utils.data.Dataset):
    def __init__(self, found):
        self.x, self.y = arrays(found)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]), int(self.y[i])


@pytest.mark.parametrize("how", ["arrays", "tensors", "dataset", "splits", "clients"])
def test_every_kind_of_object_gives_what_the_folder_gives(tmp_path, how):
    found = list(rows(splits=("train", "test")))
    given = {}
    for site in SITES:
        parts = {s: [row for row in found if row[:2] == (site, s)] for s in ("train", "test")}
        pairs = {s: arrays(part) for s, part in parts.items()}
        if how == "tensors":
            pairs = {s: tuple(map(torch.from_numpy, pair)) for s, pair in pairs.items()}
        if how == "dataset":
            pairs = {s: Photos(part) for s, part in parts.items()}
        given[site] = nf.ClientData(**pairs) if how == "clients" else pairs
    federation = nf.federation(given, classes=list(CLASSES))
    assert facts(federation) == facts(nf.federation(made(tmp_path / "photos", found)))


def test_a_dataset_per_site_is_split_by_key():
    found = list(rows())
    federation = nf.federation({site: Photos([row for row in found if row[0] == site]) for site in SITES})
    assert federation.sizes["lyon"] == {"train": 8, "test": 2, "val": 0}


def test_a_site_named_by_a_partition(folder):
    assert list(nf.federation(folder, "domain / clients(2)")) == ["lyon-0", "lyon-1", "oslo-0", "oslo-1"]


def test_without_sites_all_is_one_client_and_a_note_says_so(tmp_path):
    x, y = arrays(list(rows()))
    np.savez(tmp_path / "plain.npz", x=x, y=y)
    with pytest.warns(UserWarning, match="nothing says which site"):
        assert list(nf.federation(tmp_path / "plain.npz")) == ["client"]


def test_columns_by_other_names(tmp_path):
    x, y = arrays(list(rows()))
    np.savez(tmp_path / "scans.npz", volume=x, diagnosis=y, hospital=np.repeat(SITES, 10))
    text = f'{tmp_path}/scans.npz(image="volume", label="diagnosis", site="hospital")'
    assert tuple(open_federation(text)) == SITES
    assert (
        nf.federation(tmp_path / "scans.npz", image="volume", label="diagnosis", site="hospital").sizes["oslo"]["train"]
        == 8
    )


def test_parquet_of_bytes_and_of_paths(tmp_path):
    picture(0).save(tmp_path / "a.png")
    pq.write_table(pa.table({"image": ["a.png"], "label": [0], "site": ["s"]}), tmp_path / "paths.parquet")
    pq.write_table(pa.table({"image": [encoded(picture(0))], "label": [0], "site": ["s"]}), tmp_path / "bytes.parquet")
    a, b = (source_of(str(tmp_path / name)).take(np.array([0])) for name in ("paths.parquet", "bytes.parquet"))
    assert (a == b).all()


def test_what_was_decoded_is_kept(folder, tmp_path, monkeypatch):
    before = facts(nf.federation(folder))
    monkeypatch.setattr("normfed.data.images.pixels", lambda *_: pytest.fail("decoded again"))
    assert facts(nf.federation(folder)) == before
    picture(99).save(folder / "oslo" / "cat" / "new.png")  # and changed data are decoded again
    with pytest.raises(pytest.fail.Exception, match="decoded again"):
        nf.federation(folder)


# --- colours and sizes ----------------------------------------------------------------------------------------


def one_site(tmp_path, *images):
    home = tmp_path / "mixed" / "site" / "cat"
    home.mkdir(parents=True)
    for i, image in enumerate(images):
        image.save(home / f"{i}.png")
    return tmp_path / "mixed"


def test_grey_among_colour_becomes_rgb_and_says_so(tmp_path):
    root = one_site(tmp_path, picture(0), picture(1, mode="L"), picture(2, mode="RGBA"))
    with pytest.warns(UserWarning, match="1 grey and 2 colour"):
        x = nf.federation(root, "domain / hold_out(0.0)")["site"].train[0]
    assert x.shape == (3, 3, 6, 6) and (x[1, 0] == x[1, 2]).all()


@pytest.mark.parametrize(("channels", "expected"), [(None, 1), (1, 1), (3, 3)])
def test_grey_stays_grey_unless_asked(tmp_path, channels, expected):
    root = one_site(tmp_path, picture(0, mode="L"), picture(1, mode="L"))
    assert nf.federation(root, "domain / hold_out(0.0)", channels=channels)["site"].train[0].shape[1] == expected


def test_colour_as_grey_where_asked(tmp_path):
    root = one_site(tmp_path, picture(0), picture(1, mode="L"))
    assert nf.federation(root, "domain / hold_out(0.0)", channels=1)["site"].train[0].shape[1] == 1


def test_grey_of_sixteen_bits_keeps_its_upper_eight(tmp_path):
    values = np.arange(0, 65536, 1821, dtype=np.uint16)[:36].reshape(6, 6)
    x = nf.federation(one_site(tmp_path, Image.fromarray(values)), "domain / hold_out(0.0)")["site"].train[0]
    assert (x[0, 0].numpy() == values >> 8).all()


def test_pictures_that_are_not_square_stay_so_and_side_makes_them(tmp_path):
    root = one_site(tmp_path, picture(0, (8, 6)), picture(1, (8, 6)))
    assert nf.federation(root, "domain / hold_out(0.0)")["site"].train[0].shape[1:] == (3, 6, 8)
    assert nf.federation(root, "domain / hold_out(0.0)", side=4)["site"].train[0].shape[1:] == (3, 4, 4)


# --- what is wrong, all of it ---------------------------------------------------------------------------------


def test_sizes_that_differ_want_a_side(tmp_path):
    found = refused(one_site(tmp_path, picture(0), picture(1, (9, 7)), picture(2, (9, 7))))
    assert "side=9" in found[0] and [line.split(":")[0].strip() for line in found[1:]] == ["9 x 7", "6 x 6"]


def test_every_picture_that_does_not_decode(folder):
    (folder / "lyon" / "cat" / "000.png").write_bytes(b"")
    (folder / "oslo" / "dog" / "017.png").write_bytes(encoded(picture(17))[:60])
    (folder / "oslo" / "dog" / "018.png").write_text("not a picture")
    found = refused(folder)
    assert [line.split(": ")[0].rpartition("/")[2] for line in found] == ["000.png", "018.png"]
    (folder / "lyon" / "cat" / "000.png").unlink()
    (folder / "oslo" / "dog" / "018.png").unlink()
    assert "017.png: cannot be decoded" in refused(folder)[0]  # its head is good: found when all is decoded


def test_a_picture_too_large_to_be_one_is_not_decoded(folder, monkeypatch):
    monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 17)  # above twice that, Pillow will not
    found = refused(folder)
    assert len(found) == len(list(folder.rglob("*.png"))) and "decompression bomb" in found[0]


def test_files_that_are_no_pictures_and_sites_without_any(folder):
    (folder / "lyon" / "cat" / "notes.txt").write_text("hm")
    (folder / "lyon" / ".DS_Store").write_text("")
    (folder / "bonn").mkdir()
    picture(50).save(folder / "stray.png")
    found = refused(folder)
    assert len(found) == 3
    assert "notes.txt: not an image" in found[0] and "stray.png: site/class/image" in found[1]
    assert found[2] == "site 'bonn': no images"


def test_an_unreadable_file(folder):
    path = folder / "lyon" / "cat" / "000.png"
    path.unlink()
    path.symlink_to(folder / "nowhere.png")
    assert "No such file" in refused(folder)[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_a_file_without_permission(folder):
    (folder / "lyon" / "cat" / "000.png").chmod(0)
    assert "Permission denied" in refused(folder)[0]


def test_a_site_without_a_split_that_others_have(tmp_path):
    found = [row for row in rows(splits=("train", "test", "val")) if row[:2] not in (("oslo", "test"), ("lyon", "val"))]
    assert refused(made(tmp_path / "photos", found)) == (
        "site 'lyon': no val samples, where other sites have some",
        "site 'oslo': no test samples, where other sites have some",
    )


def test_a_site_with_tests_alone(tmp_path):
    found = [row for row in rows(splits=("train", "test")) if row[:2] != ("oslo", "train")]
    assert "site 'oslo': no training samples" in refused(made(tmp_path / "photos", found))


def write_csv(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_labels_missing_and_out_of_range_and_paths_that_lead_nowhere(tmp_path):
    for i in range(5):
        picture(i).save(tmp_path / f"{i}.png")
    path = write_csv(
        tmp_path / "list.csv", "path,label,site", "0.png,1,a", "1.png,,a", "2.png,7,a", "3.png,1.5,", "no.png,0,b"
    )
    found = "\n".join(refused(path, classes=3))
    for said in ("line 3 (1.png): no label", "line 4 (2.png): label 7", "line 5 (3.png): label 1.5", "line 5 (3.png): no site",
                 "line 6 (no.png): cannot be decoded"):  # fmt: skip
        assert said in found
    assert len(found.splitlines()) == 5


def test_a_class_that_is_not_in_the_list(folder):
    assert "unknown class 'cat'; did you mean 'cats'?" in refused(folder, classes=["cats", "dog"])[0]


def test_the_same_sample_in_training_and_test(tmp_path):
    root = made(tmp_path / "photos", list(rows(splits=("train", "test"))))
    picture(0).save(root / "lyon" / "test" / "cat" / "again.png")
    found = refused(root)
    assert "again.png (test) is the same sample as" in found[0] and "000.png" in found[0]
    assert nf.federation(root, duplicates="keep").sizes["lyon"]["test"] == 11


def test_copies_stay_on_one_side_of_a_drawn_split(folder):
    for i in range(5):
        picture(0).save(folder / "lyon" / "cat" / f"copy{i}.png")
    for seed in range(5):
        lyon = nf.federation(folder, seed=seed)["lyon"]
        x = {s: {row.numpy().tobytes() for row in lyon.split(s)[0]} for s in ("train", "test")}
        assert not x["train"] & x["test"]


def test_an_id_on_both_sides(tmp_path):
    x, y = arrays(list(rows()))
    np.savez(
        tmp_path / "ids.npz", x=x, label=y, site=np.repeat(SITES, 10), patient=np.arange(20) // 2,
        split=np.array(["train"] * 9 + ["test"] + ["train"] * 8 + ["test"] * 2),
    )  # fmt: skip
    found = refused(tmp_path / "ids.npz", id="patient")
    assert len(found) == 1 and found[0].startswith("id '4' is in training and test data")


def test_classes_at_one_site_only_and_samples_at_several_are_noted(folder):
    picture(60).save(folder / "oslo" / "cat" / "x.png")
    (folder / "oslo" / "owl").mkdir()
    picture(61).save(folder / "oslo" / "owl" / "x.png")
    picture(0).save(folder / "oslo" / "cat" / "copy.png")
    with pytest.warns(UserWarning) as said:
        nf.federation(folder)
    assert {str(w.message) for w in said} == {
        "photos: class 'owl' is at site 'oslo' only", "photos: 1 samples are at several sites"
    }  # fmt: skip


def test_names_and_arguments_that_are_wrong(folder, tmp_path):
    assert refused("no/such/folder") == ("there is no file or folder 'no/such/folder'",)
    assert "unknown dataset 'digitz'; did you mean 'digits'" in refused("digitz")[0]
    assert "unknown argument 'sid'; did you mean 'side'" in refused(f"{folder}(sid=3)")[0]
    assert "unknown argument 'sid'; did you mean 'side'" in refused({"a": (np.zeros((1, 2)), [0])}, sid=3)[0]
    assert len(refused(folder, side=0, channels=2, duplicates="drop")) == 3
    (tmp_path / "x.txt").write_text("")
    assert "ends in .csv, .parquet, .npz" in refused(tmp_path / "x.txt")[0]
    assert "has no column 'path'; it has file, label" in refused(write_csv(tmp_path / "a.csv", "file,label", "x,1"))[0]
    assert "no samples" in refused(write_csv(tmp_path / "b.csv", "path,label"))[0]
    (tmp_path / "c.parquet").write_bytes(b"PAR1 and no more")
    assert "cannot be read as Parquet" in refused(tmp_path / "c.parquet")[0]
    np.savez(tmp_path / "d.npz", x=np.array([{}], dtype=object), label=np.array([0]))
    assert "cannot be read as npz" in refused(tmp_path / "d.npz")[0]
    assert "is no federation" in refused(3)[0]


def test_objects_that_are_wrong():
    x = np.zeros((4, 2), np.float32) + np.arange(4, dtype=np.float32)[:, None]
    bad = x.copy()
    bad[1, 0], bad[3, 1] = np.nan, np.inf
    found = refused({"a": (x, [0, 1, 0]), "b": (bad, [0, 1, 0, 1]), 3: (x, [0]), "c": 7, "d": (np.empty((0, 2)), [])})
    assert found[:4] == (
        "site 'a': 4 samples but 3 labels", "site 3: a name was expected",
        "site 'c': int is neither a pair (x, y) nor a dataset with a length", "site 'd': no samples",
    )  # fmt: skip
    assert refused({"b": (bad, [0, 1, 0, 1])}) == (
        "site 'b', sample 1: NaN or infinity",
        "site 'b', sample 3: NaN or infinity",
    )
    assert "samples differ in shape" in refused({"a": (x, [0, 1, 0, 1]), "b": (x[:, :1], [0, 1, 0, 1])})[0]


def test_a_dataset_that_raises_is_told_sample_by_sample():
    class Broken(Photos):
        def __getitem__(self, i):
            if i in (2, 5):
                raise OSError(f"no file {i}")
            return super().__getitem__(i)

    assert refused({"a": Broken(list(rows()))}) == ("site 'a', sample 2: no file 2", "site 'a', sample 5: no file 5")


# --- Hugging Face ---------------------------------------------------------------------------------------------


def hub_rows(found):
    return {
        "image": [picture(number) for *_, number in found],
        "label": [CLASSES.index(name) for _, _, name, _ in found],
        "site": [site for site, *_ in found],
    }


class Rows:
    """What a dataset of Hugging Face can do, of that what is used: the tests need no `datasets` for it."""

    def __init__(self, columns, names=None):
        self.columns, self.column_names = columns, list(columns)
        kind = type("ClassLabel", (), {"names": names})
        self.features = {name: kind() if name == "label" and names else object() for name in columns}

    def __len__(self):
        return len(self.columns["label"])

    def __getitem__(self, key):
        return (
            self.columns[key] if isinstance(key, str) else {name: column[key] for name, column in self.columns.items()}
        )


def the_real_thing(columns, names=None):
    datasets = pytest.importorskip("datasets")
    kinds = {name: datasets.Value("string") for name in columns}
    kinds |= {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names or CLASSES))}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


@pytest.mark.parametrize("make", [Rows, the_real_thing])
def test_a_hugging_face_dataset_with_a_site_column(folder, make):
    federation = nf.federation(make(hub_rows(list(rows())), CLASSES))
    assert facts(federation) == facts(nf.federation(folder)) and federation.classes == CLASSES


@pytest.mark.parametrize("make", [Rows, the_real_thing])
def test_splits_of_a_hugging_face_dataset(tmp_path, make):
    found = list(rows(splits=("train", "test")))
    given = {s: make(hub_rows([row for row in found if row[1] == s]), CLASSES) for s in ("train", "test")}
    assert facts(nf.federation(given)) == facts(nf.federation(made(tmp_path / "photos", found)))


def test_a_hugging_face_dataset_per_site_and_one_of_numbers():
    x, y = arrays(list(rows()))
    given = {site: Rows({"image": x[y == 0].tolist(), "label": [0] * 10}) for site in SITES}
    with pytest.warns(UserWarning, match="10 samples are at several sites"):
        federation = nf.federation(given)
    assert federation["oslo"].train[0].shape == (8, 3, 6, 6)


def test_a_hugging_face_dataset_without_the_column():
    assert refused(Rows({"image": [], "label": []}))[0] == "the dataset has no column 'site'; it has image, label"
    columns = hub_rows(list(rows())) | {"image": ["x.png"] * 20}
    assert "not numbers" in refused(Rows(columns))[0]
    columns = hub_rows(list(rows()))
    columns["image"][3] = None
    assert refused(Rows(columns)) == ("row 3: cannot be decoded: a picture was expected, not NoneType",)
