"""Disks that fill up, folders that may not be written to, damaged files: told in a line, and nothing good is lost."""

import json
import subprocess

import pytest
import safetensors.torch

import normfed as nf
from normfed.cli.progress import Progress
from normfed.runs import disk

from command import normfed, refused, sets

RUN = ["run", "demo", "--seeds", "0", *sets(rounds=3), "--method", "fedbn", "--out"]


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(folder):
    """Every file but the report, and of the result all but its timing."""
    found = {name: data for name, data in files(folder).items() if name != "report.html"}
    return {**found, "result.json": {**json.loads(found["result.json"]), "timing": None}}


@pytest.fixture(autouse=True)
def _every_round_is_saved(monkeypatch):
    monkeypatch.setattr("normfed.runs.trial.SHARE", 1e9)


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uncut") / "run"
    assert normfed(*RUN, folder).code == 0
    return folder


@pytest.fixture
def cut(tmp_path, monkeypatch):
    """A run that was interrupted after its second round of three."""

    def interrupt(self, method, row):
        if row["round"] == 1:
            raise KeyboardInterrupt

    folder = tmp_path / "cut"
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "on_round", interrupt)
        done = normfed(*RUN, folder)
    assert (done.code, done.out) == (130, "")
    assert done.err.strip() == f"normfed: interrupted; {folder} keeps what was done, --resume goes on with it"
    return folder


def damage(path, how):
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 0x80]) + data[middle + 1 :]
    path.write_bytes({"truncated": data[:middle], "flipped": flipped, "emptied": b""}[how])


# ---------------------------------------------------------------------------------------------------------------
# Disks


class Disk:
    """A small file system of its own."""

    def __init__(self, folder):
        self.folder = folder

    def mount(self, options):
        return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], capture_output=True)

    def remount(self, options):
        subprocess.run(["mount", "-o", f"remount,{options}", self.folder], check=True)


@pytest.fixture
def small(tmp_path):
    made = Disk(tmp_path / "disk")
    made.folder.mkdir()
    if made.mount("size=16k").returncode:
        pytest.skip("no file system can be mounted here (that needs to be root)")
    yield made
    subprocess.run(["umount", made.folder], check=True)


@pytest.mark.parametrize("room", [0, 8, 60, 110, 150])
def test_a_full_disk_is_told_and_with_more_room_the_run_goes_on(small, uncut, room):
    small.remount("size=1m")
    (small.folder / "ballast").write_bytes(bytes((1024 - 8 - room) * 1024))  # two blocks for the folder itself
    folder = small.folder / "run"
    done = normfed(*RUN, folder)
    assert (done.code, done.out) == (2, "") and "Traceback" not in done.err
    assert done.err.splitlines()[-1].endswith("cannot be written: the disk is full"), done.err
    assert not list(small.folder.rglob("*.part")), "half-written files are left"
    (small.folder / "ballast").unlink()
    again = normfed(*RUN, folder, *(["--resume"] if folder.exists() else []))
    assert again.code == 0 and again.err == "" and contents(folder) == contents(uncut)
    assert (folder / "report.html").exists()


def test_what_can_only_be_read_is_told_and_stays(small, cut, uncut):
    small.remount("size=1m")
    kept = small.folder / "cut"
    subprocess.run(["cp", "-a", cut, kept], check=True)
    subprocess.run(["cp", "-a", uncut, small.folder / "uncut"], check=True)
    before = files(small.folder)
    small.remount("ro")
    only = "the file system can only be read"
    assert refused(*RUN, small.folder / "new")[0].endswith(f"{small.folder / 'new'} cannot be written: {only}")
    assert refused(*RUN, kept, "--resume")[0].endswith(only)
    assert refused("report", small.folder / "uncut")[0].endswith(only)
    table = ["evaluate", small.folder / "uncut", "--dataset", "embedded(train=20)", "--predictions"]
    assert refused(*table, small.folder / "p.csv")[0].endswith(only)
    finished = normfed(*RUN, small.folder / "uncut", "--resume")
    assert finished.code == 0 and finished.out  # it has nothing to write
    assert files(small.folder) == before
    small.remount("rw")
    assert normfed(*RUN, kept, "--resume").code == 0 and contents(kept) == contents(uncut)


def test_a_folder_in_use_by_another_process_is_left_alone(cut, uncut, monkeypatch):
    monkeypatch.setattr(disk, "PATIENCE", 0.1)
    before = files(cut)
    with disk.alone(cut):
        assert refused(*RUN, cut, "--resume") == [f"normfed: {cut}: another process is at work there"]
    assert files(cut) == before
    assert normfed(*RUN, cut, "--resume").code == 0 and contents(cut) == contents(uncut)


# ---------------------------------------------------------------------------------------------------------------
# Damaged files


@pytest.mark.parametrize(
    ("how", "said"),
    [("truncated", "it is cut short"), ("flipped", "do not have the SHA-256"), ("emptied", "not a saved run, or a damaged one")],
)  # fmt: skip
def test_a_damaged_checkpoint_is_told_and_the_one_before_it_goes_on(cut, uncut, how, said):
    damage(cut / "checkpoint.safetensors", how)
    done = normfed(*RUN, cut, "--resume")
    assert done.code == 0 and contents(cut) == contents(uncut)
    (line,) = done.err.splitlines()
    assert line.startswith(f"normfed: note: {cut / 'checkpoint.safetensors'}: ") and said in line
    assert line.endswith("; went on from the checkpoint before it")


def test_with_no_good_checkpoint_nothing_is_touched(cut):
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        damage(cut / name, "flipped")
    before = files(cut)
    lines = refused(*RUN, cut, "--resume")
    assert len(lines) == 3 and lines[-1] == f"normfed: {cut}: no checkpoint to go on from; nothing was changed"
    assert files(cut) == before


@pytest.mark.parametrize("how", ["truncated", "flipped", "emptied"])
def test_damaged_records_are_told_and_nothing_is_touched(cut, uncut, how):
    good = (cut / "records.jsonl").read_bytes()
    damage(cut / "records.jsonl", how)
    before = files(cut)
    lines = refused(*RUN, cut, "--resume")
    assert "records.jsonl is damaged" in lines[0] and lines[-1].endswith("nothing was changed")
    assert files(cut) == before
    (cut / "records.jsonl").write_bytes(good)
    assert normfed(*RUN, cut, "--resume").code == 0 and contents(cut) == contents(uncut)


@pytest.mark.parametrize("name", ["config.toml", "result.json", "comparison.json", "checkpoint.safetensors", "model.safetensors", "records.jsonl"])  # fmt: skip
@pytest.mark.parametrize("how", ["truncated", "other", *(pytest.param(how, marks=pytest.mark.full) for how in ("flipped", "emptied"))])  # fmt: skip
def test_a_finished_folder_with_a_damaged_file(uncut, tmp_path, name, how):
    """Whoever reads the file says that it is damaged; who does not, works; nobody changes anything but the report."""
    folder = tmp_path / "run"
    subprocess.run(["cp", "-a", uncut, folder], check=True)
    if name == "comparison.json":
        folder = tmp_path / "both"
        assert normfed("compare", uncut, "--out", folder).code == 0
    if how == "other":  # whole, but something else
        other = {"json": b"{}", "toml": b"lr = 0.1\n", "safetensors": safetensors.torch.save({}), "jsonl": b"[1]\n"}
        (folder / name).write_bytes(other[name.rpartition(".")[2]])
    else:
        damage(folder / name, how)
    before = {k: v for k, v in files(folder).items() if k != "report.html"}
    readers = {
        "resume": {"config.toml", "result.json", "comparison.json"},
        "compare": {"config.toml", "result.json"},
        "export": {"config.toml", "result.json", "comparison.json"},
        "evaluate": {"config.toml", "result.json", "comparison.json", "checkpoint.safetensors"},
        "report": {"config.toml", "result.json", "comparison.json"},
    }
    commands = {
        "resume": [*RUN, folder, "--resume"], "compare": ["compare", folder], "export": ["export", folder],
        "evaluate": ["evaluate", folder, "--dataset", "embedded(train=20)"], "report": ["report", folder],
    }  # fmt: skip
    if name == "config.toml" and how in ("emptied", "other"):  # nothing of it is needed for a page
        readers["report"] = set()
    if name == "config.toml" and how == "other":  # nor, for one run, for a table
        readers["export"] = readers["compare"] = set()
    for command, typed in commands.items():
        done = normfed(*typed)
        assert done.code == (2 if name in readers[command] else 0), (command, done)
        assert "Traceback" not in done.err
        if done.code and name != "comparison.json":
            assert name in done.err or str(folder) in done.err, (command, done)
        assert {k: v for k, v in files(folder).items() if k != "report.html"} == before
    if name == "model.safetensors" and how != "flipped":  # a flipped bit is a number as good as any
        with pytest.raises(nf.Refused, match=r"model\.safetensors"):
            nf.load(folder).model_of("ink")
