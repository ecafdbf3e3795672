"""The table of what leaves a site says what the methods do."""

import re
from pathlib import Path

from normfed.expression import parse
from normfed.methods import METHODS
from normfed.plan import build
from normfed.state import Role
from normfed.testing import ResidualNet, seeded, toy_federation

PAGE = (Path(__file__).parents[2] / "docs" / "which-method.md").read_text()
TABLE = PAGE.partition("| method | running statistics |")[2].partition("\n\n")[0]
ROWS = re.findall(r"^\| (`.*?`) \| (\S+) \| (\S+) \| (.*?) \| (\S+) \|$", TABLE, re.M)


def sent(name):
    """(statistics leave, gains leave, something beside the model leaves, sums suffice) in the first phase."""
    plan = build(parse(name), seeded(ResidualNet), toy_federation()["a"].train[0])
    phase, entries = plan.first, {e.name: e for e in plan.net.entries}
    roles = {entries[n].role for n in phase.uploaded}
    floating = [r for r, names in phase.reducers if any(entries[n].dtype.is_floating_point for n in names)]
    reducers = [*floating, *(report.reducer for _, report in phase.reports)]
    by_site = bool(plan.gathers) or phase.lockstep or phase.weigh is not None
    beside = by_site or bool(phase.reports) or Role.BUFFER in roles
    return Role.NORM_STAT in roles, Role.NORM_AFFINE in roles, beside, all(r.linear for r in reducers) and not by_site


def test_every_method_is_there_once():
    named = [name for row in ROWS for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(named) == sorted(METHODS)


def test_what_it_says_is_what_they_do():
    for names, statistics, gains, beside, sums in ROWS:
        for name in re.findall(r"`(\w+)`", names):
            if name != "centralized":
                said = (statistics == "yes", gains == "yes", beside != "–", sums == "yes")
                assert said == sent(name), name


def test_methods_named_on_the_page_exist():
    known = {*METHODS, "weighting", "linear", "explain"}
    for text in re.findall(r"`([a-z_+]+(?:\(.*?\))?)`", PAGE):
        for part in text.split("+"):
            assert part.partition("(")[0] in known, text
