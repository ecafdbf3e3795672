"""Cost is measured in turns; every method has a card with all that a reader asks."""

import dataclasses
import json
from pathlib import Path

import pytest

import normfed as nf
from normfed import tables
from normfed.evidence import cards, cost
from normfed.methods import METHODS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home") / "results"
    folder.mkdir()
    ratios = dict.fromkeys(METHODS, 1.5) | {"fedavg": 1.0}
    without = {name: ratio for name, ratio in ratios.items() if name != "fixup"}
    cases = {"small": {"fedavg_seconds": 0.25, "ratios": without}, "deep": {"fedavg_seconds": 0.5, "ratios": ratios}}
    (folder / "cost.json").write_text(json.dumps({"cases": cases}))
    return folder


@pytest.fixture(scope="module")
def pages(results):
    return cards.page(results)


def test_a_ratio_is_to_fedavg_in_the_same_turn(monkeypatch):
    case = dataclasses.replace(cost.CASES["two convolutions, serial"], clients=1, samples=16)
    taken = iter([9.0, 9.0] * cost.WARM + [1.0, 2.0] + [2.0, 5.0] + [4.0, 40.0])
    monkeypatch.setattr(cost, "seconds", lambda run: next(taken))
    found = cost.measure(case, {"fedavg": "fedavg", "greg": "greg", "fixup": "fixup"}, turns=3)
    assert found == {"fedavg_seconds": 2.0, "ratios": {"fedavg": 1.0, "greg": 2.5}}  # fixup: no residual branches


def test_terms_that_start_later_are_in_what_is_measured():
    case = dataclasses.replace(cost.CASES["two convolutions, serial"], clients=1, samples=32)
    found = cost.measure(case, {"fedavg": "fedavg", "greg": "greg"}, turns=3)
    assert found["ratios"]["fedavg"] == 1.0 and found["ratios"]["greg"] > 1.1, "a second pass is to be paid for"
    run = cost.started(case, "fixbn(t=0)")
    assert cost.seconds(run) > 0 and run.history[0]["latched"], "fixbn is measured after its switch"


def test_the_page_of_costs(results):
    text = cost.page(results)["docs/cost.md"]
    assert "| [fixup](methods/fixup.md) | – | 1.50 |" in text and "small: 0.25 s, deep: 0.50 s" in text
    assert set(cost.WHY) <= set(METHODS)


def test_slower_methods_are_explained():
    cases = cost.read(Path(__file__).parents[2] / "results")
    slow = {name for case in cases.values() for name, ratio in case["ratios"].items() if ratio >= cost.SLOW}
    assert slow <= set(cost.WHY) and {"greg", "hbn"} <= slow
    assert set(METHODS) == {name for case in cases.values() for name in case["ratios"]}


def test_without_results_the_command_is_named(tmp_path):
    with pytest.raises(nf.Refused, match=r"python -m normfed\.evidence\.cost makes it"):
        cost.read(tmp_path / "results")


def test_every_method_has_a_card(pages):
    assert set(pages) == {"docs/methods/index.md", *(f"docs/methods/{name}.md" for name in METHODS)}
    index = pages["docs/methods/index.md"]
    for name in METHODS:
        text = pages[f"docs/methods/{name}.md"]
        assert text.startswith(f"# {name}\n") and f"normfed.methods.{name}(" in text and f"[{name}]({name}.md)" in index
        for part in ("Use it when", "It cannot", "## State", "## On the wire", "## Cost", "## Composes", "## Paper"):
            assert part in text, (name, part)


def test_a_card_says_what_its_method_does(pages):
    text = pages["docs/methods/fedbn.md"]
    assert "- at home: 38 × gains and offsets, 38 × running statistics, 19 × counters" in text
    assert "- `fedbn+silobn = fedbn`" in text and "Li et al., ICLR 2021" in text and "not with" in text
    tan = pages["docs/methods/fedtan.md"]
    assert "| a round | 1069.9 kB | 1069.9 kB | 39 |" in tan, "2L + 1 messages for 19 layers"
    hbn = pages["docs/methods/hbn.md"]
    assert "added to it: 19 × `distribution_factor`" in hbn and "`hbn/own`, held by the client" in hbn
    assert "| before an evaluation | 5.5 kB |" in hbn
    assert "| after the switch of `fixbn` |" in pages["docs/methods/fixbn.md"]
    assert "(keep: str | Select = 'norm')" in pages["docs/methods/partialfed.md"]


def test_the_pages_are_registered():
    assert {"cards", "cost", "phenomena"} <= set(tables.TABLES)
