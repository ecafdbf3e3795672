"""Everything wrong that can be typed: exit code 2, a few clear lines, no traceback, no half-written folder."""

import numpy as np
import pytest
from PIL import Image

from command import normfed, process, refused, sets


def images(root, sites=("north", "south"), classes=("a", "b"), each=6, side=8):
    """site/class/image"""
    draw = np.random.default_rng(0)
    for site in sites:
        for number, name in enumerate(classes):
            (root / site / name).mkdir(parents=True)
            for i in range(each):
                pixels = draw.integers(0, 128, (side, side, 3)) + 127 * number
                Image.fromarray(pixels.astype(np.uint8)).save(root / site / name / f"{i}.png")
    return root


def table(path, n=8, **changed):
    draw = np.random.default_rng(0)
    rows = {
        "x": draw.standard_normal((n, 1, 8, 8)).astype(np.float32), "label": np.arange(n) % 2,
        "site": np.array(["north", "south"]).repeat(n // 2), "split": np.array(["train", "test"] * (n // 2)),
    }  # fmt: skip
    np.savez(path, **{**rows, **{key: change(rows[key]) for key, change in changed.items()}})
    return path


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """Good data of one's own, and bad ones beside them."""
    tmp_path = tmp_path_factory.mktemp("ground")
    images(tmp_path / "photos")
    images(tmp_path / "broken")
    for name in ("north/a/1.png", "south/b/2.png"):
        (tmp_path / "broken" / name).write_bytes(b"\x89PNG, and then nothing")
    images(tmp_path / "mixed", each=2)
    Image.new("RGB", (5, 9)).save(tmp_path / "mixed" / "north" / "a" / "odd.png")
    images(tmp_path / "hollow", each=2)
    (tmp_path / "hollow" / "west" / "a").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "dear.txt").write_text("diary")
    table(tmp_path / "good.npz")
    table(tmp_path / "nan.npz", x=lambda x: np.where(x == x[0], np.float32("nan"), x))
    table(tmp_path / "labels.npz", label=lambda y: y - 1)
    table(tmp_path / "no_split.npz", split=lambda s: np.where(np.arange(8) < 4, "train", s))
    table(tmp_path / "nowhere.npz", site=lambda s: np.where(np.arange(8) == 3, "", s))
    (tmp_path / "bad.toml").write_text('data = "embedded"\nmodel = "mnist_mlp"\nrounds = 1\nround = 2\n')
    (tmp_path / "torn.toml").write_text('data = "embe')
    (tmp_path / "mine.py").write_text("import torch\ndef net(): return torch.nn.Linear(7, 10)\n")
    return tmp_path


@pytest.fixture
def here(ground, monkeypatch):
    """Where the command is typed."""
    monkeypatch.chdir(ground)
    return ground


DEMO = ["run", "demo"]
ZERO = "{ink = 0.0, neon = 0.0, blueprint = 0.0, scan = 0.0, cloth = 0.0}"
CASES = [
    # names
    (["run", "dmo"], "unknown recipe 'dmo'; did you mean 'demo'?"),
    (["run", "none.toml"], "recipe 'none.toml' cannot be read: No such file or directory"),
    (["run", "bad.toml"], "recipe 'bad.toml': unknown key 'round'; did you mean 'rounds'?"),
    (["run", "torn.toml"], "recipe 'torn.toml' is not TOML"),
    ([*DEMO, "--method", "fedbm"], "unknown method 'fedbm'; did you mean 'fedbn' or 'fedbs'?"),
    ([*DEMO, "--method", "fedprox(nu=1.0)"], "fedprox: unknown argument 'nu'; did you mean 'mu'?"),
    ([*DEMO, "--method", 'fedprox(mu="big")'], "fedprox: mu='big' is not a number"),
    ([*DEMO, "--method", "fedprox(mu=0.1"], "'fedprox(mu=0.1' cannot be read"),
    ([*DEMO, "--method", "fedprox(mu=-1.0)"], "fedprox: mu=-1.0"),
    ([*DEMO, "--method", "groupnorm+fedbn"], "fedbn needs a model that has BatchNorm"),
    ([*DEMO, "--method", "fedbn+pooled"], "pooled needs a model that shares running statistics; fedbn keeps them on the clients"),
    ([*DEMO, "--engine", "stackd"], "unknown engine 'stackd'; did you mean 'stacked'?"),
    ([*DEMO, "--engine", "distributed"], "engine 'distributed' is not there yet"),
    ([*DEMO, "--device", "cudda"], "device 'cudda' cannot be used here"),
    ([*DEMO, "--set", "model=digit_cnn"], "unknown model 'digit_cnn'; did you mean 'digits_cnn'?"),
    ([*DEMO, "--set", "model=nopackage:net"], "No module named 'nopackage'"),
    ([*DEMO, "--set", "data=embeded"], "'embedded'"),
    ([*DEMO, "--set", "data=embedded(trian=3)"], "embedded: unknown argument 'trian'; did you mean 'train'?"),
    ([*DEMO, "--set", "partition=domian"], "'domian'"),
    ([*DEMO, "--set", "partition=domain / clients(0)"], "clients(0): there must be one or more"),
    ([*DEMO, "--set", "partition=domain / only(\"inc\")"], "only: no client 'inc'; did you mean 'ink'?"),
    ([*DEMO, "--set", "partition=gone.json"], "partition 'gone.json' cannot be read"),
    ([*DEMO, "--set", "lrr=0.1"], "unknown key 'lrr'; did you mean 'lr'?"),
    ([*DEMO, "--set", "lr"], "--set lr: write key=value"),
    # values
    ([*DEMO, "--set", "rounds=0"], "rounds=0: must be a whole number, 1 or more"),
    ([*DEMO, "--set", "lr=-0.1"], "lr=-0.1: must be a number at least 0"),
    ([*DEMO, "--set", "lr=nan"], "lr=nan: must be a number at least 0"),
    ([*DEMO, "--set", "participation=0"], "participation=0: must be a number above 0 and at most 1"),
    ([*DEMO, "--set", "stop=test_accuracy(patience=2)"], "would choose by test data"),
    ([*DEMO, "--set", "stop=val_accuracy"], "needs validation data, and no client has any"),
    ([*DEMO, "--set", f"weighting={ZERO}"], "weighting: the weights sum to zero: nothing to average"),
    ([*DEMO, "--set", "weighting={ink = 1.0}"], "weighting: no weight for client 'neon'"),
    ([*DEMO, "--set", "batch_size=200", "--set", "drop_last=true"], "client 'ink': 100 samples make no batch of 200 under drop_last"),
    ([*DEMO, "--set", "weights=gone.safetensors"], "gone.safetensors"),
    ([*DEMO, "--seeds", "0,x"], "seeds '0,x' cannot be read; write for example 0,1,2"),
    ([*DEMO, "--seeds", "0,0"], "seeds=[0, 0]: one is there twice"),
    ([*DEMO, "--jobs", "0"], "Invalid value for '--jobs'"),
    ([*DEMO, "--track", "tensorbord"], "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
    ([*DEMO, "--select", "val"], "--select: there is nothing to choose from without --sweep"),
    ([*DEMO, "--sweep", "lr=0.1,0.2", "--select", "vall"], "unknown --select 'vall'; did you mean 'val'?"),
    ([*DEMO, "--sweep", "lrr=0.1"], "--sweep lrr=0.1: unknown key 'lrr'; did you mean 'lr'?"),
    ([*DEMO, "--sweep", "lr"], "--sweep lr: write key=value,value"),
    ([*DEMO, "--sweep", "lr=0.1", "--sweep", "lr=0.2"], "--sweep lr: given twice"),
    ([*DEMO, "--sweep", "lr=0.1,0.1"], "--sweep: a value is there twice"),
    ([*DEMO, "--sweep", "method=fedbn,fedavg"], "--sweep method: its values cannot be chosen among"),
    ([*DEMO, "--sweep", "lr=0.1,0.2"], "no client has validation data to choose by"),
    (["compare", "demo", "--methods", "fedbn,fedbm"], "unknown method 'fedbm'"),
    (["compare", "demo", "--methods", ""], "'' cannot be read; write for example fedprox(mu=0.01)+greg"),
    # data of one's own
    ([*DEMO, "--set", "data=digits", "--data", "gone"], "gone"),
    ([*DEMO, "--set", "data=./gone"], "there is no file or folder './gone'"),
    ([*DEMO, "--set", "data=./notes"], "dear.txt: not an image (.txt)"),
    ([*DEMO, "--set", "data=./broken"], "broken/north/a/1.png: cannot be decoded"),
    ([*DEMO, "--set", "data=./broken"], "broken/south/b/2.png: cannot be decoded"),
    ([*DEMO, "--set", "data=./mixed"], "pictures differ in size; give side=9, say, to bring them to one"),
    ([*DEMO, "--set", "data=./hollow"], "site 'west': no images"),
    ([*DEMO, "--set", "data=./photos(side=0)"], "side=0: must be 1 or more"),
    ([*DEMO, "--set", "data=nan.npz"], "nan.npz, row 0: NaN or infinity"),
    ([*DEMO, "--set", "data=labels.npz"], "labels.npz, row 0: label -1; labels are whole numbers from 0 to"),
    ([*DEMO, "--set", "data=no_split.npz"], "site 'north': no test samples, where other sites have some"),
    ([*DEMO, "--set", "data=nowhere.npz"], "nowhere.npz, row 3: no site"),
    ([*DEMO, "--set", "data=good.npz", "--set", "model=mine:net"], "the model's forward fails on input of shape (2, 1, 8, 8)"),
    # folders
    (["report", "notes"], "notes is not the folder of a run or of a comparison"),
    (["report", "gone"], "gone is not a folder"),
    (["export", "gone"], "gone is not a run's folder: it has no config.toml"),
    (["evaluate", "gone", "--dataset", "embedded"], "gone is not a run's folder: it has no config.toml"),
    (["evaluate", "notes", "--dataset", "embedded"], "notes is not a run's folder: it has no config.toml"),
    (["evaluate", "gone"], "give --data, a path of your own, or --dataset, a name"),
    (["compare", "gone", "notes"], "compare gone: is no folder; a recipe needs --methods"),
    ([*DEMO, "--out", "notes"], "notes is there already"),
    ([*DEMO, "--out", "notes", "--resume"], "notes is not a run's folder: it has no config.toml"),
    ([*DEMO, "--out", "notes/dear.txt"], "notes/dear.txt is a file, not a folder"),
    ([*DEMO, "--out", "notes/dear.txt/run"], "notes/dear.txt/run cannot be written: a part of the path is a file"),
    # not yet, and never
    (["diagnose", "demo", "--deep"], "diagnose: not yet"),
    (["advise"], "advise: not yet"),
    (["explan"], "No such command 'explan'"),
    ([*DEMO, "--sedes", "1"], "No such option: --sedes"),
    (["run"], "Missing argument 'RECIPE'"),
]  # fmt: skip


def listing(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "__pycache__" not in path.parts)


@pytest.mark.parametrize(("arguments", "said"), CASES, ids=[" ".join(case[0])[:60] for case in CASES])
def test_it_is_refused(here, arguments, said):
    before = listing(here)
    assert said in " ".join(" ".join(refused(*arguments)).replace("│ │", "").split())
    assert listing(here) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "demo", "--set", "data=./broken"], "broken/north/a/1.png: cannot be decoded"),
        (["run", "demo", "--sedes", "1"], "No such option: --sedes"),
    ],
)
def test_in_a_process_of_its_own(here, arguments, said):
    before = listing(here)
    done = process(*arguments, cwd=here)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert said in " ".join(done.stderr.split()) and listing(here) == before


def test_everything_wrong_is_said_at_once():
    lines = refused(*DEMO, "--method", "fedbm", "--engine", "stackd", "--set", "lrr=1", "--set", "rounds=0")
    assert len(lines) == 4 and all(line.startswith("normfed: ") for line in lines)


def test_of_very_much_that_is_wrong_the_first_lines_and_a_count(tmp_path):
    images(tmp_path / "many", each=40)
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(b"nothing")
    done = normfed(*DEMO, *sets(data=tmp_path / "many"))
    lines = done.err.splitlines()
    assert done.code == 2 and len(lines) == 51 and lines[-1] == "normfed: … and 110 more"
