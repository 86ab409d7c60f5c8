"""Learning to look, before learning to act: the vision side alone learns where things are.

Few demonstrations tell a network with fresh weights little about small objects: most actions follow from the robot's
own state, and attention to a handful of pixels is found late or never. What only the simulator knows tells it directly.
The layer that says it is thrown away, so that nothing but the vision side's weights is left of this.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import nn

from embodied.config import config
from embodied.errors import ConfigurationError
from embodied.random import derive_seed, generator
from policies.vla.policy import VLAPolicy

_WARMUP = 50
_CONSTANT = 1e-4  # deviation below which a number says nothing


@config
class SeeingConfig:
    """steps: of the optimiser that the vision side learns alone before the fit begins; 0 leaves it out. lr: learning
    rate, after a short rise. batch: observations a step."""

    steps: int = 0
    lr: float = 1.0e-3
    batch: int = 64

    def __post_init__(self) -> None:
        if self.steps < 0 or self.batch < 1:
            raise ValueError(f"steps is {self.steps}, batch {self.batch}; expected at least 0 and 1")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}; expected a number above 0")


def unsaid(state: torch.Tensor, privileged: torch.Tensor) -> torch.Tensor:
    """float32 [N, K]: the columns of `privileged` [N, P] that vary and that `state` [N, S] does not contain, each with
    mean 0 and deviation 1."""
    varies = privileged.std(dim=0) > _CONSTANT
    told = torch.zeros_like(varies)
    for column in state.unbind(dim=1):
        told |= (privileged - column[:, None]).abs().amax(dim=0) < _CONSTANT
    chosen = privileged[:, varies & ~told]
    if chosen.shape[1] == 0:
        return chosen
    return (chosen - chosen.mean(dim=0)) / chosen.std(dim=0)


def learn_to_see(
    policy: VLAPolicy,
    inputs: TensorDict,
    targets: torch.Tensor,
    options: SeeingConfig,
    seed: int,
    report: Callable[[int, float], None] = lambda step, error: None,
) -> float:
    """Fit the vision side (transformers and projector) of `policy` to `targets` float32 [N, K] of `inputs` [N].

    What is learnt from is the mean of a picture's embeddings, as the decoder's first attention, which is nearly even,
    reads them. report: called with each step's number and mean squared error. Returns the average of the last fifth:
    1 would be that of knowing nothing. Raises ConfigurationError without targets, and where the vision side is fixed.
    """
    if targets.shape[1] == 0:
        raise ConfigurationError("seeing.steps: the simulator tells nothing here that the state does not; set it to 0")
    model = policy.model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "seeing"))
        head = nn.Linear(model.architecture.llama.hidden_size, targets.shape[1]).to(policy.device)
    learnt = [*model.vision_backbone.parameters(), *model.projector.parameters()]
    if not any(p.requires_grad for p in learnt):
        raise ConfigurationError(
            "seeing.steps: the vision side of this policy is fixed (policy.lora trains adapters on the decoder alone); "
            "set it to 0, or leave policy.lora out"
        )
    parameters = [p for p in [*learnt, *head.parameters()] if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)
    draws = generator(seed, "seeing")
    errors = []
    policy.train()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, (step + 1) / _WARMUP)
        rows = torch.randint(0, len(targets), (options.batch,), generator=draws)
        seen = model.embed_pictures(policy.picture_planes(inputs[rows]))
        found = head(nn.functional.rms_norm(seen, seen.shape[-1:]).mean(dim=1))
        error = (found - targets[rows].to(policy.device)).square().mean()
        optimizer.zero_grad()
        error.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        errors.append(error.item())
        report(step + 1, errors[-1])
    policy.eval()
    last = errors[-max(1, len(errors) // 5) :]
    return sum(last) / len(last)
