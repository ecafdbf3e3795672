"""A finished run on further data: its clients' models where a site has the name of one, and every way to serve a site
that the federation does not know for all others (`normfed.evaluate` has the strategies)."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from normfed.checks import survey
from normfed.data import DATASETS, MADE, Federation, federate, source_of
from normfed.data.source import WHOLE
from normfed.data.store import ClientData
from normfed.errors import Refused
from normfed.evaluate import Evaluation, predict, strategies
from normfed.norm import RUNNING
from normfed.runs import disk
from normfed.runs.inputs import federation, forget
from normfed.runs.load import Finished

OWN = "own"


def evaluate(
    run: Finished, data: str, partition: str | None = None, *, split: str | None = None, root: Path | None = None
) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """The scores as a document, and the predictions, sample by sample.

    `split` "test" looks at the test samples of `data`, "all" at every sample it has; None: at the test samples, or at
    all where nobody has split them.
    """
    given = _opened(run, data, partition, root)
    if split is None:
        split = "all" if all(block.split == WHOLE for block in given.source.blocks) else "test"
    sites = _sites(given, split, _numbers(run, given.classes))
    _check(run, sites)
    known, note = _known(run, root)
    new = {name: replace(known.get(name, c), test=c.test) if name in run.clients else c for name, c in sites.items()}
    evaluation = run.evaluation({**known, **new})
    document: dict[str, Any] = {
        "schema": 1, "run": str(run.folder), "method": run.config["method"], "seed": run.seed,
        "rounds": run.document["rounds"], "data": data, "partition": given.partition, "split": split,
        "samples": {name: len(c.test[1]) for name, c in sites.items()}, "views": {}, "note": note,
    }  # fmt: skip
    outputs = {name: list(_ways(run, evaluation, name)) for name in sites}
    for name, ways in outputs.items():
        for view, logits, y in ways:
            document["views"].setdefault(view, {})[name] = evaluation.scores(logits, y)
    return document, _predictions(run, outputs)


def _opened(run: Finished, data: str, partition: str | None, root: Path | None) -> Federation:
    """The data as the run has read its own: the same classes, pictures of the same size and colours; unless they come
    with arguments that say otherwise."""
    options: dict[str, Any] = {}
    if data.partition("(")[0] not in (*MADE, *DATASETS) and not data.endswith(")"):
        shape = run.facts["input"]
        options["classes"] = list(run.classes)
        if len(shape) == 3 and shape[0] in (1, 3) and shape[1] == shape[2]:
            options |= {"channels": shape[0], "side": shape[1]}
    return federate(source_of(data, root, **options), partition, run.config["partition_seed"])


def _numbers(run: Finished, classes: tuple[str, ...]) -> torch.Tensor:
    """The run's number of each of the data's classes."""
    extra = sorted(set(classes) - set(run.classes))
    if extra:
        more = f" and {len(extra) - 5} more" if len(extra) > 5 else ""
        raise Refused(f"the data have classes that the run did not learn: {', '.join(extra[:5])}{more}")
    return torch.tensor([run.classes.index(name) for name in classes])


def _sites(given: Mapping[str, ClientData], split: str, numbers: torch.Tensor) -> dict[str, ClientData]:
    """Sites with what is to be predicted as their test samples, and unlabelled ones of their own as training ones."""
    sites, problems = {}, []
    for name, client in given.items():
        pairs = [pair for s in ("train", "val", "test") if (pair := client.split(s)) is not None]
        test = client.split("test") if split == "test" else tuple(map(torch.cat, zip(*pairs, strict=True)))
        if test is None:
            problems.append(f"client '{name}', test: missing; --split all takes every sample there is")
            continue
        x, y = test
        sites[name] = ClientData(client.train if split == "test" else None, test=(x, numbers[y]), role="unseen")
    if problems:
        raise Refused(*problems)
    return sites


def _check(run: Finished, sites: Mapping[str, ClientData]) -> None:
    survey({name: ClientData(train=c.test) for name, c in sites.items()})
    problems = []
    x = next(iter(sites.values())).test[0]
    dtype = str(x.dtype).removeprefix("torch.")
    if list(x.shape[1:]) != run.facts["input"] and not run.config.get("prepare"):
        problems.append(f"samples have the shape {tuple(x.shape[1:])}; the run learnt {tuple(run.facts['input'])}")
    if "uint8" in {dtype, run.facts["dtype"]} and dtype != run.facts["dtype"]:
        problems.append(f"samples are {dtype}; the run learnt {run.facts['dtype']}: their range is another")
    if problems:
        raise Refused(*problems)


def _known(run: Finished, root: Path | None) -> tuple[dict[str, ClientData], str]:
    """The training data of the run's clients, where they are at hand."""
    forget()
    try:
        given = federation(run.config, root)
    except Refused as reason:
        return {}, f"without the run's own data there is no nearest client ({reason.problems[0]})"
    return {name: replace(c, test=None, val=None) for name, c in given.items() if c.role == "train"}, ""


def _ways(run: Finished, evaluation: Evaluation, site: str) -> Iterator[tuple[str, Any, Any]]:
    """(view, logits, labels) for each way to serve a site."""
    x, y = _pair(evaluation, site)
    if site in run.clients:
        yield OWN, predict(evaluation.net, evaluation.own_state(site), x, RUNNING), y
        return
    for name, state, mode in strategies(evaluation, site, "test"):
        yield name, predict(evaluation.net, state, x, mode, evaluation.batch_size(mode)), y


def _pair(evaluation: Evaluation, site: str) -> Any:
    pair = evaluation.split(site, "test")
    assert pair is not None
    return pair


def _predictions(run: Finished, outputs: Mapping[str, list[tuple[str, Any, Any]]]) -> Iterator[dict[str, Any]]:
    for site, ways in outputs.items():
        for view, logits, labels in ways:
            likely = logits.softmax(1)
            for i, (row, label) in enumerate(zip(likely.tolist(), labels.tolist(), strict=True)):
                best = max(range(len(row)), key=row.__getitem__)
                yield {
                    "client": site, "view": view, "sample": i, "label": run.classes[label],
                    "predicted": run.classes[best], "probability": row[best],
                }  # fmt: skip


def write_predictions(path: Path, rows: Iterator[dict[str, Any]]) -> None:
    """As CSV or Parquet, by the file's ending."""
    found = list(rows)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), buffer)
        disk.write(path, buffer.getvalue())
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(found[0]))
    writer.writeheader()
    writer.writerows(found)
    disk.write(path, text.getvalue().encode())


def check_predictions(path: Path) -> None:
    """Before anything is computed."""
    if path.suffix not in (".csv", ".parquet"):
        raise Refused(f"{path}: predictions are written as .csv or .parquet")
    if not path.parent.is_dir():
        raise Refused(f"{path}: there is no folder {path.parent}")
    if path.exists():
        raise Refused(f"{path} is there already")


def table(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: a view a row, a site a column, in percent."""
    sites = list(document["samples"])
    rows = [
        [view, *(f"{100 * scores[site]['accuracy']:.1f}" if site in scores else "–" for site in sites)]
        for view, scores in document["views"].items()
    ]
    return ["view", *sites], rows
