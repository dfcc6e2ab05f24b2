"""What of a checkpoint can't be judged, and why: normalised queries and keys, packed weights, unknown attention."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from identcli.checkpoints.checkpoint import Checkpoint
from identcli.checkpoints.facts import Facts
from identcli.checkpoints.tensor_file import FLOATS
from identcli.layouts.detect import Site
from identcli.layouts.located import Located

# How the names of packed weights end, in place of ".weight".
_PACKED = (".qweight", ".weight_packed", ".weight_quantized", ".weight_blocks", ".weight_q", ".quant_weight")
_NORM = re.compile(r"(q|k|query|key)_?(layer)?_?norm|(ln|norm)_(q|k)\b|(q|k)_ln\b")
LIKE_ATTENTION = re.compile(r"attn|attention|(^|\.)mixer\.", re.IGNORECASE)


class Skipped(NamedTuple):
    """Something that is not audited, and why."""

    what: str
    why: str


def with_packed(names: Collection[str]) -> dict[str, str]:
    """Every name, and for packed weights the name that the plain weight would have; each with the tensor behind it."""
    known = {name: name for name in names}
    for name in names:
        ending = next((ending for ending in _PACKED if name.endswith(ending)), None)
        if ending:
            known.setdefault(name.removesuffix(ending) + ".weight", name)
    return known


def judgeable(
    checkpoint: Checkpoint, names: Mapping[str, str], site: Site, stack: Facts, pairs: Located
) -> tuple[Located | None, list[Skipped]]:
    """The layers of these pairs that can be judged, and what is left out. `names`: those of `with_packed`."""
    circuit = pairs.family.circuit
    first = site.of(site.layers[0])
    norms = [n for n in checkpoint.entries if n.startswith(first) and _NORM.match(n.removeprefix(first))]
    if circuit == "qk" and (norms or stack.qk_norm) and not stack.latent:
        return None, [Skipped(many(site, circuit, len(site.layers)), _why_normed(checkpoint, norms, stack))]
    if f"{first}bias_k" in checkpoint.entries:
        why = "a key and a value of its own (bias_k, bias_v) take part in every product"
        return None, [Skipped(many(site, circuit, len(site.layers)), why)]
    good: list[int] = []
    bad: dict[str, list[int]] = {}
    for layer in pairs.layers:
        reasons = [_unreadable(checkpoint, names, name) for name in pairs.names(layer)]
        reason = next((reason for reason in reasons if reason), None)
        if reason:
            bad.setdefault(reason, []).append(layer)
        else:
            good.append(layer)
    skipped = [Skipped(many(site, circuit, len(layers)), reason) for reason, layers in bad.items()]
    if not good:
        return None, skipped
    return replace(pairs, family=replace(pairs.family, layers=len(good)), layers=tuple(good)), skipped


def _unreadable(checkpoint: Checkpoint, names: Mapping[str, str], name: str) -> str | None:
    """Why a tensor has no plain numbers to judge: packed, or of a dtype that means nothing without its scales."""
    if name not in checkpoint.entries:
        return f"packed weights ({names[name].rsplit('.', 1)[1]}): not audited" if name in names else None
    dtype = checkpoint.entries[name].dtype
    if dtype in FLOATS:
        return None
    what = "fp8 without its scales applied" if dtype.startswith("F8") else "packed or quantised weights"
    return f"{what} (dtype {dtype}): not audited"


def _why_normed(checkpoint: Checkpoint, norms: Sequence[str], stack: Facts) -> str:
    whole = stack.qk_norm is not None and stack.qk_norm.over == "concat"
    if norms and not stack.qk_norm:
        whole = checkpoint.entries[norms[0]].shape[-1:] not in ((stack.attention.qk_size,), (stack.attention.heads,))
    free = "one scale of all W_Q and one of all W_K" if whole else "a scale of each head's W_Q and of each W_K"
    return f"QK-norm: queries and keys are normalised, so their imbalance means nothing (free is only {free})"


def many(site: Site, what: str, layers: int) -> str:
    """A circuit, or another thing, of all layers of a site."""
    return f"{what} of {site.at.replace('{layer}', '*').rstrip('.') or 'the layer'} ({layers} layers)"


def leftover(checkpoint: Checkpoint, located: Sequence[Located], skipped: Sequence[Skipped]) -> list[Skipped]:
    """Matrices that look like another attention than those that were found."""
    used = {name for pairs in located for layer in pairs.layers for name in pairs.names(layer)}
    modules = {name.rsplit(".", 1)[0] for name in used}
    stems = {re.sub(r"\d+", "*", module.rsplit(".", 1)[0]) for module in modules}
    said = " ".join(one.what for one in skipped)
    others: dict[str, int] = {}
    for name, entry in checkpoint.entries.items():
        module = name.rsplit(".", 1)[0]
        stem = re.sub(r"\d+", "*", module.rsplit(".", 1)[0])
        if len(entry.shape) != 2 or not LIKE_ATTENTION.search(name) or name in used or stem in stems or stem in said:
            continue
        if any(other.startswith(stem) or stem.startswith(other) for other in stems):
            continue
        others[stem] = others.get(stem, 0) + 1
    why = "looks like attention; its layout isn't known"
    return [Skipped(f"{stem} ({count} matrices)", why) for stem, count in others.items()]
