"""Where each role tensor lies inside the named tensors of a model or of a file.

Roles: W_Q, W_K, W_V (heads, D, E); W_O (heads, C, E), the transpose of each head's output matrix;
b_Q, b_K, b_V (heads, D).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import ROLES, Attention, Circuit


@dataclass(frozen=True)
class Place:
    """Head h of a role is `size` rows from start + h·stride on, in the tensor `name`.

    name: "{layer}" in it stands for the layer's number. axis: 0 when the heads lie on the tensor's rows, 1 when on its
    columns (an output matrix, or GPT-2's Conv1D). run: when heads come in runs of `together`, with other rows between
    the runs, head h starts at start + (h // together)·run + (h % together)·stride.
    """

    name: str
    start: int
    heads: int
    size: int
    stride: int
    axis: int = 0
    together: int = 0
    run: int = 0

    def view(self, tensor: Tensor) -> Tensor:
        """The role as a view of `tensor`: (heads, size, E) of a matrix, (heads, size) of a vector.

        With runs the heads' axis is two: (heads / together, together, size, E), since one stride can't reach them all.
        Writing to the view writes to the tensor.
        """
        shape, strides, first = _seen(self, tensor.shape, tensor.stride())
        return tensor.as_strided(shape, strides, tensor.storage_offset() + first)

    @property
    def span(self) -> int:
        """Rows from the first head's first to the last head's last."""
        if not self.together:
            return (self.heads - 1) * self.stride + self.size
        return (self.heads // self.together - 1) * self.run + self._run_span

    @property
    def _run_span(self) -> int:
        return (self.together - 1) * self.stride + self.size


@cache
def _seen(
    place: Place, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape and strides of the view of a tensor with these, and its first entry."""
    if place.axis == 1:
        shape, strides = (shape[1], shape[0]), (strides[1], strides[0])
    (count, *width), (row, *rest) = shape, strides
    if count < place.start + place.span:
        raise UserError(f"{place.name}: has {count} rows, the layout needs {place.start + place.span}")
    heads, steps = [place.heads], [place.stride]
    if place.together:
        heads, steps = [place.heads // place.together, place.together], [place.run, place.stride]
    return (*heads, place.size, *width), (*(step * row for step in steps), row, *rest), place.start * row


@dataclass(frozen=True)
class Layout:
    """The places of all roles, in every layer, of a model with these attention facts."""

    attention: Attention
    places: Mapping[str, Place]

    def names(self, role: str) -> list[str]:
        """The tensor that holds `role` in each layer."""
        return self._names[role]

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        layers = range(self.attention.layers)
        return {role: [place.name.format(layer=layer) for layer in layers] for role, place in self.places.items()}

    def roles(self, circuit: Circuit) -> list[str]:
        """The roles of a circuit that exist here."""
        return [role for role in ROLES[circuit] if role is not None and role in self.places]

    def tensors(self, circuit: Circuit) -> list[str]:
        """The tensors that hold any role of a circuit, each once, in order."""
        return list(dict.fromkeys(name for role in self.roles(circuit) for name in self.names(role)))

    def check(self, tensors: Mapping[str, Tensor], circuit: Circuit) -> None:
        """Raise a UserError that names the first tensor of the circuit that is missing or has another size."""
        for role in self.roles(circuit):
            for name in self.names(role):
                if name not in tensors:
                    some = ", ".join(list(tensors)[:3])
                    raise UserError(f"no tensor {name!r} in the model, so the layout doesn't fit; it has {some}, …")
                view = self.places[role].view(tensors[name])
                if tensors[name].ndim == 2 and view.shape[-1] != self.attention.embedding:
                    width, needed = view.shape[-1], self.attention.embedding
                    raise UserError(f"{name}: the embedding is {width} there, the layout needs {needed}")


@torch.no_grad()
def read(
    layout: Layout,
    circuit: Circuit,
    tensors: Mapping[str, Tensor] | Callable[[str], Tensor],
    dtype: torch.dtype | None = torch.float64,
    device: torch.device | str | None = None,
    weights: bool = True,
) -> dict[str, Tensor]:
    """The roles of a circuit over all layers, copied: weights (L, heads, D, E), biases (L, heads, D).

    dtype: None keeps the tensors' own. Without a `device` they stay on the tensors' own, but for Apple's MPS, which has
    no float64: then on the CPU. weights: False leaves their entries out, (L, heads, D, 0).
    """
    get = tensors if callable(tensors) else tensors.__getitem__
    roles = {}
    for role in layout.roles(circuit):
        place, names = layout.places[role], layout.names(role)
        if not weights and role.startswith("W"):
            stacked = get(names[0]).new_empty(len(names), place.heads, place.size, 0)
        else:
            views = [place.view(get(name)) for name in names]
            stacked = torch.stack([view.flatten(0, 1) for view in views] if place.together else views)
        # Move first and widen after: a device without float64 can still be read on the CPU.
        to = "cpu" if device is None and stacked.device.type == "mps" else device
        roles[role] = stacked.to(device=to).to(dtype or stacked.dtype)
    return roles


@torch.no_grad()
def write(layout: Layout, tensors: Mapping[str, Tensor], roles: Mapping[str, Tensor]) -> None:
    """Write roles back in place, rounded to each tensor's dtype; all other entries keep their bits."""
    for role, values in roles.items():
        for name, value in zip(layout.names(role), values, strict=True):
            view = layout.places[role].view(tensors[name])
            view.copy_(value.reshape(view.shape))


@torch.no_grad()
def holds(layout: Layout, tensors: Mapping[str, Tensor], roles: Mapping[str, Tensor]) -> bool:
    """Whether the tensors still hold the roles that were read from them in their own dtype, number for number."""
    for role, values in roles.items():
        for name, value in zip(layout.names(role), values, strict=True):
            view = layout.places[role].view(tensors[name])
            if view.dtype != value.dtype or not torch.equal(value.reshape(view.shape), view.to(value.device)):
                return False
    return True
