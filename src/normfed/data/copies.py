"""In what a dataset's copy on this machine differs from what a paper trained on: said wherever numbers are compared."""

from __future__ import annotations

from pathlib import Path

from normfed.data.catalogue import DATASETS, Dataset, root_of

LOSSLESS = ("cifar10", "cifar100", "digits", "fashion_mnist", "mnist")  # datasets whose originals are bare pixels
JPEG = b"\xff\xd8"  # how such a file begins


def differences(name: str, root: Path | None = None) -> list[str]:
    """One line for each; none for a dataset that is not there at all, or that needs no files."""
    dataset = DATASETS.get(name)
    there = dataset.files(root_of(root)) if dataset is not None else {}
    if dataset is None or not there:
        return []
    return [
        *_domains(dataset, list(there)),
        *_lossy(dataset, [path for files in there.values() for path in files.values()]),
    ]


def _domains(dataset: Dataset, there: list[str]) -> list[str]:
    if not dataset.domains or there == [""]:
        return []
    stand_ins = {stand_in: real for stand_in, real in dataset.stand_ins.items() if real not in there}
    found = [f"{stand_in} stands in for {real}" for stand_in, real in stand_ins.items() if stand_in in there]
    replaced = {real for stand_in, real in stand_ins.items() if stand_in in there}
    missing = [d for d in dataset.domains if d not in there and d not in dataset.stand_ins and d not in replaced]
    return found + ([f"{', '.join(missing)} missing from {dataset.name}"] if missing else [])


def _lossy(dataset: Dataset, paths: list[Path]) -> list[str]:
    if dataset.name not in LOSSLESS or not any(
        path.suffix == ".parquet" and _first(path)[:2] == JPEG for path in paths
    ):
        return []
    return [f"this copy of {dataset.name} is JPEG: its pixels are not the original's"]


def _first(path: Path) -> bytes:
    """The stored bytes of a file's first image."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        batch = next(file.iter_batches(batch_size=1, columns=["image"]), None)
    return b"" if batch is None or not len(batch) else batch["image"][0].as_py()["bytes"]
