"""The GPT of nanoGPT: the same function of its weights, the same names, the same initial values for a seed.

Axes: B batch, T positions, V vocabulary, E embedding, H heads, D = E/H head size.

    x = token embedding + position embedding                            (B, T, E)
    x = x + attention(LayerNorm(x)),  x = x + mlp(LayerNorm(x))         n_layer times
    logits = LayerNorm(x) @ (token embedding)ᵀ                          (B, T, V)
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from identcli.architecture.errors import UserError
from identcli.architecture.pairs import Attention
from identcli.models.causal import causal_attention
from identcli.models.dropout import Dropout

INITIAL_STD = 0.02


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a GPT. `bias=False` leaves out the biases of projections and LayerNorms alike."""

    vocab_size: int
    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    block_size: int = 64
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_layer", "n_head", "n_embd", "block_size"):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name}={getattr(self, name)}: must be at least 1")
        if self.n_embd % self.n_head:
            raise UserError(
                f"model.n_embd={self.n_embd}: can't be shared out over model.n_head={self.n_head} heads, "
                f"{self.n_embd % self.n_head} would be left over"
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"model.dropout={self.dropout}: must be at least 0 and less than 1")

    @property
    def head_size(self) -> int:
        return self.n_embd // self.n_head

    @property
    def attention(self) -> Attention:
        """The facts that decide the model's pairs: each head its own kv group, no rotary positions."""
        return Attention(
            layers=self.n_layer,
            heads=self.n_head,
            kv_groups=self.n_head,
            embedding=self.n_embd,
            qk_size=self.head_size,
            v_size=self.head_size,
            q_bias=self.bias,
            k_bias=self.bias,
            v_bias=self.bias,
            o_bias=self.bias,
        )


class CausalSelfAttention(nn.Module):
    """Per head softmax(q kᵀ / √D) v over the positions up to one's own; then a projection of all heads."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        # Rows: all heads' W_Q, then all heads' W_K, then all heads' W_V.
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        dropout = self.config.dropout if self.training else 0.0
        y = causal_attention(self.c_attn(x), self.config.n_head, dropout)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    """Up to 4E, GELU (the exact one, with erf), down to E."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """Attention and MLP, each on the normed residual stream and added to it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Embeddings, blocks and the last norm: tokens (B, T) to the residual stream (B, T, E)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT(nn.Module):
    """A character-level or token-level GPT whose output head is the token embedding itself (tied).

    The initial weights are a function of torch's global seed and of the sizes alone: normal with standard
    deviation 0.02, but 0.02/√(2·n_layer) for the projections into the residual stream (`c_proj`); biases 0,
    gains of the norms 1.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Each block adds twice to the residual stream; its variance shall not grow with the depth.
        for name, weight in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(weight, std=INITIAL_STD / math.sqrt(2 * self.config.n_layer))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, V) of *all* positions; with targets (B, T) also the mean cross entropy in nats.

        A target of -1 is left out of the mean. Raises UserError when T is longer than the block size.
        """
        length, block_size = tokens.shape[1], self.config.block_size
        if length > block_size:
            raise UserError(f"a sequence of {length} tokens doesn't fit model.block_size={block_size}")
        logits = self.lm_head(self.transformer(tokens))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        length: int,
        temperature: float = 1.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Append `length` sampled tokens to each row of `tokens` (B, T), T ≥ 1: returns (B, T + length).

        A token is drawn from softmax(logits / temperature) among the `top_k` likeliest (None: among all);
        temperature 0 takes the likeliest. The model sees the last block_size tokens, without dropout. Drawing
        happens on the CPU: a CPU `generator` gives the same text on every device, up to rounding.
        """
        if tokens.shape[1] == 0:
            raise UserError("the prompt is empty: it must have at least one token")
        if not 0 <= temperature < math.inf:
            raise UserError(f"temperature {temperature}: must be a number that is at least 0")
        if top_k is not None and top_k < 1:
            raise UserError(f"top_k {top_k}: must be at least 1")
        was_training = self.training
        self.eval()
        try:
            for _ in range(length):
                logits, _ = self(tokens[:, -self.config.block_size :])
                chosen = _choose(logits[:, -1].float().cpu(), temperature, top_k, generator)
                tokens = torch.cat([tokens, chosen.to(tokens.device)], dim=1)
        finally:
            self.train(was_training)
        return tokens


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One token a row (B, 1) from logits (B, V); see `GPT.generate`."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -math.inf)
    return torch.multinomial(F.softmax(logits / temperature, dim=-1), 1, generator=generator)
