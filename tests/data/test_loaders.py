"""Every dataset of the catalogue, from files in the layout; the real ones too where they are."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import normfed as nf
from normfed.data import DATASETS, open_federation, present, store
from normfed.data import files as files_of
from normfed.data.store import Store
from normfed.testing import same_bits, seeded

from files import pictures, write_dataset, write_images

REAL = Path(os.environ.get("NORMFED_DATA") or Path(__file__).parents[3] / "shared" / "data")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NORMFED_CACHE", str(tmp_path / "cache"))


def refused(*arguments, **named):
    with pytest.raises(nf.Refused) as raised:
        open_federation(*arguments, **named)
    return raised.value.problems


@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_loads_from_files_in_its_layout(name, tmp_path):
    dataset = DATASETS[name]
    assert not present(name, tmp_path)
    assert refused(name, root=tmp_path)[0].startswith(f"{name} is not under {tmp_path}: `normfed data fetch {name}`")
    write_dataset(tmp_path, name)
    assert present(name, tmp_path)
    arguments = "(side=32)" if dataset.side > 100 else ""
    federation = open_federation(name + arguments, root=tmp_path)
    clients = [d for d in dataset.domains if d not in dataset.stand_ins] or [f"client-{i}" for i in range(10)]
    assert list(federation) == clients and federation.name == name
    assert federation.classes == (dataset.classes or tuple(f"class {i}" for i in range(100)))
    for client in federation.values():
        for which in ("train", "test"):
            x, y = client.split(which)
            if dataset.side:
                side = 32 if arguments else dataset.side
                assert x.dtype == torch.uint8 and x.shape[1:] == (dataset.channels, side, side)
            else:
                assert x.dtype == torch.float32 and x.shape[1:] == (12,) and x.abs().max() <= 1
            assert y.dtype == torch.int64 and len(x) == len(y) > 0
    assert federation.hash == open_federation(name + arguments, root=tmp_path).hash
    assert federation.nbytes == sum(
        c.split(w)[0].nbytes for c in federation.values() for w in ("train", "test")
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------- what is read


def test_images_come_back_pixel_by_pixel_in_stored_order(tmp_path):
    write_dataset(tmp_path, "digits")
    images = pictures(20, 28, 3)
    write_images(tmp_path / "digits/mnist/train.parquet", images, np.arange(20) % 10, DATASETS["digits"].classes)
    x, y = open_federation("digits", root=tmp_path)["mnist"].train
    assert torch.equal(x, torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)) and y.tolist() == [*range(10)] * 2
    small = open_federation("digits(side=14, channels=1)", root=tmp_path)["mnist"].train[0]
    grey = Image.fromarray(images[3]).convert("L").resize((14, 14), Image.Resampling.BILINEAR)
    assert small.shape == (20, 1, 14, 14) and torch.equal(small[3, 0], torch.from_numpy(np.asarray(grey).copy()))


def test_grey_pictures_of_any_size_become_three_channels(tmp_path):
    grey = pictures(4, 16, 1)
    write_images(tmp_path / "pacs/photo/all.parquet", [*grey, *pictures(16, 9, 3)], np.arange(20) % 7)
    x = open_federation("pacs(side=16)", "domain", root=tmp_path).source.take(np.arange(20))
    assert np.array_equal(x[2], np.repeat(grey[2][None], 3, 0))


def test_arrays_are_scaled_as_the_file_says(tmp_path):
    write_dataset(tmp_path, "abide")
    with np.load(tmp_path / "abide/um/all.npz") as arrays:
        expected = arrays["x"].astype(np.float32) * arrays["scale"]
    source = open_federation("abide", root=tmp_path).source
    rows = np.concatenate([source.rows_of(i) for i, b in enumerate(source.blocks) if b.domain == "um"])
    assert np.array_equal(source.take(rows), expected)


def test_rows_of_several_blocks_come_in_the_order_asked_for(tmp_path):
    write_dataset(tmp_path, "abide")
    source = open_federation("abide", root=tmp_path).source
    whole = np.concatenate([block.read() for block in source.blocks])
    rows = np.random.default_rng(0).permutation(len(whole))[:50]
    assert np.array_equal(source.take(rows), whole[rows])
    assert source.take(rows[:0]).shape == (0, 12)


def test_missing_domains_are_named_and_stand_ins_stand_aside(tmp_path):
    write_dataset(tmp_path, "digits")
    assert "svhn_mini" not in open_federation("digits", root=tmp_path)
    shutil.rmtree(tmp_path / "digits/svhn")
    shutil.rmtree(tmp_path / "digits/synth")
    federation = open_federation("digits", root=tmp_path)
    assert list(federation) == ["mnist", "svhn_mini", "usps", "mnist_m"]
    assert federation.about.endswith("missing: svhn, synth")
    assert list(open_federation('digits(domains=["usps", "mnist"])', root=tmp_path)) == ["usps", "mnist"]
    (tmp_path / "digits/other").mkdir()
    shutil.copy(tmp_path / "digits/usps/train.parquet", tmp_path / "digits/other/train.parquet")
    assert list(open_federation("digits", root=tmp_path))[-1] == "other"


def domainnet(root, names):
    for k, domain in enumerate(DATASETS["domainnet"].domains):
        labels = np.arange(3 * len(names)) % len(names)
        labels[: len(names) // 2] = labels[0]  # some classes have more
        write_images(root / f"domainnet/{domain}/train.parquet", pictures(len(labels), 8, 3, k), labels, names)
        write_images(root / f"domainnet/{domain}/test.parquet", pictures(len(names), 8, 3, k), range(len(names)), names)


def test_domainnet_has_the_ten_classes_of_the_papers_or_the_most_frequent(tmp_path):
    names = (*(f"thing {i}" for i in range(20)), *DATASETS["domainnet"].classes)
    domainnet(tmp_path, names)
    ten = open_federation("domainnet(side=8)", root=tmp_path)
    assert ten.classes == DATASETS["domainnet"].classes
    for i, name in enumerate(names[20:]):  # the rows of that class, wherever they were in the file
        x, y = ten["clipart"].test
        assert torch.equal(x[y == i], torch.from_numpy(pictures(30, 8, 3, 0)[20 + i]).permute(2, 0, 1)[None]), name
    few = open_federation("domainnet(classes=3, side=8)", root=tmp_path)
    assert few.classes[0] == "thing 0" and len(few.classes) == 3
    assert open_federation("domainnet(classes=30, side=8)", root=tmp_path).classes == names
    assert refused("domainnet(classes=31)", root=tmp_path) == ("domainnet: classes=31, and the files have 30",)


# --------------------------------------------------------------------------------------------------- the cache


def test_images_are_decoded_once(tmp_path, monkeypatch):
    write_dataset(tmp_path, "cifar10")
    first = open_federation("cifar10", "domain", root=tmp_path)["client"].train[0]
    monkeypatch.setattr(files_of, "decode", None)  # whoever decodes now fails
    assert torch.equal(open_federation("cifar10", "domain", root=tmp_path)["client"].train[0], first)
    (home,) = (tmp_path / "cache/decoded").glob("*-3x32x32-*")
    assert isinstance(np.load(home / "samples.npy", mmap_mode="r"), np.memmap)


def test_a_file_that_changed_is_decoded_anew(tmp_path):
    write_dataset(tmp_path, "cifar10")
    before = open_federation("cifar10", "domain", root=tmp_path)["client"].train[0]
    write_images(tmp_path / "cifar10/train.parquet", pictures(20, 32, 3, seed=99), np.arange(20) % 10)
    assert not torch.equal(open_federation("cifar10", "domain", root=tmp_path)["client"].train[0], before)


def test_without_a_place_to_write_images_are_decoded_into_memory(tmp_path, monkeypatch):
    write_dataset(tmp_path, "cifar10")
    with_cache = open_federation("cifar10", "domain", root=tmp_path)["client"].train[0]
    (tmp_path / "a file").write_text("in the way")
    monkeypatch.setenv("NORMFED_CACHE", str(tmp_path / "a file" / "below"))
    assert torch.equal(open_federation("cifar10", "domain", root=tmp_path)["client"].train[0], with_cache)


def test_an_image_that_does_not_decode_leaves_no_half_written_cache(tmp_path):
    write_dataset(tmp_path, "cifar10")
    images = pictures(20, 32, 3)
    write_images(tmp_path / "cifar10/train.parquet", images, np.arange(20) % 10, spoilt=(7,))
    federation = open_federation("cifar10", "domain", root=tmp_path)
    with pytest.raises(nf.Refused, match=r"train.parquet, row 7: the image cannot be decoded: cannot identify image"):
        federation["client"].split("train")
    assert not list((tmp_path / "cache/decoded").iterdir())


# ------------------------------------------------------------------------------------------------------ bad files


def test_bad_files_are_all_said(tmp_path):
    write_dataset(tmp_path, "pacs")
    (tmp_path / "pacs/photo/train.parquet").write_bytes(b"PAR1 nothing")
    write_images(tmp_path / "pacs/sketch/train.parquet", pictures(3, 8, 3), [0, 1, 2], column="picture")
    said = refused("pacs", root=tmp_path)
    assert len(said) == 2 and "photo/train.parquet cannot be read as Parquet" in said[0]
    assert said[1].endswith("sketch/train.parquet has no column 'image'; it has picture, label")


def test_labels_and_class_names_must_agree(tmp_path):
    write_dataset(tmp_path, "pacs")
    write_images(tmp_path / "pacs/photo/train.parquet", pictures(3, 8, 3), [0, 1, 9], DATASETS["pacs"].classes)
    assert refused("pacs", root=tmp_path) == ("pacs: label 9, and there are 7 classes",)
    write_images(tmp_path / "pacs/photo/train.parquet", pictures(3, 8, 3), [0, 1, 2], ["cat", "dog", "horse"])
    assert "name their classes differently" in refused("pacs", root=tmp_path)[0]
    write_images(tmp_path / "pacs/photo/train.parquet", pictures(3, 8, 3), [-1, 1, 2], DATASETS["pacs"].classes)
    assert refused("pacs", root=tmp_path) == ("pacs: label -1; labels begin at 0",)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x": np.zeros((3, 2))}, "it needs the arrays 'x' and 'label'; there is no 'label is not a file in the archive'"),
        ({"x": np.zeros((3, 2)), "label": np.zeros(2, int)}, "3 samples but 2 labels"),
        ({"x": np.array([{}, {}]), "label": np.zeros(2, int)}, "cannot be read as npz: Object arrays cannot be loaded when allow_pickle=False"),
    ],
)  # fmt: skip
def test_bad_arrays(tmp_path, arrays, said):
    write_dataset(tmp_path, "abide")
    np.savez(tmp_path / "abide/um/all.npz", **arrays)
    assert said in refused("abide", root=tmp_path)[0]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("digts", "unknown dataset 'digts'; did you mean 'digits'?"),
        ("digits(sid=3)", "digits: unknown argument 'sid'; did you mean 'side'?"),
        ("digits(side=0)", "digits: side=0 and channels=3: sides are 1 or more, channels 1 or 3"),
        ("digits(channels=2)", "digits: side=28 and channels=2: sides are 1 or more, channels 1 or 3"),
        ("digits(3)", "digits: arguments go by name"),
        ("embedded(train=0)", "embedded: train=0 must be"),
    ],
)
def test_bad_names(tmp_path, data, said):
    write_dataset(tmp_path, "digits")
    assert refused(data, root=tmp_path)[0].startswith(said)


# ------------------------------------------------------------------------------------------------ partitions as files


def test_a_partition_is_saved_and_taken_up_again(tmp_path):
    write_dataset(tmp_path, "office_caltech10")
    text = 'domain / truncate(0.5, val=0.2) / leave_out("webcam")'
    federation = open_federation("office_caltech10(side=16)", text, seed=3, root=tmp_path)
    assert federation.partition == 'domain / hold_out(0.2) / truncate(0.5, val=0.2) / leave_out("webcam")'
    federation.save(tmp_path / "shared/mine.json")
    again = open_federation("office_caltech10(side=16)", str(tmp_path / "shared/mine.json"), root=tmp_path)
    assert again.hash == federation.hash and again.partition == federation.partition and again.seed == 3
    assert again.sizes == federation.sizes and again["webcam"].role == "unseen"
    for client in federation:
        assert torch.equal(again[client].test[0], federation[client].test[0])
    assert open_federation("office_caltech10(side=16)", text, seed=4, root=tmp_path).hash != federation.hash
    assert list((tmp_path / "shared").iterdir()) == [tmp_path / "shared/mine.json"]


def test_a_saved_partition_is_verified(tmp_path):
    write_dataset(tmp_path, "office_caltech10")
    path = tmp_path / "mine.json"
    open_federation("office_caltech10", "domain / fraction(0.5)", root=tmp_path).save(path)
    document = json.loads(path.read_text())

    def said(**changes):
        path.write_text(json.dumps({**document, **changes}))
        return refused("office_caltech10", str(path), root=tmp_path)[0]

    clients = json.loads(json.dumps(document["clients"]))
    clients["dslr"]["train"]["dslr/all"][0] ^= 1
    assert said(clients=clients).endswith("was changed after it was written: its hash does not match")
    clients["dslr"]["train"]["dslr/all"][0] = 20
    assert said(clients=clients).endswith("row 20 of dslr/all, which has 20")
    assert said(version=2).endswith("is not a partition file of this version")
    assert said(clients=3).endswith("its hash does not match")
    write_images(tmp_path / "office_caltech10/dslr/all.parquet", pictures(20, 8, 3), [1] * 20)
    assert said().endswith("was drawn from other samples of dslr/all: their number or labels differ")
    shutil.rmtree(tmp_path / "office_caltech10/dslr")
    assert said().endswith("needs office_caltech10's dslr/all, which is not there")
    path.write_text("{")
    assert "is not JSON" in refused("office_caltech10", str(path), root=tmp_path)[0]
    assert "cannot be read: No such file" in refused("office_caltech10", str(tmp_path / "no.json"), root=tmp_path)[0]


def test_further_domains_in_a_folder_do_not_change_a_hash(tmp_path):
    write_dataset(tmp_path, "digits")
    text = 'domain / only("mnist", "usps") / fraction(0.5)'
    before = open_federation("digits", text, root=tmp_path).hash
    shutil.rmtree(tmp_path / "digits/svhn")
    assert open_federation("digits", text, root=tmp_path).hash == before


# ------------------------------------------------------------------------------------------------ in a run


def test_clients_with_the_same_samples_share_a_tensor_and_a_run_holds_what_fits(tmp_path, monkeypatch):
    write_dataset(tmp_path, "cifar10")
    federation = open_federation("cifar10", 'clients(4, test="whole")', root=tmp_path)
    x = federation["client-0"].test[0]
    assert federation["client-3"].test[0] is x
    assert federation.nbytes == 40 * 3 * 32 * 32
    assert not Store(federation, torch.device("cpu")).lazy
    monkeypatch.setattr(store, "HELD_BYTES", federation.nbytes - 1)
    lazy = Store(federation, torch.device("cpu"))
    assert lazy.lazy and len(lazy.train("client-0")[0]) == 5 and not lazy._held


@pytest.mark.parametrize("room", [0, 2**30])
def test_a_federation_trains_as_the_dictionary_of_its_clients(tmp_path, monkeypatch, room):
    monkeypatch.setattr(store, "HELD_BYTES", room)
    write_dataset(tmp_path, "cifar10")
    federation = open_federation("cifar10", 'clients(3, test="apart")', root=tmp_path)
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    plain = {n: nf.ClientData(c.split("train"), c.split("test"), role=c.role) for n, c in federation.items()}
    runs = [nf.simulate(model, c, nf.methods.fedavg(), rounds=2, batch_size=4) for c in (federation, plain)]
    assert same_bits(*runs) and list(runs[0].history[-1]["test_accuracy"]) == ["test"]


# ------------------------------------------------------------------------------------------------ the real files


def real(name):
    if not present(name.partition("(")[0], REAL):
        pytest.skip(f"{name} is not under {REAL.name}/: only the generated files were loaded")
    return open_federation(name, root=REAL)


def test_the_digits_at_hand():
    federation = real("digits")
    assert federation.sizes["mnist"] == {"train": 7438, "test": 10000, "val": 0}
    assert federation.sizes["usps"] == {"train": 7291, "test": 2007, "val": 0}
    x, y = federation["usps"].test
    assert x.shape == (2007, 3, 28, 28) and y.bincount().tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    text = 'domain / only("mnist", "mnist_m") / at_most(7438) / fraction(0.1)'
    parts = open_federation("digits", text, root=REAL)
    assert {s["train"] for s in parts.sizes.values()} == {743}


@pytest.mark.full
def test_office_at_hand_keeps_copies_on_one_side():
    federation = real("office_caltech10(side=64)")
    sizes = {name: (s["train"], s["test"]) for name, s in federation.sizes.items()}
    assert sizes == {"amazon": (766, 192), "caltech": (898, 225), "dslr": (125, 32), "webcam": (236, 59)}
    source = federation.source
    _, copies = np.unique(source.twins, return_counts=True)
    assert (copies > 1).sum() == 18  # 17 groups of amazon's, one of caltech's
    for part in federation.parts.values():
        assert not np.intersect1d(source.twins[part.train], source.twins[part.test]).size


def test_pacs_at_hand():
    federation = real("pacs")
    assert {n: (s["train"], s["test"]) for n, s in federation.sizes.items()} == {
        "art_painting": (1840, 208), "cartoon": (2107, 237), "photo": (1499, 171), "sketch": (3531, 398)
    }  # fmt: skip


def test_cifar10_at_hand():
    federation = real("cifar10")
    assert sum(s["train"] for s in federation.sizes.values()) == 50000 and federation.classes[-1] == "truck"


def test_abide_at_hand_is_a_setting_of_its_own():
    federation = real("abide_cc200")
    total = {name: sum(s.values()) for name, s in federation.sizes.items()}
    assert total == {"nyu": 175, "usm": 71, "um": 140, "ucla": 98}
    x, y = federation["nyu"].train
    assert x.shape[1:] == (19900,) and x.abs().max() <= 1 and set(y.tolist()) == {0, 1}
