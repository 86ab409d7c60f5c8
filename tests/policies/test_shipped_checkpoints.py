"""The policies that ship: small, explained, and loaded by name."""

import re

import numpy as np
import pytest
import torch

import embodied
from embodied.errors import AssetError
from embodied.random import RowNoise
from envs.api import Observation
from policies.api import Sampling
from policies.vla import checkpoint
from sim_assets.trained import CHECKPOINTS, bundled_checkpoints


@pytest.mark.parametrize("name", bundled_checkpoints())
def test_each_is_small_explained_and_acts(name):
    folder = CHECKPOINTS / name
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10_000_000
    description = (folder / "policy.json").read_text()
    assert not re.search(r'"(/[^"/]+){2,}"', description), "it names a folder of the machine that made it"
    text = (folder / "README.md").read_text()
    assert "embodied sft" in text
    assert "%" in text
    policy = embodied.load_policy(name)
    side = policy.interface
    observation = Observation(
        state=torch.zeros(2, side.state_dim),
        instruction_ids=torch.zeros(2, dtype=torch.int64),
        instruction=[side.instructions[0]] * 2,
        images=torch.zeros(2, side.cameras, side.image_height, side.image_width, 3, dtype=torch.uint8),
    )
    with torch.no_grad():
        output = policy.act(policy.prepare(observation), Sampling(), RowNoise(0, np.arange(2), np.zeros(2)))
    assert output.actions.shape == (2, policy.spec.chunk, side.action_dim)
    assert checkpoint.resolve(name) == folder


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(AssetError, match="pushcube_openvla_oft_tiny"):
        checkpoint.resolve("pushcube")
