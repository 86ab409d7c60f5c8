"""Counts what a policy needs by running it: on tensors without content where it is large.

See `policies.vla.memory` for how bytes are counted.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from tensordict import TensorDict

from policies import registry
from policies.api import Interface, Policy, Sampling
from policies.footprint import Footprint, find
from policies.names import split_name
from policies.openvla import OpenVLAPolicy
from policies.openvla_oft import OpenVLAOFTPolicy
from policies.vla import memory
from policies.vla.options import LoraOptions, VLAConfig
from policies.vla.policy import VLAPolicy

_CLASSES: dict[str, type[VLAPolicy]] = {"openvla": OpenVLAPolicy, "openvla_oft": OpenVLAOFTPolicy}
_SIDE = 64  # of the small policies' example pictures
_BOUNDS = {"action_dim": 7, "action_low": (-1.0,) * 7, "action_high": (1.0,) * 7}
_VLA_STATISTICS = "q01/q99 of the training data, from the checkpoint; else the environment's action bounds"
_NO_STATISTICS = "the environment's action bounds"


def measure(name: str) -> Footprint:
    """Count the footprint of `name` by running the policy: seconds for small ones, minutes for 7B."""
    name = find(name)
    return _measure_small(name) if name in ("mlp", "cnn") else _measure_vla(name)


def _measure_vla(name: str, act_batch: int = 8, learn_batch: int = 8) -> Footprint:
    kind, preset = split_name(name)
    policy_class, config = _CLASSES[kind], registry.config_class(name)
    interface = Interface(state_dim=8, cameras=1, **_BOUNDS)
    large = preset == "7b"
    recompute: Literal["nothing", "layers"] = "layers" if large else "nothing"

    def options(**changes: object) -> VLAConfig:
        return config(name=name, recompute=recompute, **changes)

    acts = options(precision="bfloat16" if large else "float32")
    adapters = options(precision=acts.precision, lora=LoraOptions())
    policy = memory.without_memory(policy_class, acts, interface)
    return Footprint(
        name=name,
        parameters=sum(p.numel() for p in policy.parameters()),
        precision=acts.precision,
        act_batch=act_batch,
        act=memory.acting(policy_class, acts, interface, act_batch),
        learn_batch=learn_batch,
        full=memory.learning(policy_class, options(), interface, learn_batch),
        lora=memory.learning(policy_class, adapters, interface, learn_batch),
        pictures=policy.pictures.size,
        cameras="the first" if policy.default_views == 1 else "all",
        statistics=_VLA_STATISTICS,
    )


def _measure_small(name: str, act_batch: int = 64, learn_batch: int = 256) -> Footprint:
    sees = name == "cnn"
    interface = Interface(
        state_dim=8 if sees else 42,
        cameras=int(sees),
        image_height=_SIDE if sees else 0,
        image_width=_SIDE if sees else 0,
        **_BOUNDS,
    )
    with memory.LiveBytes() as live:
        policy = registry.build(name, interface)
        parameters = sum(p.numel() for p in policy.parameters())
        with torch.no_grad():
            policy.eval().act(_seen(interface, policy, act_batch), Sampling(), memory.NoNoise(act_batch))
        act = live.peak
    with memory.LiveBytes() as live:
        policy = registry.build(name, interface)
        tokens = torch.zeros(learn_batch, policy.spec.chunk, policy.spec.tokens_per_action)
        memory.gradient_steps(policy, _seen(interface, policy, learn_batch), tokens, autocast=None)
        full = live.peak
    return Footprint(
        name=name,
        parameters=parameters,
        precision="float32",
        act_batch=act_batch,
        act=act,
        learn_batch=learn_batch,
        full=full,
        lora=None,
        pictures=None if sees else 0,
        cameras="all" if sees else "none",
        statistics=_NO_STATISTICS,
    )


@dataclasses.dataclass(frozen=True)
class _Seen:
    state: torch.Tensor
    images: torch.Tensor | None
    instruction: list[str]
    privileged: torch.Tensor | None = None


def _seen(interface: Interface, policy: Policy, rows: int) -> TensorDict:
    images = None
    if interface.cameras:
        shape = (rows, interface.cameras, interface.image_height, interface.image_width, 3)
        images = torch.zeros(shape, dtype=torch.uint8)
    return policy.prepare(_Seen(torch.zeros(rows, interface.state_dim), images, [""] * rows))
