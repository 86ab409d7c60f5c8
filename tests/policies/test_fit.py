"""Whether a saved policy fits an environment: what is refused, what only warns, and what it can do without."""

import dataclasses
import logging

import numpy as np
import pytest
import torch

import policies
from embodied.errors import ConfigurationError
from embodied.random import RowNoise
from policies import registry
from policies.api import Interface, Sampling

SEEN = Interface(
    state_dim=5,
    action_dim=3,
    action_low=(-1.0,) * 3,
    action_high=(1.0,) * 3,
    privileged_dim=4,
    cameras=1,
    image_height=64,
    image_width=64,
    instructions=("push",),
)
LARGER = dataclasses.replace(SEEN, image_height=96, image_width=96)


@dataclasses.dataclass
class Shown:
    state: torch.Tensor
    images: torch.Tensor
    instruction: list[str]
    privileged: torch.Tensor | None


def shown(side: int, privileged: int) -> Shown:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 1, side, side, 3), generator=generator, dtype=torch.uint8)
    return Shown(torch.zeros(2, 5), images, ["push"] * 2, torch.zeros(2, privileged) if privileged else None)


def act(policy, observation):
    noise = RowNoise(3, np.arange(2), np.zeros(2))
    with torch.no_grad():
        return policy.act(policy.prepare(observation), Sampling(decode="greedy"), noise)


@pytest.fixture(scope="module")
def built():
    torch.set_num_threads(1)
    options = {"openvla_oft/tiny": {"sizes": {"layers": 1, "vision_layers": 2}, "chunk": 2}, "cnn": {"hidden": (8,)}}
    return {name: policies.build(name, SEEN, critic="privileged", **more).eval() for name, more in options.items()}


def test_a_policy_that_resizes_takes_pictures_of_any_size_and_one_warning_says_so(built, tmp_path, caplog):
    policy = built["openvla_oft/tiny"]
    policies.save(policy, tmp_path)
    registry._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            registry.check_interface(policy, LARGER)
            registry.check_saved(tmp_path, LARGER)
    (said,) = [record.getMessage() for record in caplog.records]
    assert "64 x 64" in said
    assert "96 x 96" in said
    assert "env.image_size=64" in said
    assert act(policy, shown(96, 4)).actions.shape == (2, 2, 3)


def test_the_option_that_shows_what_was_seen_has_height_and_width_where_they_differ(caplog):
    registry._warn_once.cache_clear()
    wide = dataclasses.replace(SEEN, image_width=96)
    policy = policies.build("openvla_oft/tiny", wide, sizes={"layers": 1, "vision_layers": 2})
    registry.check_interface(policy, SEEN)
    assert "env.image_size=[64,96]" in caplog.text


def test_a_policy_that_does_not_resize_is_refused_before_its_weights_are_read(built, tmp_path):
    policies.save(built["cnn"], tmp_path)
    (tmp_path / "model.safetensors").unlink()
    registry.check_saved(tmp_path, SEEN)
    with pytest.raises(ConfigurationError, match=r"image_height 64 \(policy\) against 96"):
        registry.check_saved(tmp_path, LARGER)
    with pytest.raises(ConfigurationError, match=r"cameras 1 \(policy\) against 2"):
        registry.check_saved(tmp_path, dataclasses.replace(SEEN, cameras=2))


@pytest.mark.parametrize("name", ["openvla_oft/tiny", "cnn"])
def test_without_what_its_critic_knows_a_policy_acts_the_same_and_has_no_values(built, name):
    usual = act(built[name], shown(64, 4))
    assert usual.value is not None
    for privileged in (0, 7):  # none at all, and those of another suite
        elsewhere = act(built[name], shown(64, privileged))
        assert torch.equal(elsewhere.actions, usual.actions)
        assert elsewhere.value is None
