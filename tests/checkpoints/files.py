"""Small checkpoints written by hand: a Llama with grouped queries, whole or in shards, and a nanoGPT."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cases import normal
from identcli.store import checkpoints, record

LAYERS, H, G, E, D, V = 3, 4, 2, 24, 6, 31
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": E,
    "intermediate_size": 20,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": H,
    "num_key_value_heads": G,
    "vocab_size": V,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
}
NANOGPT = {"n_layer": 2, "n_head": 4, "n_embd": 24, "block_size": 16, "bias": True, "vocab_size": V, "dropout": 0.0}


def llama(dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a Llama, in the order of its layers."""
    shapes = {"model.embed_tokens.weight": (V, E), "model.norm.weight": (E,)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.q_proj.weight": (H * D, E), f"{at}self_attn.k_proj.weight": (G * D, E)}
        shapes |= {f"{at}self_attn.v_proj.weight": (G * D, E), f"{at}self_attn.o_proj.weight": (E, H * D)}
        shapes |= {f"{at}mlp.gate_proj.weight": (20, E), f"{at}mlp.up_proj.weight": (20, E)}
        shapes |= {f"{at}mlp.down_proj.weight": (E, 20)}
        shapes |= {f"{at}{norm}.weight": (E,) for norm in ("input_layernorm", "post_attention_layernorm")}
    return {
        name: (0.3 * normal(*shape, seed=seed * 100 + n)).to(dtype) for n, (name, shape) in enumerate(shapes.items())
    }


def nanogpt(seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The tensors of a nanoGPT with biases, causal masks included, as old files have them."""
    E = NANOGPT["n_embd"]
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (V, E), "transformer.wpe.weight": (16, E)}
    for layer in range(2):
        at = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"{at}{norm}.weight": (E,), f"{at}{norm}.bias": (E,)}
        for name, rows, columns in (
            ("attn.c_attn", 3 * E, E),
            ("attn.c_proj", E, E),
            ("mlp.c_fc", 4 * E, E),
            ("mlp.c_proj", E, 4 * E),
        ):
            shapes |= {f"{at}{name}.weight": (rows, columns), f"{at}{name}.bias": (rows,)}
    shapes |= {"transformer.ln_f.weight": (E,), "transformer.ln_f.bias": (E,)}
    tensors = {name: (0.3 * normal(*s, seed=seed * 100 + n)).to(dtype) for n, (name, s) in enumerate(shapes.items())}
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    for layer in range(2):
        tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(16, 16).tril().view(1, 1, 16, 16)
    return tensors


def write_folder(path: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any] = CONFIG) -> Path:
    """A folder as save_pretrained leaves it, with a tokenizer beside."""
    path.mkdir()
    save_file(dict(tensors), path / "model.safetensors", metadata={"format": "pt", "made by": "a test"})
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text('{"é": 1}')
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text("{}")
    return path


def write_shards(path: Path, tensors: Mapping[str, Tensor], suffix: str = "safetensors") -> Path:
    """The same in two shards with an index."""
    path.mkdir()
    names = list(tensors)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    weight_map = {}
    for number, half in enumerate(halves, start=1):
        file = f"{stem}-0000{number}-of-00002.{suffix}"
        some = {name: tensors[name] for name in half}
        if suffix == "safetensors":
            save_file(some, path / file, metadata={"format": "pt"})
        else:
            torch.save(some, path / file)
        weight_map |= dict.fromkeys(half, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (path / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def reheader(file: Path, change: Any) -> None:
    """Rewrite the header of a safetensors file as `change` of it."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def run_folder(path: Path, steps: tuple[int, ...]) -> Path:
    """A finished run with checkpoints, the last two of them equal."""
    path.mkdir()
    model = {key: value for key, value in NANOGPT.items() if key != "vocab_size"}
    record.write_config(path, {"model": model})
    record.write_status(path, state="finished", step=steps[-1], steps=steps[-1])
    for number, step in enumerate(steps):
        tensors = nanogpt(seed=min(number, len(steps) - 2))
        checkpoints.save(path, step, {n: t for n, t in tensors.items() if not n.endswith(".attn.bias")}, {})
    return path
