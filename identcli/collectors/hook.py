"""The collector: it hooks both sides of `optimizer.step`, so that weights, gradient and update are at hand together.

In one's own loop:

    collector = attach(optimizer, model.named_parameters(), layout)
    ...                                       # train as always
    rho = collector.table("heads")["rho"]     # one value a measured step, layer and head
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Circuit
from identcli.collectors.biases import measure_bias_gradients
from identcli.collectors.decay import measure_decay
from identcli.collectors.imbalance import measure_imbalance
from identcli.collectors.observed import Observed
from identcli.collectors.prediction import measure_prediction
from identcli.collectors.settings import StepSettings, read_settings
from identcli.collectors.share import measure_share
from identcli.collectors.spectrum import measure_spectrum
from identcli.collectors.when import When, every
from identcli.layouts.places import Layout, read
from identcli.symmetry.charge import charge
from identcli.symmetry.pair import Pair, gather

# What is measured for each circuit: functions of one observed step, each giving columns (L, G).
MEASUREMENTS: tuple[Callable[[Observed], dict[str, Tensor]], ...] = (
    measure_share,
    measure_imbalance,
    measure_spectrum,
    measure_decay,
    measure_prediction,
)

Sink = Callable[[str, int, dict[str, Any]], None]


def attach(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    layout: Layout,
    *,
    circuits: Sequence[Circuit] = ("qk",),
    when: When | None = None,
    sink: Sink | None = None,
    first_step: int = 0,
) -> "Collector":
    """Measure around every due `optimizer.step` from now on, until `detach()`; works as a context manager too.

    parameters: the model's named parameters, in the layout's names. circuits: `qk`, `ov`. when: a function of the
    step's number (default every 10). sink(table, step, columns) receives what is measured; without one it is kept in
    memory for `table`. first_step: the number of the next step. Raises UserError when the layout does not fit the
    parameters.

    Measuring reads weights and gradients and draws no random numbers: training goes on bit for bit as without it.
    """
    named = dict(parameters.items() if isinstance(parameters, Mapping) else parameters)
    return Collector(optimizer, named, layout, tuple(circuits), when or every(10), sink, first_step)


class Collector:
    """Measures all layers and heads of a circuit in one batched float64 call, and moves the results to the host once.

    On a device without float64 (Apple's MPS) the weights are copied to the CPU and measured there.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: dict[str, Tensor],
        layout: Layout,
        circuits: tuple[Circuit, ...],
        when: When,
        sink: Sink | None,
        first_step: int,
    ) -> None:
        for circuit in circuits:
            layout.check(parameters, circuit)
        self._optimizer, self._parameters, self._layout = optimizer, parameters, layout
        self._families = {circuit: layout.attention.pair(circuit) for circuit in circuits}
        self._when, self._step = when, first_step
        self._rows: dict[str, list[dict[str, np.ndarray]]] = {}
        self._sink = sink or self._keep
        self._start = {
            circuit: charge(family.group, self._weights(circuit)) for circuit, family in self._families.items()
        }
        self._pending: dict[Circuit, tuple[Pair, Pair | None, StepSettings]] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def table(self, name: str) -> dict[str, np.ndarray]:
        """What was measured so far, column by column (`heads` or `biases`), when no sink was given."""
        rows = self._rows.get(name, [])
        if not rows:
            raise UserError(f"nothing measured in table {name!r} yet; measured: {', '.join(self._rows) or 'nothing'}")
        return {column: np.concatenate([row[column] for row in rows]) for column in rows[0]}

    def detach(self) -> None:
        """Stop measuring. What was measured stays."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> "Collector":
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs: the number of the next step and the charge at the start."""
        return {"step": self._step, "start": {circuit: start.cpu() for circuit, start in self._start.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on as if the collector had been there from the start."""
        self._step = state["step"]
        for circuit, start in self._start.items():
            self._start[circuit] = state["start"][circuit].to(start)

    def _before_step(self, *_: object) -> None:
        if not self._when(self._step):
            return
        for circuit in self._families:
            settings = read_settings(self._optimizer, self._parameters, self._layout.tensors(circuit))
            self._pending[circuit] = (self._weights(circuit), self._gradient(circuit), settings)

    def _after_step(self, *_: object) -> None:
        step, self._step = self._step, self._step + 1
        for circuit, (before, gradient, settings) in self._pending.items():
            stored_as = self._parameters[self._layout.tensors(circuit)[0]].dtype
            observed = Observed(
                self._families[circuit],
                before,
                self._weights(circuit),
                gradient,
                self._start[circuit],
                settings,
                stored_as,
            )
            columns = {name: values for measure in MEASUREMENTS for name, values in measure(observed).items()}
            self._emit("heads", step, ("layer", "head"), columns, circuit=circuit)
            if circuit == "qk" and gradient is not None:
                self._emit("biases", step, ("layer",), measure_bias_gradients(gradient))
        self._pending.clear()

    def _weights(self, circuit: Circuit) -> Pair:
        return self._read(circuit, self._parameters)

    def _gradient(self, circuit: Circuit) -> Pair | None:
        gradients = {name: self._parameters[name].grad for name in self._layout.tensors(circuit)}
        if any(gradient is None for gradient in gradients.values()):
            return None
        return self._read(circuit, gradients)

    def _read(self, circuit: Circuit, tensors: Mapping[str, Any]) -> Pair:
        return gather(self._families[circuit], read(self._layout, circuit, tensors))

    def _emit(self, table: str, step: int, axes: tuple[str, ...], columns: dict[str, Tensor], **labels: str) -> None:
        stacked = torch.stack(list(columns.values())).cpu().numpy()
        indices = np.indices(stacked.shape[1:]).reshape(len(axes), -1)
        values = dict(zip(columns, stacked.reshape(len(columns), -1), strict=True))
        self._sink(table, step, {**labels, **dict(zip(axes, indices, strict=True)), **values})

    def _keep(self, table: str, step: int, columns: dict[str, Any]) -> None:
        rows = len(columns["layer"])
        full = {"step": step, **columns}
        self._rows.setdefault(table, []).append({name: np.broadcast_to(v, rows) for name, v in full.items()})
