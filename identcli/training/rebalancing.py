"""Rebalancing a live model: weights and biases move to the balanced point, the optimizer's state follows (5.2.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from identcli.architecture.pairs import Circuit, PairFamily
from identcli.layouts.places import Layout, read, write
from identcli.symmetry.act import act
from identcli.symmetry.balance import Balance, balance
from identcli.symmetry.charge import charge
from identcli.symmetry.pair import Pair, augmented, gather, scatter
from identcli.symmetry.transport import transport, transport_squares

Mode = Literal["on", "state_only"]
Target = Literal["weights", "augmented"]
State = Literal["clear", "transport"]

# Wherever the model is: a GPU takes longer over float64 decompositions of small matrices, one after the other, than the
# few megabytes take to the host and back. A rebalancing is rare and waits for the device anyway.
HOST = torch.device("cpu")

# How each of torch's per-parameter state tensors moves; anything else (a step count) does not.
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")


@dataclass(frozen=True)
class Rebalanced:
    """What one application did to a circuit. The lists are (L, G): β of the weights alone, and with the biases."""

    circuit: Circuit
    mode: Mode
    target: Target
    state: State
    beta_before: list[list[float]]
    beta_after: list[list[float]]
    beta_bias_before: list[list[float]]
    beta_bias_after: list[list[float]]
    left_alone: int  # pairs that have lost rank and so have no balanced point

    def as_event(self) -> dict[str, Any]:
        return {"event": "rebalance", **asdict(self)}


@torch.no_grad()
def rebalance(
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    circuits: Sequence[Circuit] = ("qk",),
    *,
    mode: Mode = "on",
    target: Target = "weights",
    state: State = "clear",
) -> list[Rebalanced]:
    """Move the pairs of each circuit to the nearest balanced point of their orbit, in place. The model stays the same
    function.

    mode `state_only` leaves the weights and only clears the state: the paper's control. target `weights` makes the
    charge of the weights zero, as the paper; `augmented` that of the weights with their biases, which is what gradient
    flow conserves. Biases move along either way. state `clear` drops the optimizer's whole state of every tensor that
    holds a moved role (step count and value rows included, since Adam keeps its bias correction per tensor);
    `transport` moves first moments exactly and second moments by the elementwise square of the same map, approximately.
    """
    done = []
    for circuit in circuits:
        family = layout.attention.pair(circuit)
        before = gather(family, read(layout, circuit, parameters, device=HOST))
        left_alone = 0
        if mode == "on":
            balanced = balance(family.group, before if target == "weights" else augmented(family.group, before))
            left_alone = int((~balanced.exists).sum())
            write(layout, parameters, scatter(family, act(balanced.step, before)))
            if state == "transport":
                _transport_state(parameters, optimizer, layout, circuit, balanced)
        if mode == "state_only" or state == "clear":
            for name in layout.tensors(circuit):
                optimizer.state.pop(parameters[name], None)
        after = gather(family, read(layout, circuit, parameters, device=HOST))
        done.append(
            Rebalanced(
                circuit,
                mode,
                target,
                state,
                beta_before=_beta(family, before),
                beta_after=_beta(family, after),
                beta_bias_before=_beta(family, augmented(family.group, before)),
                beta_bias_after=_beta(family, augmented(family.group, after)),
                left_alone=left_alone,
            )
        )
    return done


def _transport_state(
    parameters: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    layout: Layout,
    circuit: Circuit,
    balanced: Balance,
) -> None:
    family = layout.attention.pair(circuit)
    states = {name: optimizer.state.get(parameters[name], {}) for name in layout.tensors(circuit)}
    for key in (*FIRST_MOMENTS, *SECOND_MOMENTS):
        moments = {name: state.get(key) for name, state in states.items()}
        if any(moment is None for moment in moments.values()):
            continue
        move = transport if key in FIRST_MOMENTS else transport_squares
        pair = gather(family, read(layout, circuit, moments, device=HOST))
        write(layout, moments, scatter(family, move(balanced.step, pair)))


def _beta(family: PairFamily, pair: Pair) -> list[list[float]]:
    return torch.linalg.vector_norm(charge(family.group, pair), dim=-1).tolist()
