"""Small files in the formats of the folder layout, made of noise."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from normfed.data import DATASETS


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pictures(n: int, side: int, channels: int, seed: int = 0) -> list[np.ndarray]:
    shape = (n, side, side, 3) if channels == 3 else (n, side, side)
    return list(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def write_images(path: Path, images, labels, classes=None, kind: str = "PNG", column="image", spoilt=()) -> None:
    """As Hugging Face `datasets` writes them; class names in the schema's metadata. `spoilt` rows are no images."""
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [
        {"bytes": b"nothing" if i in spoilt else encoded(image, kind), "path": f"{i}.png"}
        for i, image in enumerate(images)
    ]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": list(classes or ())}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})} if classes else None
    schema = pa.schema([(column, struct), ("label", pa.int64())], metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table([pa.array(rows, struct), pa.array(labels, pa.int64())], schema=schema), path)


def write_arrays(path: Path, n: int, features: int, classes: int, seed: int = 0) -> None:
    draw = np.random.default_rng(seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    x = draw.integers(-127, 128, (n, features), dtype=np.int8)
    np.savez(path, x=x, label=np.arange(n) % classes, scale=np.float32(1 / 127))


def write_dataset(root: Path, name: str, n: int = 20) -> None:
    """Every domain of a dataset of the catalogue; all.* for those whose authors gave no split."""
    dataset = DATASETS[name]
    classes = dataset.classes or tuple(f"class {i}" for i in range(100))
    for k, domain in enumerate(dataset.domains or ("",)):
        folder = root / name / domain
        if not dataset.side:
            write_arrays(folder / "all.npz", n, 12, len(classes), seed=k)
            continue
        splits = ("all",) if name == "office_caltech10" else ("train", "test")
        for j, split in enumerate(splits):
            images = pictures(n, 9 + k, dataset.channels, seed=10 * k + j)
            write_images(folder / f"{split}.parquet", images, np.arange(n) % len(classes), classes)
