"""The collector: it hooks both sides of `optimizer.step`, so that weights, gradient and update are at hand together.

In one's own loop:

    collector = attach(optimizer, model.named_parameters(), layout)
    ...                                       # train as always
    rho = collector.table("heads")["rho"]     # one value a measured step, layer and head
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Circuit, PairFamily
from identcli.collectors.beside import Beside, Departing
from identcli.collectors.biases import measure_bias_gradients
from identcli.collectors.decay import measure_decay
from identcli.collectors.imbalance import measure_imbalance
from identcli.collectors.observed import Observed, some_layers
from identcli.collectors.prediction import measure_prediction
from identcli.collectors.settings import StepSettings, read_settings
from identcli.collectors.share import measure_share
from identcli.collectors.spectrum import measure_spectrum
from identcli.collectors.when import When, every
from identcli.layouts.places import Layout, holds, read
from identcli.symmetry.charge import Grams, charge
from identcli.symmetry.pair import Pair, gather, scatter

# What is measured for each circuit: functions of one observed step, each giving columns (L, G).
MEASUREMENTS: tuple[Callable[[Observed], dict[str, Tensor]], ...] = (
    measure_share,
    measure_imbalance,
    measure_spectrum,
    measure_decay,
    measure_prediction,
)

LARGEST = 32 << 20  # bytes of one matrix of all heads, of which a dozen are worked on: no block is larger

Read = Callable[[], Pair]
Sink = Callable[[str, int, dict[str, Any]], None]

# Rows of one table: its name, step, axes, columns along them, and what else a row says.
Rows = tuple[str, int, tuple[str, ...], dict[str, Tensor], dict[str, str]]


class Left(NamedTuple):
    """The weights that a step has left, which the next one finds unless somebody moves them; the grams of each of the
    parts in which they were measured, and the float64 of a lone part (of many it would be too much to keep)."""

    pair: Pair
    grams: Sequence[Grams | None] = ()
    double: Pair | None = None


class Measured(NamedTuple):
    """What one step of a circuit gave; nothing when it left weights that are not finite."""

    rows: Sequence[Rows] = ()
    left: Left | None = None


def attach(
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    layout: Layout,
    *,
    circuits: Sequence[Circuit] = ("qk",),
    when: When | None = None,
    sink: Sink | None = None,
    first_step: int = 0,
    beside: bool | None = None,
) -> "Collector":
    """Measure around every due `optimizer.step` from now on, until `detach()`; works as a context manager too.

    parameters: the model's named parameters, in the layout's names. circuits: `qk`, `ov`. when: a function of the
    step's number (default every 10). sink(table, step, columns) receives what is measured; without one it is kept in
    memory for `table`. first_step: the number of the next step. beside: measure on the host, in threads beside
    training, so that the device never waits; results then reach the sink some steps later, all of them by `flush`,
    `table` or `detach` (default: for parameters on CUDA). Raises UserError when the layout does not fit the parameters.

    Measuring reads weights and gradients and draws no random numbers: training goes on bit for bit as without it.
    """
    named = dict(parameters.items() if isinstance(parameters, Mapping) else parameters)
    if beside is None:
        beside = any(tensor.is_cuda for tensor in named.values())
    return Collector(optimizer, named, layout, tuple(circuits), when or every(10), sink, first_step, beside)


class Collector:
    """Measures the heads of all layers that fit in one batched float64 call, and moves the results to the host once.

    On a device without float64 (Apple's MPS) the weights are copied to the CPU and measured there. A step that leaves
    weights which are not finite gives no rows. `when` may be set to another function between two steps.
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
        beside: bool,
    ) -> None:
        for circuit in circuits:
            layout.check(parameters, circuit)
        self._optimizer, self._parameters, self._layout = optimizer, parameters, layout
        self._families = {circuit: layout.attention.pair(circuit) for circuit in circuits}
        self.when, self._step = when, first_step
        self._rows: dict[str, list[dict[str, np.ndarray]]] = {}
        self._sink = sink or self._keep
        self._beside = Beside(self._emit) if beside else None
        self._start = {
            circuit: charge(family.group, self._weights(circuit)().double())
            for circuit, family in self._families.items()
        }
        self._pending: dict[Circuit, tuple[Read | Left, Read | None, StepSettings]] = {}
        self._left: dict[Circuit, Left] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def table(self, name: str) -> dict[str, np.ndarray]:
        """What was measured so far, column by column (`heads` or `biases`), when no sink was given."""
        self.flush()
        rows = self._rows.get(name, [])
        if not rows:
            raise UserError(f"nothing measured in table {name!r} yet; measured: {', '.join(self._rows) or 'nothing'}")
        return {column: np.concatenate([row[column] for row in rows]) for column in rows[0]}

    def flush(self) -> None:
        """Wait for what is being measured beside training, and hand it to the sink."""
        if self._beside:
            self._beside.flush()

    def detach(self) -> None:
        """Stop measuring. What was measured stays."""
        for hook in self._hooks:
            hook.remove()
        if self._beside:
            self._beside.close()

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
        if not self.when(self._step):
            return
        for circuit in self._families:
            settings = read_settings(self._optimizer, self._parameters, self._layout.tensors(circuit))
            before = self._still_left(circuit) or self._weights(circuit)
            self._pending[circuit] = (before, self._gradient(circuit, settings), settings)

    def _after_step(self, *_: object) -> None:
        step, self._step = self._step, self._step + 1
        for circuit, (before, gradient, settings) in self._pending.items():
            stored_as = self._parameters[self._layout.tensors(circuit)[0]].dtype
            family, start, after = self._families[circuit], self._start[circuit], self._weights(circuit)
            work = partial(_measure, step, family, before, after, gradient, start, settings, stored_as)
            if self._beside:
                self._beside.submit(work)
                continue
            measured = work()
            self._emit(measured)
            if measured.left and self.when(self._step):  # else it would be held for nothing
                self._left[circuit] = measured.left
        self._pending.clear()

    def _still_left(self, circuit: Circuit) -> Left | None:
        """What the latest step that was measured left, unless somebody has moved the weights since."""
        left = self._left.pop(circuit, None)
        if left and holds(self._layout, self._parameters, scatter(self._families[circuit], left.pair)):
            return left
        return None

    def _weights(self, circuit: Circuit) -> Read:
        return self._read(circuit, self._parameters)

    def _gradient(self, circuit: Circuit, settings: StepSettings) -> Read | None:
        """None when a parameter has none. Only of the biases where no prediction needs the rest."""
        gradients = {name: self._parameters[name].grad for name in self._layout.tensors(circuit)}
        if any(gradient is None for gradient in gradients.values()):
            return None
        return self._read(circuit, gradients, settings.plain)

    def _read(self, circuit: Circuit, tensors: Mapping[str, Any], weights: bool = True) -> Read:
        """A copy of the pairs as they are now, in their own dtype."""
        roles = read(self._layout, circuit, tensors, dtype=None, weights=weights)
        pair = gather(self._families[circuit], roles)
        return Departing(pair).arrived if self._beside else lambda: pair

    def _emit(self, measured: Measured) -> None:
        for table, step, axes, columns, labels in measured.rows:
            stacked = torch.stack(list(columns.values())).cpu().numpy()
            indices = np.indices(stacked.shape[1:]).reshape(len(axes), -1)
            values = dict(zip(columns, stacked.reshape(len(columns), -1), strict=True))
            self._sink(table, step, {**labels, **dict(zip(axes, indices, strict=True)), **values})

    def _keep(self, table: str, step: int, columns: dict[str, Any]) -> None:
        rows = len(columns["layer"])
        full = {"step": step, **columns}
        self._rows.setdefault(table, []).append({name: np.broadcast_to(v, rows) for name, v in full.items()})


def _measure(
    step: int,
    family: PairFamily,
    before: Read | Left,
    after: Read,
    gradient: Read | None,
    start: Tensor,
    settings: StepSettings,
    stored_as: torch.dtype,
) -> Measured:
    """Everything about one step of a circuit."""
    slope, seen = gradient() if gradient else None, after()
    found = before if isinstance(before, Left) else Left(before())
    parts, grams, layers = [], [], some_layers(seen, LARGEST)
    for some, known in zip(layers, found.grams or [None] * len(layers), strict=True):
        begin = found.double or found.pair.layers(some).double()
        end = seen.layers(some).double()
        followed = slope.layers(some).double() if slope and settings.plain else None
        observed = Observed(family, begin, end, followed, start[some], settings, stored_as, known)
        if not observed.finite:
            return Measured()
        grams.append(observed.grams_after)
        parts.append({name: values for measure in MEASUREMENTS for name, values in measure(observed).items()})
    first, *others = parts
    columns = {name: torch.cat([part[name] for part in parts]) for name in first} if others else first
    rows: list[Rows] = [("heads", step, ("layer", "head"), columns, {"circuit": family.circuit})]
    if family.circuit == "qk" and slope is not None:
        rows.append(("biases", step, ("layer",), measure_bias_gradients(slope.double()), {}))
    return Measured(rows, Left(seen, grams, None if others else end))
