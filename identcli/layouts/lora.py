"""Low-rank adapters as PEFT stores them: lora_A (r, in) and lora_B (out, r) meet only in lora_B lora_A, so GL(r) acts.

A scale, a dropout in front, DoRA's magnitudes and a bias on the adapter's output all leave that as it is.
"""

import re
from collections.abc import Mapping

from identcli.architecture.groups import Group
from identcli.architecture.pairs import PairFamily
from identcli.layouts.kind import Shape
from identcli.layouts.located import Located
from identcli.layouts.places import Place

# PEFT puts the adapter's name between when it isn't the default one. Of an embedding A is (r, vocabulary) too.
_A = re.compile(r"(?P<stem>.*\.)lora_(?P<embedding>embedding_)?A(?P<adapter>\.\w+?)?(?P<weight>\.weight)?")
_LAYER = re.compile(r"(?<=\.)\d+(?=\.)")


def is_adapter(names: Mapping[str, Shape]) -> bool:
    """Whether any tensor is half of a low-rank adapter."""
    return any(_A.fullmatch(name) for name in names)


def located(shapes: Mapping[str, Shape]) -> tuple[list[Located], list[tuple[str, str]]]:
    """The pairs of all adapted matrices, a family for each place in a layer; and (tensor, reason) for what is none."""
    found: dict[tuple[str, Shape, Shape], list[int]] = {}
    left = []
    for name, shape in shapes.items():
        match = _A.fullmatch(name)
        if match is None:
            continue
        other = name.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B")
        if other not in shapes:
            left.append((name, f"its other half {other} is not in the checkpoint"))
        elif any(n.startswith(match["stem"]) and "lora_E" in n for n in shapes):
            left.append((name, "AdaLoRA keeps a diagonal between the two halves"))
        elif len(shape) != 2 or len(shapes[other]) != 2 or shape[0] != shapes[other][1]:
            left.append((name, f"halves of {list(shape)} and {list(shapes[other])} are no product of matrices"))
        else:
            number = _LAYER.search(match["stem"])
            template = name[: number.start()] + "{layer}" + name[number.end() :] if number else name
            found.setdefault((template, shape, shapes[other]), []).append(int(number[0]) if number else 0)
    return [_family(*key, tuple(sorted(layers))) for key, layers in found.items()], left


def _family(template: str, shape_A: Shape, shape_B: Shape, layers: tuple[int, ...]) -> Located:
    rank = shape_A[0]
    other = template.replace("lora_A", "lora_B").replace("lora_embedding_A", "lora_embedding_B")
    match = _A.fullmatch(template)
    assert match is not None
    part = match["stem"].split("{layer}.")[-1].removeprefix("base_model.model.").rstrip(".")
    places = {"lora_A": Place(template, 0, 1, rank, rank), "lora_B": Place(other, 0, 1, rank, rank, axis=1)}
    family = PairFamily("lora", len(layers), 1, 1, shape_A[1], Group(rank), False, False)
    return Located(part, family, layers, places)
