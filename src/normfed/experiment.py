"""The outer loop: rounds, evaluation, history, saving and resuming."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normfed import checkpoint, checks, dispatch, pictures, prepare
from normfed._version import __version__
from normfed.data.store import ClientData, Pooled, Store
from normfed.errors import Problems, Refused
from normfed.evaluate import Evaluation
from normfed.keys import fold
from normfed.method import Expression
from normfed.plan import build
from normfed.server import Rules, RunState, Traffic, initial, play, refresh
from normfed.settings import Settings
from normfed.state import State


@dataclass
class Result:
    """What a run leaves. `history` has one dictionary per round, as in `result.json`."""

    method: str
    rounds: int
    seed: int
    engine: str
    engine_reason: str
    device: str
    clients: tuple[str, ...]
    view: str
    global_state: dict[str, Tensor]
    client_states: dict[str, dict[str, Tensor]]
    history: list[dict[str, Any]]
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def final(self) -> dict[str, Any]:
        """Test accuracies per client and on average: of the last evaluation, or of the round that did best on
        validation data where clients have any."""
        evaluated = [row for row in self.history if row["test_accuracy"]]
        chosen = evaluated[-1] if evaluated else None
        validated = [row for row in evaluated if row.get("val_accuracy")]
        if validated:  # the first round with the best mean accuracy on validation data
            chosen = max(validated, key=lambda row: (statistics.fmean(row["val_accuracy"].values()), -row["round"]))
        scores: dict[str, float] = chosen["test_accuracy"] if chosen else {}
        return {
            "test_accuracy": {name: {"mean": value, "std": 0.0} for name, value in scores.items()},
            "average": {"mean": statistics.fmean(scores.values()) if scores else None, "std": 0.0},
            "view": self.view,
            "selected_round": {self.seed: chosen["round"] if chosen else None},
        }

    def to_dict(self, recipe: str = "") -> dict[str, Any]:
        """The document of `result.json`."""
        return {
            "schema": 1,
            "recipe": recipe,
            "method": self.method,
            "seeds": [self.seed],
            "engine": self.engine,
            "device": self.device,
            "rounds": self.rounds,
            "clients": list(self.clients),
            "history": self.history,
            "final": self.final,
            "timing": self.timing,
            "environment": {
                "normfed": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }


class Run:
    """A run under way: `play()` one round at a time, `save()` it at any time, go on from the bytes in `resume`."""

    def __init__(
        self,
        model: nn.Module,
        clients: Mapping[str, ClientData],
        method: Expression,
        *,
        resume: bytes | None = None,
        **settings: Any,
    ) -> None:
        self.clients = clients
        problems, device = Problems(), torch.device("cpu")
        given_seed = settings.get("seed", 0)
        with problems:
            self.settings = Settings.of(**settings)
            device = dispatch.device(self.settings.device)
        with problems:
            survey = checks.survey(clients)
        with problems:
            samples = checks.first_samples(clients)[0]
            chain = prepare.parse(settings.get("prepare"), like=samples)
            self.plan = build(method, model, samples, given_seed if isinstance(given_seed, int) else 0, chain)
        problems.say()
        given = self.settings
        self.loss = given.loss_function
        x, y = checks.first_samples(clients)
        sizes = {Pooled.name: sum(survey.sizes.values())} if self.plan.pool else dict(survey.sizes)
        if not callable(given.loss):  # the named losses want class labels
            problems.found += checks.check_labels(survey, self.plan.facts.classes)
        problems.found += given.check_weighting(survey.sizes)
        problems.found += given.check_stop(survey.splits)
        problems.found += checks.check_batches(self.plan, sizes, given.batch_size, given.drop_last)
        if not problems.found:
            problems.found += checks.check_loss(self.loss, self._probe_logits(x), y)
        problems.say()
        self.device = device
        self.plan.net.to(device)
        self.sizes = sizes
        self.audience = Store(clients, device, survey.roles, survey.splits)
        self.federation = Store(Pooled(clients), device, {Pooled.name: "train"}) if self.plan.pool else self.audience
        self.engine, self.engine_reason = dispatch.choose(
            given.engine, self.plan, x.to(device), y.to(device), self.loss, len(sizes), given.batch_size, given.stack
        )
        self.rules = rules_of(given)
        self.state: RunState = initial(self.plan)
        self._seen: tuple[int, State] | None = None  # (round, model) of the last evaluation
        self.history: list[dict[str, Any]] = []
        self.timing = {"train_s": 0.0, "evaluate_s": 0.0}
        if resume is not None:
            self.restore(resume)

    def _probe_logits(self, x: Tensor) -> Tensor:
        return torch.zeros(len(x), self.plan.facts.classes, dtype=self.plan.net.dtype)

    def restore(self, data: bytes) -> dict[str, Any]:
        """Goes on from what `save` gave; returns what was kept beside the state."""
        state, extra = checkpoint.from_bytes(data)
        if set(state.model) != set(self.plan.net.initial) or extra["method"] != str(self.plan.method):
            raise Refused(
                f"the saved run is of method {extra['method']} on a model with {len(state.model)} entries; "
                f"this one is of {self.plan.method} on {len(self.plan.net.initial)}"
            )
        self.state, self.history = checkpoint.move(state, self.device), extra.get("history", [])
        return dict(extra)

    @property
    def done(self) -> bool:
        """Whether the last round is played, or training has ended early."""
        rule = self.settings.stop_rule
        return self.state.round >= self.settings.rounds or (rule is not None and rule.after(self.history))

    @property
    def view(self) -> str:
        """Whose model is evaluated on a client's test data."""
        phase = self.plan.phase(self.state.latched)
        return "own" if phase.local or phase.load else "global"

    @property
    def local(self) -> frozenset[str]:
        """Names of entries that never leave a client, tied names too."""
        mine = set(self.plan.phase(self.state.latched).local)
        return frozenset(name for e in self.plan.net.entries if e.name in mine for name in (e.name, *e.aliases))

    def play(self) -> dict[str, Any]:
        """Plays the next round; returns its row of the history."""
        started = time.perf_counter()
        number, broadcast = self.state.round, self.state.model
        trained: dict[str, State] = {}
        watch = self._watch(trained) if self._pictured(number) else None
        state, facts = play(self.plan, self.state, self.engine, self.federation, self.sizes, self.rules, watch)
        self.timing["train_s"] += time.perf_counter() - started
        self.state = state
        losses = facts.train_loss
        if self.plan.pool:  # one model, one loss: each client's
            losses = dict.fromkeys(self.audience.of("train"), losses[Pooled.name])
        row: dict[str, Any] = {
            "seed": self.settings.seed,
            "round": number,
            "train_loss": losses,
            "test_accuracy": {},
            "bytes_up": 0,
            "bytes_down": 0,
            "messages": 0,
            "skipped": facts.skipped,
            "latched": facts.latched,
        }
        _count(row, facts.setup, facts.traffic)
        self.history.append(row)
        if (number + 1) % self.settings.evaluate_every == 0 or self.done:
            self._evaluate(row)
        if watch is not None:
            row["pictures"] = self._pictures(broadcast, trained)
        return row

    def _pictured(self, round: int) -> bool:
        given = self.settings
        return bool(given.pictures) and pictures.due(round, given.rounds, given.evaluate_every)

    def _watch(self, trained: dict[str, State]) -> Callable[[str, State], None]:
        wanted = pictures.subjects(self.federation.names)

        def watch(client: str, state: State) -> None:
            if client in wanted:
                trained[client] = state

        return watch

    def _pictures(self, broadcast: State, trained: Mapping[str, State]) -> list[pictures.Fact]:
        started = time.perf_counter()
        facts = pictures.take(self.settings.pictures, pictures.Scene(self.evaluation(), broadcast, trained))
        self.timing["pictures_s"] = self.timing.get("pictures_s", 0.0) + time.perf_counter() - started
        return facts

    def evaluation(self) -> Evaluation:
        """What clients evaluate now."""
        if self._seen is None or self._seen[0] != self.state.round:
            model, _ = refresh(self.plan, self.state, self.engine, self.federation, self.sizes, self.rules)
            self._seen = (self.state.round, model)
        metrics = self.settings.metrics if "accuracy" in self.settings.metrics else ("accuracy", *self.settings.metrics)
        return Evaluation(self.plan, self.state, self._seen[1], self.audience, self.sizes, self.rules, metrics)

    def _evaluate(self, row: dict[str, Any]) -> None:
        """Adds what an evaluation finds to the round's row."""
        started = time.perf_counter()
        model, traffic = refresh(self.plan, self.state, self.engine, self.federation, self.sizes, self.rules)
        self._seen = (self.state.round, model)
        _count(row, traffic)  # an exchange for evaluation is an exchange
        evaluation = self.evaluation()
        row["view"] = self.view
        for which in ("test", "val"):
            for _, scores in evaluation.view("own", which):
                for client, found in scores.items():
                    for name, value in found.items():
                        row.setdefault(f"{which}_{name}", {})[client] = value
        if (row["round"] + 1) % self.settings.views_every == 0 or self.done:
            for view in self.settings.views:
                row.setdefault("views", {}).update(evaluation.view(view))
        self.timing["evaluate_s"] += time.perf_counter() - started

    def state_of(self, client: str) -> dict[str, Tensor]:
        """What a client evaluates with: the global model's shared entries, its own LOCAL ones."""
        return dict(self.evaluation().own_state(client))

    def save(self) -> bytes:
        """State and history, to go on from."""
        extra = {"method": str(self.plan.method), "history": self.history}
        return checkpoint.to_bytes(self.state, extra)

    def result(self) -> Result:
        """What the run leaves as it stands."""
        net = self.plan.net
        return Result(
            method=str(self.plan.method),
            rounds=self.state.round,
            seed=self.settings.seed,
            engine=self.engine.name,
            engine_reason=self.engine_reason,
            device=self.settings.device,
            clients=self.audience.of("train", "evaluate"),
            view=self.view,
            global_state=net.named({name: tensor.cpu() for name, tensor in self.state.model.items()}),
            client_states={
                client: net.named({name: tensor.cpu() for name, tensor in self.state_of(client).items()})
                for client in self.audience.of("train", "evaluate")
            },
            history=self.history,
            timing=self.timing,
        )


def rules_of(given: Settings) -> Rules:
    """What of the settings a round depends on."""
    seed = fold(given.seed, "normfed")
    assert isinstance(seed, int)
    return Rules(
        seed=seed,
        rounds=given.rounds,
        batch_size=given.batch_size,
        epochs=given.epochs,
        steps=given.steps,
        drop_last=given.drop_last,
        shuffle=given.shuffle,
        participation=given.participation,
        weighting=given.weighting,
        lr=given.lr_at,
        optimizer=given.make_optimizer(),
        clip_norm=given.clip_norm,
        loss=given.loss_function,
    )


def _count(row: dict[str, Any], *traffics: Traffic) -> None:
    for traffic in traffics:
        row["bytes_up"] += traffic.bytes_up
        row["bytes_down"] += traffic.bytes_down
        row["messages"] += traffic.messages


def simulate(
    model: nn.Module,
    clients: Mapping[str, ClientData],
    method: Expression,
    *,
    on_round: Callable[[dict[str, Any]], None] | None = None,
    **settings: Any,
) -> Result:
    """Federated training of `model` by `method` on `clients`, in this process.

    `settings` are those of `normfed.settings.Settings`: rounds, epochs or steps, batch_size, lr, … The model is
    copied; its own weights are the start. Every problem with the input is raised at once, before any work.
    `on_round` is called with each row of the history as it comes.
    """
    run = Run(model, clients, method, **settings)
    while not run.done:
        row = run.play()
        if on_round is not None:
            on_round(row)
    return run.result()
