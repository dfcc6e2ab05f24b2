"""Closed forms of the unidentified parameters of an attention layer against the numerical rank of its Jacobian.

One layer on its own, E inputs to E outputs: what a residual stream and other layers add is counted elsewhere
(`identcli.architecture.families`, held against the rank of whole twins).
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from identcli.architecture.pairs import Attention
from identcli.models.attention import Variant
from identcli.symmetry.rank import Rank
from identcli.theory.claim import Claim, Outcome
from identcli.theory.jacobian import layer_rank
from identcli.theory.trial import EXACT, SMALL, Roles, Trial

InputNorm = Literal["none", "rms", "layer", "layer+shift"]


@dataclass(frozen=True)
class Layer:
    """An attention layer of the grid. norm: what x passes first; `shift`: LayerNorm with its own bias."""

    facts: Attention
    norm: InputNorm = "none"
    qk_norm: bool = False
    sink: bool = False
    softcap: bool = False

    @property
    def name(self) -> str:
        f = self.facts
        biases = "".join(letter for letter in "qkvo" if getattr(f, f"{letter}_bias"))
        parts = [f"E{f.embedding}-H{f.heads}-G{f.kv_groups}-D{f.qk_size}-C{f.v_size}"]
        parts += [f"b:{biases}"] if biases else []
        parts += [f"rotary{f.rotary}" + ("i" if f.rotary_style == "interleaved" else "")] if f.rotary else []
        parts += [word for word, on in (("qknorm", self.qk_norm), ("sink", self.sink), ("softcap", self.softcap)) if on]
        parts += [f"norm:{self.norm}"] if self.norm != "none" else []
        return "-".join(parts)

    @property
    def variant(self) -> Variant:
        # A small base keeps all frequencies apart, as slow rotations are nearly none within a few positions.
        kinds = {"none": None, "rms": "rms", "layer": "layer", "layer+shift": "layer"}
        return Variant(
            base=10.0,
            softcap=2.0 if self.softcap else None,
            sink=self.sink,
            qk_norm=self.qk_norm,
            norm=kinds[self.norm],  # type: ignore[arg-type]
        )

    def roles(self, trial: Trial) -> Roles:
        """Random parameters, gains away from 1 so that none is special."""
        f, roles = self.facts, trial.roles(self.facts)
        if self.qk_norm:
            roles |= {name: 1 + trial.normal(f.qk_size) / 4 for name in ("g_Q", "g_K")}
        if self.sink:
            roles["sink"] = trial.normal(f.heads)
        if self.norm != "none":
            roles["g_x"] = 1 + trial.normal(f.embedding) / 4
        if self.norm == "layer+shift":
            roles["b_x"] = trial.normal(f.embedding)
        return roles

    def rank(self, seed: int) -> Rank:
        """The numerical rank of the layer's Jacobian at random parameters."""
        trial = Trial(SMALL, zlib.crc32(f"{seed} {self.name}".encode()))
        positions = 7 if self.facts.rotary and self.facts.qk_size > self.facts.embedding else 5
        return layer_rank(trial, self.facts, self.roles(trial), self.variant, positions)


def unidentified(layer: Layer) -> int:
    """Unidentified parameters of an attention layer at generic weights, ε = 0 in all norms.

    The inputs span s dimensions: E, or E − 1 behind a LayerNorm. m = H/G, R rotated rows, [·] 1 if present, else 0.

    - query-key: G (R + (D − R)²); for D > s without rotation of rows, per group and with r = s,
      D(m + 1)s + mD[b_Q] − r(s + m(s + [b_Q]) − r). QK-norm leaves H + G scales and R/2 + D − R trades of gains.
    - value-output: G C², for C > s per group C(mE + s) − r(mE + s − r) with r = min(C, s).
    - key bias: G (D − R), unless QK-norm, softcap or a sink makes it count.
    - value bias: G C with an output bias, else G C − min(E, G C); none with a sink.
    - norm: E for its gain, E for its shift; behind a LayerNorm each row of W_Q, W_K, W_V has a direction that is never
      read, except where it has no bias of its own and takes up the norm's shift.
    A norm's shift acts as a bias of all three.
    """
    f, shift, centred = layer.facts, layer.norm == "layer+shift", layer.norm.startswith("layer")
    E, H, G, D, C, R = f.embedding, f.heads, f.kv_groups, f.qk_size, f.v_size, f.rotary
    m, s = H // G, E - centred
    b_Q, b_K, b_V = f.q_bias or shift, f.k_bias or shift, f.v_bias or shift
    if layer.qk_norm:
        count = H + G + R // 2 + D - R
    elif R or s >= D:
        count = G * f.pair("qk").group.dimension
    else:
        count = G * (D * (m + 1) * s + m * D * b_Q - s * (s + m * (s + b_Q) - s))
    r = min(C, s)
    count += G * (C * (m * E + s) - r * (m * E + s - r)) if s < C else G * f.pair("ov").group.dimension
    if b_K and not (layer.qk_norm or layer.softcap or layer.sink):
        count += G * (D - R)
    if b_V and not layer.sink:
        count += G * C - (0 if f.o_bias else min(E, G * C))
    if layer.norm != "none":
        count += E * (1 + shift)
    if centred:
        rows = ((H * D, f.q_bias), (G * D, f.k_bias), (G * C, f.v_bias))
        count += sum(number for number, biased in rows if biased or not shift)
    return count


def _facts(
    E: int, H: int, G: int, D: int, C: int, biases: str = "", rotary: int = 0, interleaved: bool = False
) -> Attention:
    q, k, v, o = (letter in biases for letter in "qkvo")
    return Attention(1, H, G, E, D, C, q, k, v, o, rotary, "interleaved" if interleaved else "half")


def grid() -> tuple[Layer, ...]:
    """At least 150 cases of at most about 300 parameters."""
    cases: list[Layer] = []
    sizes = [(4, 1, 1, 2, 2), (6, 2, 2, 3, 3), (6, 2, 2, 2, 3), (6, 2, 1, 3, 2), (4, 4, 2, 2, 2), (6, 3, 1, 2, 2)]
    edges = [(4, 2, 2, 4, 4), (3, 1, 1, 3, 3), (4, 2, 1, 4, 3)]  # D = E
    wide = [(3, 2, 2, 5, 2), (3, 1, 1, 4, 4), (4, 2, 1, 5, 2), (3, 2, 2, 4, 5)]  # D > E, C > E, or both
    for size in sizes + edges + wide:
        cases += [Layer(_facts(*size, biases)) for biases in ("", "q", "k", "qk", "vo", "qkv", "qkvo")]
    for size in ((6, 2, 2, 4, 2), (6, 2, 1, 4, 2), (4, 1, 1, 4, 3), (4, 2, 2, 2, 2), (3, 1, 1, 4, 2)):
        for biases in ("", "qk", "qkvo"):
            cases += [Layer(_facts(*size, biases, size[3], style)) for style in (False, True)]
    for size in ((6, 2, 2, 4, 2), (6, 2, 1, 4, 2), (7, 1, 1, 6, 2), (6, 1, 1, 5, 3)):
        cases += [Layer(_facts(*size, biases, 2)) for biases in ("", "k", "qkv", "qkvo")]
    for size, rotary in (((6, 1, 1, 2, 2), 0), ((6, 2, 2, 2, 2), 2), ((8, 2, 2, 4, 1), 0), ((6, 3, 1, 4, 2), 4)):
        cases += [Layer(_facts(*size, biases, rotary), qk_norm=True) for biases in ("", "qk", "qkvo")]
    for size in ((6, 2, 2, 2, 2), (6, 2, 1, 3, 2), (7, 1, 1, 3, 2)):
        for norm in ("rms", "layer", "layer+shift"):
            for biases in ("", "qkv", "qkvo"):
                cases.append(Layer(_facts(*size, biases), norm))
    for biases in ("q", "k", "v", "o", "qk", "vo"):
        cases.append(Layer(_facts(6, 2, 2, 2, 2, biases), "layer+shift"))
        cases.append(Layer(_facts(6, 2, 2, 2, 2, biases, 2), "layer+shift"))
    for biases in ("", "qkvo"):
        cases += [Layer(_facts(6, 2, 2, 2, 2, biases), sink=True), Layer(_facts(6, 2, 1, 3, 2, biases), softcap=True)]
    return tuple(cases)


@dataclass(frozen=True)
class Count:
    """One case of the grid, counted."""

    outcome: Outcome
    parameters: int
    gap: float


def count(case: Layer, seed: int = 0) -> Count:
    """Count one case. Without a gap between the singular values there is no answer, and the claim isn't decided."""
    predicted, rank = unidentified(case), case.rank(seed)
    claim = Claim(
        id=f"count-{case.name}",
        section="4",
        statement=f"{case.name}: {predicted} of {rank.columns} parameters unidentified",
        tolerance=0,
        reason=EXACT,
    )
    if not rank.decided:
        note = f"no gap between the singular values: {rank.last:.1e} and {rank.first:.1e} of the largest"
        return Count(Outcome(claim, predicted, None, None, note=note), rank.columns, rank.gap)
    holds = rank.nullity == predicted
    note = f"gap {rank.gap:.0e}, from {rank.last:.1e} to {rank.first:.1e} of the largest"
    return Count(Outcome(claim, predicted, rank.nullity, holds, note=note), rank.columns, rank.gap)


def verify_counts(seed: int = 0, processes: int = 2, cases: Sequence[Layer] | None = None) -> list[Count]:
    """Count all cases of the grid, in their order, on that many processes."""
    chosen = list(grid() if cases is None else cases)
    if processes < 2 or len(chosen) < 2:
        return [count(case, seed) for case in chosen]
    from multiprocessing import get_context

    # Fresh processes: a fork of one that has used threads may hang.
    with get_context("spawn").Pool(min(processes, len(chosen)), initializer=_one_thread) as pool:
        return pool.starmap(count, [(case, seed) for case in chosen], chunksize=8)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)
