"""Folders of policies with something wrong in them are refused with the file and the reason, whatever it is."""

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import policies
from embodied.errors import AssetError, CheckpointError, ConfigurationError, EmbodiedError
from policies import openvla, openvla_oft
from policies.api import Interface
from policies.vla import checkpoint

INTERFACE = Interface(
    state_dim=5,
    action_dim=2,
    action_low=(-1.0,) * 2,
    action_high=(1.0,) * 2,
    cameras=1,
    image_height=64,
    image_width=64,
)
COMPONENT = "action_head--latest_checkpoint.pt"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("good")
    policies.save(policies.build("mlp", INTERFACE, hidden=(8,)), folder / "mlp")
    sizes = {"layers": 1, "vision_layers": 2}
    policies.save(
        policies.build("openvla_oft/tiny", INTERFACE, head="l1", chunk=2, sizes=sizes), folder / "openvla_oft"
    )
    return folder


def text(content):
    return lambda path: path.write_text(content)


def changed(change):
    """A JSON file after `change` was applied to its value."""

    def apply(path):
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return apply


def whole_numbers(path):
    save_file({name: tensor.mul(100).long() for name, tensor in load_file(path).items()}, path)


def not_a_number(value):
    """A tensor file whose largest tensor has one number less."""

    def apply(path):
        tensors = torch.load(path) if path.suffix == ".pt" else load_file(path)
        name = max(tensors, key=lambda name: tensors[name].numel())
        tensors[name].view(-1)[3] = value
        torch.save(tensors, path) if path.suffix == ".pt" else save_file(tensors, path)

    return apply


def in_text(**values):
    return changed(lambda value: value["text_config"].update(values))


def in_action(**values):
    return changed(lambda value: next(iter(value.values()))["action"].update(values))


@pytest.mark.parametrize(
    ("kind", "file", "damage", "words"),
    [
        ("mlp", "policy.json", text("{"), "not valid JSON"),
        ("mlp", "policy.json", text("[]"), "kind, options, interface"),
        ("mlp", "policy.json", changed(lambda value: value.update(kind=3)), "kind"),
        ("mlp", "policy.json", changed(lambda value: value["interface"].pop("state_dim")), "state_dim"),
        ("mlp", "policy.json", changed(lambda value: value["interface"].update(state_dim="a")), "state_dim"),
        ("mlp", "model.safetensors", text("abc"), "do not fit"),
        ("mlp", "model.safetensors", whole_numbers, "int64, expected torch.float32"),
        ("mlp", "model.safetensors", not_a_number(torch.nan), r"in \S+ 1 of \d+ numbers are NaN or infinite"),
        ("mlp", "model.safetensors", not_a_number(-torch.inf), r"in \S+ 1 of \d+ numbers are NaN or infinite"),
        ("openvla_oft", "model.safetensors", not_a_number(torch.nan), r"in \S+ 1 of \d+ numbers are NaN"),
        ("openvla_oft", "value_head.safetensors", not_a_number(torch.nan), r"in \S+ 1 of \d+ numbers are NaN"),
        ("openvla_oft", COMPONENT, not_a_number(torch.inf), r"in \S+ 1 of \d+ numbers are NaN"),
        ("openvla_oft", "policy.json", text("{"), "not valid JSON"),
        ("openvla_oft", "policy.json", changed(lambda value: value.pop("options")), "options"),
        ("openvla_oft", "config.json", text("[]"), "expected a JSON object"),
        ("openvla_oft", "config.json", changed(lambda value: value.update(timm_model_ids=["vit_none"])), "built"),
        ("openvla_oft", "config.json", changed(lambda value: value.update(timm_model_kwargs=[{"x": 1}] * 2)), "built"),
        ("openvla_oft", "config.json", changed(lambda value: value.update(image_sizes=84)), "damaged"),
        ("openvla_oft", "config.json", changed(lambda value: value.update(n_action_bins=5000)), "bins 5000"),
        ("openvla_oft", "config.json", in_text(hidden_size="x"), "built"),
        ("openvla_oft", "config.json", in_text(rope_scaling={"type": "linear", "factor": 2}), "rope_scaling"),
        ("openvla_oft", "config.json", in_text(hidden_act="gelu"), "only 'silu'"),
        ("openvla_oft", "dataset_statistics.json", in_action(q01=[float("nan")] * 2), "finite"),
        ("openvla_oft", "dataset_statistics.json", in_action(q01=[2.0, 2.0]), "below"),
        ("openvla_oft", "dataset_statistics.json", in_action(q99=[1.0]), "one number a dimension"),
        ("openvla_oft", "dataset_statistics.json", in_action(q99=None), "damaged"),
        ("openvla_oft", "tokenizer.json", text("{}"), "no tokenizer"),
        (
            "openvla_oft",
            "preprocessor_config.json",
            changed(lambda value: value.update(tvf_normalize_params=[{}])),
            "normalise by",
        ),
        ("openvla_oft", "value_head.safetensors", text("abc"), "fresh value head"),
        ("openvla_oft", "model.safetensors", whole_numbers, "int64, expected torch.float32"),
        ("openvla_oft", COMPONENT, text("abc"), "tensors alone"),
        ("openvla_oft", COMPONENT, lambda path: path.write_bytes(path.read_bytes()[:900]), "tensors alone"),
        ("openvla_oft", COMPONENT, lambda path: path.write_bytes(pickle.dumps({"a": os.getcwd})), "tensors alone"),
        ("openvla_oft", COMPONENT, lambda path: torch.save({1: torch.zeros(1)}, path), "by name"),
        (
            "openvla_oft",
            COMPONENT,
            lambda path: torch.save({"a.base_layer.weight": torch.zeros(2, 2)}, path),
            "missing",
        ),
    ],
)
def test_damage_is_refused_naming_what_is_wrong(good, tmp_path, kind, file, damage, words):
    folder = shutil.copytree(good / kind, tmp_path / "policy")
    damage(folder / file)
    with pytest.raises(EmbodiedError, match=words):
        policies.load(folder)


def test_what_refuses_a_pickle_does_not_say_how_to_run_it_after_all(tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / COMPONENT)
    with pytest.raises(CheckpointError) as refused:
        checkpoint.read_component(tmp_path / COMPONENT)
    assert "weights_only" not in str(refused.value)


def test_half_an_adapter_in_a_component_file_is_refused():
    half = {"a.base_layer.weight": torch.zeros(2, 3), "a.lora_A.default.weight": torch.zeros(1, 3)}
    with pytest.raises(CheckpointError, match="second half"):
        checkpoint.merge_lora(half)


def test_shards_in_another_order_load_and_a_damaged_index_or_a_tensor_that_comes_twice_is_refused(good, tmp_path):
    folder = shutil.copytree(good / "openvla_oft", tmp_path / "policy")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    checkpoint.write_weights(state.items(), folder, shard_bytes=800_000)
    index = folder / "model.safetensors.index.json"
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    third = folder / "swapped"
    for source, target in ((first, third), (second, first), (third, second)):
        source.rename(target)
    loaded = policies.load(folder)
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.published_state().items())
    shutil.copy(first, second)
    with pytest.raises(CheckpointError, match="twice"):
        policies.load(folder)
    index.write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        policies.load(folder)


def test_a_published_configuration_without_statistics_is_no_damage(good, tmp_path):
    folder = shutil.copytree(good / "openvla_oft", tmp_path / "policy")
    changed(lambda value: value.update(norm_stats=None))(folder / "config.json")
    assert policies.load(folder).statistics_key == "environment"


def test_saving_removes_the_heads_of_what_was_there_and_others_may_read_the_files(good, tmp_path):
    folder = shutil.copytree(good / "openvla_oft", tmp_path / "policy")
    (folder / "notes.txt").write_text("mine")
    policies.save(policies.build("openvla_oft/tiny", INTERFACE, value="none"), folder)
    assert not (folder / COMPONENT).exists()
    assert not (folder / "value_head.safetensors").exists()
    assert (folder / "notes.txt").exists()
    for written in (good / "mlp", folder):
        modes = {path.stat().st_mode for path in written.iterdir()}
        assert len(modes) == 1, modes


def test_a_published_folder_is_told_from_an_empty_one(good, tmp_path):
    folder = shutil.copytree(good / "openvla_oft", tmp_path / "policy")
    (folder / "policy.json").unlink()
    with pytest.raises(AssetError, match=r"policy\.checkpoint"):
        policies.load(folder)
    assert openvla_oft.load(folder, chunk=2, value="none").spec.chunk == 2


def test_options_that_would_only_fail_later_are_refused_at_once():
    for options, words in (
        ({"chunk": 0}, "chunk is 0"),
        ({"chunk": -1}, "chunk is -1"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            policies.build("mlp", INTERFACE, **options)
    with pytest.raises(ConfigurationError, match="alpha is 0"):
        policies.build("openvla/tiny", INTERFACE, lora={"alpha": 0})
    told = Interface(**{**vars(INTERFACE), "instructions": ("push the cube",)})
    with pytest.raises(ConfigurationError, match="prompt_tokens to at least 18"):
        policies.build("openvla/tiny", told, prompt_tokens=3)


def test_a_policy_is_built_by_its_name_alone():
    policy = policies.build("openvla/tiny", seed=0)
    assert isinstance(policy, openvla.OpenVLAPolicy)
    assert policy.spec.action_dim == 7


def test_limits_that_are_infinite_where_actions_have_none_are_no_damage(tmp_path):
    free = Interface(state_dim=2, action_dim=1, action_low=(-torch.inf,), action_high=(torch.inf,))
    policies.save(policies.build("mlp", free, hidden=(4,)), tmp_path)
    assert policies.load(tmp_path).action_limit.isinf().all()
