"""The traffic of FedTAN (Wang et al., 2023, Tables 3, 4 and 5) out of our own accounting: `python -m
normfed.evidence.traffic`.

What a round sends is counted by `explain`, which plays one. The paper's protocol takes 3L + 1 exchanges a round where
ours, with mean and variance in one message, takes 2L + 1; the numbers sent are the same. The paper counts every upload
and one broadcast for all clients, in 32-bit numbers, and leaves counters of batches out.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from normfed.explain import explain
from normfed.expression import parse
from normfed.models import find, make
from normfed.state import Role

CLIENTS, BYTES = 5, 4


@dataclass(frozen=True)
class Sent:
    """What one client sends in a round, in numbers."""

    weights: int
    statistics: int  # running means and variances
    collectives: int  # of the lock-step
    layers: int  # L: how often a norm layer is reached

    def megabytes(self) -> float:
        """Of a round of all clients, as the paper counts."""
        return (self.weights + self.statistics + self.collectives) * (CLIENTS + 1) * BYTES / 2**20


def sent(method: str, model: str) -> Sent:
    """Counted by playing a round."""
    found = explain(parse(method), make(model), model, find(model).shape).first
    by_role = {
        role: sum(e["bytes"] for e in found.entries if e["role"] == role and e["wire"]) // BYTES for role in Role
    }
    weights = by_role[Role.WEIGHT] + by_role[Role.NORM_AFFINE]
    return Sent(weights, by_role[Role.NORM_STAT], found.wire["collectives"] // BYTES, (found.messages - 1) // 2)


@dataclass(frozen=True)
class Row:
    """One line of a table: what the paper prints, and what comes out here."""

    table: int
    what: str
    volume: float
    unit: str
    printed_volume: str
    rounds: float | None = None  # share of exchanges that the lock-steps add, in percent, under the paper's protocol
    fused: float | None = None  # the same with mean and variance in one message
    printed_rounds: str = ""
    bits: float | None = None  # share of the bits that the lock-steps add, in percent
    printed_bits: str = ""


def rows() -> list[Row]:
    """Tables 3, 4 and 5."""
    methods = {"FedTAN": "fedtan", "FedAvg+BN": "fedavg", "FedAvg+GN": "groupnorm(groups=2)"}
    cifar = {what: sent(method, "resnet20") for what, method in methods.items()}
    printed = {"FedTAN": "6.2679", "FedAvg+BN": "6.2049", "FedAvg+GN": "6.1734"}
    third = [Row(3, what, s.megabytes(), "MB", printed[what]) for what, s in cifar.items()]
    return [*third, *_fourth(cifar), *_fifth(sent("fedtan", "mnist_mlp"))]


def _share(part: float, whole: float) -> float:
    return 100 * part / whole


def _fourth(cifar: dict[str, Sent]) -> list[Row]:
    """ResNet-20, 10 000 rounds; the paper goes on from Table 3's four decimals."""
    total, layers = 10_000, cifar["FedTAN"].layers
    slow, fast = (float(shown(cifar[what].megabytes(), 4)) for what in ("FedTAN", "FedAvg+BN"))
    found = []
    for what, m, volume, rounds, bits in (
        ("FedTAN-II, M = 1000", 1_000, "60.6563", "85.07", "0.1014"),
        ("FedTAN-II, M = 2000", 2_000, "60.7178", "91.94", "0.2027"),
        ("FedTAN-II, M = 4000", 4_000, "60.8408", "95.80", "0.4045"),
        ("FedTAN", 10_000, "61.2100", "98.28", "1.0051"),
    ):
        whole = m * slow + (total - m) * fast
        found.append(
            Row(
                4,
                what,
                whole / 1024,
                "GB",
                volume,
                _share(3 * layers * m, 3 * layers * m + total),
                _share(2 * layers * m, 2 * layers * m + total),
                rounds,
                _share(m * (slow - fast), whole),
                bits,
            )
        )
    return found


def _fifth(mnist: Sent) -> list[Row]:
    """784-30-10 with one norm layer, 500 rounds. The printed volumes are gigabits, of the weights without running
    statistics."""
    total, gigabit = 500, (CLIENTS + 1) * 8 * BYTES / 2**30
    found = []
    for m, volume, rounds, bits in (
        (10, "2.1388", "5.66", "0.0100"), (50, "2.1397", "23.08", "0.0501"), (100, "2.1408", "37.50", "0.1002"),
    ):  # fmt: skip
        extra = m * mnist.collectives
        whole = total * mnist.weights + extra
        found.append(
            Row(
                5,
                f"FedTAN-II, M = {m}",
                whole * gigabit,
                "Gbit",
                volume,
                _share(3 * mnist.layers * m, 3 * mnist.layers * m + total),
                _share(2 * mnist.layers * m, 2 * mnist.layers * m + total),
                rounds,
                _share(extra, whole),
                bits,
            )
        )
    return found


def shown(value: float, digits: int) -> str:
    """Rounded as in print: halves up."""
    return str(Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def main() -> None:
    print(
        f"{'table':8}{'':22}{'volume':>14}{'paper':>9}{'rounds %':>10}{'paper':>8}{'fused':>8}{'bits %':>9}{'paper':>8}"
    )
    for r in rows():
        shares = ("", "", "", "", "")
        if r.rounds is not None and r.fused is not None and r.bits is not None:
            shares = (shown(r.rounds, 2), r.printed_rounds, shown(r.fused, 2), shown(r.bits, 4), r.printed_bits)
        volume = f"{shown(r.volume, 4)} {r.unit}"
        print(
            f"{r.table:<8}{r.what:22}{volume:>14}{r.printed_volume:>9}"
            f"{shares[0]:>10}{shares[1]:>8}{shares[2]:>8}{shares[3]:>9}{shares[4]:>8}".rstrip()
        )


if __name__ == "__main__":
    main()
