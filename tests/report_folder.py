"""A run's folder written by hand, for tests of the report."""

import itertools
import json

from normfed.text import toml

CLIENTS = ("north", "south")


def records(level, seeds=(0, 1, 2), rounds=4, view="own", pictures=True, noise=0.0, extra=()):
    """Accuracy rises to `level`; a little noise of its own for every seed and client."""
    facts = []
    for seed, r in itertools.product(seeds, range(rounds)):
        where = {"seed": seed, "round": r}
        for k, client in enumerate(CLIENTS):
            value = level * (r + 1) / rounds + 0.01 * k + 0.001 * seed * (1 + k) + noise * level * seed**2
            own = {"split": "test", "view": view, "client": client}
            facts += [
                {**where, "metric": "loss", "split": "train", "client": client, "value": 1 / (r + 1)},
                {**where, "metric": "accuracy", **own, "value": value},
                {**where, "metric": "accuracy", **own, "view": "pooled", "client": "all", "value": value / 2},
            ]
        facts += [
            {**where, "metric": m, "value": v} for m, v in (("bytes_up", 3e6), ("bytes_down", 1e6), ("messages", 2))
        ]
        if pictures:
            facts += [
                {**where, "metric": m, "layer": layer, "value": 0.5 + r}
                for m in ("divergence", "mismatch", "feature_cosine")
                for layer in ("one", "two")
            ]
            facts += [{**where, "metric": "gap/test", "client": c, "value": 0.1 * r} for c in CLIENTS]
        facts += [{**where, **fact} for fact in extra]
    return facts


def a_run(folder, method, level=0.5, finished=True, config=None, cut=None, view="own", **how):
    folder.mkdir(parents=True, exist_ok=True)
    facts = records(level, view=view, **how)
    if cut is not None:
        facts = [fact for fact in facts if fact["round"] < cut]
    (folder / "records.jsonl").write_text("\n".join(map(json.dumps, facts)) + "\n")
    seeds = sorted({fact["seed"] for fact in facts})
    rounds = how.get("rounds", 4)
    held = {
        "data": "embedded",
        "partition_seed": 0,
        "method": method,
        "seeds": seeds,
        "rounds": rounds,
        "lr": 0.1,
        **(config or {}),
    }
    (folder / "config.toml").write_text(toml(held))
    document = {
        "schema": 1, "recipe": "demo", "method": method, "seeds": seeds, "engine": "serial", "device": "cpu", "rounds": rounds,
        "clients": list(CLIENTS), "history": [],
        "final": {"test_accuracy": {}, "average": {}, "view": view, "selected_round": {str(s): rounds - 1 for s in seeds}},
        "timing": {"train_s": 1.5, "evaluate_s": 0.5}, "environment": {"normfed": "1", "torch": "2", "python": "3"},
    }  # fmt: skip
    if finished:
        (folder / "result.json").write_text(json.dumps(document))
    return document
