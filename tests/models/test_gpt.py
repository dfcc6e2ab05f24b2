"""The model against a slow forward pass: numpy, float64, one head and one position at a time."""

import math

import numpy as np
import pytest
import torch

from identcli.architecture.errors import UserError
from identcli.models.gpt import GPT, GPTConfig

SMALL = {"vocab_size": 11, "n_layer": 1, "n_head": 1, "n_embd": 6, "block_size": 5}
LARGER = {"vocab_size": 17, "n_layer": 3, "n_head": 4, "n_embd": 24, "block_size": 9}


def model_with_large_weights(sizes: dict[str, int], bias: bool, dtype: torch.dtype) -> GPT:
    """Weights far from the initial ones, biases and gains included: every term of the forward pass counts."""
    torch.manual_seed(3)
    model = GPT(GPTConfig(**sizes, bias=bias)).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def layer_norm(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    mean = sum(x) / len(x)
    variance = sum((x - mean) ** 2) / len(x)
    return (x - mean) / math.sqrt(variance + 1e-5) * w[f"{name}.weight"] + w.get(f"{name}.bias", 0.0)


def linear(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    return w[f"{name}.weight"] @ x + w.get(f"{name}.bias", 0.0)


def slow_attention(xs: list[np.ndarray], w: dict[str, np.ndarray], name: str, heads: int) -> list[np.ndarray]:
    embedding = len(xs[0])
    size = embedding // heads
    qkv = [linear(x, w, f"{name}.c_attn") for x in xs]
    outputs = []
    for t in range(len(xs)):
        joined = np.zeros(embedding)
        for head in range(heads):
            rows = slice(head * size, (head + 1) * size)
            query = qkv[t][:embedding][rows]
            scores = [query @ qkv[s][embedding : 2 * embedding][rows] / math.sqrt(size) for s in range(t + 1)]
            odds = [math.exp(score - max(scores)) for score in scores]
            for s in range(t + 1):
                joined[rows] += odds[s] / sum(odds) * qkv[s][2 * embedding :][rows]
        outputs.append(linear(joined, w, f"{name}.c_proj"))
    return outputs


def slow_mlp(x: np.ndarray, w: dict[str, np.ndarray], name: str) -> np.ndarray:
    hidden = linear(x, w, f"{name}.c_fc")
    gelu = np.array([h * (1 + math.erf(h / math.sqrt(2))) / 2 for h in hidden])
    return linear(gelu, w, f"{name}.c_proj")


def slow_logits(model: GPT, tokens: list[int]) -> np.ndarray:
    w = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    xs = [w["transformer.wte.weight"][token] + w["transformer.wpe.weight"][t] for t, token in enumerate(tokens)]
    for layer in range(model.config.n_layer):
        name = f"transformer.h.{layer}"
        normed = [layer_norm(x, w, f"{name}.ln_1") for x in xs]
        attended = slow_attention(normed, w, f"{name}.attn", model.config.n_head)
        xs = [x + a for x, a in zip(xs, attended, strict=True)]
        xs = [x + slow_mlp(layer_norm(x, w, f"{name}.ln_2"), w, f"{name}.mlp") for x in xs]
    return np.array([w["lm_head.weight"] @ layer_norm(x, w, "transformer.ln_f") for x in xs])


# float64: a few hundred roundings of 1e-16 on logits of order 10. float32: the same of 6e-8, and some cancel.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [SMALL, LARGER])
def test_the_forward_pass_equals_a_slow_one(sizes, bias, dtype, tolerance):
    model = model_with_large_weights(sizes, bias, dtype)
    tokens = torch.randint(sizes["vocab_size"], (2, sizes["block_size"]))
    logits, loss = model(tokens)
    assert loss is None
    for row, fast in zip(tokens.tolist(), logits, strict=True):
        slow = slow_logits(model, row)
        assert np.abs(slow).max() > 0.5
        np.testing.assert_allclose(fast.detach().numpy(), slow, rtol=tolerance, atol=tolerance)


def test_the_slow_pass_would_notice_another_gelu_and_another_scale():
    model = model_with_large_weights(LARGER, True, torch.float64)
    tokens = torch.randint(17, (1, 9))
    slow = slow_logits(model, tokens[0].tolist())
    for block in model.transformer.h:
        block.mlp.gelu = torch.nn.GELU(approximate="tanh")
    assert np.abs(model(tokens)[0][0].detach().numpy() - slow).max() > 1e-5


def test_the_loss_is_the_mean_cross_entropy_in_nats_of_the_targets_that_are_there():
    model = model_with_large_weights(SMALL, True, torch.float64)
    tokens, targets = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[2, 3, -1], [5, 6, 10]])
    logits, loss = (output.detach() for output in model(tokens, targets))
    assert logits.shape == (2, 3, 11)
    terms = [
        -math.log(math.exp(logits[b, t, y]) / sum(math.exp(z) for z in logits[b, t]))
        for b, row in enumerate(targets.tolist())
        for t, y in enumerate(row)
        if y != -1
    ]
    assert loss.item() == pytest.approx(sum(terms) / 5, rel=1e-12)


def test_initial_weights_have_the_stated_spread_and_follow_the_seed():
    torch.manual_seed(5)
    model = GPT(GPTConfig(vocab_size=300, n_layer=8, n_head=4, n_embd=64, block_size=128))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert torch.all(weight == 0), name
        elif "ln_" in name:
            assert torch.all(weight == 1), name
        else:
            expected = 0.02 / math.sqrt(2 * 8) if name.endswith("c_proj.weight") else 0.02
            # The relative error of a standard deviation from n draws is 1/√(2n); five of those.
            assert weight.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.numel())), name
            assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel()), name
    torch.manual_seed(5)
    again = GPT(model.config)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    torch.manual_seed(6)
    other = GPT(model.config)
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [SMALL, LARGER])
def test_the_number_of_parameters(sizes, bias):
    model = GPT(GPTConfig(**sizes, bias=bias))
    v, n, e, t = (sizes[key] for key in ("vocab_size", "n_layer", "n_embd", "block_size"))
    count = (v + t) * e + n * (12 * e * e + 2 * e) + e  # the head is the embedding: counted once
    if bias:
        count += n * (3 * e + e + 4 * e + e + 2 * e) + e
    assert sum(weight.numel() for weight in model.parameters()) == count
    assert model.lm_head.weight is model.transformer.wte.weight
    assert any(name.endswith("bias") for name, _ in model.named_parameters()) == bias


def test_dropout_acts_in_training_only():
    torch.manual_seed(0)
    model = GPT(GPTConfig(**LARGER, dropout=0.5))
    tokens = torch.randint(17, (1, 9))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    plain = GPT(GPTConfig(**LARGER))
    plain.load_state_dict(model.state_dict())
    assert torch.equal(model(tokens)[0], plain(tokens)[0])


@pytest.mark.parametrize("place", ["embedding", "attention", "residual", "mlp"])
def test_dropout_is_in_each_of_its_places(place):
    torch.manual_seed(0)
    model = GPT(GPTConfig(**LARGER, dropout=0.5)).eval()
    block = model.transformer.h[0]
    part = {
        "embedding": model.transformer.drop,
        "residual": block.attn.resid_dropout,
        "mlp": block.mlp.dropout,
        "attention": block.attn,
    }[place]
    part.train()
    if place == "attention":
        block.attn.resid_dropout.eval()
    tokens = torch.randint(17, (1, 9))
    assert not torch.equal(model(tokens)[0], model(tokens)[0])


def test_a_later_token_never_changes_an_earlier_logit():
    model = model_with_large_weights(LARGER, True, torch.float64)
    tokens = torch.randint(17, (1, 9))
    before = model(tokens)[0]
    for t in range(9):
        changed = tokens.clone()
        changed[0, t] = (tokens[0, t] + 1) % 17
        after = model(changed)[0]
        assert torch.equal(after[:, :t], before[:, :t])
        assert (after[:, t:] != before[:, t:]).any(dim=-1).all()


def test_generation_is_fixed_by_the_generator_and_goes_on_past_the_block():
    model = model_with_large_weights(LARGER, True, torch.float32).train()
    prompt = torch.tensor([[1, 2], [3, 4]])

    def text(seed: int) -> torch.Tensor:
        return model.generate(prompt, 20, generator=torch.Generator().manual_seed(seed))

    assert text(1).shape == (2, 22)
    assert torch.equal(text(1), text(1))
    assert torch.equal(text(1)[:, :2], prompt)
    assert not torch.equal(text(1), text(2))
    assert model.training
    assert torch.equal(model.generate(prompt, 0), prompt)


def test_the_coldest_and_the_narrowest_sampling_take_the_likeliest_token():
    model = model_with_large_weights(LARGER, True, torch.float32)
    prompt = torch.tensor([[1, 2, 3]])
    greedy = prompt
    for _ in range(12):
        greedy = torch.cat([greedy, model(greedy[:, -9:])[0][:, -1:].argmax(dim=-1)], dim=1)
    assert torch.equal(model.generate(prompt, 12, temperature=0), greedy)
    assert torch.equal(model.generate(prompt, 12, top_k=1), greedy)


def test_sampled_frequencies_follow_the_temperature_and_the_top_k():
    model = model_with_large_weights(SMALL, True, torch.float64)
    prompt = torch.tensor([[7]])
    expected = torch.softmax(model(prompt)[0][0, -1] / 2, dim=-1)
    expected[expected < expected.sort().values[-3]] = 0
    expected /= expected.sum()
    drawn = model.generate(
        prompt.expand(4000, 1), 1, temperature=2, top_k=3, generator=torch.Generator().manual_seed(0)
    )
    share = torch.bincount(drawn[:, 1], minlength=11) / 4000
    # The standard deviation of a share is at most 1/(2√4000) = 0.008; four of those.
    torch.testing.assert_close(share.double(), expected.detach(), rtol=0, atol=0.032)


def test_the_attention_facts_count_the_pairs():
    facts = GPTConfig(vocab_size=65, n_layer=6, n_head=6, n_embd=384, bias=False).attention
    assert (facts.layers, facts.heads, facts.kv_groups, facts.embedding) == (6, 6, 6, 384)
    assert (facts.qk_size, facts.v_size, facts.q_bias, facts.rotary) == (64, 64, False, 0)
    assert facts.pair("qk").isotropic_share == pytest.approx(1 / 12)
    with_biases = GPTConfig(vocab_size=65).attention
    assert with_biases.pair("qk").bias_a
    assert with_biases.pair("ov").bias_a


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_embd": 100, "n_head": 3}, r"n_embd=100: .*n_head=3 heads, 1 would be left over"),
        ({"n_layer": 0}, r"n_layer=0: must be at least 1"),
        ({"n_head": -1}, r"n_head=-1: must be at least 1"),
        ({"block_size": 0}, r"block_size=0"),
        ({"vocab_size": 0}, r"vocab_size=0"),
        ({"dropout": 1.0}, r"dropout=1.0: must be at least 0 and less than 1"),
        ({"dropout": -0.1}, r"dropout=-0.1"),
        ({"dropout": math.nan}, r"dropout=nan"),
    ],
)
def test_impossible_sizes_are_refused(wrong, message):
    with pytest.raises(UserError, match=message):
        GPTConfig(**{"vocab_size": 65, **wrong})


def test_impossible_calls_are_refused():
    model = GPT(GPTConfig(**SMALL))
    with pytest.raises(UserError, match=r"6 tokens doesn't fit model.block_size=5"):
        model(torch.zeros(1, 6, dtype=torch.long))
    with pytest.raises(UserError, match=r"prompt is empty"):
        model.generate(torch.zeros(1, 0, dtype=torch.long), 3)
    prompt = torch.zeros(1, 1, dtype=torch.long)
    with pytest.raises(UserError, match=r"temperature -1"):
        model.generate(prompt, 1, temperature=-1)
    with pytest.raises(UserError, match=r"top_k 0"):
        model.generate(prompt, 1, top_k=0)
