"""The pairs of one circuit in one part of a checkpoint: their family, and where their roles lie in each layer."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from identcli.architecture.pairs import PairFamily
from identcli.layouts.places import Place


@dataclass(frozen=True)
class Located:
    """family.layers equals len(layers). part tells apart the stacks of a model ("encoder", "decoder cross"); mostly "".

    layers: the numbers that stand for "{layer}" in the names of the places.
    """

    part: str
    family: PairFamily
    layers: tuple[int, ...]
    places: Mapping[str, Place]

    def at(self, layer: int) -> dict[str, Place]:
        """The places of one layer, with the names of its tensors."""
        number = str(layer)
        return {role: replace(place, name=place.name.replace("{layer}", number)) for role, place in self.places.items()}

    def names(self, layer: int) -> list[str]:
        """The tensors that hold the roles of one layer, each once."""
        return list(dict.fromkeys(place.name for place in self.at(layer).values()))
