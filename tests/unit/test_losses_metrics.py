import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as reference

import normfed as nf
from normfed import losses
from normfed.keys import integers, normal
from normfed.metrics import METRICS
from normfed.testing import ResidualNet, seeded, toy_federation


def case(seed, n=200, classes=4, labels=None):
    logits = normal(seed, (n, classes), torch.float64).round(decimals=1)  # rounded: ties occur
    y = integers(seed + 1, (n,), labels or classes)
    return logits, y


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("classes", "labels"), [(4, 4), (4, 3), (2, 2), (10, 10)])
def test_metrics_are_scikit_learns(seed, classes, labels):
    logits, y = case(seed, classes=classes, labels=labels)
    predicted, scores = logits.argmax(1).numpy(), logits.softmax(1).numpy()
    assert METRICS["accuracy"](logits, y) == pytest.approx(reference.accuracy_score(y, predicted), abs=1e-12)
    with pytest.warns(UserWarning) if labels < classes else _nothing():
        expected = reference.balanced_accuracy_score(y, predicted)
    assert METRICS["balanced_accuracy"](logits, y) == pytest.approx(expected, abs=1e-12)
    assert METRICS["f1"](logits, y) == pytest.approx(reference.f1_score(y, predicted, average="macro"), abs=1e-12)
    if classes == 2:
        expected = reference.roc_auc_score(y, (logits[:, 1] - logits[:, 0]).numpy())
    else:
        expected = sum(reference.roc_auc_score(y == c, scores[:, c]) for c in range(labels)) / labels
    assert METRICS["auc"](logits, y) == pytest.approx(expected, abs=1e-12)


class _nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def test_auc_of_one_class_is_nan():
    assert METRICS["auc"](torch.randn(5, 3), torch.zeros(5, dtype=torch.long)) != METRICS["auc"](
        torch.randn(5, 3), torch.zeros(5, dtype=torch.long)
    )


def test_focal_loss():
    logits, y = case(0)
    torch.testing.assert_close(losses.focal(gamma=0.0)(logits, y), F.cross_entropy(logits, y))
    p = logits.softmax(1).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(losses.focal(gamma=2.0)(logits, y), (-((1 - p) ** 2) * p.log()).mean())
    weights = [1.0, 2.0, 0.0, 0.5]
    torch.testing.assert_close(
        losses.focal(1.0, weights)(logits, y), (-(1 - p) * p.log() * torch.tensor(weights)[y]).mean()
    )


def test_weighted_loss_and_balanced_weights():
    logits, y = case(0)
    weights = losses.balanced_weights(y, 5)
    assert weights[4] == 0 and sum(
        w * c for w, c in zip(weights, torch.bincount(y).tolist(), strict=False)
    ) == pytest.approx(200 * 4 / 5)
    torch.testing.assert_close(
        losses.weighted([1.0, 2.0, 3.0, 4.0])(logits, y),
        F.cross_entropy(logits, y, weight=torch.tensor([1.0, 2, 3, 4]).double()),
    )


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("loss", ["focal", "focal(gamma=1.0, weights=[1.0, 2.0, 3.0, 4.0])", "weighted([1, 1, 1, 5])"])
def test_a_loss_by_name_trains(loss, engine):
    result = nf.simulate(
        seeded(ResidualNet), toy_federation(), nf.methods.fedbn(), rounds=4, lr=0.1, loss=loss, engine=engine
    )
    first, last = (sum(result.history[r]["train_loss"].values()) for r in (0, 3))
    plain = nf.simulate(seeded(ResidualNet), toy_federation(), nf.methods.fedbn(), rounds=1, lr=0.1)
    assert last < first != sum(plain.history[0]["train_loss"].values())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("focl", "did you mean 'focal'"),
        ("focal(gamma=-1.0)", "gamma=-1.0 must not be negative"),
        ("weighted([1.0, -1.0, 1.0, 1.0])", "must be finite, none negative"),
        ("weighted([1.0, 2.0])", "2 weights for 4 classes"),
        ("focal(gama=1)", "unexpected keyword"),
        ("weighted", "missing 1 required"),
        ("focal(gamma=x)", "not a TOML value"),
    ],
)
def test_bad_losses(loss, said):
    with pytest.raises(nf.Refused, match=said):
        nf.simulate(seeded(ResidualNet), toy_federation(), nf.methods.fedavg(), rounds=1, loss=loss)


def test_metrics_are_recorded_by_name():
    result = nf.simulate(
        seeded(ResidualNet), toy_federation(), nf.methods.fedbn(), rounds=1, metrics=("balanced_accuracy", "f1", "auc")
    )
    row = result.history[0]
    assert all(
        set(row[f"test_{name}"]) == set("abc") for name in ("accuracy", "balanced_accuracy", "f1", "auc", "loss")
    )


def test_losses_at_the_edges_have_values_and_slopes():
    """Samples that are right beyond doubt, and batches that hold nothing that counts."""
    logits = torch.tensor([[60.0, 0.0], [0.0, 1.0], [-900.0, 900.0]], requires_grad=True)
    y = torch.tensor([0, 1, 1])
    for gamma in (0.0, 0.5, 1.0, 2.0):
        value = losses.focal(gamma)(logits, y)
        (grad,) = torch.autograd.grad(value, logits)
        assert torch.isfinite(value) and torch.isfinite(grad).all() and grad[1].abs().sum() > 0
    nothing = losses.weighted([0.0, 1.0])(logits[:1], y[:1])
    assert nothing == 0 and torch.autograd.grad(nothing, logits)[0].abs().sum() == 0
    slopes = [torch.autograd.grad(f(logits, y), logits)[0] for f in (losses.focal(0.0), F.cross_entropy)]
    torch.testing.assert_close(*slopes)


def test_metrics_where_classes_are_missing():
    """A class absent from the test set, one that is only predicted, one class alone, scores that tie."""
    y = torch.tensor([0, 0, 2, 2])
    logits = torch.tensor(
        [[2.0, 0, 1], [0, 3, 1], [0, 1, 2], [0, 1, 2]]
    )  # class 1 does not occur, and is predicted once
    predicted = logits.argmax(1)
    assert METRICS["balanced_accuracy"](logits, y) == pytest.approx(0.75)
    assert METRICS["f1"](logits, y) == pytest.approx(reference.f1_score(y, predicted, average="macro", zero_division=0))
    scores = logits.double().softmax(1)
    pairs = [reference.roc_auc_score(y == c, scores[:, c]) for c in (0, 2)]
    assert METRICS["auc"](logits, y) == pytest.approx(sum(pairs) / 2)
    flat = torch.zeros(6, 2)  # every score ties: chance
    assert METRICS["auc"](flat, torch.tensor([0, 1, 0, 1, 1, 1])) == 0.5
    assert METRICS["accuracy"](flat, torch.tensor([0, 1, 0, 1, 1, 1])) == pytest.approx(
        2 / 6
    )  # the first class wins a tie
    alone = torch.ones(4, dtype=torch.long)
    assert METRICS["balanced_accuracy"](flat[:4], alone) == 0 and METRICS["f1"](flat[:4], alone) == 0


def test_binary_auc_is_of_the_second_class():
    logits = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [0.5, 0.0]])
    assert (
        METRICS["auc"](logits, torch.tensor([1, 0, 1, 0])) == 1
        and METRICS["auc"](logits, torch.tensor([0, 1, 0, 1])) == 0
    )


def test_the_first_of_equally_good_rounds_is_selected_and_only_validation_decides():
    clients = {n: nf.ClientData(train=c.train, test=c.test, val=c.train) for n, c in toy_federation().items()}
    clients["c"] = nf.ClientData(train=clients["c"].train, test=clients["c"].test)  # has no validation data
    result = nf.simulate(seeded(ResidualNet), clients, nf.methods.fedavg(), rounds=6, lr=1e-9, evaluate_every=2)
    assert [bool(row.get("val_accuracy")) for row in result.history] == [False, True] * 3
    assert set(result.history[1]["val_accuracy"]) == {"a", "b"}
    assert result.final["selected_round"] == {0: 1}  # nothing moves: the first evaluated round
    assert set(result.final["test_accuracy"]) == set("abc")
