"""PartialFed: Sun et al., NeurIPS 2021. All layers are averaged, not all are loaded.

A client starts each round, and evaluates, with the new global model except for some layers, which stay as it left them
the round before. Fix: the layers are chosen by hand (`keep`, a selector). Adaptive: each client learns for every layer
whether to load it.

Deviations: no code is public. The adaptive choice is read as follows: one gate per layer, local to the client, above 0:
load. The forward pass has the value of the chosen weights and the gradient of the relaxed choice
(sigmoid(gate) global + (1 - sigmoid(gate)) own), trained with the weights; the paper alternates and draws Gumbel noise.
"""

import torch
from torch import nn

from normfed.errors import Refused
from normfed.method import Expression, Holder, Method, Slot, factory
from normfed.needs import has
from normfed.state import Scope, Select, describe, pick, select


@factory
def partialfed(keep: str | Select = "norm") -> Expression:
    """Averages everything; each client goes on from its own `keep` entries and the new global rest.

    Use it when some layers should stay the client's own in use, and yet learn from all in the average.
    It cannot keep anything from the server: all layers are uploaded, those that are not loaded too.
    Identities: partialfed(keep="norm & ~everything") = fedavg
    """
    kept = select(keep)

    def names(context):
        return [e.name for e in context.entries if kept(e)]

    mine = Slot(
        "mine", Holder.CLIENT,
        init=lambda beginning: pick(beginning.model, names(beginning)),
        after=lambda end: pick(end.final, end.slots["mine"]),
    )  # fmt: skip

    def load(context):
        return {**context.received, **context.slots["mine"]}

    return Method("partialfed", needs=(has(kept, f"entries '{kept}'"),), slots=(mine,), load=load)


GATES = "partialfed_gates"  # one number per layer: at or above 0, the layer is loaded from the global model
gates = Select("gates", lambda e: e.name == GATES)


def _layers(entries):
    """The entries of each layer that has something to train."""
    found = {}
    for entry in entries:
        if not gates(entry):
            found.setdefault(entry.layer, []).append(entry)
    return [members for members in found.values() if any(e.trainable for e in members)]


def _with_gates(model, x):
    layers = _layers(describe(model))
    if not layers:
        raise Refused("it gates layers, and the model has none to train")
    model.register_parameter(GATES, nn.Parameter(next(model.parameters()).new_zeros(len(layers))))
    return model


@factory
def partialfed_adaptive() -> Expression:
    """PartialFed with a learnt choice, per client and layer, of what to load.

    Use it when it is not known which layers should stay the clients' own.
    It cannot choose in a few rounds: gates are learnt with the weights, and each client keeps a whole model.
    """

    def chosen(context, own):
        """The global entries of layers whose gate is open, the client's own of all others."""
        received = context.received
        state = {**received, GATES: own[GATES]}
        for gate, members in zip(own[GATES], _layers(context.entries), strict=True):
            for e in members:
                state[e.name] = torch.where(gate >= 0, received[e.name], own[e.name])
        return state

    def relaxed(params, step):
        openness = torch.sigmoid(params[GATES])
        straight = openness - openness.detach()  # no value, the gradient of the relaxed choice
        changed, received = dict(params), step.received
        for i, members in enumerate(_layers(step.entries)):
            for e in members:
                if e.trainable:
                    changed[e.name] = params[e.name] + straight[i] * (received[e.name] - step.slots["mine"][e.name])
        return changed

    mine = Slot("mine", Holder.CLIENT, init=lambda b: dict(b.model), after=lambda end: dict(end.final))
    return Method(
        "partialfed_adaptive", transform=(_with_gates,), scope=((gates, Scope.LOCAL),), slots=(mine,),
        load=lambda context: chosen(context, context.slots["mine"]), params=relaxed,
    )  # fmt: skip
