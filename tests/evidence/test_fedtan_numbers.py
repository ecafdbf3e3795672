"""The traffic FedTAN's paper prints comes out of our accounting, and the defect of its script has the size the docs say."""

import pytest

from normfed.evidence import defect, traffic


def test_every_printed_number_of_tables_3_4_and_5():
    rows = traffic.rows()
    assert [(r.table, r.printed_volume) for r in rows] == [
        (3, "6.2679"), (3, "6.2049"), (3, "6.1734"), (4, "60.6563"), (4, "60.7178"), (4, "60.8408"), (4, "61.2100"),
        (5, "2.1388"), (5, "2.1397"), (5, "2.1408"),
    ]  # fmt: skip
    for r in rows:
        assert traffic.shown(r.volume, 4) == r.printed_volume, r
        if r.rounds is not None:
            assert traffic.shown(r.rounds, 2) == r.printed_rounds, r
            assert traffic.shown(r.bits, 4) == r.printed_bits, r
            assert r.fused < r.rounds, r


def test_what_is_counted_is_what_a_round_sends():
    """271 098 numbers with BatchNorm, 269 722 with GroupNorm, 2 x 1376 for the lock-step; 19 norm layers."""
    tan, plain, group = (traffic.sent(m, "resnet20") for m in ("fedtan", "fedavg", "groupnorm(groups=2)"))
    assert (tan.weights, tan.statistics, tan.collectives, tan.layers) == (269_722, 1_376, 2 * 1_376, 19)
    assert (plain.weights, plain.statistics, plain.collectives, plain.layers) == (269_722, 1_376, 0, 0)
    assert (group.weights, group.statistics, group.collectives) == (269_722, 0, 0)
    mnist = traffic.sent("fedtan", "mnist_mlp")
    assert (mnist.weights, mnist.statistics, mnist.collectives, mnist.layers) == (23_920, 60, 120, 1)


def test_the_defect_of_the_published_script():
    """About a third of the gradient of the stem and stage 1; nothing later; ours is the centralised gradient."""
    found = defect.errors()
    assert found["stem"][0] == pytest.approx(0.33, abs=0.02) and found["stage 1"][0] == pytest.approx(0.29, abs=0.02)
    assert all(found[part][0] == 0 for part in ("stage 2", "stage 3", "classifier"))
    assert all(ours < 1e-10 for _, ours in found.values())
