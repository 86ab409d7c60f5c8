"""A policy that cannot learn on this device is refused before a run, with what would fit."""

import pytest

from embodied.config.compose import compose_recipe
from embodied.errors import ConfigurationError
from embodied.interaction.device_memory import GIB, device_bytes, require_device_memory
from embodied.interaction.recipe import parse_recipe
from policies.footprint import shipped


def recipe(name: str, *overrides: str):
    return parse_recipe(name, compose_recipe(name, ["cluster.device=cpu", *overrides]))


WHOLE = ("policy.lora=null", "policy.precision=float32", "learner.precision=bfloat16")
FULL = next(known for known in shipped() if known.name == "openvla_oft/7b").full / GIB


def test_all_weights_of_7b_are_refused_on_a_card_of_24_gb_and_adapters_are_proposed():
    whole = recipe("maniskill_ppo_openvla_oft", *WHOLE)
    with pytest.raises(ConfigurationError) as refusal:
        require_device_memory(whole, 24 * GIB)
    assert f"openvla_oft/7b needs at least {FULL:.0f} GiB on each learner's device" in str(refusal.value)
    assert "one has 24" in str(refusal.value)
    assert "adapters (policy.lora.rank=32) need 16 GiB" in str(refusal.value)
    assert "5 learner workers or more (cluster.workers.learner=5)" in str(refusal.value)  # 114 / 24
    require_device_memory(recipe("maniskill_ppo_openvla_oft", "policy.lora.rank=32"), 24 * GIB)


def test_what_may_fit_is_not_refused():
    whole = recipe("maniskill_ppo_openvla_oft", *WHOLE)
    require_device_memory(whole, 141 * GIB)
    require_device_memory(whole, None)
    require_device_memory(recipe("maniskill_ppo_openvla_oft_tiny"), GIB)
    require_device_memory(recipe("maniskill_pushcube_ppo_mlp"), 1)
    assert device_bytes("cpu") is None


def test_too_few_learners_are_told_how_many_are_enough():
    two = recipe("maniskill_ppo_openvla_oft", *WHOLE, "cluster.workers.learner=2", "cluster.launcher=ray")
    with pytest.raises(ConfigurationError, match=rf"at least {FULL / 2:.0f} GiB .*cluster\.workers\.learner=3"):
        require_device_memory(two, 40 * GIB)
