"""A kind of layout: what the tensors of one attention layer are called, and in which order they hold the heads."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from identcli.architecture.errors import UserError
from identcli.architecture.groups import RotaryStyle
from identcli.architecture.pairs import Attention
from identcli.layouts.places import Place

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """How attention layers of some models are stored. Heads lie on the rows of W_Q, W_K, W_V, on the columns of W_O.

    name: what --layout calls it. inside: what stands between a layer's name and its tensors' own names, one for each
    attention that a layer may have (the second is the one that reads an encoder). o: the output matrix.
    qkv: a matrix each for queries, keys and values; or one for all, in `order`: `parts` [all queries | all keys | all
    values], or `groups`, kv group by kv group [its queries | its key | its value], which for one query a group is
    [q | k | v] head by head.
    across: matrices are stored [in, out], as in GPT-2's Conv1D, so rows and columns change places.
    rotated: how many rows of a head positions rotate when no config says; `some`: the user must say how many.
    rotary_style: which of them form a pair. model_types: those of config.json that may be stored so.
    """

    name: str
    inside: tuple[str, ...]
    qkv: tuple[str, ...]
    o: str
    order: Literal["parts", "groups"] = "parts"
    across: bool = False
    rotated: Literal["none", "some", "all"] = "all"
    rotary_style: RotaryStyle = "half"
    model_types: tuple[str, ...] = ()

    @property
    def fused(self) -> bool:
        return len(self.qkv) == 1

    def stored(self, letter: str) -> str:
        """The name of the module that holds W_Q, W_K, W_V or W_O, by its letter."""
        if letter == "O":
            return self.o
        return self.qkv[0] if self.fused else self.qkv["QKV".index(letter)]

    def weight(self, letter: str) -> str:
        """The name of the tensor that holds it."""
        return _tensor(self.stored(letter), "weight")

    def bias(self, letter: str) -> str:
        """The name of its bias."""
        return _tensor(self.stored(letter), "bias")

    def biases(self, at: str, names: Collection[str]) -> dict[str, bool]:
        """Which of the four biases the layer whose names begin with `at` has, by the names of its tensors."""
        return {f"{letter.lower()}_bias": at + self.bias(letter) in names for letter in "QKVO"}

    def places(self, at: str, facts: Attention) -> dict[str, Place]:
        """Where each role of a layer with these facts lies; `at` begins the names of its tensors."""
        H, G, D, C = facts.heads, facts.kv_groups, facts.qk_size, facts.v_size
        m, span, axis = H // G, (H // G + 1) * D + C, int(self.across)
        Q, K, V = (at + self.weight(letter) for letter in "QKV")
        if self.fused and self.order == "groups":
            several = {"together": m, "run": span} if m > 1 else {}
            found = {
                "W_Q": Place(Q, 0, H, D, D if several else span, axis, **several),
                "W_K": Place(K, m * D, G, D, span, axis),
                "W_V": Place(V, (m + 1) * D, G, C, span, axis),
            }
        else:
            found = {
                "W_Q": Place(Q, 0, H, D, D, axis),
                "W_K": Place(K, H * D if self.fused else 0, G, D, D, axis),
                "W_V": Place(V, (H + G) * D if self.fused else 0, G, C, C, axis),
            }
        for letter in "QKV":
            if getattr(facts, f"{letter.lower()}_bias"):
                found[f"b_{letter}"] = replace(found[f"W_{letter}"], name=at + self.bias(letter), axis=0)
        found["W_O"] = Place(at + self.weight("O"), 0, H, C, C, 1 - axis)
        return found

    def shapes(self, at: str, facts: Attention) -> dict[str, Shape]:
        """The shape that each tensor of a layer with these facts must have."""
        H, G, E, D, C = facts.heads, facts.kv_groups, facts.embedding, facts.qk_size, facts.v_size
        rows = {"Q": H * D, "K": G * D, "V": G * C}
        if self.fused:
            rows = dict.fromkeys("QKV", sum(rows.values()))
        found: dict[str, Shape] = {}
        for letter, count in rows.items():
            found[at + self.weight(letter)] = (E, count) if self.across else (count, E)
            if getattr(facts, f"{letter.lower()}_bias"):
                found[at + self.bias(letter)] = (count,)
        found[at + self.weight("O")] = (H * C, E) if self.across else (E, H * C)
        return found

    def facts(self, at: str, shapes: Mapping[str, Shape], heads: int, rotary: int | None = None) -> Attention:
        """The facts that so many heads and the shapes of one layer leave. UserError when they can't be shared out.

        rotary: rows of a head that positions rotate; None: those of the layout.
        """

        def matrix(letter: str) -> Shape:
            shape = shapes[at + self.weight(letter)]
            return shape[::-1] if self.across else shape

        width, joint = matrix("O")
        value_size = self._shared(at, "O", joint, heads)
        rows = matrix("K")[0]
        if self.fused:
            size = value_size
            kv_groups, rest = divmod(rows - heads * size, 2 * size)
        else:
            size = self._shared(at, "Q", matrix("Q")[0], heads)
            kv_groups, rest = divmod(rows, size)
        if rest or kv_groups < 1 or heads % kv_groups:
            name = at + self.weight("K")
            raise UserError(
                f"--heads {heads}: {name} has {rows} rows, which heads of {size} leave no whole number of keys"
            )
        if rotary is None:
            if self.rotated == "some":
                raise UserError(
                    f"--layout {self.name}: positions rotate some of a head's {size} rows: how many? --rotary N"
                )
            rotary = size if self.rotated == "all" else 0
        return Attention(1, heads, kv_groups, width, size, value_size, rotary=rotary, rotary_style=self.rotary_style)

    def _shared(self, at: str, letter: str, rows: int, heads: int) -> int:
        if rows % heads:
            name = at + self.weight(letter)
            raise UserError(
                f"--heads {heads}: {name} has {rows} rows of all heads, and {rows} is no multiple of {heads}"
            )
        return rows // heads


def _tensor(module: str, what: str) -> str:
    """`q_proj` has `q_proj.weight`; a name that ends in an underscore has no dot there, as `in_proj_weight`."""
    return f"{module}{what}" if module.endswith("_") else f"{module}.{what}"
