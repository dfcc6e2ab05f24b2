"""The readable attention layer against one written out position by position, and against torch's own."""

import pytest
import torch
from torch.nn import functional as F

from cases import attention as small_attention
from cases import normal, random_roles
from identcli.architecture.pairs import Attention
from identcli.models.attention import Variant, attention, probabilities, rotations
from slow_attention import attention_layer, rotation


@pytest.mark.parametrize("positions", ["none", "half", "interleaved", "partial"])
@pytest.mark.parametrize(("heads", "groups"), [(2, 2), (4, 2), (3, 1)])
def test_equals_the_layer_written_out(positions: str, heads: int, groups: int) -> None:
    facts = small_attention(heads, groups, positions=positions)
    roles, x = random_roles(facts), normal(4, facts.embedding, seed=5)
    ours = attention(facts, {name: role[0] for name, role in roles.items()}, x, Variant(base=100.0))
    torch.testing.assert_close(ours, attention_layer(facts, roles, 0, x), rtol=1e-12, atol=1e-13)


def test_equals_torch_with_a_score_bias_and_an_output_bias() -> None:
    facts = Attention(1, 3, 3, 6, 2, 2, o_bias=True)
    W = {name: normal(3, 2, 6, seed=index) for index, name in enumerate(("W_Q", "W_K", "W_V", "W_O"))}
    x, b_O, slopes = normal(2, 5, 6, seed=8), normal(6, seed=9), normal(3, 5, 5, seed=10)
    q, k, v = (torch.einsum("hde,bte->bhtd", W[name], x) for name in ("W_Q", "W_K", "W_V"))
    expected = torch.einsum("bhtc,hce->bte", F.scaled_dot_product_attention(q, k, v, attn_mask=slopes), W["W_O"]) + b_O
    ours = attention(facts, {**W, "b_O": b_O}, x, Variant(causal=False, score_bias=slopes))
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_rotations_equal_those_of_published_models(style: str) -> None:
    ours = rotations(5, 6, 4, style, 100.0)  # type: ignore[arg-type]
    for position in range(5):
        torch.testing.assert_close(ours[position], rotation(6, position, 4, style))


def _layer() -> tuple[Attention, dict[str, torch.Tensor], torch.Tensor]:
    facts = small_attention(2, 2)
    return facts, {name: role[0] for name, role in random_roles(facts).items()}, normal(3, 4, facts.embedding, seed=3)


def test_a_sink_takes_mass_and_a_dropout_mask_is_applied_after_the_softmax() -> None:
    facts, roles, x = _layer()
    plain = probabilities(facts, roles, x)
    torch.testing.assert_close(plain.sum(-1), torch.ones_like(plain[..., 0]))
    sink = probabilities(facts, {**roles, "sink": torch.zeros(2, dtype=x.dtype)}, x, Variant(sink=True))
    # One more logit of 0: every probability shrinks by the same factor within a row.
    factor = sink.sum(-1, keepdim=True)
    assert bool((factor < 1).all())
    torch.testing.assert_close(sink, plain * factor)
    keep = 2.0 * (normal(2, 4, 4, seed=6) > 0)
    torch.testing.assert_close(probabilities(facts, roles, x, Variant(keep=keep)), plain * keep)


def test_softcap_and_norms_by_their_formulas() -> None:
    facts, roles, x = _layer()
    gains = {"g_Q": normal(facts.qk_size, seed=1), "g_K": normal(facts.qk_size, seed=2)}
    q, k = (torch.einsum("hde,bte->bhtd", roles[f"W_{n}"], x) + roles[f"b_{n}"][:, None] for n in "QK")
    q, k = (F.rms_norm(z, z.shape[-1:], gains[name], eps=1e-3) for z, name in ((q, "g_Q"), (k, "g_K")))
    s = 3 * torch.tanh(q @ k.mT / facts.qk_size**0.5 / 3)
    expected = s.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf).softmax(-1)
    ours = probabilities(facts, {**roles, **gains}, x, Variant(softcap=3.0, qk_norm=True, eps=1e-3))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_the_input_norm_is_torchs(norm: str) -> None:
    facts, roles, x = _layer()
    gain, shift = normal(facts.embedding, seed=1), normal(facts.embedding, seed=2)
    normed = F.layer_norm(x, x.shape[-1:], gain, shift, 1e-3)
    if norm == "rms":
        normed = F.rms_norm(x, x.shape[-1:], gain, 1e-3) + shift
    ours = attention(facts, {**roles, "g_x": gain, "b_x": shift}, x, Variant(norm=norm, eps=1e-3))  # type: ignore[arg-type]
    torch.testing.assert_close(ours, attention(facts, roles, normed))


def test_weights_may_have_a_batch_of_their_own() -> None:
    """What the Jacobians rely on: copy i of the weights sees input i alone."""
    facts, roles, x = _layer()
    copies = {
        name: role * torch.arange(1.0, 4.0, dtype=role.dtype).view(3, *[1] * role.ndim) for name, role in roles.items()
    }
    together = attention(facts, copies, x)
    for i in range(3):
        torch.testing.assert_close(
            together[i], attention(facts, {name: role[i] for name, role in copies.items()}, x[i])
        )
