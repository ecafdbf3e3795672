"""The federations of the papers: what they are, where their files lie, where they come from.

<root>/<dataset>/<domain>/{train,test}.parquet      or all.parquet, all.npz where there is no split;
                                                    no domain folder where there is one domain
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from normfed.data import cache, files
from normfed.data.source import Block, Source
from normfed.errors import Problems, Refused, nearest

TEN = tuple(str(digit) for digit in range(10))
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DOMAINNET = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)


TRAIN_TEST = {"train": ("train",), "test": ("test",)}


@dataclass(frozen=True)
class Home:
    """A table on the Hugging Face hub, and what of it goes where."""

    id: str
    config: str | None = None
    domain: str = ""  # all of it is this domain's; or
    column: str = ""  # this column says whose a row is, by name or by
    names: tuple[str, ...] = ()  # number: names of 0, 1, …
    image: str = "image"
    label: str = "label"
    splits: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: TRAIN_TEST)  # ours -> the hub's


@dataclass(frozen=True)
class Dataset:
    """One line of the catalogue."""

    name: str
    about: str
    domains: tuple[str, ...]  # () where there is one, without a folder of its own
    classes: tuple[str, ...]  # as far as they are fixed; files that name theirs go before
    side: int = 0  # images are decoded to side x side; 0: not images
    channels: int = 3
    homes: tuple[Home, ...] = ()  # where `normfed data fetch` gets it
    obtain: tuple[str, ...] = ()  # what to do, line by line, for what no home gives
    licence: str = ""
    partition: str = "domain"
    stand_ins: Mapping[str, str] = field(default_factory=dict)  # domain -> the one it stands in for
    choose: tuple[str, ...] = ()  # the classes used where the files hold more
    spelt: Mapping[str, str] = field(default_factory=dict)  # another name of a class or a domain -> ours

    @property
    def layout(self) -> str:
        """Where its files are looked for, under the root."""
        middle = f"{{{','.join(self.domains)}}}/" if self.domains else ""
        return f"{self.name}/{middle}{{train,test}}.parquet" if self.side else f"{self.name}/{middle}all.npz"

    def ours(self, name: str) -> str:
        """Our spelling of a class or a domain, `Back_Pack` -> `backpack`; the name itself where it is none of ours."""
        known = {_plain(own): own for own in (*self.domains, *self.classes)}
        known |= {_plain(other): own for other, own in self.spelt.items()}
        return known.get(_plain(name), name)

    def files(self, root: Path) -> dict[str, dict[str, Path]]:
        """domain -> split -> file, of what is there: the declared domains first, then any other folder."""
        home = root / self.name
        whole = files.found_in(home)
        if whole:
            return {"": whole}
        further = sorted(p.name for p in home.iterdir() if p.is_dir()) if home.is_dir() else []
        found = {domain: files.found_in(home / domain) for domain in dict.fromkeys((*self.domains, *further))}
        return {domain: splits for domain, splits in found.items() if splits}


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum())


def _datasets(*given: Dataset) -> dict[str, Dataset]:
    return {dataset.name: dataset for dataset in given}


DATASETS: dict[str, Dataset] = _datasets(
    Dataset(
        "digits", "Handwritten, printed and house-number digits (Digits-Five of FedBN)",
        ("mnist", "svhn", "svhn_mini", "usps", "synth", "mnist_m"), TEN, 28,
        homes=(Home("ylecun/mnist", domain="mnist"), Home("ufldl-stanford/svhn", "cropped_digits", domain="svhn"),
               Home("flwrlabs/usps", domain="usps"), Home("Mike0307/MNIST-M", domain="mnist_m")),
        obtain=(
            "synth (SynthDigits) is on no hub as rows; digit_dataset.zip of Jemary/FedBN_Dataset holds it as pickles,",
            "which normfed does not open. Where you trust them, save the images as synth/{train,test}/<digit>/<n>.png;",
            "then: normfed data fetch digits --from FOLDER",
        ),
        licence="MNIST CC BY-SA 3.0; SVHN non-commercial; USPS, MNIST-M, SynthDigits: none stated",
        stand_ins={"svhn_mini": "svhn"},
    ),
    Dataset(
        "office_caltech10", "Ten classes of office objects, four cameras (Gong et al., 2012)",
        ("amazon", "caltech", "dslr", "webcam"),
        ("backpack", "bike", "calculator", "headphones", "keyboard", "laptop", "monitor", "mouse", "mug", "projector"),
        256, spelt={"laptop_computer": "laptop"},
        obtain=(
            "Download office_caltech_10_dataset.zip from Jemary/FedBN_Dataset on the Hugging Face hub,",
            "or Gong's images as <domain>/<class>/<image>, in a folder or a .zip; the archive's lists of training",
            "and test images are pickles, which normfed does not open: a fifth is held out by key instead;",
            "then: normfed data fetch office_caltech10 --from FILE",
        ),
        licence="Caltech-256 CC BY 4.0; Office-31: none stated",
    ),
    Dataset(
        "domainnet", "Objects in six styles of drawing (Peng et al., 2019); ten classes, or classes=100",
        ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"), DOMAINNET, 256,
        homes=(Home("wltjr1007/DomainNet", column="domain",
                    names=("clipart", "infograph", "painting", "quickdraw", "real", "sketch")),),
        licence="fair use, non-commercial", choose=DOMAINNET,
    ),
    Dataset(
        "pacs", "Photos, art paintings, cartoons and sketches of seven classes (Li et al., 2017)",
        ("art_painting", "cartoon", "photo", "sketch"),
        ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"), 160,
        homes=(Home("flwrlabs/pacs", column="domain", splits={"all": ("train",)}),), licence="none stated",
    ),
    Dataset(
        "vlcs", "Five classes of photos from four collections (Fang et al., 2013)",
        ("caltech101", "labelme", "sun09", "voc2007"), ("bird", "car", "chair", "dog", "person"), 160,
        obtain=(
            "Download VLCS.tar.gz as DomainBed's download script does, and unpack it: VLCS/<domain>/<class>/<image>;",
            "then: normfed data fetch vlcs --from VLCS",
        ),
        licence="none stated",
    ),
    Dataset(
        "camelyon17", "Tumour or not, patches of lymph nodes from five hospitals (Camelyon17-WILDS)",
        ("hospital1", "hospital2", "hospital3", "hospital4", "hospital5"), ("normal", "tumor"), 96,
        homes=(Home("wltjr1007/Camelyon17-WILDS", column="center", splits={"all": ("train", "validation", "test")},
                    names=("hospital1", "hospital2", "hospital3", "hospital4", "hospital5")),),
        licence="CC0 1.0",
    ),
    Dataset("cifar10", "Ten classes of small photos (Krizhevsky, 2009)", (), CIFAR10, 32,
            homes=(Home("uoft-cs/cifar10", image="img"),), licence="none stated", partition="clients(10)"),
    Dataset("cifar100", "A hundred classes of small photos (Krizhevsky, 2009)", (), (), 32,
            homes=(Home("uoft-cs/cifar100", image="img", label="fine_label"),), licence="none stated",
            partition="clients(10)"),
    Dataset("mnist", "Handwritten digits (LeCun et al., 1998)", (), TEN, 28, 1, homes=(Home("ylecun/mnist"),),
            licence="CC BY-SA 3.0", partition="clients(10)"),
    Dataset("fashion_mnist", "Ten classes of clothes (Xiao et al., 2017)", (),
            ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
            28, 1, homes=(Home("zalando-datasets/fashion_mnist"),), licence="MIT", partition="clients(10)"),
    Dataset(
        "fed_isic2019", "Eight kinds of skin lesions from six centres (Ogier du Terrail et al., 2022)",
        tuple(f"center{i}" for i in range(6)),
        ("melanoma", "nevus", "basal cell carcinoma", "actinic keratosis", "benign keratosis", "dermatofibroma",
         "vascular lesion", "squamous cell carcinoma"), 224,
        homes=(Home("flwrlabs/fed-isic2019", column="center", names=tuple(f"center{i}" for i in range(6))),),
        licence="CC BY-NC 4.0",
    ),
    Dataset(
        "abide", "Connectivity of brains at rest, windows of 32, four sites (FedBN's setting, 5,995 features)",
        ("nyu", "usm", "um", "ucla"), ("control", "autism"),
        obtain=(
            "Get the ABIDE I time series of the Harvard-Oxford atlas (Preprocessed Connectomes Project);",
            "of every window of 32 scans take the correlations of 110 regions above the diagonal: 5,995;",
            "save them as abide/<site>/all.npz with the arrays x, [windows, 5995], and label, 0 or 1",
        ),
        licence="non-commercial research",
    ),
    Dataset(
        "abide_cc200", "Connectivity of brains at rest, 200 regions, four sites: a setting of its own, 19,900 features",
        ("nyu", "usm", "um", "ucla"), ("control", "autism"),
        obtain=(
            "Get the ABIDE I time series of the CC200 atlas (Preprocessed Connectomes Project);",
            "save the correlations above the diagonal as abide_cc200/<site>/all.npz with the arrays",
            "x, [subjects, 19900], and label, 0 or 1; a number `scale` beside them multiplies x",
        ),
        licence="non-commercial research",
    ),
)  # fmt: skip


def root_of(given: Path | None = None) -> Path:
    """Where data are looked for: what was given, NORMFED_DATA, the user's cache folder."""
    if given is not None:
        return given
    return Path(os.environ.get("NORMFED_DATA") or cache.folder() / "data")


def find(name: str) -> Dataset:
    if name not in DATASETS:
        raise Refused(
            f"unknown dataset '{name}'; {nearest(name, ['embedded', *DATASETS])}; or the path of your own data"
        )
    return DATASETS[name]


def present(name: str, root: Path | None = None) -> bool:
    """Whether a dataset has any file under the root; the embedded one always has."""
    return name == "embedded" or bool(find(name).files(root_of(root)))


def source(
    name: str, root: Path | None = None, *, domains: list[str] | None = None, side: int | None = None,
    channels: int | None = None, classes: int | None = None,
) -> Source:  # fmt: skip
    """A dataset's files as a source; nothing is decoded yet."""
    dataset = find(name)
    home = root_of(root)
    there = dataset.files(home)
    if not there:
        raise Refused(f"{name} is not under {home}: `normfed data fetch {name}` gets it, or says how to obtain it")
    for stand_in, real in dataset.stand_ins.items():
        if real in there and (domains is None or stand_in not in domains):
            there.pop(stand_in, None)
    if domains is not None:
        absent = [d for d in domains if d not in there]
        if absent:
            raise Refused(*(f"{name}: no domain '{d}' under {home / name}; {nearest(d, there)}" for d in absent))
        there = {domain: there[domain] for domain in domains}
    side, channels = dataset.side if side is None else side, dataset.channels if channels is None else channels
    if (dataset.side and side < 1) or channels not in (1, 3):
        raise Refused(f"{name}: side={side} and channels={channels}: sides are 1 or more, channels 1 or 3")
    opened = _opened(there, side, channels)
    names = _class_names(dataset, opened)
    blocks, names = _chosen(dataset, opened, names, classes)
    missing = [d for d in dataset.domains if d not in there and d not in dataset.stand_ins]
    about = dataset.about + (f"; missing: {', '.join(missing)}" if missing and domains is None else "")
    return Source(name, names, blocks, about, dataset.partition)


def _opened(there: Mapping[str, Mapping[str, Path]], side: int, channels: int) -> list[files.File]:
    problems = Problems()
    opened: list[files.File] = []
    for domain, splits in there.items():
        for split, path in splits.items():
            with problems:
                opened.append(files.open_file(path, domain, split, side, channels))
    problems.say()
    return opened


def _class_names(dataset: Dataset, opened: Sequence[files.File]) -> tuple[str, ...]:
    """As the files name them, which must agree; else as the catalogue does; else their numbers."""
    said = {file.classes: file.path for file in opened if file.classes}
    if len(said) > 1:
        paths = list(said.values())
        raise Refused(f"{dataset.name}: {paths[0]} and {paths[1]} name their classes differently")
    lowest = min(int(file.labels.min(initial=0)) for file in opened)
    highest = max(int(file.labels.max(initial=0)) for file in opened)
    if lowest < 0:
        raise Refused(f"{dataset.name}: label {lowest}; labels begin at 0")
    names = next(iter(said), dataset.classes)
    if len(names) <= highest:
        if said or dataset.classes:
            raise Refused(f"{dataset.name}: label {highest}, and there are {len(names)} classes")
        names = tuple(map(str, range(highest + 1)))
    return names


def _chosen(
    dataset: Dataset, opened: Sequence[files.File], names: tuple[str, ...], classes: int | None
) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Blocks of the wanted classes: those the dataset is known for, or the `classes` with most samples."""
    wanted: list[str] | None = None
    if classes is not None and classes < len(names) and classes != len(dataset.choose):
        counts = Counter(dict.fromkeys(range(len(names)), 0))
        for file in opened:
            counts.update(file.labels.tolist())
        wanted = [names[i] for i in sorted(sorted(counts, key=lambda i: (-counts[i], i))[:classes])]
    elif classes is not None and classes > len(names):
        raise Refused(f"{dataset.name}: classes={classes}, and the files have {len(names)}")
    elif dataset.choose and len(names) > len(dataset.choose) and classes in (None, len(dataset.choose)):
        absent = [name for name in dataset.choose if name not in names]
        if absent:
            raise Refused(f"{dataset.name}: the files have no class {', '.join(absent)}")
        wanted = list(dataset.choose)
    if wanted is None:
        return tuple(file.block() for file in opened), names
    new = np.full(len(names), -1, np.int64)
    new[[names.index(name) for name in wanted]] = np.arange(len(wanted))
    return tuple(file.block(np.flatnonzero(new[file.labels] >= 0), new) for file in opened), tuple(wanted)
