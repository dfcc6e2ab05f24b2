"""The built-in models: totals to the last parameter, and the closed forms at real sizes."""

import pytest

from identcli.architecture.builtin import entries, find, spellings
from identcli.architecture.count import count
from identcli.architecture.families import families
from identcli.architecture.huggingface import from_config
from identcli.architecture.tensors import parameters

IDS = [entry["hf_id"] for entry in entries()]
GPT2_XL = {
    "model_type": "gpt2",
    **{"n_embd": 1600, "n_layer": 48, "n_head": 25, "n_positions": 1024, "vocab_size": 50257},
}


def test_there_are_27_with_their_sources() -> None:
    assert len(IDS) == 27
    assert all(entry["source"] for entry in entries())


@pytest.mark.parametrize("entry", entries(), ids=IDS)
def test_totals_equal_the_published_ones(entry: dict) -> None:
    architecture = find(entry["hf_id"])
    assert architecture is not None
    numbers = parameters(architecture)
    assert numbers.total == entry["total_params_unique"]
    assert numbers.attention == entry["attention_params_unique"]


@pytest.mark.parametrize("entry", entries(), ids=IDS)
def test_a_model_answers_to_all_its_names_in_any_case(entry: dict) -> None:
    for spelling in spellings(entry):
        for said in (spelling, spelling.upper(), spelling.lower()):
            found = find(said)
            assert found is not None
            assert found.name == entry["name"]


@pytest.mark.parametrize(
    ("model", "unidentified"),
    [
        ("gpt2", 1_347_352),
        ("llama-2-7b-hf", 25_917_440),
        ("llama-2-70b-hf", 47_738_880),
        ("meta-llama-3-8b", 13_342_720),
    ],
)
def test_closed_forms_at_real_sizes(model: str, unidentified: int) -> None:
    architecture = find(model)
    assert architecture is not None
    assert count(architecture).total == unidentified


def test_gpt2_xl_which_is_not_built_in() -> None:
    counted = count(from_config(GPT2_XL, "gpt2-xl"))
    assert counted.total == 11_215_520
    assert counted.parameters.total == 1_557_611_200


def test_gpt2_with_and_without_embeddings() -> None:
    """C05: 124M or 85M? Both, each by its name."""
    architecture = find("gpt2")
    assert architecture is not None
    numbers = parameters(architecture)
    assert (numbers.total, numbers.without_embeddings, numbers.tied) == (124_439_808, 85_056_000, True)


def test_deepseek_attention_with_its_latent_norms() -> None:
    """5,506,114 a layer counts the scales in front of the two latent norms, which are exact at ε = 0 only."""
    architecture = find("deepseek-v3")
    assert architecture is not None
    attention = ("qk", "ov", "mla_latent", "qk_norm_scales")
    assert count(architecture, eps=False, only=attention).per_layer == 5_506_114
    assert count(architecture, eps=True, only=attention).per_layer == 5_506_112


def test_mixtures_of_experts_have_active_parameters() -> None:
    deepseek, mixtral = find("deepseek-v3"), find("mixtral-8x7b-v0.1")
    assert deepseek is not None
    assert mixtral is not None
    assert parameters(deepseek).active == 37_552_282_624
    assert parameters(mixtral).active == 12_879_925_248


@pytest.mark.parametrize("entry", entries(), ids=IDS)
def test_the_pairs_of_the_description_give_the_counted_dimensions(entry: dict) -> None:
    """The group of a pair says the dimension that the family's formula computes."""
    architecture = find(entry["hf_id"])
    assert architecture is not None
    found = families(architecture)
    for stack in architecture.stacks:
        for block in stack.blocks:
            if block.latent or block.cross:
                continue
            circuits = ("ov",) if block.qk_norm else ("qk", "ov")
            for circuit in circuits:
                pair = block.attention.pair(circuit)
                each = [f.each for f in found if f.name == circuit and f.place.startswith(stack.name)]
                assert pair.groups * pair.group.dimension in each
