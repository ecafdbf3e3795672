"""docs/datasets.md, from the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from normfed.data import DATASETS, MADE
from normfed.data.catalogue import Dataset

HEAD = """# Datasets

The federations of the papers, by name. `normfed run` and `nf.federation` find them in a folder, `--data` or
`NORMFED_DATA` or the user's cache; training never downloads. The tables are made from the catalogue by
`python -m normfed.tables datasets`; licences are what their authors state, as far as we know: look before you use.

| name | what | domains | classes | licence | how to get it |
|---|---|---|---|---|---|
"""

TAIL = """
Of these, {made} need no files.

## Getting one

```bash
normfed data fetch pacs
```

downloads from the Hugging Face hub (`pip install 'normfed[hub]'`), shows how far it is, and writes one Parquet for each
domain and split, with the images' bytes as they are:

```text
<root>/pacs/photo/all.parquet        train.parquet, test.parquet where the hub has a split
<root>/pacs/manifest.json            SHA-256, size and origin of each file
```

A file is there whole or not at all. Cut off, the same command goes on: what is whole stays, what was damaged is written
again, and files of your own are left alone. `datasets` keeps what it downloaded in a cache of its own, which may go
then. `image` is a struct of `bytes` and `path`, `label` a whole number, class names lie in the schema's metadata:
Hugging Face `datasets` reads these files too, and writes files that are read here.

What you downloaded yourself, a folder or a .zip of `domain/class/image` or `domain/{{train,test}}/class/image`, is
brought into that layout by

```bash
normfed data fetch vlcs --from VLCS
```

Every image is decoded first; what does not decode or belongs nowhere is listed, and then nothing is written. Names are
matched loosely (`Laptop_Computer` is `laptop`). A pickle in an archive is never opened: reading one can run anything.

## What has no home on the hub

{obtain}
## Looking at one

```console
$ normfed data show embedded --partition "domain / clients(2) / dirichlet(0.5)"
client role train val test classes
ink-0 train …
Picture in embedded.png
```

The picture has clients in rows and classes in columns, drawn from the federation that the partition gives. Images show
as they are, connectomes as the matrices they were, other vectors as squares.

```bash
normfed data check pacs
```

reads every file to its last image: labels in range, images that decode, SHA-256 as in the manifest, no test image among
the training images, and how many samples of each class there are. All problems are listed; with any, it ends with 2.
It takes [your own data](your-data.md) too, by their path.
"""


def page(results: Path) -> Mapping[str, str]:
    """docs/datasets.md"""
    rows = "".join(_row(dataset) for dataset in DATASETS.values())
    made = ", ".join(f"`{name}`" for name in MADE)
    rows += "".join(f"| `{name}` | {make().about} | {', '.join(make().domains)} | {len(make().classes)} |  | made |\n"
                    for name, make in MADE.items())  # fmt: skip
    steps = [
        f"`{name}`:\n\n" + "".join(f"    {line}\n" for line in dataset.obtain) + "\n"
        for name, dataset in DATASETS.items()
        if dataset.obtain
    ]
    return {"docs/datasets.md": HEAD + rows + TAIL.format(made=made, obtain="".join(steps).rstrip() + "\n")}


def _row(dataset: Dataset) -> str:
    homes = ", ".join(f"[{home.id}](https://huggingface.co/datasets/{home.id})" for home in dataset.homes)
    names = ", ".join(dataset.domains) or "one"
    classes = len(dataset.classes) or "as the files say"
    return (
        f"| `{dataset.name}` | {dataset.about} | {names} | {classes} | {dataset.licence} | "
        f"{homes or 'by hand, see below'} |\n"
    )
