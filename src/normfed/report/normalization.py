"""The pictures of normalization: heat maps of statistics, gaps of the loss, likeness of features."""

from __future__ import annotations

from normfed.report import figures
from normfed.report.markup import escape, figure, key, listed
from normfed.report.read import Part
from normfed.report.svg import Chart, scale

HEATS = {
    "divergence": (
        "Among clients",
        "How to read: bright is where the clients' data differ most at a layer: symmetric KL of the channels' "
        "Gaussians, mean over channels and pairs of clients. Layers are named by their path in the model.",
    ),
    "mismatch": (
        "Against what is used",
        "How to read: bright is where a client is evaluated with statistics far from its data's; dark is a fit.",
    ),
    "statistic_variance": (
        "Variance of the means",
        "How to read: variance over clients of the channels' means, mean over channels; it has the scale of the layer.",
    ),
}  # fmt: skip
GAPS = {
    "gap/test": "How to read: what global statistics cost in loss against those of the test batch; zero is no cost.",
    "gap/train": "How to read: the same for a client's model after local training, under the statistics it was sent.",
}
REASONS = {
    "divergence": "no BatchNorm layer with running statistics",
    "gap/test": "no BatchNorm layer with running statistics, or no test data",
    "gap/train": "no BatchNorm statistics that are broadcast",
    "feature_cosine": "fewer than two clients' models, or no hidden convolution or linear layer",
    "representation_divergence": "fewer than two clients with test data, or no classifier layer",
}


def pictures(part: Part) -> str:
    recorded = {f["metric"] for p in part.played for f in p.facts}
    head = "<h2>Pictures of normalization</h2>"
    if not recorded & set(REASONS):
        return head + "<p class=lead>Not recorded: run with <code>--set pictures=all</code>.</p>"
    curves = "".join(figure(chart, GAPS[name]) for name, chart in figures.gaps(part).items())
    features = ""
    if (chart := figures.cosine(part)) is not None:
        features += figure(chart, "How to read: two clients' models, after local training, shown the same samples; 1 "
                           "is the same feature map at that layer. Taken at the last picture.")  # fmt: skip
    if (chart := figures.representations(part)) is not None:
        features += figure(chart, "How to read: how far apart the clients' features lie before the classifier, each "
                           "under the model it is tested with; low is aligned.")  # fmt: skip
    return (
        head + _heats(part)
        + (f"<h3>What global statistics cost</h3><div class=grid>{curves}</div>" if curves else "")
        + (f"<h3>Features</h3><div class=grid>{features}</div>" if features else "") + _absent(part, recorded)
    )  # fmt: skip


def _heats(part: Part) -> str:
    found = {metric: heats for metric in HEATS if (heats := figures.heats(part, metric)) is not None}
    if not found:
        return ""
    prefix = f"part{part.number}"
    tabs = "".join(
        f'<button type="button" class="tab" role="tab" id="{prefix}-{metric}-tab" aria-controls="{prefix}-{metric}">'
        f"{HEATS[metric][0]}</button>"
        for metric in found
    )
    panels = "".join(_panel(part, f"{prefix}-{metric}", metric, *heats) for metric, heats in found.items())
    return f'<h3>Statistics of the norm layers</h3><div class="tabs" role="tablist">{tabs}</div>{panels}'


def _panel(part: Part, name: str, metric: str, charts: dict[str, Chart], limits: tuple[float, float]) -> str:
    head, caption = HEATS[metric]
    maps = "".join(_heat(part, method, chart) for method, chart in charts.items())
    low, high = limits
    return (
        f'<div class="panel" role="tabpanel" id="{name}" aria-labelledby="{name}-tab"><h4 class="over">{head}</h4>'
        f'<div class="scale"><span>{low:.2g}</span><i style="background:{scale()}"></i><span>{high:.2g}</span>'
        f"<span>logarithmic, the same for all methods</span></div><div class='grid small'>{maps}</div>"
        f"<figcaption>{caption}</figcaption></div>"
    )


def _heat(part: Part, method: str, chart: Chart) -> str:
    index = [p.method for p in part.played].index(method)
    return figure(chart, name=f"heat m{index}", head=f"<h4>{key(index)} {escape(method)}</h4>")


def _absent(part: Part, recorded: set[str]) -> str:
    notes = []
    for metric, reason in REASONS.items():
        without = [p.method for p in part.played if all(f["metric"] != metric for f in p.facts)]
        if metric in recorded and without:
            notes.append(f"<code>{metric}</code> does not apply to {escape(', '.join(without))}: {reason}.")
    return f"<details><summary>Pictures that do not apply</summary>{listed(notes)}</details>" if notes else ""
