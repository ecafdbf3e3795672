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
