"""The report's numbers against hand computations, and what it must not do: mix, hide, run what a name says."""

import importlib.util
import itertools
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats

import normfed as nf
from normfed import report
from normfed.report import noise, svg, theme
from normfed.report.read import Spread, read
from normfed.text import toml

from report_folder import a_run, records


def page(folder):
    return report.write(folder).read_text()


class Text(HTMLParser):
    """The rows of the page's tables as text, and every tag."""

    def __init__(self, html):
        super().__init__()
        self.rows, self.tags, self.urls, self._row = [], [], [], None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.urls += [v for k, v in attributes if k in ("href", "src", "xlink:href", "action") and v]
        if tag == "tr":
            self._row = []
            self.rows.append(self._row)
        elif tag in ("td", "th") and self._row is not None:
            self._row.append("")

    def handle_endtag(self, tag):
        if tag == "tr":
            self._row = None

    def handle_data(self, data):
        if self._row:
            self._row[-1] += data


def table(html, column):
    """The rows of the table that has this head, without the head."""
    rows = Text(html).rows
    start = next(i for i, row in enumerate(rows) if column in row)
    return [
        [cell.strip() for cell in row] for row in itertools.takewhile(lambda row: row[0] != "method", rows[start + 1 :])
    ]


# ------------------------------------------------------------------------------------------------------- the test


@pytest.mark.parametrize("freedom", range(1, 12))
def test_students_distribution(freedom):
    for t in (0.0, 0.3, 1.0, 2.5, 12.0):
        assert noise.two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-12)


def test_the_paired_test_is_scipys():
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.9, 0.01, 5), rng.normal(0.89, 0.01, 5)
    found = noise.paired_t(dict(enumerate(a)), dict(enumerate(b)))
    assert found == (pytest.approx(stats.ttest_rel(a, b).pvalue), 5)


def spread(*values):
    return Spread.of(dict(enumerate(values)))


def test_the_best_is_marked_only_where_it_is_more_than_noise():
    clear = noise.verdict({"a": spread(0.90, 0.91, 0.92), "b": spread(0.70, 0.72, 0.71)})
    assert clear.best == "a" and clear.marked
    close = noise.verdict({"a": spread(0.90, 0.70, 0.92), "b": spread(0.89, 0.72, 0.90), "c": spread(0.1, 0.12, 0.11)})
    assert close.best == "a" and not close.marked and close.why.startswith("b is within the noise (p = ")
    few = noise.verdict({"a": spread(0.9, 0.91), "b": spread(0.7, 0.72)})
    assert not few.marked and few.why == "2 seeds in common with b, the test needs 3"
    same = noise.verdict({"a": spread(0.5, 0.5, 0.5), "b": spread(0.4, 0.4, 0.4)})
    assert not same.marked and same.why == "ahead of b by the same in every seed"
    assert noise.verdict({"a": spread(0.9, 0.8, 0.7)}) is None
    unpaired = noise.verdict({"a": spread(0.9, 0.91, 0.92), "b": Spread.of({7: 0.1, 8: 0.1, 9: 0.1})})
    assert not unpaired.marked and unpaired.why.startswith("0 seeds in common")


# ------------------------------------------------------------------------------------------------------- numbers


def test_numbers_of_the_tables(tmp_path):
    a_run(tmp_path / "fedavg", "fedavg", 0.5, view="global")
    a_run(tmp_path / "fedbn", "fedbn", 0.8)
    html = page(tmp_path)
    north = np.array([0.5, 0.501, 0.502])
    south = np.array([0.51, 0.512, 0.514])
    both = (north + south) / 2

    def said(values):
        return f"{100 * values.mean():.1f} ± {100 * values.std(ddof=1):.1f}"

    first, second = table(html, "worst client")
    assert first == ["fedavg", "global", said(north), said(south), said(both), said(north)]
    assert second[:2] == ["fedbn", "own"] and second[2] == said(north + 0.3)
    assert "<b>fedbn</b> has the best average" in html
    assert table(html, "pooled")[1][1:] == [said(both + 0.3), "–", said((both + 0.3) / 2)]  # own, global, pooled
    wire = table(html, "MB up a round")[0]
    assert wire[1:6] == ["3.000", "1.000", "2", "16.0", "1.5"]


def test_the_selected_round_is_the_runs(tmp_path):
    document = a_run(tmp_path, "fedavg")
    document["final"]["selected_round"] = {"0": 0, "1": 1, "2": 3}
    (tmp_path / "result.json").write_text(json.dumps(document))
    (part,) = read(tmp_path)
    assert part.played[0].accuracy()["north"].by_seed == pytest.approx({0: 0.125, 1: 0.251, 2: 0.502})


def test_one_run_and_a_comparison_and_documents_alone(tmp_path):
    a_run(tmp_path / "one", "fedavg")
    html = page(tmp_path / "one")
    assert "fedavg" in html and 'class="chip"' not in html
    result = nf.simulate(*_toy(), rounds=2, batch_size=4, views="all").to_dict("demo")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "comparison.json").write_text(json.dumps({"schema": 1, "results": [result]}))
    assert table(page(tmp_path / "two"), "worst client")[0][0] == "fedavg"


def _toy():
    from normfed.testing import ResidualNet, seeded, toy_federation

    return seeded(ResidualNet), toy_federation(), nf.methods.fedavg()


# ------------------------------------------------------------------------------------------------------- honesty


def test_runs_that_differ_in_more_than_method_are_not_mixed(tmp_path):
    a_run(tmp_path / "a", "fedavg", 0.5)
    a_run(tmp_path / "b", "fedbn", 0.8, rounds=6)
    a_run(tmp_path / "c", "silobn", 0.7, config={"partition_seed": 1})
    html = page(tmp_path)
    assert len(read(tmp_path)) == 3
    assert "shown apart and not compared: partition_seed, rounds." in html
    assert "has the best average" not in html and 'class="best"' not in html


def test_settings_that_differ_by_method_are_told(tmp_path):
    a_run(tmp_path / "a", "fedavg", 0.5)
    a_run(tmp_path / "b", "fedwon", 0.8, config={"lr": 0.05})
    html = page(tmp_path)
    assert len(read(tmp_path)) == 1 and "<code>lr</code> differs: fedavg 0.1, fedwon 0.05." in html


def test_a_cut_run_shows_what_is_there_and_takes_part_in_no_test(tmp_path):
    a_run(tmp_path / "a", "fedavg", 0.5)
    a_run(tmp_path / "b", "fedbn", 0.8, finished=False, cut=2)
    with (tmp_path / "b" / "records.jsonl").open("a") as file:
        file.write('{"seed": 0, "round": 2, "metr')  # cut in the middle of a line
    html = page(tmp_path)
    assert [row[0] for row in table(html, "worst client")] == ["fedavg", "fedbn 2 of 4 rounds"]
    assert "is not finished: 2 of 4 rounds; it takes part in no test." in html
    assert "has the best average" not in html


def test_a_run_cut_while_its_seeds_were_played(tmp_path):
    for seed in (0, 1):
        a_run(tmp_path / f"seed-{seed}", "fedbn", seeds=(seed,), finished=seed == 0)
    (tmp_path / "config.toml").write_text(toml({"method": "fedbn", "seeds": [0, 1], "rounds": 4}))
    (part,) = read(tmp_path)
    assert part.played[0].seeds == [0, 1] and not part.played[0].finished and page(tmp_path)


def test_skipped_batches_and_switches_are_noted(tmp_path):
    extra = ({"metric": "skipped", "client": "north", "value": 1}, {"metric": "latched/fixbn", "value": 1})
    a_run(tmp_path, "fixbn", extra=extra)
    html = page(tmp_path)
    assert "<b>fixbn</b>: north skipped 12 batches too small to normalise." in html
    assert "<b>fixbn</b>: the phase of fixbn began with round 1." in html


def test_pictures_that_do_not_apply_and_those_not_taken(tmp_path):
    a_run(tmp_path / "a" / "x", "fedbn")
    a_run(tmp_path / "a" / "y", "fedwon", pictures=False)
    html = page(tmp_path / "a")
    assert "<code>divergence</code> does not apply to fedwon: no BatchNorm layer with running statistics." in html
    a_run(tmp_path / "b", "fedbn", pictures=False)
    assert "Not recorded: run with <code>--set pictures=all</code>." in page(tmp_path / "b")


def test_names_are_text_and_nothing_else(tmp_path):
    evil = '<script>alert("x")</script>&\'"</style>'
    facts = [
        {**fact, "client": evil} if "client" in fact and fact["client"] != "all" else fact for fact in records(0.5)
    ]
    facts = [{**fact, "layer": evil} if "layer" in fact else fact for fact in facts]
    document = a_run(tmp_path / "a", evil)
    a_run(tmp_path / "b", "fedavg")
    (tmp_path / "a" / "records.jsonl").write_text("\n".join(map(json.dumps, facts)))
    (tmp_path / "a" / "result.json").write_text(json.dumps({**document, "recipe": evil}))
    html = page(tmp_path)
    assert "<script>alert" not in html and html.count("</style>") == 1
    parsed = Text(html)
    assert parsed.tags.count("script") == 1 + html.count('<script type="application/json">')
    for data in re.findall(r'<script type="application/json">(.*?)</script>', html):
        json.loads(data)


def test_the_page_asks_nothing_of_the_network(tmp_path):
    a_run(tmp_path, "fedbn")
    html = page(tmp_path)
    assert all(url.startswith(("#", "data:")) for url in Text(html).urls)
    assert not re.search(r"url\((?!#)|@import|https?://", html) and "default-src 'none'" in html


def test_the_same_bytes_every_time(tmp_path):
    a_run(tmp_path / "a", "fedavg")
    a_run(tmp_path / "b", "fedbn", 0.8)
    first = report.write(tmp_path).read_bytes()
    assert report.write(tmp_path).read_bytes() == first and len(first) < 1.5e6


def test_without_matplotlib_the_tables_stand(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "matplotlib" else found(name, *a))
    a_run(tmp_path, "fedbn")
    html = page(tmp_path)
    assert "<svg" not in html and "pip install 'normfed[report]'" in html and table(html, "worst client")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "is not a folder"),
        (lambda folder: folder.mkdir(), "is not the folder of a run or of a comparison"),
        (lambda folder: (folder.mkdir(), (folder / "result.json").write_text("{")), "result.json is damaged"),
        (lambda folder: (folder.mkdir(), (folder / "config.toml").write_text("=")), "config.toml is damaged"),
    ],
)
def test_folders_that_hold_no_run(tmp_path, make, said):
    make(tmp_path / "x")
    with pytest.raises(nf.Refused, match=said):
        report.write(tmp_path / "x")
    assert not (tmp_path / "x" / "report.html").exists()


def test_many_clients_and_long_runs_stay_small(tmp_path):
    facts = [
        {"seed": 0, "round": r, "metric": "accuracy", "split": "test", "view": "own", "client": f"site {k}", "value": 0.5 + k / 100 + r / 1e4}
        for r in range(400) for k in range(40)
    ]  # fmt: skip
    a_run(tmp_path, "fedbn")
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, facts)))
    html = page(tmp_path)
    assert "The first 12 of 40 clients." in html and len(html) < 400_000
    average, worst = 0.5 + 0.195 + 0.0003, 0.5 + 0.0003  # of round 3, which the result says is the last
    assert table(html, "worst client")[0][1:] == ["own", f"{100 * average:.1f}", f"{100 * worst:.1f}"]


# ------------------------------------------------------------------------------------------------------- colours


def luminance(code):
    c = np.array([int(code[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a, b):
    high, low = sorted((luminance(code) @ [0.2126, 0.7152, 0.0722] for code in (a, b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


# Machado, Oliveira, Fernandes (2009), severity 1; OKLab (Ottosson, 2020) for the distance.
BLINDNESS = {
    "none": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def lab(code, matrix):
    return LAB @ np.cbrt(LMS @ np.clip(matrix @ luminance(code), 0, 1))


@pytest.mark.parametrize(
    ("series", "page_colours"), [(theme.SERIES_LIGHT, theme.LIGHT), (theme.SERIES_DARK, theme.DARK)]
)
def test_colours_can_be_read_and_told_apart(series, page_colours):
    paper = page_colours["paper"]
    assert all(contrast(code, paper) >= 3 for code in series), "a line needs 3:1"
    assert all(contrast(page_colours[name], paper) >= 4.5 for name in ("ink", "muted", "accent")), "text needs 4.5:1"
    assert contrast(page_colours["muted"], page_colours["tint"]) >= 4.5
    assert len(series) == len(set(series)) == svg.SERIES
    for name, matrix in BLINDNESS.items():
        nearest = min(
            100 * np.linalg.norm(lab(a, matrix) - lab(b, matrix)) for a, b in itertools.combinations(series, 2)
        )
        assert nearest > 5, f"{name}: two colours are {nearest:.1f} apart"
