"""Bad input is refused before round 0, every problem in one line, with the nearest valid choice."""

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import normfed as nf
import normfed.methods as m
from normfed.testing import ResidualNet, seeded, toy_federation, toy_mlp


def refused(model=None, clients=None, method=None, **settings):
    with pytest.raises(nf.Refused) as raised:
        nf.simulate(
            seeded(ResidualNet) if model is None else model, toy_federation() if clients is None else clients,
            m.fedavg() if method is None else method, **{"rounds": 1, "batch_size": 4, **settings},
        )  # fmt: skip
    assert all(problem and "\n" not in problem for problem in raised.value.problems)
    return raised.value.problems


def federation(**changed):
    return {**toy_federation(), **changed}


def data(n=6, low=0, high=4, shape=(3, 6, 6), dtype=torch.float64):
    return torch.randn(n, *shape, dtype=dtype), torch.randint(low, high, (n,))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"engine": "stackd"}, "unknown engine 'stackd'; did you mean 'stacked'?"),
        ({"engine": "distributed"}, "engine 'distributed' is not there yet; use serial, stacked or auto"),
        ({"epoch": 3}, "unknown argument 'epoch'; did you mean 'epochs'?"),
        ({"rounds": 0}, "rounds=0: must be a whole number, 1 or more"),
        ({"rounds": 2.5}, "rounds=2.5: must be a whole number, 1 or more"),
        ({"batch_size": -1}, "batch_size=-1: must be a whole number, 1 or more"),
        ({"lr": -0.1}, "lr=-0.1: must be a number at least 0"),
        ({"lr": float("nan")}, "lr=nan: must be a number at least 0"),
        ({"momentum": 1.0}, "momentum=1.0: must be a number at least 0 and below 1"),
        ({"participation": 0.0}, "participation=0.0: must be a number above 0 and at most 1"),
        ({"clip_norm": 0}, "clip_norm=0: must be a number above 0"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'; did you mean 'adamw'?"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum is sgd's; adamw has its own"),
        ({"weighting": "sample"}, "unknown weighting 'sample'; did you mean 'samples'?"),
        ({"weighting": {"a": 0.0, "b": 0.0, "c": 0.0}}, "weighting: the weights sum to zero: nothing to average"),
        ({"weighting": {"a": 1.0, "b": 1.0}}, "weighting: no weight for client 'c'"),
        ({"weighting": {"a": 1, "b": 1, "c": 1, "d": 1}}, "weighting: unknown client 'd'; choose from: a, b, c"),
        ({"weighting": {"a": -1, "b": 1, "c": 1}}, "weighting: weights must be finite numbers, 0 or more"),
        ({"weighting": 3}, "weighting=3: must be 'samples', 'equal' or a mapping from client to weight"),
        ({"metrics": ("acuracy",)}, "unknown metric 'acuracy'; did you mean 'accuracy'?"),
        ({"loss": "cross_entrpy"}, "unknown loss 'cross_entrpy'; did you mean 'cross_entropy'?"),
        ({"loss": 3}, "loss=3: must be a name or a function of (logits, labels)"),
        (
            {"loss": lambda logits, y: logits},
            "the loss must return a tensor with one number, not (2, 4) of torch.float64",
        ),
        (
            {"loss": lambda logits, y: 1 / 0},
            "the loss fails on logits (2, 4) of torch.float64 and labels (2,) of torch.int64",
        ),
        ({"shuffle": "no"}, "shuffle='no': must be true or false"),
        ({"seed": "a"}, "seed='a': must be a whole number"),
        ({"device": "cudda"}, "device 'cudda' cannot be used here"),
        ({"steps": 0}, "steps=0: must be a whole number, 1 or more"),
        ({"engine": ["serial"]}, "unknown engine '['serial']'; did you mean 'serial'?"),
        ({"device": None}, "device=None: must be a name, 'cpu' or 'cuda'"),
        ({"metrics": None}, "metrics=None: must be a name or several"),
        ({"views": 3}, "views=3: must be a name or several"),
        ({"lr": lambda round: -0.1 * round, "rounds": 3}, "lr(1)=-0.1: must be a number at least 0"),
        ({"lr": lambda round: 1 / (2 - round), "rounds": 3}, "lr(2): must be a number at least 0; it raises Zero"),
        ({"lr": lambda round: "x"}, "lr(0): must be a number at least 0; it raises ValueError"),
    ],
)
def test_settings(settings, said):
    problems = refused(**settings)
    assert len(problems) == 1 and problems[0].startswith(said), problems


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ({}, "clients must be a non-empty mapping"),
        ([1], "clients must be a non-empty mapping"),
        (federation(b=nf.ClientData(train=data(0))), "client 'b', train: empty"),
        (federation(b=nf.ClientData(train=None)), "client 'b', train: missing"),
        (federation(b=nf.ClientData(train=(1, 2, 3))), "client 'b', train: train must be a pair (x, y)"),
        (federation(b=data()), "client 'b' must be ClientData(train=(x, y), …), not tuple"),
        (federation(b=nf.ClientData(train=(data(5)[0], data(6)[1]))), "client 'b', train: (5, 3, 6, 6) samples but (6,) labels"),
        (federation(b=nf.ClientData(train=data(high=5, low=4))), "client 'b', train: labels from 4 to 4; the model knows 0 to 3"),
        (federation(b=nf.ClientData(train=data(), test=data(low=-1, high=0))), "client 'b', test: labels from -1 to -1; the model knows 0 to 3"),
        (federation(b=nf.ClientData(train=(data()[0], torch.rand(6)))), "client 'b', train: labels must be whole numbers in one dimension, not (6,) of torch.float32"),
        (federation(b=nf.ClientData(train=(data()[0] * float("nan"), data()[1]))), "client 'b', train: NaN or infinity in 6 of 6 samples"),
        (federation(b=nf.ClientData(train=data(shape=(3, 5, 5)))), "samples differ in shape: (3, 6, 6) (client 'a', train), (3, 5, 5) (client 'b', train)"),
        ({1: nf.ClientData(train=data()), **toy_federation()}, "client name 1 must be a non-empty string"),
        (federation(b=nf.ClientData(train=data(), role=["train"])), "client 'b': unknown role '['train']'; did you mean 'train'?"),
        (federation(b=nf.ClientData(train=(data()[0].long(), data()[1]))), "samples differ in type: floating (client 'a', train), torch.int64 (client 'b', train)"),
        (federation(b=nf.ClientData(train=(data()[0].to_sparse(), data()[1]))), "client 'b', train: samples and labels must be dense tensors"),
        (federation(b=nf.ClientData(train=(data()[0].to("meta"), data()[1]))), "client 'b', train: samples and labels must be dense tensors"),
    ],
    ids=range(17),
)  # fmt: skip
def test_data(clients, said):
    problems = refused(clients=clients)
    assert len(problems) == 1 and problems[0].startswith(said), problems


class Unreadable(nf.ClientData):
    def split(self, name):
        raise RuntimeError  # and says nothing


def test_data_that_fail_without_a_word_are_named():
    problems = refused(clients=federation(b=Unreadable(train=data())))
    assert problems == tuple(f"client 'b', {which}: RuntimeError" for which in ("train", "val", "test"))


def test_batches():
    problems = refused(clients=federation(b=nf.ClientData(train=data(3))), drop_last=True)
    assert problems == ("client 'b': 3 samples make no batch of 4 under drop_last",)
    one = {**toy_federation(shape=(6,)), "b": nf.ClientData(train=data(1, shape=(6,)))}
    problems = refused(model=seeded(toy_mlp), clients=one)
    assert problems == (
        "client 'b': no usable batch: a norm layer would see one value per channel (1 samples in batches of 1)",
    )
    assert len(refused(model=seeded(toy_mlp), clients=toy_federation(shape=(6,)), batch_size=1)) == 3


class WrongShape(ResidualNet):
    def forward(self, x):
        return super().forward(x)[:, :, None]


class NotATensor(ResidualNet):
    def forward(self, x):
        return {"logits": super().forward(x)}


class Rounded(ResidualNet):
    def forward(self, x):
        return super().forward(x).long()


class Detached(ResidualNet):
    def forward(self, x):
        return super().forward(x).detach()


class Extra(ResidualNet):
    def get_extra_state(self):
        return torch.zeros(1)


class Checkpointed(ResidualNet):
    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(super().forward, x, use_reentrant=False)


def spoiled():
    model = seeded(ResidualNet)
    model.head.weight.data[0, 0] = float("nan")
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("resnet18", "model must be a torch.nn.Module, not str"),
        (ResidualNet, "model must be a torch.nn.Module, not ResidualNet"),
        (seeded(ResidualNet).requires_grad_(False), "the model has nothing to train: no parameter requires a gradient"),
        (nn.Flatten(), "the model has nothing to train: no parameter requires a gradient"),
        (seeded(Rounded), "the model must return logits as floating numbers; it returned torch.int64"),
        (seeded(Detached), "the model's logits do not depend on anything that is trained"),
        (seeded(Extra), "the model's state has '_extra_state', which none of its modules holds as parameter or buffer"),
        (seeded(Checkpointed), "gradients cannot be taken through the model (activation checkpointing must be off): RuntimeError: norm layer"),
        (spoiled(), "parameter 'head.weight' of the model holds NaN"),
        (nn.Sequential(nn.Flatten(), nn.Linear(9, 4)).double(), "the model's forward fails on input of shape (2, 3, 6, 6): RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (seeded(WrongShape), "the model must return logits of shape [samples, classes]; it returned (2, 4, 1)"),
        (seeded(NotATensor), "the model must return logits of shape [samples, classes]; it returned dict"),
    ],
)  # fmt: skip
def test_models(model, said):
    problems = refused(model=model)
    assert len(problems) == 1 and problems[0].startswith(said), problems


def test_a_server_optimizer_wants_a_rate():
    for make in (m.fedadam, m.fedyogi, m.fedavgm):
        for lr in (0.0, -1.0, float("nan"), float("inf")):
            with pytest.raises(nf.Refused, match="lr="):
                make(lr=lr)


def test_where_no_client_has_samples_that_is_said_beside_the_reasons():
    bare = {name: client.train for name, client in toy_federation((4, 4)).items()}
    assert refused(clients=bare) == (
        "client 'a' must be ClientData(train=(x, y), …), not tuple",
        "client 'b' must be ClientData(train=(x, y), …), not tuple",
        "no client has training samples to try the model on",
    )
    assert refused(clients={}) == ("clients must be a non-empty mapping from name to ClientData, with samples",)


def test_a_method_must_be_made_by_its_factory():
    said = "method must be what a factory of normfed.methods returns, not "
    assert refused(method="fedbn") == (f"{said}str; normfed.expression.parse reads text",)
    assert refused(method=nf.methods.fedbn) == (f"{said}function; call it",)
    with pytest.raises(TypeError, match=r"put together with \|"):
        nf.methods.fedbn() + nf.methods.fedprox()


def test_everything_wrong_is_said_at_once():
    problems = refused(
        clients=federation(b=nf.ClientData(train=data(0)), c=nf.ClientData(train=(data()[0] / 0, data()[1]))),
        method=m.fedbn() | m.pooled(), rounds=0, engine="stackd",
    )  # fmt: skip
    assert len(problems) == 5


def test_weights_that_sum_to_zero_in_a_round_commit_nothing():
    zero = nf.Method("zero", weigh=lambda reply: reply.mean_loss * 0)
    run = nf.Run(seeded(ResidualNet), toy_federation(), zero, rounds=2)
    before = run.save()
    with pytest.raises(
        nf.Aborted, match=r"weights sum to 0: nothing to average \(a: 0, b: 0, c: 0\); the round was not"
    ):
        run.play()
    assert run.save() == before


@pytest.mark.parametrize("damage", ["other method", "truncated", "flipped", "not a run"])
def test_a_saved_run_that_does_not_fit_is_refused(damage):
    run = nf.Run(seeded(ResidualNet), toy_federation(), m.fedbn(), rounds=2)
    run.play()
    saved = run.save()
    method = m.fedavg() if damage == "other method" else m.fedbn()
    damaged = {"truncated": saved[:-9], "flipped": saved[:30] + b"\xff" + saved[31:], "not a run": b"hello"}.get(
        damage, saved
    )
    with pytest.raises(nf.Refused, match=r"saved run"):
        nf.Run(seeded(ResidualNet), toy_federation(), method, rounds=2, resume=damaged)
