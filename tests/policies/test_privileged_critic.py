"""A critic that knows what only the simulator knows, and a tiny network of other sizes with learned placeholders."""

import dataclasses

import pytest
import torch

import policies
from embodied.errors import ConfigurationError
from envs.api import Observation
from policies import openvla, openvla_oft
from policies.api import Interface, Sampling
from policies.vla import statistics
from policies.vla.architecture import NetworkSizes
from tests.policies.test_vla_policy import noise

SMALL = NetworkSizes(image_size=28, layers=1, width=32, vision_layers=2, vision_width=32)
SIDE = Interface(
    state_dim=3,
    action_dim=2,
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    privileged_dim=4,
    cameras=1,
    image_height=28,
    image_width=28,
    instructions=("push it",),
)


def build(module=openvla_oft, interface=SIDE, **options):
    name = f"{module.__name__.split('.')[-1]}/tiny"
    options = {"chunk": 3, "sizes": SMALL, "critic": "privileged", "value": "action"} | options
    return module.build(module.Config(name=name, **options), interface, 0)


def shown(rows=4, privileged=True):
    generator = torch.Generator().manual_seed(0)
    return Observation(
        state=torch.randn(rows, 3, generator=generator),
        instruction_ids=torch.zeros(rows, dtype=torch.int64),
        instruction=["push it"] * rows,
        images=torch.randint(0, 256, (rows, 1, 28, 28, 3), generator=generator, dtype=torch.uint8),
        privileged=torch.randn(rows, 4, generator=generator) if privileged else None,
    )


@pytest.mark.parametrize("module", [openvla, openvla_oft])
def test_conforms_to_the_contract_and_values_follow_what_only_the_simulator_knows(module):
    policy = build(module)
    policies.check(policy, shown())
    torch.nn.init.normal_(policy.value_head.mlp[4].weight)
    inputs = policy.prepare(shown())
    before = policy.value(inputs)
    inputs["pixels"] = 255 - inputs["pixels"]
    assert torch.equal(policy.value(inputs), before)
    inputs["privileged"] += 1
    assert not torch.allclose(policy.value(inputs), before)


def test_acting_does_without_it_and_says_no_value():
    policy = build()
    with_it, without = (policy.prepare(shown(privileged=known)) for known in (True, False))
    first, second = (policy.act(inputs, Sampling(), noise()) for inputs in (with_it, without))
    assert torch.equal(first.tokens, second.tokens)
    assert first.value.shape == (4, 3)
    assert second.value is None
    with pytest.raises(ConfigurationError, match="without the simulator's own numbers"):
        policy.value(without)


def test_it_sees_standard_units_of_the_demonstrations():
    policy = build()
    known = shown(64).privileged.numpy() * 3 + 7
    numbers = {"actions": known[:, :2], "proprio": known[:, :3], "privileged": known}
    policy.set_statistics("push", statistics.compute(trajectories=1, **numbers))
    seen = policy.prepare(dataclasses.replace(shown(64), privileged=torch.from_numpy(known)))["privileged"]
    assert torch.allclose(seen.mean(0), torch.zeros(4), atol=1e-5)
    assert torch.allclose(seen.std(0, correction=0), torch.ones(4), atol=1e-5)


def test_learned_placeholders_tell_tokens_apart_and_are_saved(tmp_path):
    policy = build(placeholders="learned", value="none", critic="prompt")
    torch.nn.init.normal_(policy.placeholders.weight)
    openvla_oft.save(policy, tmp_path / "saved")
    loaded = openvla_oft.load(tmp_path / "saved")
    assert torch.equal(loaded.placeholders.weight, policy.placeholders.weight)
    inputs = policy.prepare(shown())
    assert torch.equal(loaded.act(inputs, Sampling(), noise()).tokens, policy.act(inputs, Sampling(), noise()).tokens)
    # with one layer, zero placeholders ask the same question at every place but the first
    plain = build(value="none", critic="prompt")
    asked = [p.hidden_states(inputs)[:, 1:-1] for p in (plain, policy)]
    spread = [(hidden - hidden.mean(1, keepdim=True)).norm() / hidden.norm() for hidden in asked]
    assert spread[1] > 2 * spread[0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sizes": {"image_size": 50}}, "multiple of 14"),
        ({"sizes": {"width": 40}}, "multiple of 32"),
        ({"sizes": {}, "checkpoint": "somewhere"}, "leave them out"),
    ],
)
def test_impossible_sizes_are_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        policies.build("openvla_oft/tiny", SIDE, **options)


def test_a_privileged_critic_needs_privileged_numbers():
    with pytest.raises(ConfigurationError, match="only the simulator knows"):
        build(interface=dataclasses.replace(SIDE, privileged_dim=0))
