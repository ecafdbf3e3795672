"""The sections of a part, from the summary to the pictures of normalization; empty where there is nothing to say."""

from __future__ import annotations

from typing import Any

from normfed.report import figures
from normfed.report.markup import Cell, escape, facts, figure, listed, number, plain, several, table, text
from normfed.report.noise import LEVEL, SEEDS, Verdict, verdict
from normfed.report.read import OWN_VIEWS, Part, Played, Spread

COLUMNS = 12  # clients a table has a column for
VIEWS = {
    "own": "each client's own model on its own test data",
    "global": "the global model on each client's test data; entries that stay home averaged over the clients",
    "batch": "the global model on each client's test data, normalised with the statistics of the test batches",
    "own/pooled": "each client's own model on all clients' test data together",
    "pooled": "the global model on all clients' test data together",
    "unseen/averaged": "the global model at a site outside the federation, averaged statistics",
    "unseen/reestimated": "the same, statistics re-estimated from the site's unlabelled data",
    "unseen/batch": "the same, statistics of the test batches",
    "unseen/nearest": "the same, statistics or norm layers of the client that looks most alike",
}


def summary(part: Part) -> str:
    common, differing = part.config()
    environment: dict[str, str] = next((p.document["environment"] for p in part.played if p.finished), {})
    seeds = part.seeds
    local = "epochs" if "steps" not in common else "steps"
    pairs = [
        ("data", escape(", ".join(str(common[k]) for k in ("data", "partition") if k in common))),
        ("clients", _named(part.clients)),
        ("rounds", escape(part.setting["rounds"])),
        ("seeds", escape(", ".join(map(str, seeds)))),
        ("model", escape(common.get("model", ""))),
        ("local work a round", f"{escape(several(common[local], local[:-1]))}" if local in common else ""),
        ("whose model is tested", escape(", ".join(dict.fromkeys(p.view for p in part.played)))),
        ("result taken at", _selection(part)),
        ("engine", escape(", ".join(_of(part, "engine")))),
        ("device", escape(", ".join(_of(part, "device")))),
        ("environment", escape(", ".join(f"{k} {v}" for k, v in environment.items()))),
    ]
    lines = "\n".join(f"{k} = {_toml(v)}" for k, v in common.items() if k != "facts")
    config = f"<details><summary>Configuration</summary><pre>{escape(lines)}</pre></details>" if lines else ""
    notes = [
        f"<code>{escape(k)}</code> differs: {', '.join(f'{escape(m)} {escape(_toml(v))}' for m, v in values.items())}."
        for k, values in differing.items()
    ]
    return facts(pairs) + _finding(part) + _alert(notes, "Not all methods ran with the same settings.") + config


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:COLUMNS])
    return escape(shown if len(names) <= COLUMNS else f"{len(names):,}: {shown}, …")


def _of(part: Part, name: str) -> list[str]:
    return list(dict.fromkeys(str(p.document[name]) for p in part.played if name in p.document))


def _selection(part: Part) -> str:
    validated = any(f.get("split") == "val" for p in part.played for f in p.facts)
    return "the best round on validation data" if validated else "the last round"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else "not set" if value is None else str(value)


def _alert(notes: list[str], head: str) -> str:
    return f'<div class="notice">{head}{listed(notes)}</div>' if notes else ""


def _complete(part: Part) -> list[tuple[int, Played]]:
    return [(i, p) for i, p in enumerate(part.played) if p.finished]


def _finding(part: Part) -> str:
    averages = {p.method: s for _, p in _complete(part) if (s := p.average()) is not None}
    said = verdict(averages)
    if said is None:
        return ""
    best = averages[said.best]
    text = f"<b>{escape(said.best)}</b> has the best average, {100 * best.mean:.1f}&nbsp;%"
    return f'<p class="finding">{text}, {"" if said.marked else "but "}{escape(said.why)}.</p>'


def accuracy(part: Part) -> str:
    """The final table, with the best marked where it is more than noise."""
    names = part.clients if len(part.clients) <= COLUMNS else []
    scores = [p.accuracy() for p in part.played]
    averages = [p.average() for p in part.played]
    verdicts = {c: _verdict(part, [s.get(c) for s in scores]) for c in names}
    overall = _verdict(part, averages)
    rows = []
    for i, played in enumerate(part.played):
        cells = [text(played.view)]
        for c in names:
            cells.append(_marked(scores[i].get(c), played, verdicts[c]))
        cells.append(_marked(averages[i], played, overall))
        cells.append(number(min(scores[i].values(), key=lambda s: s.mean, default=None)))
        rows.append((i, cells))
    head = ["method", "view", *names, "average", "worst client"]
    return (
        "<h2>Accuracy</h2><p class=lead>Percent on the clients' own test data, mean ± standard deviation over seeds. "
        "A click on a head sorts.</p>" + table(head, rows, part, texts=(1,)) + _how_marked(verdicts, overall)
    )  # fmt: skip


def _verdict(part: Part, column: list[Spread | None]) -> Verdict | None:
    return verdict({part.played[i].method: s for i, p in _complete(part) if (s := column[i]) is not None})


def _marked(spread: Spread | None, played: Played, said: Verdict | None) -> Cell:
    best = said is not None and said.marked and said.best == played.method
    return number(spread, best, said.why if best and said is not None else "")


def _how_marked(verdicts: dict[str, Verdict | None], overall: Verdict | None) -> str:
    if overall is None:
        return ""
    everything = {**verdicts, "average": overall}
    unmarked = [
        f"{escape(c)}: {escape(v.best)} has the best mean, but {escape(v.why)}"
        for c, v in everything.items()
        if v and not v.marked
    ]
    rule = (
        "<p class=lead>★ marks the best of a column where it is ahead of every other method by more than the noise: a "
        f"paired t test over seeds, two-sided, p below {LEVEL:g}, at least {SEEDS} seeds in common.</p>"
    )
    why = f"<details><summary>Columns without a mark: {len(unmarked)}</summary>{listed(unmarked)}</details>"
    return rule + (why if unmarked else "")


def rounds(part: Part) -> str:
    found, loss = figures.accuracy(part), figures.loss(part)
    if found is None:
        return ""
    caption = "How to read: a line is the mean over clients and seeds, its band one standard deviation over seeds."
    out = "<h2>Over rounds</h2>" + figure(found, caption, "wide")
    small = figures.clients(part)
    if len(small) > 1:
        left = len(part.clients) - len(small)
        more = f" The first {len(small)} of {len(part.clients):,} clients." if left else ""
        grid = "".join(figure(chart) for chart in small.values())
        out += (
            f"<h3>Client by client, accuracy in percent</h3><div class='grid small'>{grid}</div>"
            f"<figcaption>How to read: as above, one client a panel, all on the same axes.{more}</figcaption>"
        )
    if loss is not None:
        said = (
            "How to read: the task loss of local training, mean over clients; low here and low accuracy above is a gap."
        )
        out += f"<h3>Training loss</h3><div class=grid>{figure(loss, said)}</div>"
    return out


def matrix(part: Part) -> str:
    """Every view, side by side: what the same training is worth under another question."""
    averages = [p.final(lambda f: f["view"], split="test", metric="accuracy") for p in part.played]
    names = sorted(
        {v for found in averages for v in found}, key=lambda v: (list(VIEWS).index(v) if v in VIEWS else 99, v)
    )
    if len(names) < 2 or set(names) <= set(OWN_VIEWS):
        return ""
    known = [s.mean for found in averages for s in found.values()]
    low, high = min(known), max(known)
    rows = [(i, [_shaded(found.get(v), low, high) for v in names]) for i, found in enumerate(averages)]
    legend = listed(f"<b>{escape(v)}</b>: {escape(VIEWS.get(v, ''))}" for v in names)
    return (
        "<h2>Whose model, on whose data</h2><p class=lead>Accuracy in percent under every view that was recorded. A "
        "row is one training; columns ask different questions, and their numbers are not to be compared.</p>"
        f"{table(['method', *names], rows, part)}<details><summary>What the views are</summary>{legend}</details>"
    )


def _shaded(spread: Spread | None, low: float, high: float) -> Cell:
    cell = number(spread)
    if spread is None:
        return cell
    strength = round(30 * (spread.mean - low) / ((high - low) or 1.0))
    return Cell(cell.html, cell.value, "shade", f"--a:{strength}%")


def others(part: Part) -> str:
    """Metrics beside accuracy."""
    names = sorted(
        {f["metric"] for p in part.played for f in p.facts if f.get("split") == "test"} - {"accuracy", "loss"}
    )
    if not names:
        return ""
    rows = [(i, [number(p.average(metric)) for metric in names]) for i, p in enumerate(part.played)]
    said = "<p class=lead>In percent, mean over clients, under each method's own view.</p>"
    return "<h3>Other metrics</h3>" + said + table(["method", *names], rows, part)


def wire(part: Part) -> str:
    charts = figures.wire(part)
    rows = [(i, _wire_row(p)) for i, p in enumerate(part.played)]
    head = [
        "method",
        "MB up a round",
        "MB down a round",
        "exchanges a round",
        "MB in all",
        "training\u00a0s",
        "evaluation\u00a0s",
        "pictures\u00a0s",
    ]
    caption = {
        "megabytes": "How to read: further left is cheaper; a method that sends nothing stands at zero.",
        "messages": "How to read: one exchange is one trip to all clients and back; lock-step methods need many.",
    }
    grid = "".join(figure(chart, caption[name]) for name, chart in charts.items())
    return (
        "<h2>What crossed the wire</h2><p class=lead>Sums over all clients, both ways, a seed; the broadcast is "
        f"counted once for each client.</p><div class=grid>{grid}</div>{table(head, rows, part)}"
    )


def _wire_row(played: Played) -> list[Cell]:
    total = {m: figures.total(played, m) for m in ("bytes_up", "bytes_down", "messages")}
    n = max(played.reached, 1)
    megabytes = [plain(total[m] / n / 1e6, ",.3f") for m in ("bytes_up", "bytes_down")]
    timing = played.document.get("timing", {})
    seconds = [plain(timing.get(f"{what}_s"), ",.1f") for what in ("train", "evaluate", "pictures")]
    sent = total["bytes_up"] + total["bytes_down"]
    return [*megabytes, plain(total["messages"] / n, ",.4g"), plain(sent / 1e6, ",.1f"), *seconds]


def notes(part: Part) -> str:
    """What happened on the way: cut runs, skipped batches, switches."""
    found = []
    for p in part.played:
        name = f"<b>{escape(p.method)}</b>"
        if not p.finished:
            found.append(
                f"{name} is not finished: {p.reached} of {several(p.rounds, 'round')}; it takes part in no test."
            )
        if set(p.seeds) != set(part.seeds):
            found.append(f"{name} has seeds {', '.join(map(str, p.seeds))}; tests use those that methods share.")
        skipped = p.over(lambda f: f["client"], metric="skipped")
        for client, seeds in skipped.items():
            count = int(sum(v for rounds in seeds.values() for v in rounds.values()))
            if count:
                batches = "batch" if count == 1 else "batches"
                found.append(f"{name}: {escape(client)} skipped {count:,} {batches} too small to normalise.")
        found += [f"{name}: {said}" for said in _switches(p)]
    return "<h2>On the way</h2>" + listed(found) if found else ""


def _switches(p: Played) -> list[str]:
    """When a method's phases began."""
    first: dict[str, dict[int, int]] = {}
    for fact in p.facts:
        if fact["metric"].startswith("latched/") and fact["value"]:
            rounds = first.setdefault(fact["metric"].removeprefix("latched/"), {})
            rounds[fact["seed"]] = min(fact["round"], rounds.get(fact["seed"], fact["round"]))
    return [
        f"the phase of {escape(name)} began with round {' or '.join(str(r + 1) for r in sorted(set(rounds.values())))}."
        for name, rounds in first.items()
    ]
