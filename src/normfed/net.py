"""A model made ready: its state outside, its layers driven, its facts known before anything is trained."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer

from normfed.errors import Refused, first_line
from normfed.keys import Key, signed
from normfed.norm import BATCH, RUNNING, Pass, drive
from normfed.prepare import PLAIN, Prepare
from normfed.state import Entry, Role, State, describe

EVALUATION_BATCH = 1024  # samples per forward pass; changes no number, statistics being fixed


@dataclass(frozen=True)
class Facts:
    """What one pass over two samples shows of a model."""

    classes: int
    values: dict[str, list[int]]  # layer -> values per channel *per sample*, one number for each time it is reached
    unkeyed: bool  # draws random numbers that no key controls
    head: frozenset[str]  # entries of the layer whose output is the model's; empty where there is no such layer
    problems: tuple[str, ...] = ()

    @property
    def norm_calls(self) -> int:
        """L: how many times a batch-norm layer is reached in one forward pass."""
        return sum(len(calls) for calls in self.values.values())

    @property
    def smallest_batch(self) -> int:
        """Below this a norm layer would see one value per channel."""
        return 2 if any(value == 1 for calls in self.values.values() for value in calls) else 1


class Net:
    """The prepared model: a function of (params, rest, x), where `params` are the entries trained by gradient and
    `rest` is everything else in `state_dict()`. Holds no state of its own."""

    def __init__(self, model: nn.Module, prepare: Prepare = PLAIN) -> None:
        """Takes `model` over: give it a copy."""
        self.module, self.prepare = model, prepare
        self.entries: tuple[Entry, ...] = describe(model)
        self.initial: dict[str, Tensor] = {
            name: tensor.detach().clone()
            for name, tensor in model.state_dict(keep_vars=True).items()
            if name in {e.name for e in self.entries}
        }
        self.trainable = tuple(e.name for e in self.entries if e.trainable)
        self.fixed = tuple(e.name for e in self.entries if not e.trainable)
        self.wire = drive(model)
        # Where each tensor is put before a forward pass: the owner's own dictionary, once for every alias.
        self._homes: dict[str, list[tuple[dict[str, Tensor | None], str]]] = {}
        for entry in self.entries:
            for name in (entry.name, *entry.aliases):
                path, _, attribute = name.rpartition(".")
                owner = model.get_submodule(path)
                home = owner._parameters if attribute in owner._parameters else owner._buffers
                self._homes.setdefault(entry.name, []).append((home, attribute))  # type: ignore[arg-type]
        self._recurrent = [m for m in model.modules() if isinstance(m, nn.RNNBase)]
        self.head: str | None = None  # path of the classifier; set by `probe`
        self.unkeyed = False  # draws from torch's own generator; set by `probe`
        self.stateful: tuple[str, ...] = ()  # buffers that a training forward writes in place; set by `probe`
        self.writes_input = False  # an in-place first layer, say; set by `probe`
        # Of its weights; a buffer may be of another type.
        floating = [e for e in self.entries if e.dtype.is_floating_point]
        self.dtype = next((e.dtype for e in sorted(floating, key=lambda e: not e.trainable)), torch.get_default_dtype())

    def to(self, device: torch.device) -> Net:
        self.module.to(device)
        self.initial = {name: tensor.to(device) for name, tensor in self.initial.items()}
        return self

    def __call__(self, params: State, rest: State, x: Tensor, now: Pass) -> Tensor:
        """One forward pass. What layers would have written is in `now.emitted` afterwards."""
        if self.stateful:  # spectral norm and its like write in place: onto copies, which are then emissions
            rest = {**rest, **{name: rest[name].clone() for name in self.stateful}}
        if self.writes_input:  # the samples are the user's, and a second pass wants them as they were
            x = x.clone()
        for state in (params, rest):
            for name, tensor in state.items():
                for home, attribute in self._homes[name]:
                    home[attribute] = tensor
        for recurrent in self._recurrent:  # keeps a second list of its weights
            recurrent._flat_weights = [getattr(recurrent, name) for name in recurrent._flat_weights_names]
        if self.module.training is not now.training:
            self.module.train(now.training)
        elif not now.training:  # layers that keep what they made of their weights (LeViT's attention biases) forget it
            self.module.train().eval()
        self.wire.now = now
        try:
            output = self._seeded(x, now) if self.unkeyed and now.training else self.module(x)
        finally:
            self.wire.now = None
        if self.stateful and now.emit and now.training:
            now.emitted.update({name: rest[name] for name in self.stateful})
        return output

    def _seeded(self, x: Tensor, now: Pass) -> Tensor:
        """Layers that draw from torch's own generator find it seeded from the key of the pass, and leave no trace."""
        assert now.key is not None
        key = now.key()
        assert isinstance(key, int), "a stacked engine cannot seed torch's generator client by client"
        with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
            torch.manual_seed(signed(key))
            output: Tensor = self.module(x)
        return output

    def split(self, state: State) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(trained by gradient, everything else)."""
        return {n: state[n] for n in self.trainable}, {n: state[n] for n in self.fixed}

    def named(self, state: State) -> dict[str, Tensor]:
        """The state under every name of `model.state_dict()`, tied ones too."""
        return {name: state[e.name] for e in self.entries for name in (e.name, *e.aliases)}

    def features(self, state: State, x: Tensor) -> Tensor:
        """What enters the classifier, in evaluation mode."""
        parts = []
        for part in x.split(EVALUATION_BATCH):
            now = Pass(RUNNING, training=False, emit=False)
            with torch.no_grad():
                self(*self.split(state), self.cast(part), now)
            assert now.features is not None
            parts.append(now.features)
        return torch.cat(parts)

    def _listen(self, path: str) -> None:
        """From now on a pass holds what enters the layer at `path`."""
        self.head = path

        def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            if self.wire.now is not None:
                self.wire.now.features = inputs[0]

        self.module.get_submodule(path).register_forward_pre_hook(note)

    def cast(self, x: Tensor, key: Key | None = None) -> Tensor:
        """Stored samples as the model is to see them, in its precision; with a key, as in training."""
        return self.prepare(x, self.dtype, key)

    def predict(self, state: State, x: Tensor) -> Tensor:
        """Logits of all samples under the state's running statistics; no noise, no gradient."""
        with torch.no_grad():
            parts = [
                self(*self.split(state), self.cast(part), Pass(RUNNING, training=False, emit=False))
                for part in x.split(EVALUATION_BATCH)
            ]
        return torch.cat(parts)


def materialise(model: nn.Module, x: Tensor, seed: int) -> nn.Module:
    """A private copy of the model; lazy layers have their shapes after one pass over `x`."""
    # torch cannot copy a buffer that has no shape yet: the copy is given new ones.
    shapeless = [b for b in model.buffers() if isinstance(b, UninitializedBuffer)]
    memo: dict[int, Any] = {}
    for b in shapeless:
        memo[id(b)] = UninitializedBuffer(device=b.device, dtype=b.dtype)  # type: ignore[call-arg]
    model = copy.deepcopy(model, memo).to(x.device)
    lazy = [m for m in model.modules() if isinstance(m, nn.modules.lazy.LazyModuleMixin)]
    if any(m.has_uninitialized_params() for m in lazy):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            try:
                model.eval()(x)
            except Exception as error:
                raise Refused(_forward_fails(x, error)) from error
    return model


def probe(net: Net, x: Tensor) -> Facts:
    """Runs the model on two samples and looks. Draws nothing from global generators, changes nothing."""
    x = net.cast(x[:2] if len(x) > 1 else x[:1].repeat(2, *[1] * (x.dim() - 1)))
    params, rest = net.split(net.initial)
    params = {name: tensor.detach().requires_grad_() for name, tensor in params.items()}
    buffers = [e.name for e in net.entries if e.role is Role.BUFFER]
    rest.update({name: rest[name].clone() for name in buffers})
    problems: list[str] = []

    reached: list[tuple[str, nn.Module, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda m, args, out, name=name: reached.append((name, m, out)))
        for name, module in net.module.named_modules()
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
    ]

    def forward(seed: int, state: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Pass]:
        now = Pass(BATCH, key=lambda: 0, probe={})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return net(params, state, x, now), now

    given = x.clone()
    try:
        logits, now = forward(1, rest, given)
    except Refused:
        raise
    except Exception as error:
        raise Refused(_forward_fails(x, error)) from error
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise Refused(f"the model must return logits of shape [samples, classes]; it returned {shape}")
    if not logits.is_floating_point():
        raise Refused(f"the model must return logits as floating numbers; it returned {logits.dtype}")
    if not net.trainable:
        problems.append("the model has nothing to train: no parameter requires a gradient")
    elif not logits.requires_grad:
        problems.append("the model's logits do not depend on anything that is trained")
    else:
        _try_gradients(logits, params)
    problems += [f"parameter '{n}' of the model holds NaN" for n, p in params.items() if bool(torch.isnan(p).any())]
    net.writes_input = not torch.equal(given, x)
    for name in buffers:
        if any(home[attribute] is not rest[name] for home, attribute in net._homes[name]):
            problems.append(f"buffer '{name}' is replaced during forward and would be lost: write it in place (copy_)")
    net.stateful = tuple(name for name in buffers if not torch.equal(rest[name], net.initial[name]))
    with torch.no_grad():
        again, _ = forward(2, net.split(net.initial)[1], x.clone())
    # The classifier: the layer whose output is the model's, or the last linear one reached (a softmax may follow).
    head = [name for name, _, out in reached if out is logits] or [n for n, m, _ in reached if isinstance(m, nn.Linear)]
    assert now.probe is not None
    if head and net.head is None:
        net._listen(head[-1])
    net.unkeyed = not torch.equal(logits, again) and not bool(torch.isnan(logits).any())
    net.wire.values = {name: [value // 2 for value in calls] for name, calls in now.probe.items()}
    return Facts(
        classes=logits.shape[1],
        values=net.wire.values,
        head=frozenset(e.name for e in net.entries if head and e.layer == head[-1]),
        unkeyed=net.unkeyed,
        problems=tuple(problems),
    )


def _try_gradients(logits: Tensor, params: State) -> None:
    try:
        torch.autograd.grad(logits.sum(), list(params.values()), allow_unused=True)
    except Exception as error:
        hint = "gradients cannot be taken through the model (activation checkpointing must be off)"
        raise Refused(f"{hint}: {type(error).__name__}: {first_line(error)}") from error


def _forward_fails(x: Tensor, error: Exception) -> str:
    kind, shape = type(error).__name__, tuple(x.shape)
    return f"the model's forward fails on input of shape {shape}: {kind}: {first_line(error)}"
