"""A policy meets instructions longer than those it was made for."""

import dataclasses

import numpy as np
import pytest
import torch

from embodied.errors import ConfigurationError
from embodied.random import RowNoise
from policies import openvla, openvla_oft, registry
from policies.api import Interface, Sampling

SHORT, LONG = "push the cube", "when you are ready, and there is no hurry, could you push the cube to the target for me"
SEEN = Interface(
    state_dim=5,
    action_dim=3,
    action_low=(-1.0,) * 3,
    action_high=(1.0,) * 3,
    cameras=1,
    image_height=64,
    image_width=64,
    instructions=(SHORT,),
)


@dataclasses.dataclass
class Shown:
    state: torch.Tensor
    images: torch.Tensor
    instruction: list[str]
    privileged: torch.Tensor | None = None


def shown(text: str) -> Shown:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (2, 1, 64, 64, 3), generator=generator, dtype=torch.uint8)
    return Shown(torch.zeros(2, 5), images, [text] * 2)


def decide(policy: torch.nn.Module, text: str) -> torch.Tensor:
    noise = RowNoise(3, np.arange(2), np.zeros(2))
    with torch.no_grad():
        return policy.act(policy.prepare(shown(text)), Sampling(decode="greedy"), noise).logprobs


@pytest.mark.parametrize("module", [openvla, openvla_oft])
def test_an_evaluation_makes_room_for_longer_instructions_and_changes_nothing_else(module):
    torch.set_num_threads(1)
    name = module.__name__.removeprefix("policies.")
    policy = module.build(module.Config(name=f"{name}/tiny", value="none"), SEEN, 0).eval()
    before = decide(policy, SHORT)
    with pytest.raises(ConfigurationError, match="prompt_tokens"):
        decide(policy, LONG)
    registry.check_interface(policy, dataclasses.replace(SEEN, instructions=(SHORT, LONG)))
    assert torch.isfinite(decide(policy, LONG)).all()
    torch.testing.assert_close(decide(policy, SHORT), before, atol=1e-4, rtol=0)  # padding is masked
