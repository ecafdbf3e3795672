"""Every dataset of the catalogue, from files in the layout; the real ones too where they are."""

import os
from pathlib import Path

import pytest
import torch

import normfed as nf
from normfed.data import DATASETS, open_federation, present

from files import write_dataset

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
