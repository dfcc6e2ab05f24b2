"""From a checkpoint to its pairs: which layout its tensors have, and what in it can't be judged.

A layout is never taken on trust: names must match, and every shape must be what the config's (or the user's) numbers of
heads and sizes demand.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import ROLES, Attention, Circuit
from identcli.checkpoints.checkpoint import Checkpoint
from identcli.checkpoints.facts import Facts, from_huggingface, of_nanogpt
from identcli.checkpoints.tensor_file import FLOATS
from identcli.checkpoints.unjudged import LIKE_ATTENTION, Skipped, judgeable, leftover, many, with_packed
from identcli.layouts import latent, lora
from identcli.layouts.detect import KINDS, Site, kinds_by_name, sites
from identcli.layouts.kind import Kind, Shape
from identcli.layouts.located import Located

CIRCUITS: tuple[Circuit, ...] = ("qk", "ov")


class NoAttention(UserError):
    """The checkpoint is fine, but there is nothing in it that an audit could judge."""


@dataclass(frozen=True)
class Flags:
    """What the user says in place of a config: the layout, heads (and kv groups), rotated rows of a head."""

    layout: str | None = None
    heads: int | None = None
    kv_groups: int | None = None
    rotary: int | None = None
    assume: tuple[str, ...] = ()


NO_FLAGS = Flags()


@dataclass
class Pairs:
    """The pairs of a checkpoint, circuit by circuit and part by part. layout: the names of the kinds found."""

    layout: str
    located: list[Located] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def locate(checkpoint: Checkpoint, flags: Flags = NO_FLAGS, circuits: Sequence[Circuit] = CIRCUITS) -> Pairs:
    """Where the pairs of the checkpoint lie. UserError when names or shapes fit no layout; NoAttention without any."""
    shapes = {name: entry.shape for name, entry in checkpoint.entries.items()}
    if lora.is_adapter(shapes):
        return _adapter(checkpoint, shapes)
    names = with_packed(checkpoint.entries)
    if flags.layout is not None and flags.layout not in KINDS:
        near = get_close_matches(flags.layout, KINDS, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise UserError(f"--layout {flags.layout}: no such layout; there are {', '.join(KINDS)}.{hint}")
    by_name = kinds_by_name(names)
    is_latent = any(name.endswith(latent.INSIDE + latent.ANCHOR) for name in names)
    if not by_name and not is_latent:
        _nothing(checkpoint)
    facts = _facts(checkpoint, flags, by_name)
    found = Pairs("", notes=list(checkpoint.notes))
    kinds: list[str] = []
    for site, kind, stack in _assigned(checkpoint, names, facts, flags, by_name):
        kinds.append(kind.name if kind else "deepseek")
        _site(checkpoint, names, site, kind, stack, circuits, found)
    found.layout = ", ".join(dict.fromkeys(kinds))
    found.located = _labelled(found.located)
    found.skipped += leftover(checkpoint, found.located, found.skipped)
    return found


def _adapter(checkpoint: Checkpoint, shapes: Mapping[str, Shape]) -> Pairs:
    located, left = lora.located(shapes)
    good = [
        pairs for pairs in located if all(checkpoint.entries[n].dtype in FLOATS for n in pairs.names(pairs.layers[0]))
    ]
    found = Pairs("lora", good, [Skipped(*one) for one in left], list(checkpoint.notes))
    if not good:
        raise NoAttention(f"{checkpoint.path}: an adapter without a pair that could be judged")
    return found


def _nothing(checkpoint: Checkpoint) -> None:
    seen = [name for name in checkpoint.entries if LIKE_ATTENTION.search(name)]
    if seen:
        raise UserError(f"{checkpoint.path}: attention under names of no known layout, as {seen[0]}")
    some = ", ".join(list(checkpoint.entries)[:3])
    raise NoAttention(f"{checkpoint.path}: no attention in it: {len(checkpoint.entries)} tensors ({some}, …)")


def _facts(checkpoint: Checkpoint, flags: Flags, by_name: Sequence[Kind]) -> list[Facts]:
    """What is known of the layers, from whatever knows it; [] where the flags and the shapes must say all."""
    if checkpoint.config is not None:
        at = (checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent) / "config.json"
        if not (flags.layout and flags.heads):
            return _agreed(from_huggingface(checkpoint.config, at, flags.assume), flags, at)
        try:
            return _agreed(from_huggingface(checkpoint.config, at, flags.assume), flags, at)
        except UserError as error:
            if "is not known" in str(error):  # the flags say what the config's unknown type can't
                return []
            raise
    if checkpoint.sizes is not None:
        return _agreed([of_nanogpt(checkpoint.sizes, checkpoint.path)], flags, checkpoint.path)
    missing = [flag for flag, value in (("--layout", flags.layout), ("--heads", flags.heads)) if value is None]
    if missing:
        could = ", ".join(kind.name for kind in by_name) or "none of them"
        raise UserError(
            f"{checkpoint.path}: no config.json beside it: say {' and '.join(missing)} "
            f"(by the names of its tensors the layout could be: {could})"
        )
    return []


def _agreed(facts: list[Facts], flags: Flags, at: Path) -> list[Facts]:
    """The facts, if the flags don't contradict them."""
    first = facts[0].attention
    said = {"--heads": (flags.heads, first.heads), "--heads H/G": (flags.kv_groups, first.kv_groups)}
    said["--rotary"] = (flags.rotary, first.rotary)
    for flag, (given, known) in said.items():
        if given is not None and given != known:
            raise UserError(f"{flag} {given}: {at} says {known}")
    return facts


def _assigned(
    checkpoint: Checkpoint, names: Collection[str], facts: list[Facts], flags: Flags, by_name: Sequence[Kind]
) -> list[tuple[Site, Kind | None, Facts]]:
    """Each stack of layers in the file with its layout and its facts; a kind of None is latent attention."""
    if not facts:
        return _by_flags(checkpoint, names, flags)
    if any(stack.latent for stack in facts):
        anchored = Kind("", (latent.INSIDE,), ("kv_b_proj",), "o_proj")
        found = sites(anchored, names)
        if not found:
            raise UserError(
                f"{checkpoint.path}: the config describes latent attention, but no kv_b_proj is in the file"
            )
        return [(site, None, next(stack for stack in facts if stack.latent)) for site in found]
    chosen: list[tuple[Site, Kind | None, Facts]] = []
    for stack in facts:
        kinds = (
            [KINDS[flags.layout]] if flags.layout else [k for k in KINDS.values() if stack.model_type in k.model_types]
        )
        candidates = [(site, kind) for kind in kinds for site in sites(kind, names) if _belongs(site, stack, facts)]
        if not candidates:
            if stack.stack in ("", "text", "decoder"):
                could = ", ".join(kind.name for kind in by_name) or "none"
                known = ", ".join(kind.name for kind in kinds)
                raise UserError(
                    f"{checkpoint.path}: no tensors named as a {stack.model_type}'s attention ({known}); by their "
                    f"names the layout could be {could}: say --layout"
                )
            continue
        fitting: dict[str, tuple[Site, Kind | None, Facts]] = {}
        misfit = ""
        for site, kind in candidates:
            why = _misfit(checkpoint, names, site, kind, _attention(site, kind, stack, names))
            if not why:
                fitting.setdefault(site.at, (site, kind, stack))
            misfit = misfit or why
        if not fitting:
            raise UserError(f"{checkpoint.path}: the layout doesn't fit: {misfit}")
        chosen += fitting.values()
    return chosen


def _by_flags(checkpoint: Checkpoint, names: Collection[str], flags: Flags) -> list[tuple[Site, Kind | None, Facts]]:
    assert flags.layout is not None
    assert flags.heads is not None
    kind = KINDS[flags.layout]
    found = sites(kind, names)
    if not found:
        could = ", ".join(k.name for k in kinds_by_name(names)) or "no known layout"
        raise UserError(f"{checkpoint.path}: --layout {kind.name}: no tensors of its names; they are those of {could}")
    if flags.heads < 1:
        raise UserError(f"--heads {flags.heads}: must be at least 1")
    shapes = (
        {known: checkpoint.entries[name].shape for known, name in dict(names).items()}
        if isinstance(names, dict)
        else {}
    )
    chosen: list[tuple[Site, Kind | None, Facts]] = []
    for site in found:
        first = site.of(site.layers[0])
        attention = kind.facts(first, shapes, flags.heads, flags.rotary)
        if flags.kv_groups is not None and flags.kv_groups != attention.kv_groups:
            held = f"{first + kind.weight('K')} holds {attention.kv_groups}"
            raise UserError(f"--heads {flags.heads}/{flags.kv_groups}: {flags.kv_groups} kv groups, but {held}")
        stack = Facts("", kind.name, attention, cross=attention)
        why = _misfit(checkpoint, names, site, kind, _attention(site, kind, stack, names))
        if why:
            raise UserError(f"{checkpoint.path}: the layout doesn't fit: {why}")
        chosen.append((site, kind, stack))
    return chosen


def _belongs(site: Site, stack: Facts, facts: Sequence[Facts]) -> bool:
    """Whether a site may be of that stack, by the words in its names where there are several stacks."""
    if site.cross and stack.cross is None:
        return False
    seen = re.search(r"vision|visual|image", site.at) is not None
    if (any(f.stack == "vision" for f in facts) or seen) and seen != (stack.stack == "vision"):
        return False
    if stack.stack in ("encoder", "decoder") and len(facts) > 1:
        return re.search(rf"(^|[._]){stack.stack}[._]", site.at) is not None
    return True


def _attention(site: Site, kind: Kind, stack: Facts, names: Collection[str]) -> Attention:
    """The facts of a site's layers, with the biases that its file holds."""
    attention = stack.cross if site.cross and stack.cross else stack.attention
    biases = kind.biases(site.of(site.layers[0]), names)
    return replace(attention, layers=len(site.layers), **biases)  # type: ignore[arg-type]


def _misfit(checkpoint: Checkpoint, names: Collection[str], site: Site, kind: Kind, facts: Attention) -> str:
    """What is wrong with the first tensor of another shape than the facts demand, packed ones aside; "" if all fit."""
    for layer in site.layers:
        for name, shape in kind.shapes(site.of(layer), facts).items():
            if name not in checkpoint.entries:
                if name not in names:
                    checkpoint.entry(name)
                continue
            entry = checkpoint.entries[name]
            if entry.shape != shape and entry.dtype in FLOATS:
                kv = f" and {facts.kv_groups} kv groups" if facts.kv_groups != facts.heads else ""
                asked = f"{facts.heads} heads{kv} of {facts.qk_size} in a width of {facts.embedding}"
                return f"{name} is {list(entry.shape)}; {asked} need {list(shape)}"
    return ""


def _site(
    checkpoint: Checkpoint,
    names: Mapping[str, str],
    site: Site,
    kind: Kind | None,
    stack: Facts,
    circuits: Sequence[Circuit],
    found: Pairs,
) -> None:
    """Add the pairs of one stack, without those that can't be judged."""
    part = (stack.stack + " cross" if site.cross else stack.stack).strip()
    if kind is None:
        all_pairs = _latent(checkpoint, site, stack, part)
    else:
        facts = _attention(site, kind, stack, names)
        demanded = stack.cross if site.cross and stack.cross else stack.attention
        for letter in "QKVO":
            if getattr(demanded, f"{letter.lower()}_bias") and not getattr(facts, f"{letter.lower()}_bias"):
                checkpoint.entry(site.of(site.layers[0]) + kind.bias(letter))
        if stack.attention.layers > len(site.layers):
            absent = next(n for n in range(stack.attention.layers) if n not in site.layers)
            checkpoint.entry(site.of(absent) + kind.weight("Q"))
        places = kind.places(site.at, facts)
        all_pairs = []
        for circuit in CIRCUITS:
            own = {role: place for role, place in places.items() if role in ROLES[circuit]}
            all_pairs.append(Located(part, facts.pair(circuit), site.layers, own))
    for pairs in all_pairs:
        if pairs.family.circuit in circuits:
            good, left_out = judgeable(checkpoint, names, site, stack, pairs)
            found.located += [good] if good else []
            found.skipped += left_out
    sinks = [site.of(layer) + "sinks" for layer in site.layers if site.of(layer) + "sinks" in checkpoint.entries]
    if sinks:
        found.skipped.append(Skipped(many(site, "sinks", len(sinks)), "sink logits are no pair; they stay as they are"))


def _latent(checkpoint: Checkpoint, site: Site, stack: Facts, part: str) -> list[Located]:
    assert stack.latent is not None
    names, facts = checkpoint.entries, stack.attention
    for layer in site.layers:
        at = site.of(layer)
        query = latent.query_name(at, names)
        for name, shape in latent.shapes(at, query, facts, stack.latent.q, stack.latent.kv).items():
            entry = checkpoint.entry(name)
            if entry.shape != shape and entry.dtype in FLOATS:
                raise UserError(
                    f"{checkpoint.path}: the layout doesn't fit: {name} is {list(entry.shape)}, not {list(shape)}"
                )
    first = site.of(site.layers[0])
    query = site.at + latent.query_name(first, names).removeprefix(first)
    key_bias = f"{first}kv_a_proj_with_mqa.bias" in names
    return latent.located(site.at, query, site.layers, facts, stack.latent.kv, key_bias, part)


def _labelled(located: list[Located]) -> list[Located]:
    """Parts with names of their own: of one stack none is needed; where two share one, the tensors' names tell."""
    seen: dict[tuple[str, str], int] = {}
    for pairs in located:
        seen[pairs.family.circuit, pairs.part] = seen.get((pairs.family.circuit, pairs.part), 0) + 1
    result = []
    for pairs in located:
        if seen[pairs.family.circuit, pairs.part] > 1:
            name = next(iter(pairs.places.values())).name
            word = re.search(r"(^|[._])(encoder|decoder)[._]", name.split("{layer}")[0])
            where = word[2] if word else name.split("{layer}")[0].rstrip(".") or name.rsplit(".", 2)[0]
            pairs = replace(pairs, part=f"{pairs.part} {where}".strip())
        result.append(pairs)
    return result
