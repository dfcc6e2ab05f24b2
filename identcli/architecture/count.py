"""The answer to: how many parameters of this architecture are identified, and why are the others not?"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from identcli.architecture.description import Architecture, Tokens
from identcli.architecture.errors import UserError
from identcli.architecture.families import NAMES, Family, Outputs, families
from identcli.architecture.tensors import Parameters, parameters

PAPER = ("qk", "ov")


@dataclass(frozen=True)
class LayerCount:
    """Dimensions that each of `layers` equal layers adds, by family."""

    place: str
    layers: int
    families: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.families.values())


@dataclass(frozen=True)
class PaperCount:
    """The paper's query-key dimensions of one layer (4.9): G·D grouped and rotary, G·D² grouped, H·D² neither."""

    as_it_is: int
    without_rotary: int
    without_rotary_and_groups: int


@dataclass(frozen=True)
class Count:
    """parameters, the families that leave some of them unidentified, and what is left out of the count.

    only: the families asked for; with those of the paper alone (qk, ov) the share is that of the attention weights, as
    in the paper: 1 − 1/(2H) for one head a group, D = E/H and no rotary positions. Else it is that of all parameters.
    """

    architecture: Architecture
    outputs: Outputs
    eps: bool
    only: tuple[str, ...]
    parameters: Parameters
    families: tuple[Family, ...]
    excluded: tuple[str, ...]

    @property
    def total(self) -> int:
        """Unidentified dimensions in all."""
        return sum(family.dimension for family in self.families)

    @property
    def by_family(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for family in self.families:
            found[family.name] = found.get(family.name, 0) + family.dimension
        return found

    @property
    def layers(self) -> tuple[LayerCount, ...]:
        """Runs of equal layers, in the model's order."""
        found = []
        for stack in self.architecture.stacks:
            start = 0
            for block in stack.blocks:
                count = block.attention.layers
                place = f"{stack.name} {start}" if count == 1 else f"{stack.name} {start}-{start + count - 1}"
                names = {
                    f.name: f.each
                    for f in self.families
                    if f.per_layer and f.place.split()[0] == stack.name and f.place.split()[-1] == place.split()[-1]
                }
                found.append(LayerCount(place, count, names))
                start += count
        return tuple(found)

    @property
    def per_layer(self) -> int | None:
        """Dimensions that every layer adds; None when layers differ."""
        totals = {layer.total for layer in self.layers}
        return totals.pop() if len(totals) == 1 else None

    @property
    def lower_bound(self) -> bool:
        """Whether the count is only proven to be at least so large."""
        return any(family.only_at_least for family in self.families)

    @property
    def of(self) -> int:
        """What the share is a share of: all parameters, or the attention weights in the paper's own count."""
        own = self.only and set(self.only) <= set(PAPER)
        return self.parameters.attention_weights if own else self.parameters.total

    @property
    def identified_share(self) -> float:
        return 1 - self.total / self.of

    @property
    def paper(self) -> PaperCount | None:
        """Query-key dimensions of one layer by the paper's formulas, from the same pair with other facts.

        None where the paper's formulas don't hold: latent attention, norms on queries and keys.
        """
        block = self.architecture.stack.blocks[-1]
        if block.latent or block.qk_norm:
            return None
        attention = block.attention
        plain = replace(attention, rotary=0)
        variants = (attention, plain, replace(plain, kv_groups=attention.heads))
        pairs = [variant.pair("qk") for variant in variants]
        return PaperCount(*(pair.groups * pair.group.dimension for pair in pairs))

    def as_data(self) -> dict[str, Any]:
        """The same answer as plain data, ready for JSON."""
        numbers = self.parameters
        return {
            "name": self.architecture.name,
            "parameters": {
                "total": numbers.total,
                "without_embeddings": numbers.without_embeddings,
                "attention": numbers.attention,
                "active": numbers.active,
                "tied": numbers.tied,
                "unique": numbers.total,
                "stored_twice_when_tied": numbers.stored_twice,
            },
            "unidentified": {
                "total": self.total,
                "per_layer": self.per_layer,
                "families": self.by_family,
                "layers": [
                    {"place": layer.place, "layers": layer.layers, "total": layer.total, "families": layer.families}
                    for layer in self.layers
                ],
                "groups": [
                    {"family": f.name, "place": f.place, "group": f.group, "formula": str(f.formula), "each": f.each}
                    for f in self.families
                ],
                "lower_bound": self.lower_bound,
            },
            "identified_share": self.identified_share,
            "share_of": "attention_weights" if self.of != numbers.total else "total",
            "outputs": self.outputs if self.architecture.head else "hidden_states",
            "epsilon": "positive" if self.eps else "zero",
            "excluded": list(self.excluded),
            "notes": list(self.architecture.notes),
        }


def count(
    architecture: Architecture, outputs: Outputs = "log_probs", eps: bool = True, only: Sequence[str] = ()
) -> Count:
    """Count what the outputs don't identify, of all families or of those named in `only`."""
    unknown = [name for name in only if name not in NAMES]
    if unknown:
        near = difflib.get_close_matches(unknown[0], NAMES, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(NAMES)}"
        raise UserError(f"--families {unknown[0]}: no such family; {hint}")
    found = families(architecture, outputs, eps)
    kept = tuple(f for f in found if not only or f.name in only)
    excluded = tuple(_excluded(architecture, outputs, eps, found, only))
    return Count(architecture, outputs, eps, tuple(only), parameters(architecture), kept, excluded)


def _excluded(
    architecture: Architecture, outputs: Outputs, eps: bool, found: Sequence[Family], only: Sequence[str]
) -> Iterable[str]:
    """What is not in the number, each in one line."""
    blocks = [block for stack in architecture.stacks for block in stack.blocks]
    moe = any(block.mlp.experts for block in blocks)
    yield (
        f"discrete symmetries: exchanging heads{', hidden units or experts' if moe else ' or hidden units'}, and signs "
        "(they move no parameter continuously)"
    )
    if only:
        names = [name for name in {f.name: None for f in found} if name not in only]
        if names:
            yield f"families not asked for: {', '.join(names)}"
    if eps:
        scales = families(architecture, outputs, eps=False)
        more = sum(f.dimension for f in scales) - sum(f.dimension for f in found)
        if more:
            latent = [block for block in blocks if block.latent]
            said = f"scales that only ε > 0 in the norms fixes, {more:,} in all: nearly free, exactly free at ε = 0"
            yield said + (
                f" ({1 + bool(latent[0].latent.q)} a layer in the latents)" if latent and latent[0].latent else ""
            )
    inputs = architecture.stack.inputs
    if isinstance(inputs, Tokens):
        small = inputs.vocab < architecture.width
        counted = any(f.name in ("small_vocabulary", "unseen_directions") for f in found)
        if small and counted:
            yield f"what V = {inputs.vocab} tokens below E = {architecture.width} leave free beyond the families named"
        elif small:
            yield f"what V = {inputs.vocab} tokens below E = {architecture.width} leave free: not examined here"
        else:
            yield f"small vocabularies: V = {inputs.vocab:,} is above E = {architecture.width:,}, nothing is lost"
        yield "tokens and positions that the data never show"
    if any(block.attention.rotary for block in blocks):
        yield "slow rotary frequencies, nearly unrotated over a short text: counted as rotated"
    if any(block.mlp.activation == "clamped" for block in blocks):
        yield "limits of the clamped units: a unit that never reaches its limit could be scaled"
    if any(block.sinks is False and (block.attention.v_bias or block.norm.bias) for block in blocks):
        yield "attention dropout: while it acts, rows don't sum to 1 and value biases are identified"
    yield "special points, as gains all equal to 1 at the start of training: more is free there"
