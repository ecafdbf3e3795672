"""A finished run given back: its model, every client's state, its history; predictions, and an evaluation elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from normfed import checkpoint, prepare
from normfed.data.store import ClientData, Store
from normfed.errors import Refused, nearest
from normfed.evaluate import Evaluation
from normfed.experiment import rules_of
from normfed.expression import parse
from normfed.keys import normal
from normfed.method import Expression
from normfed.plan import Plan, build, transformed
from normfed.prepare import Prepare
from normfed.recipe import Config, Recipe, resolve
from normfed.runs import disk
from normfed.runs.config import CONFIG, read_config
from normfed.runs.inputs import SETTINGS, model, seen
from normfed.runs.trial import CHECKPOINT, MODEL, RESULT, client_file, read_result
from normfed.settings import Settings

FACTS = {"input": [int], "dtype": str, "classes": [str], "clients": [str], "samples": [int]}  # that are relied on


class ClientStates(Mapping[str, dict[str, Tensor]]):
    """What each client evaluates with, read when it is asked for."""

    def __init__(self, folder: Path, clients: list[str], shared: Mapping[str, Tensor]) -> None:
        self._folder, self._clients, self._shared = folder, clients, shared

    def __getitem__(self, client: str) -> dict[str, Tensor]:
        if client not in self._clients:
            raise KeyError(client)
        own = self._folder / client_file(client)
        return {**self._shared, **(_tensors(own) if own.exists() else {})}

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)


class Finished:
    """A run's folder. Everything but `evaluation` of further data needs nothing but the folder."""

    def __init__(self, folder: Path, config: Config, facts: Mapping[str, Any], document: dict[str, Any]) -> None:
        self.folder, self.config, self.facts, self.document = folder, config, facts, document
        self.clients: list[str] = document["clients"]
        self.classes: tuple[str, ...] = tuple(facts["classes"])

    def __repr__(self) -> str:
        return f"<Finished {self.folder}: {self.method}, seed {self.seed}, {self.document['rounds']} rounds>"

    @property
    def seed(self) -> int:
        return int(self.config["seeds"][0])

    @property
    def method(self) -> Expression:
        return parse(self.config["method"])

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.document["history"]

    @property
    def final(self) -> dict[str, Any]:
        return self.document["final"]

    @cached_property
    def global_state(self) -> dict[str, Tensor]:
        return _tensors(self.folder / MODEL)

    @cached_property
    def client_states(self) -> ClientStates:
        return ClientStates(self.folder, self.clients, self.global_state)

    @property
    def model(self) -> nn.Module:
        """A network of its own, as the method had it made (FedWon's convolutions, …), with the global state.

        A method with layers of its own that act with the round (FedFA, batch renormalisation) needs `predict`."""
        return self.model_of(None)

    def model_of(self, client: str | None) -> nn.Module:
        """The network with what a client evaluates with; with the global state for None."""
        found = transformed(self.method, self._initial, self._input, self.seed, self._prepare)
        try:
            found.load_state_dict(self.global_state if client is None else self._state(client))
        except RuntimeError:
            raise Refused(f"{self.folder / MODEL} is damaged: it does not hold the entries of its model") from None
        return found.eval()

    def predict(self, x: Any, client: str | None = None) -> Tensor:
        """Logits of samples as the federation holds them: of a client's model; without a client, of the global one,
        entries that stay home averaged over the clients."""
        evaluation = self.evaluation()
        x = torch.as_tensor(x)
        state = evaluation.averaged() if client is None else evaluation.own_state(self._known(client))
        return evaluation.net.predict(state, evaluation.inputs(client or "", x))

    def evaluation(self, clients: Mapping[str, ClientData] | None = None) -> Evaluation:
        """What there is to evaluate now, on the data of `clients`."""
        store = Store(clients or {}, torch.device("cpu"))
        settings = self._settings
        metrics = ("accuracy", *(name for name in settings.metrics if name != "accuracy"))
        return Evaluation(self._plan, self._state_of_run, self._shared, store, self._sizes, rules_of(settings), metrics)

    @property
    def _settings(self) -> Settings:
        given = {key: value for key, value in self.config.items() if key in SETTINGS}
        return Settings.of(**{**given, "device": "cpu"}, seed=self.seed)

    @cached_property
    def _plan(self) -> Plan:
        return build(self.method, self._initial, self._input, self.seed, self._prepare)

    @property
    def _initial(self) -> nn.Module:
        # The weights come from the folder; a file of pretrained ones may be gone.
        config = {key: value for key, value in self.config.items() if key != "weights"}
        return model(config, self.seed, len(self.classes), seen(config, self._input).shape[1:])

    @property
    def _input(self) -> Tensor:
        """Two samples that look like the federation's."""
        shape, dtype = self.facts["input"], getattr(torch, self.facts["dtype"])
        return normal(0, (2, *shape), torch.float32).to(dtype)

    @property
    def _prepare(self) -> Prepare:
        return prepare.parse(self.config.get("prepare"), like=self._input)

    @cached_property
    def _state_of_run(self) -> Any:
        path = self.folder / CHECKPOINT
        try:
            return checkpoint.from_bytes(path.read_bytes())[0]
        except (OSError, Refused) as error:
            raise Refused(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None

    @cached_property
    def _shared(self) -> dict[str, Tensor]:
        """The global model that clients evaluate with. An exchange before an evaluation gave all clients the same."""
        model = dict(self._state_of_run.model)
        if self._plan.refreshes:
            state = self._state(self.clients[0])
            model.update({name: state[name] for name in model})
        return model

    @property
    def _sizes(self) -> dict[str, int]:
        return dict(zip(self.facts["clients"], self.facts["samples"], strict=True))

    def _known(self, client: str) -> str:
        if client not in self.clients:
            raise Refused(f"no client '{client}' in {self.folder}; {nearest(client, self.clients)}")
        return client

    def _state(self, client: str) -> dict[str, Tensor]:
        return self.client_states[self._known(client)]


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None


def load(folder: str | Path, seed: int | None = None) -> Finished:
    """A finished run: of the first of its seeds, or of `seed`."""
    folder = Path(folder)
    config, facts = read_config(folder)
    if "runs" in config:
        raise Refused(f"{folder} is a comparison; one of its runs is {folder / next(iter(config['runs']))}")
    if not (folder / RESULT).exists():
        raise Refused(f"{folder} is not finished: go on with it (--resume) first")
    _check(folder, config, facts)
    seeds = config["seeds"]
    if seed is not None and seed not in seeds:
        raise Refused(f"{folder} has no seed {seed}; it has {', '.join(map(str, seeds))}")
    if len(seeds) > 1:
        return load(folder / f"seed-{seeds[0] if seed is None else seed}")
    return Finished(folder, config, facts, read_result(folder))


def _check(folder: Path, config: Config, facts: Mapping[str, Any]) -> None:
    """A config that was written whole and damaged later."""
    missing = disk.shaped(facts, FACTS)
    if missing is None and not isinstance(getattr(torch, facts["dtype"], None), torch.dtype):
        missing = f"dtype is {facts['dtype']}"
    if missing:
        raise Refused(f"{folder / CONFIG} is damaged: of its facts, {missing}")
    resolve(Recipe(str(folder / CONFIG), config))
