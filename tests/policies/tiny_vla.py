"""Tiny OpenVLA policies, and inputs for them, of the tests beside it."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from embodied.random import RowNoise
from policies import openvla, openvla_oft
from policies.api import Interface, Sampling

KINDS = {"openvla": openvla, "openvla_oft": openvla_oft}
INSTRUCTIONS = ("pick up the red cube and move it to the green goal", "push the cube to the target")
TINY = Interface(
    state_dim=5,
    action_dim=4,
    action_low=(-1.0, -1.0, -1.0, -0.5),
    action_high=(1.0, 1.0, 1.0, 0.5),
    cameras=1,
    image_height=64,
    image_width=64,
    instructions=INSTRUCTIONS,
)
GREEDY = Sampling(decode="greedy")


@dataclasses.dataclass
class Shown:
    state: torch.Tensor
    images: torch.Tensor
    instruction: list[str]
    privileged: torch.Tensor | None = None


def shown(rows=4, cameras=1):
    generator = torch.Generator().manual_seed(5)
    images = torch.randint(0, 256, (rows, cameras, 64, 64, 3), generator=generator, dtype=torch.uint8)
    texts = [INSTRUCTIONS[i % 2] for i in range(rows)]
    return Shown(torch.randn(rows, TINY.state_dim, generator=generator), images, texts)


def build(kind, interface=TINY, seed=0, **options):
    torch.set_num_threads(1)
    module = KINDS[kind]
    return module.build(module.Config(name=f"{kind}/tiny", **options), interface, seed)


def noise(rows=4, start=0):
    return RowNoise(3, np.arange(start, start + rows), np.zeros(rows))


VARIANTS = [
    ("openvla", {}),
    ("openvla", {"chunk": 2, "recompute": "layers", "value": "action"}),
    ("openvla_oft", {}),
    ("openvla_oft", {"state": "token", "film": "language", "chunk": 3, "value": "action", "stop": "omit"}),
]
