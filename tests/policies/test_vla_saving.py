"""OpenVLA and OpenVLA-OFT on disk: saved, published, sharded, merged, damaged."""

from __future__ import annotations

import json
import os

import pytest
import torch
from safetensors.torch import load_file
from tiny_vla import KINDS, VARIANTS, build, noise, shown
from vla_golden import STATISTICS, checkpoint_folder

from embodied.errors import CheckpointError, CorrectnessAlarm
from policies import openvla, openvla_oft
from policies.api import Sampling
from policies.vla import checkpoint, lora
from policies.vla.options import LoraOptions


@pytest.mark.parametrize(
    ("kind", "options"),
    [*VARIANTS, ("openvla_oft", {"head": "l1", "state": "token"})],
)
def test_saved_policy_acts_the_same(kind, options, tmp_path):
    policy = build(kind, **options)
    policy.set_statistics("mine", policy.bundle.statistics["environment"])
    KINDS[kind].save(policy, tmp_path / "saved")
    loaded = KINDS[kind].load(tmp_path / "saved")
    with torch.no_grad():
        for decode in ("greedy",) if options.get("head") == "l1" else ("greedy", "sample"):
            a, b = (p.act(p.prepare(shown()), Sampling(decode=decode), noise()) for p in (policy, loaded))
            assert torch.equal(a.actions, b.actions)
            assert torch.equal(a.value, b.value)
    assert loaded.statistics_key == "mine"
    assert not list(tmp_path.glob(".saved*"))


def test_published_checkpoint_keeps_keys_fields_and_companions(tmp_path):
    source = checkpoint_folder(tmp_path / "published")
    policy = openvla.load(source, statistics=STATISTICS, value="none")
    openvla.save(policy, tmp_path / "saved")
    stored, written = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "saved"))
    assert set(stored) == set(written)
    assert all(torch.equal(stored[name].float(), written[name].float()) for name in stored)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "saved")]
    assert configs[0] == configs[1]
    for name in ("preprocessor_config.json", "dataset_statistics.json", "generation_config.json"):
        assert json.loads((source / name).read_text()) == json.loads((tmp_path / "saved" / name).read_text())


def test_film_policy_is_saved_under_published_names(tmp_path):
    policy = build("openvla_oft", film="language", state="token", head="l1")
    openvla_oft.save(policy, tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(build("openvla_oft").model.state_dict())
    component = torch.load(tmp_path / "vision_backbone--latest_checkpoint.pt", weights_only=True)
    assert "module.vision_backbone.featurizer.blocks.0.block.norm1.weight" in component
    assert "module.vision_backbone.featurizer.blocks.0.scale.weight" in component
    assert (tmp_path / "action_head--latest_checkpoint.pt").is_file()
    assert (tmp_path / "proprio_projector--latest_checkpoint.pt").is_file()


def test_sharded_weights_load_and_a_missing_shard_is_named(tmp_path):
    policy = build("openvla")
    openvla.save(policy, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    checkpoint.write_weights(policy.published_state().items(), tmp_path, shard_bytes=1_000_000)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 3
    loaded = openvla.load(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(policy.state_dict().values(), loaded.state_dict().values(), strict=True)
    )
    shards[1].unlink()
    with pytest.raises(CheckpointError, match=shards[1].name):
        openvla.load(tmp_path)


def train_adapters(policy):
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B" in name:
                parameter.normal_(std=0.05)


@pytest.mark.parametrize("kind", KINDS)
def test_merged_export_computes_what_the_adapters_do_and_leaves_them_untouched(kind, tmp_path):
    policy = build(kind, lora=LoraOptions(rank=4, targets="language_and_vision"))
    train_adapters(policy)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    KINDS[kind].save(policy, tmp_path)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    loaded = KINDS[kind].load(tmp_path, lora=None)
    assert not lora.layers(loaded.model)
    with torch.no_grad():
        torch.testing.assert_close(loaded.probe(), policy.probe(), atol=1e-4, rtol=1e-4)
    base = build(kind).model.state_dict()
    name = "language_model.model.layers.0.self_attn.q_proj.weight"
    assert not torch.equal(base[name], loaded.model.state_dict()[name])


def test_a_merge_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    policy = build("openvla", lora=LoraOptions(rank=4))
    train_adapters(policy)
    monkeypatch.setattr(
        lora,
        "_merged_weights",
        lambda model: {n: m.get_base_layer().weight * 1.5 for n, m in lora.layers(model).items()},
    )
    with pytest.raises(CorrectnessAlarm, match="nothing was written"):
        openvla.save(policy, tmp_path / "saved")
    assert not list((tmp_path / "saved").iterdir())
    assert next(iter(lora.layers(policy.model).values())).disable_adapters is False


def test_adapters_lost_in_rounding_are_an_error(tmp_path):
    policy = build("openvla", lora=LoraOptions(rank=4), precision="bfloat16")
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if ".lora_B" in name:
                parameter.fill_(1e-9)
    with pytest.raises(CheckpointError, match="byte for byte"):
        openvla.save(policy, tmp_path)


def test_component_files_still_carrying_adapters_are_merged():
    down, up, base = torch.randn(32, 6), torch.randn(5, 32), torch.randn(5, 6)
    state = {
        "a.base_layer.weight": base,
        "a.lora_A.default.weight": down,
        "a.lora_B.default.weight": up,
        "a.base_layer.bias": up[:, 0],
    }
    merged = checkpoint.merge_lora(state)
    assert set(merged) == {"a.weight", "a.bias"}
    torch.testing.assert_close(merged["a.weight"], base + 0.5 * up @ down)  # alpha 16 over rank 32


class Payload:
    def __reduce__(self):
        return os.mkdir, ("pickle-was-executed",)


def test_component_with_code_is_refused_and_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"fc1.weight": Payload()}, tmp_path / "action_head--1_checkpoint.pt")
    with pytest.raises(CheckpointError, match="tensors alone"):
        checkpoint.read_component(tmp_path / "action_head--1_checkpoint.pt")
    assert not (tmp_path / "pickle-was-executed").exists()


def test_newest_component_is_chosen(tmp_path):
    for step in ("500", "40000", "1000"):
        (tmp_path / f"action_head--{step}_checkpoint.pt").touch()
    assert checkpoint.find_component(tmp_path, "action_head").name == "action_head--40000_checkpoint.pt"
    (tmp_path / "action_head--latest_checkpoint.pt").touch()
    assert checkpoint.find_component(tmp_path, "action_head").name == "action_head--latest_checkpoint.pt"
    assert checkpoint.find_component(tmp_path, "proprio_projector") is None
