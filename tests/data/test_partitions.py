"""Partitions: the papers' settings to the sample, what every step promises, golden hashes, and bad texts."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import normfed as nf
from normfed.data.deal import DEALS, alike, dirichlet_draws, log_gamma_draws
from normfed.data.partition import parse, partition, text_of
from normfed.data.steps import STEPS


def labelled(n, classes=10):
    return np.arange(n) % classes


def by_domain(sizes, tested=None, classes=10):
    """(labels, domains, test) of domains with these numbers of training and test samples."""
    tested = tested or dict.fromkeys(sizes, 0)
    names = [(name, which) for name in sizes for which in ("train", "test")]
    counts = [{"train": sizes, "test": tested}[which][name] for name, which in names]
    labels = np.concatenate([labelled(n, classes) for n in counts])
    domains = np.repeat([name for name, _ in names], counts).tolist()
    return labels, domains, np.repeat([which == "test" for _, which in names], counts)


def dealt(text, sizes, tested=None, classes=10, key=0):
    labels, domains, test = by_domain(sizes, tested, classes)
    return labels, partition(text, labels, key=key, test=test, domains=domains)


def counts(parts, split="train"):
    return {name: len(part.rows(split)) for name, part in parts.items()}


def refused(*arguments, **named):
    with pytest.raises(nf.Refused) as raised:
        partition(*arguments, **named)
    return raised.value.problems


# ------------------------------------------------------------------------------------------ the papers' settings

FEDBN = {"mnist": 56000, "svhn": 79431, "usps": 7438, "synth": 391162, "mnist_m": 56000}


def test_fedbn_digits_four_fifths_of_each_source_train():
    sizes = {"mnist": 70000, "svhn": 99289, "usps": 9298, "synth": 488953, "mnist_m": 70000}
    _, parts = dealt("domain / split(0.2)", sizes)
    assert counts(parts) == FEDBN
    assert counts(parts, "test") == {name: sizes[name] - FEDBN[name] for name in sizes}


def test_fedbn_digits_743_samples_for_each():
    _, parts = dealt("domain / at_most(7438) / fraction(0.1)", FEDBN)
    assert set(counts(parts).values()) == {743}


@pytest.mark.parametrize(
    ("share", "kept"), [(1, 7438), (0.6, 4462), (0.4, 2975), (0.2, 1487), (0.1, 743), (0.05, 371), (0.01, 74)]
)
def test_fedbn_digits_sizes(share, kept):
    """In the authors' code: so many of ten parts of 743.8; below 10 %, so much of the first part."""
    _, parts = dealt(f"domain / at_most(7438) / fraction({share})", {"usps": 7438, "mnist": 9000})
    assert set(counts(parts).values()) == {kept}
    ends = (7438 * np.arange(11) / 10).astype(int)
    code = ends[int(share * 10)] if share >= 0.1 else int(ends[1] * share * 10)
    assert kept == code


def test_fedbn_digits_unequal():
    _, parts = dealt("domain / fraction(0.1)", FEDBN)
    assert counts(parts) == {"mnist": 5600, "svhn": 7943, "usps": 743, "synth": 39116, "mnist_m": 5600}


def test_ten_parts_of_the_digits():
    _, parts = dealt("domain / clients(10)", {"usps": 7438})
    assert sorted(counts(parts).values()) == [743] * 2 + [744] * 8 and len(parts) == 10
    assert list(parts)[:2] == ["usps-0", "usps-1"]


OFFICE = {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295}


def test_office_62_samples_and_the_test_sizes_of_the_papers():
    _, parts = dealt("domain / hold_out(0.2) / truncate(0.5, val=0.4)", OFFICE)
    assert set(counts(parts).values()) == {62} and set(counts(parts, "val").values()) == {50}
    assert counts(parts, "test") == {"amazon": 192, "caltech": 225, "dslr": 32, "webcam": 59}
    for part in parts.values():
        assert len(np.unique(part.everything)) == 62 + 50 + len(part.test)


def test_domainnet_105_samples():
    _, parts = dealt("domain / truncate(0.05, val=0.05)", {"clipart": 2103, "real": 4863})
    assert set(counts(parts).values()) == set(counts(parts, "val").values()) == {105}


@pytest.mark.parametrize(("each", "sizes"), [(20, {371, 372}), (200, {37, 38})])
def test_fedwon_100_and_1000_clients(each, sizes):
    _, parts = dealt(f"domain / at_most(7438) / clients({each})", dict.fromkeys(FEDBN, 7500))
    assert len(parts) == 5 * each and set(counts(parts).values()) == sizes
    per_domain = [sum(n for name, n in counts(parts).items() if name.startswith(f"{d}-")) for d in FEDBN]
    assert per_domain == [7438] * 5


@pytest.mark.parametrize("per_client", [1, 5, 10])
def test_fedbn_clients_of_a_source(per_client):
    _, parts = dealt(f"domain / fraction({per_client / 10}) / clients({per_client})", {"usps": 7438})
    assert len(parts) == per_client and set(counts(parts).values()) <= {743, 744}


def test_fedbs_200_shards_of_300():
    labels, parts = dealt('clients(100, test="apart") / shards(2, size=300)', {"": 60000}, {"": 10000})
    assert parts["test"].role == "evaluate" and counts(parts, "test").pop("test") == 10000
    clients = [part for name, part in parts.items() if name != "test"]
    assert len(clients) == 100 and {len(p.train) for p in clients} == {600}
    assert max(len(np.unique(labels[p.train])) for p in clients) <= 2


def test_fedbs_1200_shards_of_50():
    _, parts = dealt("clients(100) / shards([1, 30], size=50)", {"": 60000})
    shards = np.array(list(counts(parts).values())) / 50
    assert shards.sum() == 1200 and shards.min() >= 1 and shards.max() <= 30 and (shards % 1 == 0).all()
    assert shards.std() > 5
    assert len(np.unique(np.concatenate([p.train for p in parts.values()]))) == 60000


@pytest.mark.parametrize("n", [2, 4, 6, 8, 10])
def test_fedtan_n_classes_for_each_of_five(n):
    labels, parts = dealt(f'clients(5, test="whole") / classes({n})', {"": 50000}, {"": 10000})
    for i, part in enumerate(parts.values()):
        assert set(labels[part.train]) == {(2 * i + j) % 10 for j in range(n)}
        held = np.bincount(labels[part.train], minlength=10)
        assert np.abs(held[held > 0] - 5000 / (n / 2)).max() < 1
        assert len(part.test) == 10000
    assert all(abs(kept - 10000) < n for kept in counts(parts).values())


def test_fedtan_sorted_blocks():
    labels, parts = dealt("clients(5) / blocks", {"": 50000})
    assert [sorted(set(labels[p.train])) for p in parts.values()] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


WILDS = {"hospital1": 59436, "hospital2": 34904, "hospital3": 85054, "hospital4": 129838, "hospital5": 146722}
DOMAINNET = {"clipart": 526, "infograph": 657, "painting": 619, "quickdraw": 1000, "real": 1217, "sketch": 554}
GREG = {  # text, training and validation samples for everyone, samples of each domain, test samples as printed
    "pacs": ("domain / split(0.3) / truncate(0.5, val=0.2)", 584, 233,
             {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}, [615, 704, 501, 1179]),
    "vlcs": ("domain / split(0.3) / truncate(0.3, val=0.3)", 297, 297,
             {"caltech101": 1415, "labelme": 2656, "sun09": 3282, "voc2007": 3376}, [425, 797, 985, 1013]),
    "camelyon17": ("domain / fraction(0.03, up=true) / split(0.3) / truncate(0.4, val=0.4)", 293, 293,
                   WILDS, [536, 315, 766, 1169, 1321]),
}  # fmt: skip


@pytest.mark.parametrize("name", GREG)
def test_greg_sizes(name):
    """As printed, but for one image: of LabelMe's 2,656 the paper tests on 796."""
    text, train, val, sizes, test = GREG[name]
    _, parts = dealt(text, sizes)
    assert set(counts(parts).values()) == {train} and set(counts(parts, "val").values()) == {val}
    assert list(counts(parts, "test").values()) == test


def test_greg_domainnet_keeps_the_test_sets_of_the_files():
    """Four fifths of each domain's ten classes are for training: clipart's 2,103 are the fewest."""
    sizes = {name: 2103 if name == "clipart" else 4 * n for name, n in DOMAINNET.items()}
    _, parts = dealt("domain / truncate(0.3, val=0.1)", sizes, DOMAINNET)
    assert set(counts(parts).values()) == {630} and set(counts(parts, "val").values()) == {210}
    assert counts(parts, "test") == DOMAINNET


def test_greg_a_hundred_clients_of_pacs():
    _, parts = dealt("domain / split(0.3) / at_most(1150) / clients(25)", GREG["pacs"][3])
    assert len(parts) == 100 and set(counts(parts).values()) == {46}


def test_greg_cifar_dirichlet_of_2500():
    labels, parts = dealt("clients(10) / dirichlet(0.3, size=2500)", {"": 50000})
    assert set(counts(parts).values()) == {2500}
    assert len(np.unique(np.concatenate([p.train for p in parts.values()]))) == 25000
    most = [np.bincount(labels[p.train]).max() / 2500 for p in parts.values()]
    assert np.mean(most) > 0.3


def test_one_domain_left_out():
    _, parts = dealt('domain / leave_out("sketch")', GREG["pacs"][3], dict.fromkeys(GREG["pacs"][3], 10))
    assert parts["sketch"].role == "unseen" and len(parts["sketch"].test) == 3939
    assert {p.role for n, p in parts.items() if n != "sketch"} == {"train"}


# ---------------------------------------------------------------------------------------------- what steps promise

TEXTS = (
    "clients(7)", "clients(7) / iid", "clients(7) / dirichlet(0.5, least=1)", "clients(7) / shards(2)",
    "clients(7) / shards([1, 4], size=5)", "clients(7) / classes(3)", "clients(7) / blocks", "clients(5) / quantity(0.7)",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@settings(max_examples=12, deadline=None)
@given(n=st.integers(150, 400), classes=st.integers(3, 10), key=st.integers(0, 2**40))
def test_nobody_gets_a_sample_twice_and_tests_go_where_their_classes_went(text, n, classes, key):
    labels = np.random.default_rng(key).integers(0, classes, n)
    test = np.arange(n) % 4 == 0
    parts = partition(text, labels, key=key, test=test)
    rows = np.concatenate([p.train for p in parts.values()])
    assert len(np.unique(rows)) == len(rows) and not test[rows].any()
    if "size=" not in text and not ("classes" in text and classes > 7):
        assert len(rows) == (~test).sum()
    tested = np.concatenate([p.test for p in parts.values()])
    assert len(np.unique(tested)) == len(tested) and test[tested].all()
    for part in parts.values():
        assert set(labels[part.test]) <= set(labels[part.train])


@pytest.mark.parametrize("text", TEXTS)
def test_a_partition_is_a_function_of_its_key(text):
    labels = labelled(300)

    def rows(key):
        return [p.everything.tolist() for p in partition(text, labels, key=key).values()]

    assert rows(1) == rows(1)
    assert (rows(1) == rows(2)) == ("blocks" in text)


def test_equal_shares_stay_equal_when_tests_are_dealt_alike():
    labels = labelled(2000)
    parts = DEALS["iid"](labels, 20, 5)
    sizes = [len(part) for part in alike(parts, labels, labelled(100), 5)]
    assert sum(sizes) == 100 and max(sizes) - min(sizes) <= 2


def test_steps_inside_a_domain_do_not_see_the_others():
    sizes, tested = {"a": 400, "b": 500}, {"a": 100, "b": 100}
    _, both = dealt("domain / clients(4) / dirichlet(0.3)", sizes, tested)
    labels, domains, test = by_domain(sizes, tested)
    one = np.array(domains) == "a"
    alone = partition("domain / clients(4) / dirichlet(0.3)", labels[one], test=test[one], domains=["a"] * one.sum())
    assert [both[f"a-{i}"].train.tolist() for i in range(4)] == [alone[f"a-{i}"].train.tolist() for i in range(4)]


def test_a_split_keeps_classes_in_proportion_and_copies_together():
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    parts = partition("split(0.2)", labels)
    assert np.bincount(labels[parts[""].test]).tolist() == [120, 60, 20]

    from normfed.data.partition import apply
    from normfed.data.steps import Part, World

    twins = np.arange(1000)
    twins[1:900:2] = twins[0:900:2]  # the first 900 are pairs
    world = World(labels, twins=lambda: twins)
    split = apply(parse("hold_out(0.05, val=0.05)"), {"": Part(train=np.arange(1000))}, world, 3)[""]
    assert len(split.test) == len(split.val) == 50
    assert min(split.test.min(), split.val.min()) >= 900 and len(np.unique(split.everything)) == 1000


def test_hold_out_leaves_a_test_set_alone_and_split_does_not():
    labels, test = labelled(100), np.arange(100) >= 90
    held = partition("hold_out(0.5, val=0.1)", labels, test=test)[""]
    assert held.test.tolist() == list(range(90, 100)) and len(held.val) == 9 and len(held.train) == 81
    assert len(partition("split(0.5)", labels, test=test)[""].test) == 50


def test_small_steps():
    sizes, tested = {"a": 50, "b": 30, "c": 20}, {"a": 10, "b": 10, "c": 10}
    _, parts = dealt('domain / only("c", "a")', sizes, tested)
    assert list(parts) == ["c", "a"]
    _, parts = dealt('domain / without("c")', sizes, tested)
    assert list(parts) == ["a", "b"]
    _, parts = dealt('domain / evaluate("b") / clients(2)', sizes, tested)
    assert {n: p.role for n, p in parts.items()} == {
        "a-0": "train",
        "a-1": "train",
        "b": "evaluate",
        "c-0": "train",
        "c-1": "train",
    }
    _, parts = dealt("domain / first(20)", sizes, tested)
    assert parts["b"].train.tolist() == list(range(60, 80))
    _, parts = dealt("domain / at_most(25, test=4)", sizes, tested)
    assert counts(parts) == {"a": 25, "b": 25, "c": 20} and set(counts(parts, "test").values()) == {4}
    _, parts = dealt("domain / fraction(0.5, test=0.3)", sizes, tested)
    assert counts(parts) == {"a": 25, "b": 15, "c": 10} and set(counts(parts, "test").values()) == {3}
    _, parts = dealt('domain / clients(2, test="apart")', sizes, tested)
    assert list(parts)[:3] == ["a-0", "a-1", "a-test"] and len(parts["a-test"].test) == 10
    _, parts = dealt("clients(12)", sizes)
    assert list(parts)[-1] == "client-11" and next(iter(parts)) == "client-00"


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 4.0])
def test_gamma_draws_have_the_moments_of_gamma(alpha):
    draws = np.exp(log_gamma_draws(3, (200_000,), alpha))
    assert abs(draws.mean() - alpha) < 0.02 * max(1, alpha) and abs(draws.var() - alpha) < 0.06 * max(1, alpha)


def test_dirichlet_rows_sum_to_one_even_where_alpha_is_tiny():
    draws = dirichlet_draws(1, 0.001, 50, 10)
    assert np.isfinite(draws).all() and np.allclose(draws.sum(1), 1)


# --------------------------------------------------------------------------- against flwr-datasets, where both have one
#
# What its 0.6.1 makes of 1,000 labels, ten classes of 100 each: run once, its facts kept here.


def test_iid_parts_are_as_equal_as_its_iid_partitioner_s():
    assert sorted(len(p) for p in DEALS["iid"](labelled(1000), 7, 0)) == sorted([143, 143, 143, 143, 143, 143, 142])


def test_shards_are_those_of_its_shard_partitioner():
    labels = np.repeat(np.arange(10), 100)
    parts = DEALS["shards"](labels, 10, 0, 2)
    assert [len(p) for p in parts] == [100] * 10 and {len(set(labels[p])) for p in parts} <= {1, 2}
    assert [len(p) for p in DEALS["shards"](labels, 5, 0, 2, size=50)] == [100] * 5


def test_classes_are_those_of_its_pathological_partitioner():
    """Deterministic assignment, 3 classes for each of 10 partitions; with fewer partitions than classes it leaves the
    last classes out, and ours go around the whole circle, as FedTAN's."""
    labels = np.repeat(np.arange(10), 100)
    parts = DEALS["classes"](labels, 10, 0, 3)
    theirs = [
        [0, 1, 2],
        [1, 2, 3],
        [2, 3, 4],
        [3, 4, 5],
        [4, 5, 6],
        [5, 6, 7],
        [6, 7, 8],
        [7, 8, 9],
        [0, 8, 9],
        [0, 1, 9],
    ]
    assert [sorted(set(labels[p].tolist())) for p in parts] == theirs
    assert all(98 <= len(p) <= 102 for p in parts)


@pytest.mark.parametrize(
    ("alpha", "mean_square", "size_std"),
    [(0.1, 0.538, 57.2), (0.3, 0.330, 46.4), (1.0, 0.180, 26.6), (10.0, 0.109, 9.2)],
)
def test_dirichlet_skews_as_its_dirichlet_partitioner(alpha, mean_square, size_std):
    """Over 60 seeds, 10 clients, least 10, no self-balancing: sum over clients of a class's squared shares, and the
    standard deviation of the clients' sizes. In expectation the first is (alpha + 1) / (10 alpha + 1)."""
    labels = np.repeat(np.arange(10), 100)
    tables = np.array(
        [[np.bincount(labels[p], minlength=10) for p in DEALS["dirichlet"](labels, 10, k, alpha)] for k in range(60)]
    )
    shares = tables / tables.sum(1, keepdims=True)
    assert abs((shares**2).sum(1).mean() - mean_square) < 0.07 * mean_square
    assert abs(tables.sum(2).std(1).mean() - size_std) < 0.1 * size_std


# ----------------------------------------------------------------------------------------------------- golden hashes

GOLDEN = {
    "domain": "ad99b6e48456f69d",
    "domain / clients(4)": "a85a9b3eb3204499",
    "domain / clients(4) / iid": "a85a9b3eb3204499",
    'domain / clients(4, test="whole") / dirichlet(0.5, least=2)': "da0a3fc86e3839d7",
    'clients(6, test="apart") / dirichlet(0.3, size=60)': "e61e1043de3fe745",
    "domain / clients(3) / shards(2)": "ea8d1fea01cdaaea",
    "clients(8) / shards([1, 12], size=10)": "b48136d38b8be19b",
    "clients(5) / classes(4)": "64aab9f837bccb1a",
    "clients(7) / blocks": "7705db1163076212",
    "domain / clients(4) / quantity(0.5)": "f83c0c5c8b5c4a90",
    "domain / fraction(0.3, test=0.5)": "0e01bd4cdef236b6",
    "domain / fraction(0.333, up=true)": "e09863d6be9ef497",
    "domain / at_most(100, test=20) / truncate(0.4, val=0.2)": "93ff1951bcf40bae",
    "domain / first(100) / hold_out(0.2, val=0.1)": "e581c6505ed79fc9",
    "domain / split(0.3, val=0.1)": "09c0877b1d48d1e1",
    'domain / only("webcam", "dslr")': "ebff7fb2e0d57830",
    'domain / without("dslr") / leave_out("webcam") / clients(2)': "5a0a072c0beb220b",
    'domain / evaluate("dslr")': "8e774131a705db10",
}


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_hashes(text):
    """A partition that moves changes everybody's numbers: it must be announced in the changelog."""
    assert fingerprint(text) == GOLDEN[text]


def fingerprint(text):
    sizes = {"amazon": 300, "dslr": 120, "webcam": 200}
    _, parts = dealt(text, sizes, dict.fromkeys(sizes, 40), key=11)
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(f"{name} {part.role}".encode())
        for split in ("train", "test", "val"):
            digest.update(np.asarray(part.rows(split), "<i8").tobytes())
    return digest.hexdigest()[:16]


def test_every_step_has_a_golden_hash():
    named = {called.name for text in GOLDEN for called in parse(text)}
    assert named == {*STEPS, *DEALS}


# -------------------------------------------------------------------------------------------------------------- text


def test_a_text_reads_back():
    text = 'domain / clients(20, test="whole") / shards([1, 30], size=50) / leave_out("a b")'
    assert text_of(parse(text)) == text and parse(text_of(parse(text))) == parse(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("domian", "unknown step 'domian' of a partition; did you mean 'domain'?"),
        ("dirichlet(0.3)", "dirichlet(0.3): to how many clients? Write clients(20) / dirichlet(0.3)"),
        ("clients(5) / fraction(0.5) / iid", "iid: to how many clients? Write clients(20) / iid"),
        ("clients", "clients: missing a required argument: 'n'; its arguments are (n: int, test: str = 'own')"),
        ("clients(0)", "clients(0): there must be one or more"),
        ("clients(2.5)", "clients: n=2.5 is not a whole number"),
        ('clients(2, test="all")', "clients: test='all'; choose from: apart, own, whole"),
        ("clients(4) / classes(11)", "classes(11): there are 10 classes"),
        ("clients(4) / shards(0)", "shards(0): shards per client are a number, 1 or more, or [least, most]"),
        ("clients(4) / shards([1, 3])", "shards: a number drawn between two bounds needs the size of a shard"),
        ("clients(40) / shards(2, size=10)", "shards: 40 clients need at least 80 shards; 100 samples make 10"),
        ("clients(4) / dirichlet(0)", "dirichlet(0): alpha must be above 0"),
        ("clients(4) / dirichlet(0.5, size=0)", "dirichlet: size=0 must be 1 or more"),
        ("clients(4) / quantity(-1)", "quantity(-1): alpha must be above 0"),
        ("clients(4) / shards(2, size=0)", "shards: size=0 must be 1 or more"),
        ("clients(40) / dirichlet(0.5)", "dirichlet(0.5) over 40 clients: no draw leaves every client 10 samples of 100"),
        ("clients(9) / dirichlet(0.001)", "dirichlet(0.001) over 9 clients: no draw leaves every client 10 samples of 100"),
        ("clients(4) / dirichlet(0.5, size=30)", "dirichlet: 4 clients of 30 samples need 120; there are 100"),
        ("clients(40) / quantity(0.5)", "quantity: 40 clients with at least 10 samples need 400; there are 100"),
        ("fraction(0)", "fraction(0): must be above 0 and at most 1"),
        ("fraction(0.5, test=2)", "fraction: test=2 must be above 0 and at most 1"),
        ("fraction(0.001)", "fraction(0.001): client '' has 100 samples and would keep none"),
        ("fraction(part=0.5)", "fraction: unknown argument 'part'; choose from: share, test"),
        ("at_most(0)", "at_most(0): there must be one or more"),
        ("first(101)", "first(101): client '' has 100 samples"),
        ("truncate(0.7, val=0.5)", "truncate(0.7, val=0.5): shares above 0, at most 1 in all"),
        ("truncate(0.001)", "truncate(0.001): the shortest list has 100 samples and would keep none"),
        ("hold_out(1)", "hold_out(1, 0): shares from 0 on, less than 1 in all"),
        ('domain / leave_out("webcan")', "leave_out: no client 'webcan'; choose from: client"),
        ("domain / only", "only: name one client or more"),
        ("domain / only(3)", "only: names=3 is not a string"),
        ("clients(200)", "client 'client-000': no training samples"),
        ("a b", "'a b' cannot be read; write for example domain / clients(20) / dirichlet(0.3)"),
        ('domain / evaluate("client") / without("client")', "the partition leaves no client"),
    ],
)  # fmt: skip
def test_a_bad_text_is_refused(text, said):
    assert any(problem.startswith(said) for problem in refused(text, labelled(100))), refused(text, labelled(100))


def test_every_problem_of_a_text_is_said():
    assert len(refused("domian / clints(3) / iid(4)", labelled(10))) == 3


def test_arrays_are_of_plain_numbers():
    part = partition("clients(2) / dirichlet(0.5)", labelled(100))["client-0"]
    assert part.train.dtype == np.int64 and torch.from_numpy(part.train).dtype == torch.int64
