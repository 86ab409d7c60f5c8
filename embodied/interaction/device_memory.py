"""Before a run: whether its policy can learn in the memory of one device at all, and what would."""

from __future__ import annotations

import math

import torch

from embodied.errors import ConfigurationError
from embodied.interaction.recipe import Recipe
from policies import footprint
from policies.vla.options import VLAConfig

GIB = 2**30


def device_bytes(device: str) -> int | None:
    """Memory of a GPU; None for other devices, whose memory is the machine's."""
    return torch.cuda.get_device_properties(device).total_memory if device.startswith("cuda") else None


def require_device_memory(recipe: Recipe, available: int | None) -> None:
    """Raise ConfigurationError where a learner's share of what `policies.footprint` counts for the recipe's policy is
    more than a device has, naming what fits.

    What is counted is a step on few decisions, and all of it is taken to be divided among the learner's workers, so
    only what is impossible is refused. available: bytes of one device; None where it is not known.
    """
    policy = recipe.policy
    if available is None or not isinstance(policy, VLAConfig):
        return
    needs = next((known for known in footprint.shipped() if known.name == policy.name), None)
    if needs is None:
        return
    workers = recipe.cluster.workers.get("learner", 1)
    whole = needs.full if policy.lora is None or needs.lora is None else needs.lora
    if whole / workers <= available:
        return
    fits = []
    if policy.lora is None and needs.lora is not None and needs.lora <= available:
        fits.append(f"adapters (policy.lora.rank=32) need {needs.lora / GIB:.0f} GiB")
    enough = math.ceil(whole / available)
    fits.append(f"{enough} learner workers or more (cluster.workers.learner={enough}) divide it among as many devices")
    raise ConfigurationError(
        f"{policy.name} needs at least {whole / workers / GIB:.0f} GiB on each learner's device for a step of "
        f"learning, and one has {available / GIB:.0f}. What fits: {'; '.join(fits)}."
    )
