"""The phenomena as a page and a figure, from results/phenomena.json."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from normfed.errors import Refused
from normfed.evidence.phenomena import EXPERIMENTS, FILE, RATES
from normfed.report.noise import LEVEL, paired_t
from normfed.report.theme import LIGHT, SERIES_LIGHT

Runs = Mapping[str, Any]  # arm -> measure -> seed -> round -> value
BySeed = dict[int, float]

LATE = 0.75  # a run's value is the mean over the evaluations after this share of its rounds


@dataclass(frozen=True)
class Claim:
    """`more` has the larger value: what the paper says, to be seen here or not."""

    text: str
    experiment: str
    more: str
    less: str
    measure: str = "accuracy"


CLAIMS = (
    Claim("FedBN beats FedAvg under feature shift", "shift", "FedBN", "FedAvg"),
    Claim("FedAvg with BatchNorm falls when clients hold two classes each", "classes", "FedAvg, IID", "FedAvg"),
    Claim("FedTAN does not fall as far", "classes", "FedTAN", "FedAvg"),
    Claim("FedWon holds at batches of one", "batch", "FedWon, batches of 1", "FedAvg, batches of 1"),
    Claim("GReg closes the gap between global and batch statistics", "shift", "FedAvg", "GReg", "gap"),
    Claim("FedBN fails on a test set of all classes under label skew", "classes", "FedAvg", "FedBN"),
)


def value(curve: Mapping[str, float]) -> float:
    """Of one run."""
    last = max(map(int, curve))
    return fmean(v for r, v in curve.items() if int(r) > LATE * last)


def by_seed(runs: Runs, arm: str, measure: str = "accuracy") -> BySeed:
    return {int(seed): value(curve) for seed, curve in runs[arm][measure].items()}


def spread(values: BySeed, measure: str) -> str:
    """91.2 ± 0.4 in percent; a loss as it is."""
    scale, digits = (1, 3) if measure == "gap" else (100, 1)
    return f"{scale * fmean(values.values()):.{digits}f} ± {scale * stdev(values.values()):.{digits}f}"


def row(claim: Claim, runs: Runs) -> str:
    """One line of the table."""
    more, less = (by_seed(runs, arm, claim.measure) for arm in (claim.more, claim.less))
    found = paired_t(more, less)
    assert found is not None, "seeds that differ in nothing but chance"
    p, n = found
    ahead = fmean(more.values()) > fmean(less.values())
    chance = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    said = f"yes ({chance}, {n} seeds)" if ahead and p < LEVEL else f"not shown at this size ({chance}, {n} seeds)"
    what = "gap in loss" if claim.measure == "gap" else "accuracy"
    pair = "; ".join(
        f"{arm}: {spread(values, claim.measure)}" for arm, values in ((claim.more, more), (claim.less, less))
    )
    return f"| {claim.text} | {what} | {pair} | {said} |"


def table(runs: Runs) -> list[str]:
    return ["| phenomenon | what | found | shown |", "|---|---|---|---|", *(row(c, runs[c.experiment]) for c in CLAIMS)]


def page(results: Path) -> Mapping[str, str]:
    """docs/phenomena.md and docs/phenomena.svg, and the table as README quotes it."""
    path = results.parent / FILE
    if not path.exists():
        raise Refused(f"{FILE} is missing: python -m normfed.evidence.phenomena makes it")
    text = path.read_text(encoding="utf-8")
    document = json.loads(text)
    runs = document["runs"]
    lines = TEXT.format(
        minutes=round(document["cpu_seconds"] / 60),
        seeds=len(next(iter(runs["shift"].values()))["accuracy"]),
        table="\n".join(table(runs)),
        rates=", ".join(f"{lr} at {size}" for size, lr in RATES.items()),
        **{f"{name}_rounds": e.settings["rounds"] for name, e in EXPERIMENTS.items()},
        classes_steps=EXPERIMENTS["classes"].settings["steps"],
    )
    readme = (results.parent / "README.md").read_text(encoding="utf-8")
    return {
        "docs/phenomena.md": lines,
        "docs/phenomena.svg": figure(text, results.parent / "docs" / "phenomena.svg"),
        "README.md": quoted(readme, table(runs)),
    }


def quoted(text: str, lines: Sequence[str]) -> str:
    """A text with these lines between its marks."""
    before, mark, rest = text.partition("<!-- phenomena -->\n")
    _, end, after = rest.partition("<!-- end -->")
    if not mark or not end:
        raise Refused("README.md has no marks <!-- phenomena --> and <!-- end --> to put the table between")
    return "\n".join([before + mark.strip(), "", *lines, "", end + after])


TEXT = """# What the papers saw, on small real data

```bash
python -m normfed.evidence.phenomena
make results
```

The first command plays every run below into `results/phenomena.json`, the second makes this page and its figure of it.
It needs no files: the data are 1,797 digits written by hand, which come with the package, seen through five instruments
(`embedded`). By site they are a federation under feature shift; pooled and dealt out by class, one under label skew.

{table}

Means ± standard deviations over {seeds} seeds, accuracies in percent. A run counts by the mean of its evaluations in
the last quarter of its rounds. *Shown*: ahead in the direction of the claim, with p below 0.05 in a two-sided t test,
paired over seeds; with the same seed, methods start from the same weights on the same clients' data.

![Accuracy or loss gap of each comparison](phenomena.svg)

- *Feature shift*: five sites, 100 training images each, {shift_rounds} rounds of one epoch, two convolutions; every
  site's own test images.
- *Label skew*: 795 images, five clients with two classes each, {classes_rounds} rounds of {classes_steps} local steps
  with momentum 0.9, two convolutions and a hidden layer. Every client's model is tested on the test images of *all*
  classes. "IID" is FedAvg on the same images dealt out at random. The papers' falls are deeper: FedTAN's has 91.4 and
  45.9 for FedAvg with ResNet-20 on CIFAR-10, 19.5 for FedBN.
- *Batch size*: the sites of feature shift, {batch_rounds} rounds; learning rates {rates}, for both methods alike.
  BatchNorm trains at batches of one only where a layer sees several values per channel; behind a linear layer such a
  run is refused before round 0.
- *Gap*: loss of the global model on the sites' test images under its global statistics, less its loss under the
  batch's.

Networks, learning rates and rounds were chosen after trials on the first three seeds, to be small and to show what
there is to see. At other rates differences can be smaller, FedTAN's most of all; the page says "not shown" where
results do not bear a claim out.

The runs took {minutes} minutes of one core's time, half of that on two.
"""

PANEL_TITLES = ("Feature shift", "Two classes per client", "Batch size", "Gap in loss: global − batch statistics")
COLOURS = {"FedAvg": 0, "FedBN": 1, "FedTAN": 2, "FedWon": 4, "GReg": 3, "FedAvg, IID": 7}
DASHED = {"FedAvg, IID"}


def figure(text: str, path: Path) -> str:
    """The figure of these results: as it lies there, where it was drawn from them by this code; drawn anew otherwise.
    So another release of matplotlib, or none, makes nothing stale."""
    code = Path(__file__).read_bytes()
    stamp = f"<!-- {hashlib.sha256(text.encode() + code).hexdigest()[:16]} -->\n"
    there = path.read_text(encoding="utf-8") if path.exists() else ""
    return there if there.endswith(stamp) else draw(json.loads(text)["runs"]) + stamp


def draw(runs: Mapping[str, Runs]) -> str:
    """Four panels, as SVG."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(
        {"svg.hashsalt": "normfed", "svg.fonttype": "none", "font.size": 9, "text.color": LIGHT["ink"]}
    ):
        made = Figure(figsize=(9, 6.2))
        panels = made.subplots(2, 2, gridspec_kw={"hspace": 0.42, "wspace": 0.2})
        made.subplots_adjust(left=0.06, right=0.985, top=0.94, bottom=0.075)
        first, second, third, fourth = panels.flat
        _curves(first, runs["shift"], ("FedAvg", "FedBN"), "accuracy")
        _curves(second, runs["classes"], ("FedAvg, IID", "FedTAN", "FedAvg", "FedBN"), "accuracy")
        _batches(third, runs["batch"])
        _curves(fourth, runs["shift"], ("FedAvg", "GReg"), "gap")
        for axes, title in zip(panels.flat, PANEL_TITLES, strict=True):
            axes.set_title(title, loc="left", fontsize=10, fontweight="bold")
            axes.grid(color=LIGHT["grid"], linewidth=0.7)
            axes.spines[["top", "right"]].set_visible(False)
            axes.spines[["left", "bottom"]].set_color(LIGHT["line"])
            axes.tick_params(colors=LIGHT["muted"], length=0)
            axes.legend(frameon=False, fontsize=8.5, labelcolor=LIGHT["ink"])
        out = io.StringIO()
        made.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()


def _line(axes: Any, arm: str, x: Sequence[float], values: Sequence[Sequence[float]]) -> None:
    """Means, and a band of one standard deviation; `values` hold the seeds' of each x."""
    colour = SERIES_LIGHT[COLOURS[arm]]
    means, spreads = [fmean(v) for v in values], [stdev(v) for v in values]
    style = "--" if arm in DASHED else "-"
    axes.plot(x, means, color=colour, label=arm, linewidth=1.7, linestyle=style, marker="o" if len(x) < 5 else None)
    low, high = ([m + sign * s for m, s in zip(means, spreads, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _curves(axes: Any, runs: Runs, arms: Sequence[str], measure: str) -> None:
    scale = 1 if measure == "gap" else 100
    for arm in arms:
        seeds = runs[arm][measure].values()
        rounds = sorted(map(int, next(iter(seeds))))
        _line(axes, arm, rounds, [[scale * curve[str(r)] for curve in seeds] for r in rounds])
    axes.set_xlabel("round", color=LIGHT["muted"])
    if measure == "accuracy":
        axes.set_ylim(0, 102)
        axes.set_ylabel("test accuracy, %", color=LIGHT["muted"], labelpad=2)


def _batches(axes: Any, runs: Runs) -> None:
    for method in dict.fromkeys(arm.partition(",")[0] for arm in runs):
        values = [list(by_seed(runs, f"{method}, batches of {size}").values()) for size in RATES]
        _line(axes, method, list(RATES), [[100 * v for v in seeds] for seeds in values])
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(RATES), labels=[str(size) for size in RATES])
    axes.set_ylim(0, 102)
    axes.set_xlabel("samples in a batch", color=LIGHT["muted"])
    axes.set_ylabel("test accuracy, %", color=LIGHT["muted"], labelpad=2)
