"""The single-head model with as many identified attention parameters as a multi-head one (the paper's 4.10)."""

from dataclasses import dataclass, replace
from math import isqrt

from identcli.architecture.description import Architecture
from identcli.architecture.errors import UserError


@dataclass(frozen=True)
class Equivalent:
    """Per layer, rotary positions set aside on both sides.

    identified: attention weights minus query-key and output-value dimensions, (4 − 2/H) E² for D = C = E/H.
    width: E₀, the least width at which one head with W_Q, W_K, W_V of E₀ × E₀ and no W_O identifies as many; it
    identifies 2E₀² of its 3E₀² weights. wider: E₀/E, by which every table, MLP and norm grows as well.
    """

    embedding: int
    heads: int
    weights: int
    identified: int
    width: int

    @property
    def weights_single(self) -> int:
        return 3 * self.width**2

    @property
    def identified_single(self) -> int:
        return 2 * self.width**2

    @property
    def wider(self) -> float:
        return self.width / self.embedding

    @property
    def reachable(self) -> bool:
        """Whether one head could identify as many at the width E itself: at most 2E² whatever its head size."""
        return self.width <= self.embedding

    def as_data(self) -> dict[str, int | float]:
        return {
            "width": self.width,
            "embedding": self.embedding,
            "heads": self.heads,
            "identified_per_layer": self.identified,
            "weights_per_layer": self.weights,
            "single_head_weights_per_layer": self.weights_single,
            "single_head_identified_per_layer": self.identified_single,
            "wider": self.wider,
        }


def equivalent(architecture: Architecture) -> Equivalent:
    """E₀ = ⌈√(identified/2)⌉; for D = C = E/H and one key a head this is the paper's ⌈E √(2 − 1/H)⌉.

    At the width E one head can't reach it for H > 1: with D₀ = ηE it would take 1 + 2η − η² = 4 − 2/H, which has no
    real solution. UserError for latents, norms on queries and keys, and cross attention: 4.10 says nothing of them.
    """
    blocks = [block for stack in architecture.stacks for block in stack.blocks]
    if len(architecture.stacks) > 1 or any(block.latent or block.qk_norm for block in blocks):
        raise UserError(
            f"--equivalent: {architecture.name} has cross attention, latents or norms on queries and keys; "
            "the paper's single-head equivalent (4.10) is of plain self-attention"
        )
    a = replace(blocks[0].attention, layers=1, rotary=0)
    weights = (a.heads + a.kv_groups) * (a.qk_size + a.v_size) * a.embedding
    pairs = [a.pair("qk"), a.pair("ov")]
    identified = weights - sum(pair.groups * pair.group.dimension for pair in pairs)
    # ⌈√(identified/2)⌉ in integers: a rounded root could be off by one.
    width = isqrt(identified // 2)
    while 2 * width**2 < identified:
        width += 1
    return Equivalent(a.embedding, a.heads, weights, identified, width)
