"""Language models on disk: what is written is what is loaded, whoever writes it."""

import json

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from reasoning.models.loading import load_model, open_model, open_tokenizer
from reasoning.models.saving import save_model
from reasoning.models.tiny import TINY


def load(folder):
    return load_model(str(folder), dtype=torch.float32, device="cpu")


def test_a_saved_model_is_loaded_with_its_bits_and_memory_of_its_own(tmp_path):
    model = open_model(TINY, seed=3, dtype=torch.float32, device="cpu")
    save_model(model, model.state_dict(), tmp_path)
    loaded = load(tmp_path)
    expected, found = model.state_dict(), loaded.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert all(tensor.untyped_storage().resizable() for tensor in loaded.parameters())


def test_files_are_those_that_transformers_writes(tmp_path):
    model = open_model(TINY, seed=3, dtype=torch.float32, device="cpu")
    save_model(model, model.state_dict(), tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("ours", "theirs")]
    assert files[0] == files[1]
    assert (
        load_file(tmp_path / "ours" / "model.safetensors").keys()
        == load_file(tmp_path / "theirs" / "model.safetensors").keys()
    )
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs")]
    assert configs[0] == configs[1]


def test_a_process_that_is_not_the_first_of_its_group_writes_too(tmp_path, monkeypatch):
    model = open_model(TINY, seed=3, dtype=torch.float32, device="cpu")
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda *_: 1)
    save_model(model, model.state_dict(), tmp_path)
    open_tokenizer(TINY).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


def test_weights_that_lie_in_one_buffer_are_all_written(tmp_path):
    model = open_model(TINY, seed=3, dtype=torch.float32, device="cpu")
    weights = model.state_dict()
    buffer = torch.cat([tensor.flatten() for tensor in weights.values()])
    pieces = buffer.split([tensor.numel() for tensor in weights.values()])
    views = {name: piece.view_as(weights[name]) for name, piece in zip(weights, pieces, strict=True)}
    save_model(model, views, tmp_path)
    loaded = load(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_experts_are_written_by_their_published_names_and_loaded_again(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
        mlp_only_layers=[1],
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    save_model(model, model.state_dict(), tmp_path / "ours")
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in ours
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    found = load(tmp_path / "ours").state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in model.state_dict().items())
