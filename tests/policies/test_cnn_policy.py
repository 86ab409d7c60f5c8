"""The convolutional policy: the contract with every kind of action and critic, what it looks at, what it refuses."""

import dataclasses

import numpy as np
import pytest
import torch

import policies
from embodied.errors import ConfigurationError
from embodied.random import RowNoise
from envs.api import Observation
from policies.api import Interface, Sampling

CONTINUOUS = Interface(
    state_dim=5,
    action_dim=3,
    action_low=(-1.0, -2.0, 0.0),
    action_high=(1.0, 2.0, 4.0),
    cameras=2,
    image_height=24,
    image_width=32,
    privileged_dim=7,
)
DISCRETE = dataclasses.replace(
    CONTINUOUS, action_dim=1, action_kind="discrete", choices=4, action_low=(), action_high=()
)
SMALL = {"channels": (4, 8), "features": 16, "hidden": (16,)}


def observation(rows=4, interface=CONTINUOUS):
    generator = torch.Generator().manual_seed(0)
    shape = (rows, interface.cameras, interface.image_height, interface.image_width, 3)
    return Observation(
        state=torch.randn(rows, interface.state_dim, generator=generator),
        instruction_ids=torch.zeros(rows, dtype=torch.int64),
        instruction=[""] * rows,
        images=torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8),
        privileged=torch.randn(rows, interface.privileged_dim, generator=generator),
    )


@pytest.mark.parametrize("interface", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
@pytest.mark.parametrize(
    "options",
    [{}, {"chunk": 3, "value": "action"}, {"value": "none"}, {"critic": "privileged"}],
    ids=lambda options: str(options),
)
def test_it_keeps_the_contract(interface, options):
    policies.check(policies.build("cnn", interface, seed=1, **SMALL, **options), observation())


def test_pictures_alone_are_enough():
    blind_to_itself = dataclasses.replace(CONTINUOUS, state_dim=0)
    policies.check(policies.build("cnn", blind_to_itself, seed=1, **SMALL), observation(interface=blind_to_itself))


def decide(policy, seen):
    with torch.no_grad():
        inputs = policy.prepare(seen)
        rows = len(seen)
        output = policy.act(inputs, Sampling(decode="greedy"), RowNoise(0, np.arange(rows), np.zeros(rows)))
        return output.actions, output.value


def test_every_camera_and_the_state_move_the_action():
    policy, seen = policies.build("cnn", CONTINUOUS, seed=1, **SMALL), observation()
    before, _ = decide(policy, seen)
    changed = [dataclasses.replace(seen, state=seen.state + 1)]
    for camera in range(2):
        images = seen.images.clone()
        images[:, camera] = 255 - images[:, camera]
        changed.append(dataclasses.replace(seen, images=images))
    assert all(not torch.allclose(decide(policy, other)[0], before, atol=1e-7) for other in changed)


def test_a_privileged_critic_judges_by_what_acting_never_sees():
    policy, seen = policies.build("cnn", CONTINUOUS, seed=1, critic="privileged", **SMALL), observation()
    actions, value = decide(policy, seen)
    told = decide(policy, dataclasses.replace(seen, privileged=seen.privileged + 1))
    assert torch.equal(told[0], actions)
    assert not torch.allclose(told[1], value)
    shown = decide(policy, dataclasses.replace(seen, images=255 - seen.images))
    assert torch.equal(shown[1], value)
    critic = {id(p) for p in policy.parameter_groups()["critic"]}
    assert critic == {id(p) for p in policy.value_head.parameters()}


def test_brightness_is_centred_and_any_size_comes_down_to_the_same_features():
    policy = policies.build("cnn", CONTINUOUS, seed=1, **SMALL)
    grey = torch.full((1, 2, 24, 32, 3), 127.5)
    assert torch.equal(
        policy.eyes.convolutions(grey.flatten(0, 1).permute(0, 3, 1, 2) / 255 - 0.5), torch.zeros(2, 128)
    )
    large = dataclasses.replace(CONTINUOUS, image_height=100, image_width=60)
    assert sum(p.numel() for p in policies.build("cnn", large, seed=1, **SMALL).parameters()) == sum(
        p.numel() for p in policy.parameters()
    )


def test_it_imitates():
    policy, seen = policies.build("cnn", CONTINUOUS, seed=1, **SMALL), observation(32)
    wanted = torch.stack([seen.images.float().mean((1, 2, 3, 4)) / 255, seen.state[:, 0].tanh(), torch.ones(32)], dim=1)
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = policy.imitation(policy.prepare(seen), wanted[:, None]).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 20


@pytest.mark.parametrize(
    ("interface", "options", "words"),
    [
        (dataclasses.replace(CONTINUOUS, cameras=0), {}, "shows no pictures"),
        (dataclasses.replace(CONTINUOUS, image_width=8), {}, "at least 16 x 16"),
        (dataclasses.replace(CONTINUOUS, privileged_dim=0), {"critic": "privileged"}, "privileged_dim 0"),
        (CONTINUOUS, {"channels": ()}, "at least one convolution"),
        (CONTINUOUS, {"value": "action"}, "with chunk 1 use value: chunk"),
    ],
)
def test_what_cannot_be_is_refused(interface, options, words):
    with pytest.raises(ConfigurationError, match=words):
        policies.build("cnn", interface, **options)
